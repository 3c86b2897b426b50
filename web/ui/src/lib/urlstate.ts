// What is looked at, as it stands in the address: an address can be sent to
// somebody else, kept as a bookmark, and gone back to. Defaults are left out.
// What can't be read falls back to its default.

import { filterText, parseFilter, type Filter } from './selector';
import { absolute, DEFAULT_RANGE, lastText, parseLast, type Range } from './timerange';

export type Page = 'profiles' | 'targets' | 'status';
export type View = 'both' | 'flame' | 'table';
export type SortKey = 'self' | 'total' | 'name';

export interface State {
  page: Page;
  /** Profile type, such as "process_cpu:cpu:nanoseconds:cpu:nanoseconds"; "" is the first there is. */
  type: string;
  /** CPU time and time off the CPU beside each other, whatever the type. */
  side: boolean;
  /** service_name; "" is all services. */
  service: string;
  filters: Filter[];
  range: Range;
  live: boolean;
  search: string;
  view: View;
  sort: SortKey;
  desc: boolean;
  /** Frames that have nearly the same share as their caller are folded into it. */
  fold: boolean;
  /** The function whose callers and callees are shown; "" is none. */
  sandwich: string;
  /** Search of the targets page. */
  find: string;
  /** Which processes the targets page shows. */
  show: 'all' | 'profiled' | 'not';
}

export const DEFAULT_STATE: State = {
  page: 'profiles',
  type: '',
  side: false,
  service: '',
  filters: [],
  range: DEFAULT_RANGE,
  live: true,
  search: '',
  view: 'both',
  sort: 'self',
  desc: true,
  fold: false,
  sandwich: '',
  find: '',
  show: 'all',
};

const MAX_TEXT = 2_048;
const MAX_FILTERS = 50;

function oneOf<T extends string>(text: string | null, all: readonly T[], otherwise: T): T {
  return all.includes(text as T) ? (text as T) : otherwise;
}

/** Reads the query part of an address. */
export function parseState(query: string): State {
  const p = new URLSearchParams(query);
  const text = (name: string) => (p.get(name) ?? '').slice(0, MAX_TEXT);
  const from = p.get('from');
  const to = p.get('to');
  const sort = p.get('sort') ?? '';
  return {
    page: oneOf(p.get('page'), ['profiles', 'targets', 'status'], DEFAULT_STATE.page),
    type: text('type'),
    side: p.get('side') === 'on',
    service: text('service'),
    filters: p
      .getAll('filter')
      .slice(0, MAX_FILTERS)
      .map(parseFilter)
      .filter((f) => f !== undefined),
    range:
      (from && to ? absolute(Number(from), Number(to)) : undefined) ??
      parseLast(p.get('last') ?? '') ??
      DEFAULT_RANGE,
    live: p.get('live') !== 'off',
    search: text('search'),
    view: oneOf(p.get('view'), ['both', 'flame', 'table'], DEFAULT_STATE.view),
    sort: oneOf(sort.replace(/^-/, ''), ['self', 'total', 'name'], DEFAULT_STATE.sort),
    desc: sort === '' ? DEFAULT_STATE.desc : sort.startsWith('-'),
    fold: p.get('fold') === 'on',
    sandwich: text('sandwich'),
    find: text('find'),
    show: oneOf(p.get('show'), ['all', 'profiled', 'not'], DEFAULT_STATE.show),
  };
}

/** Writes the query part of an address, with its "?" unless it is empty. */
export function formatState(s: State): string {
  const p = new URLSearchParams();
  const put = (name: string, value: string, otherwise = '') => {
    if (value !== otherwise) p.set(name, value);
  };
  put('page', s.page, DEFAULT_STATE.page);
  put('type', s.type);
  if (s.side) p.set('side', 'on');
  put('service', s.service);
  for (const f of s.filters) p.append('filter', filterText(f));
  if (s.range.kind === 'absolute') {
    p.set('from', String(s.range.from));
    p.set('to', String(s.range.to));
  } else if (s.range.ms !== (DEFAULT_RANGE as { ms: number }).ms) {
    p.set('last', lastText(s.range.ms));
  }
  if (!s.live) p.set('live', 'off');
  put('search', s.search);
  put('view', s.view, DEFAULT_STATE.view);
  put('sort', (s.desc ? '-' : '') + s.sort, '-self');
  if (s.fold) p.set('fold', 'on');
  put('sandwich', s.sandwich);
  put('find', s.find);
  put('show', s.show, DEFAULT_STATE.show);
  const text = p.toString();
  return text === '' ? '' : '?' + text;
}
