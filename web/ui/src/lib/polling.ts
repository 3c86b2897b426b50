// How often things are asked for again.

import type { Query } from '@tanstack/react-query';

/** A picture that is there is refreshed this often, in ms: a round of the agent. */
export const REFRESH = 15_000;
/** While there is nothing to see, so that a fresh agent shows up at once. */
export const WAITING = 1_000;
/** After a failure. */
export const RETRY = 3_000;

/** Options of a query that is refreshed while `live`; `isEmpty` says that an answer has nothing to see. */
export function polling<T>(live: boolean, isEmpty: (data: T) => boolean) {
  return {
    retry: false,
    refetchInterval: (query: Query<any, Error, any, any>) => {
      if (query.state.status === 'error') return RETRY;
      if (!live) return false as const;
      const data = query.state.data as T | undefined;
      return data === undefined || isEmpty(data) ? WAITING : REFRESH;
    },
  };
}
