// The agent's own documents: /api/v1/targets and /api/v1/status. Checked field
// by field, as the agent may be another version than the page that is open.

import { toCount } from '../lib/numbers';
import { getJSON } from './client';

export interface ProcessTarget {
  pid: number;
  comm: string;
  exe: string;
  /** ms since 1970; NaN if unknown. */
  started: number;
  /** "" if the process is no target. */
  service: string;
  job: string;
  labels: Record<string, string>;
  why: string;
  samples: number;
  dropped: Record<string, number>;
  /** User stacks by how they ended: "whole", or why they are cut. */
  stacks: Record<string, number>;
}

export interface UnmatchedTarget {
  job: string;
  labels: Record<string, string>;
  why: string;
}

export interface Targets {
  processes: ProcessTarget[];
  unmatched: UnmatchedTarget[];
}

const MAX_ROWS = 200_000;

type Dict = Record<string, unknown>;
const dict = (v: unknown): Dict => (typeof v === 'object' && v !== null && !Array.isArray(v) ? (v as Dict) : {});
const list = (v: unknown): unknown[] => (Array.isArray(v) ? (v as unknown[]).slice(0, MAX_ROWS) : []);
const text = (v: unknown): string => (typeof v === 'string' ? v : typeof v === 'number' ? String(v) : '');

function textMap(v: unknown): Record<string, string> {
  return Object.fromEntries(Object.entries(dict(v)).map(([k, x]) => [k, text(x)]));
}

function countMap(v: unknown): Record<string, number> {
  return Object.fromEntries(
    Object.entries(dict(v))
      .map(([k, x]) => [k, toCount(x)] as const)
      .filter(([, n]) => n > 0),
  );
}

export function readTargets(answer: unknown): Targets {
  const d = dict(answer);
  return {
    processes: list(d.processes).map((p) => {
      const x = dict(p);
      return {
        pid: toCount(x.pid),
        comm: text(x.comm),
        exe: text(x.exe),
        started: Date.parse(text(x.start_time)),
        service: text(x.service_name),
        job: text(x.job),
        labels: textMap(x.labels),
        why: text(x.why),
        samples: toCount(x.samples),
        dropped: countMap(x.dropped),
        stacks: countMap(x.stacks),
      };
    }),
    unmatched: list(d.unmatched).map((u) => {
      const x = dict(u);
      return { job: text(x.job), labels: textMap(x.labels), why: text(x.why) };
    }),
  };
}

export async function targets(signal?: AbortSignal): Promise<Targets> {
  return readTargets(await getJSON('api/v1/targets', signal));
}

/** The status as it comes: a JSON document. */
export async function status(signal?: AbortSignal): Promise<Dict> {
  return dict(await getJSON('api/v1/status', signal));
}
