// What the profiles page asks for, kept and refreshed by the query client.

import { useQuery, type Query } from '@tanstack/react-query';
import { polling } from '../lib/polling';
import { bounds, stepFor, type Range } from '../lib/timerange';
import { causesOf, IDLE, WAIT } from '../lib/offcpu';
import { SERVICE } from '../lib/selector';
import { serverNow } from './client';
import { mergeStacktraces, selectSeries, type ProfileType, type Series, type Window } from './querier';

export interface Asked {
  type: string;
  /** The selector. */
  where: string;
  range: Range;
  live: boolean;
  /** The types that there are; undefined if that isn't known yet. */
  types: readonly ProfileType[] | undefined;
  enabled: boolean;
}

export interface SeriesResult {
  series: Series[];
  step: number;
  grid: Window;
  start: number;
  end: number;
}

/** The last answer stays until the next one is there, but not as one of another type. */
const keepPrevious =
  (type: string) =>
  <T>(previous: T | undefined, query: Query<T, Error, T, unknown[]> | undefined): T | undefined =>
    query?.queryKey[1] === type ? previous : undefined;

/** Says whether an answer without data is about to be followed by one: a fresh agent has nothing yet. */
const dataToCome = ({ type, where, types }: Asked) => where === '{}' && (!types?.length || types.some((t) => t.id === type));

/** The merged profile. */
export function useProfile(asked: Asked) {
  const { type, where, range, live, enabled } = asked;
  return useQuery({
    queryKey: ['profile', type, where, range] as unknown[],
    queryFn: async ({ signal }) => {
      const window = bounds(range, serverNow());
      return { data: await mergeStacktraces(type, where, window, signal), window };
    },
    enabled,
    ...polling<{ data: { total: number } }>(live, (d) => dataToCome(asked) && d.data.total === 0),
    placeholderData: keepPrevious(type),
  });
}

/** The sums over time, a series a service unless one is chosen. */
export function useSeries(asked: Asked, service: string) {
  const { type, where, range, live, enabled } = asked;
  const groupBy = service === '' ? [SERVICE] : [];
  return useQuery({
    queryKey: ['series', type, where, range, groupBy] as unknown[],
    queryFn: async ({ signal }): Promise<SeriesResult> => {
      const { start, end } = bounds(range, serverNow());
      const step = stepFor(end - start);
      // Steps that begin at the same moments each time keep the picture steady.
      const grid = { start: Math.floor(start / 1000 / step) * step * 1000, end };
      return { series: await selectSeries(type, where, grid, groupBy, step, signal), step, grid, start, end };
    },
    enabled,
    ...polling<{ series: unknown[] }>(live, (d) => dataToCome(asked) && d.series.length === 0),
    placeholderData: keepPrevious(type),
  });
}

/** The time off the CPU by what was waited for. */
export function useCauses(asked: Asked) {
  const { type, where, range, live, enabled } = asked;
  return useQuery({
    queryKey: ['causes', type, where, range] as unknown[],
    queryFn: async ({ signal }) => {
      const window = bounds(range, serverNow());
      const step = Math.max(1, Math.ceil((window.end - window.start) / 1000));
      return causesOf(await selectSeries(type, where, window, [WAIT, IDLE], step, signal));
    },
    enabled,
    ...polling<unknown[]>(live, (d) => dataToCome(asked) && d.length === 0),
    placeholderData: keepPrevious(type),
  });
}
