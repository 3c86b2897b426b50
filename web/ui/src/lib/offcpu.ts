// Time off the CPU: the labels that its samples have beyond those of the target, and
// the filters that choose among them. Samples of CPU time have neither label.

import type { Series } from '../api/querier';
import { filterText, type Filter } from './selector';

export const CPU = 'process_cpu:cpu:nanoseconds:cpu:nanoseconds';
export const OFF_CPU = 'off_cpu:off_cpu:nanoseconds::';

/** What a thread waited for. */
export const WAIT = 'wait';
/** "true" on threads that wait for work. */
export const IDLE = 'idle';

/** What the totals mean; they surprise who expects the time that passed. */
export const ADDED_UP = 'Added up over all threads, so it can be more than the time that passed';

interface Words {
  name: string;
  meaning: string;
}

const CAUSES: Record<string, Words> = {
  lock: { name: 'lock', meaning: 'for a lock, a condition or another futex' },
  disk: { name: 'disk', meaning: 'for a disk or a file system' },
  network: { name: 'network', meaning: 'for a socket' },
  sleep: { name: 'sleep', meaning: 'until a time: it slept' },
  pipe: { name: 'pipe', meaning: 'for a pipe' },
  poll: { name: 'poll', meaning: 'for any of several events: poll, select, epoll' },
  page_fault: { name: 'page fault', meaning: 'for a page of its memory' },
  run_queue: { name: 'run queue', meaning: 'for a CPU: it could run, but others did' },
  other: { name: 'other', meaning: 'for something else' },
  '': { name: 'not known', meaning: 'since before the agent could see why' },
};

/** The words for a value of the label `wait`. */
export function causeWords(wait: string): Words {
  return Object.hasOwn(CAUSES, wait) ? CAUSES[wait] : { name: wait, meaning: `for ${wait}` };
}

const isLabelOfWaits = (f: Filter) => f.name === WAIT || f.name === IDLE;
const picks = (f: Filter) => f.name === WAIT && f.op === '=';
// Labels that are missing are "" to the store, so both leave out the idle and nothing else.
const omitsIdle = (f: Filter) => ['idle!=true', 'idle='].includes(filterText(f));

/** Says whether a filter narrows profiles of the type; one that doesn't is not sent. */
export function applies(type: string, f: Filter): boolean {
  return type !== CPU || !isLabelOfWaits(f);
}

/** The value of `wait` that is picked; undefined if none is. */
export function pickedWait(filters: readonly Filter[]): string | undefined {
  return filters.find(picks)?.value;
}

/** The filters with another value of `wait` picked; with none, if it is the one that was. */
export function pickWait(filters: readonly Filter[], wait: string): Filter[] {
  const rest = filters.filter((f) => !picks(f));
  return pickedWait(filters) === wait ? rest : [...rest, { name: WAIT, op: '=', value: wait }];
}

/** Says whether idle threads are left out. */
export function idleOmitted(filters: readonly Filter[]): boolean {
  return filters.some(omitsIdle);
}

/** The filters with idle threads left out, or with them. */
export function omitIdle(filters: readonly Filter[], omit: boolean): Filter[] {
  return omit
    ? [...filters.filter((f) => f.name !== IDLE), { name: IDLE, op: '!=', value: 'true' }]
    : filters.filter((f) => !omitsIdle(f));
}

/** The filters without what is chosen by pickWait and omitIdle: what there is to choose from. */
export function unpicked(filters: readonly Filter[]): Filter[] {
  return filters.filter((f) => !picks(f) && !omitsIdle(f));
}

/** The time of one cause, in nanoseconds. */
export interface Cause {
  wait: string;
  busy: number;
  idle: number;
}

/** Adds up series that are grouped by `wait` and `idle`. */
export function causesOf(series: readonly Series[]): Cause[] {
  const byWait = new Map<string, Cause>();
  for (const s of series) {
    const wait = s.labels[WAIT] ?? '';
    let cause = byWait.get(wait);
    if (!cause) byWait.set(wait, (cause = { wait, busy: 0, idle: 0 }));
    cause[s.labels[IDLE] === 'true' ? 'idle' : 'busy'] += s.points.reduce((sum, p) => sum + p.value, 0);
  }
  return [...byWait.values()];
}

export interface Breakdown {
  /** Largest first; those without any time are left out. */
  causes: Array<Cause & { total: number }>;
  total: number;
  /** Of idle threads, whether or not they are left out. */
  idle: number;
}

/** The causes as they are shown, with idle threads or without. */
export function breakdown(causes: readonly Cause[], withoutIdle: boolean): Breakdown {
  const shown = causes
    .map((c) => (withoutIdle ? { ...c, idle: 0, total: c.busy } : { ...c, total: c.busy + c.idle }))
    .filter((c) => c.total > 0)
    .sort((a, b) => b.total - a.total || (a.wait < b.wait ? -1 : 1));
  return {
    causes: shown,
    total: shown.reduce((sum, c) => sum + c.total, 0),
    idle: causes.reduce((sum, c) => sum + c.idle, 0),
  };
}
