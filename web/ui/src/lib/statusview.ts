// The agent's status document, sorted for display. Only the shape of its parts
// is known here, not their names: an account of samples is shown as an account
// wherever it stands, a list of records as a table, and so on, so that the page
// shows what a newer agent says too.

import { ago, bytes, count, dateTime, digits } from './format';
import { toCount, toNumber } from './numbers';

/** What came in, what left as it should, what was lost and why. In samples. */
export interface Account {
  name: string;
  in: number;
  out: number;
  dropped: Array<{ reason: string; n: number }>;
}

export interface StatusView {
  /** Accounts, that of the sampler first. */
  accounts: Account[];
  /** Named facts, in groups. The group "" is the agent itself. */
  groups: Array<{ name: string; facts: Array<[string, string]> }>;
  tables: Array<{ name: string; columns: string[]; rows: string[][] }>;
}

const MAX_GROUPS = 60;
const MAX_FACTS = 200;
const MAX_TABLE = 100;
const MAX_CELL = 300;

type Dict = Record<string, unknown>;
const isDict = (v: unknown): v is Dict => typeof v === 'object' && v !== null && !Array.isArray(v);

function isAccount(v: unknown): v is Dict {
  return isDict(v) && 'in' in v && 'out' in v && (isDict(v.dropped) || v.dropped == null) && !Number.isNaN(toNumber(v.in));
}

function account(name: string, v: Dict): Account {
  const dropped = Object.entries(isDict(v.dropped) ? v.dropped : {})
    .map(([reason, n]) => ({ reason, n: toCount(n) }))
    .filter((d) => d.n > 0)
    .sort((a, b) => b.n - a.n);
  return { name, in: toCount(v.in), out: toCount(v.out), dropped };
}

/** What an account has taken in and neither given out nor lost. */
export function pending(a: Account): number {
  return Math.max(0, a.in - a.out - lost(a));
}

export function lost(a: Account): number {
  return a.dropped.reduce((n, d) => n + d.n, 0);
}

/** "max_bytes" → "Max bytes"; "goVersion" → "Go version". */
export function words(key: string): string {
  const text = key.replace(/[_-]+/g, ' ').replace(/([a-z\d])([A-Z])/g, (_, a: string, b: string) => `${a} ${b.toLowerCase()}`).trim();
  return text.charAt(0).toUpperCase() + text.slice(1);
}

const TIME = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d/;

/** A value in words, by its key's ending and its own form. */
export function fact(key: string, v: unknown, now: number): string {
  if (v === null || v === undefined || v === '') return '–';
  if (typeof v === 'boolean') return v ? 'yes' : 'no';
  if (typeof v === 'string') {
    const t = TIME.test(v) ? Date.parse(v) : NaN;
    // Go's zero time is the year 1.
    if (!Number.isNaN(t)) return t < 0 ? 'never' : `${dateTime(t)} (${ago(now - t)})`;
    return v.slice(0, 4_000);
  }
  if (typeof v === 'number') {
    if (/bytes$/i.test(key)) return bytes(v);
    if (/seconds$/i.test(key)) return `${digits(v)} s`;
    return Number.isInteger(v) ? count(v) : digits(v);
  }
  if (Array.isArray(v) && v.every((x) => typeof x !== 'object')) return v.slice(0, 200).join(', ') || '–';
  return JSON.stringify(v).slice(0, 4_000);
}

/** Sorts a status document. Never throws. */
export function viewStatus(doc: Dict, now: number): StatusView {
  const view: StatusView = { accounts: [], groups: [], tables: [] };
  const own: Array<[string, string]> = [];

  const visit = (name: string, v: unknown, depth: number) => {
    if (isAccount(v)) {
      view.accounts.push(account(name, v));
    } else if (isDict(v) && depth < 3) {
      const facts: Array<[string, string]> = [];
      for (const [k, x] of Object.entries(v).slice(0, MAX_FACTS)) {
        if (isDict(x) || isRecords(x)) visit(isAccount(x) ? k : `${name} ${words(k).toLowerCase()}`, x, depth + 1);
        else facts.push([words(k), fact(k, x, now)]);
      }
      if (facts.length > 0 && view.groups.length < MAX_GROUPS) view.groups.push({ name: words(name), facts });
    } else if (isRecords(v)) {
      const columns = [...new Set(v.flatMap((r) => Object.keys(r)))].slice(0, 12);
      const rows = v.slice(0, MAX_TABLE).map((r) => columns.map((c) => fact(c, r[c], now).slice(0, MAX_CELL)));
      if (v.length > rows.length) rows.push([`and ${count(v.length - rows.length)} more`]);
      view.tables.push({ name: words(name), columns: columns.map(words), rows });
    } else {
      own.push([words(name), fact(name, v, now)]);
    }
  };
  for (const [k, v] of Object.entries(doc).slice(0, MAX_FACTS)) visit(k, v, 0);

  if (own.length > 0) view.groups.unshift({ name: '', facts: own });
  const first = view.accounts.findIndex((a) => ['session', 'samples', 'sampler'].includes(a.name));
  if (first > 0) view.accounts.unshift(...view.accounts.splice(first, 1));
  return view;
}

function isRecords(v: unknown): v is Dict[] {
  return Array.isArray(v) && v.length > 0 && v.every(isDict);
}

/** What a reason for lost samples means and what can be done. The reasons are those of internal/ledger. */
export const REASON_WORDS: Record<string, string> = {
  unknown_process: 'The process was not known when it was sampled.',
  no_target: 'The process belongs to no target: nobody asked for its profile. The Targets page says why.',
  process_gone: 'The process ended before anything was learnt of it.',
  stack_map_full: 'The kernel map of stacks was full. A larger map keeps them.',
  counts_map_full: 'The kernel map of counts was full. A larger map keeps them.',
  idle: 'The thread waited for work, and profiles.off_cpu.idle leaves that out.',
  round_abandoned: 'The agent stopped, or failed, in the middle of a round.',
  encode_failed: 'The profile could not be encoded; the log has the error.',
  queue_full: 'The queue in memory was full, so the oldest were dropped: the server is too slow or away.',
  spool_full: 'The spool on disk was full, so the oldest were dropped: the server was away for too long.',
  too_old: 'The server would have refused them as too old.',
  rejected_by_server: 'The server refused them for good; the log has its words.',
  retries_exhausted: 'The server did not take them, however often they were offered.',
  shutdown: 'They were not delivered yet when the agent stopped.',
  store_failed: 'The embedded store could not write them; the log has the error.',
};
