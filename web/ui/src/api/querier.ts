// The calls of querier.v1.QuerierService that the page makes. Answers are checked
// field by field: the server may be another version, or another program.

import { toCount, toNumber } from '../lib/numbers';
import { convertFlamebearer, type Flamebearer, type FlameData } from '../lib/flamebearer';
import { query } from './client';

export interface ProfileType {
  id: string;
  name: string;
  sampleType: string;
  sampleUnit: string;
}

export interface Series {
  labels: Record<string, string>;
  points: Array<{ ms: number; value: number }>;
}

/** A time range in ms since 1970. */
export interface Window {
  start: number;
  end: number;
}

const MAX_NODES = 8_192;
const MAX_LIST = 20_000;
const MAX_POINTS = 20_000;

const range = (w: Window) => ({ start: String(Math.floor(w.start)), end: String(Math.ceil(w.end)) });

function list(answer: unknown, field: string): unknown[] {
  const v = (answer as Record<string, unknown> | null)?.[field];
  return Array.isArray(v) ? (v as unknown[]).slice(0, MAX_LIST) : [];
}

const strings = (items: unknown[]) => items.filter((s): s is string => typeof s === 'string');

/** Splits "name:sample type:sample unit:period type:period unit". */
export function parseProfileType(id: string): ProfileType {
  const [name = '', sampleType = '', sampleUnit = ''] = id.split(':');
  return { id, name, sampleType, sampleUnit };
}

export async function profileTypes(w: Window, signal?: AbortSignal): Promise<ProfileType[]> {
  const answer = await query('ProfileTypes', range(w), signal);
  const ids = strings(list(answer, 'profileTypes').map((t) => (t as { ID?: unknown } | null)?.ID));
  return [...new Set(ids)].sort().map(parseProfileType);
}

export async function labelNames(matchers: string[], w: Window, signal?: AbortSignal): Promise<string[]> {
  const answer = await query('LabelNames', { matchers, ...range(w) }, signal);
  return strings(list(answer, 'names'));
}

export async function labelValues(name: string, matchers: string[], w: Window, signal?: AbortSignal): Promise<string[]> {
  const answer = await query('LabelValues', { name, matchers, ...range(w) }, signal);
  return strings(list(answer, 'names'));
}

export async function mergeStacktraces(type: string, labelSelector: string, w: Window, signal?: AbortSignal): Promise<FlameData> {
  const answer = await query(
    'SelectMergeStacktraces',
    { profileTypeID: type, labelSelector, ...range(w), maxNodes: String(MAX_NODES) },
    signal,
  );
  return convertFlamebearer((answer as { flamegraph?: Flamebearer } | null)?.flamegraph);
}

export async function selectSeries(
  type: string,
  labelSelector: string,
  w: Window,
  groupBy: string[],
  step: number,
  signal?: AbortSignal,
): Promise<Series[]> {
  const answer = await query('SelectSeries', { profileTypeID: type, labelSelector, ...range(w), groupBy, step }, signal);
  return list(answer, 'series').map((s) => {
    const labels: Record<string, string> = Object.create(null) as Record<string, string>;
    for (const l of list(s, 'labels') as Array<{ name?: unknown; value?: unknown } | null>) {
      if (typeof l?.name === 'string' && typeof l.value === 'string') labels[l.name] = l.value;
    }
    const points = list(s, 'points')
      .slice(0, MAX_POINTS)
      .map((p) => p as { timestamp?: unknown; value?: unknown } | null)
      .map((p) => ({ ms: toNumber(p?.timestamp), value: toCount(p?.value) }))
      .filter((p) => Number.isFinite(p.ms));
    return { labels, points };
  });
}
