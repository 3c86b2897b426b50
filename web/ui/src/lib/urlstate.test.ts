import { describe, expect, it } from 'vitest';
import { DEFAULT_STATE, formatState, parseState, type State } from './urlstate';

const full: State = {
  page: 'targets',
  type: 'off_cpu:off_cpu:nanoseconds::',
  side: true,
  service: 'a b&c="d"',
  filters: [
    { name: 'pod', op: '=~', value: 'x.*|y=z' },
    { name: 'span', op: '!=', value: '' },
    { name: 'path', op: '!~', value: 'ü\n"' },
    { name: 'n', op: '=', value: '=1' },
  ],
  range: { kind: 'absolute', from: 1_700_000_000_000, to: 1_700_000_900_000 },
  live: false,
  search: '/main\\..*/',
  view: 'table',
  sort: 'name',
  desc: false,
  fold: true,
  sandwich: 'f<int>(char*)',
  find: 'pid',
  show: 'not',
};

describe('state in the address', () => {
  it('leaves the defaults out', () => {
    expect(formatState(DEFAULT_STATE)).toBe('');
    expect(parseState('')).toEqual(DEFAULT_STATE);
  });

  it('comes back as it went', () => {
    expect(parseState(formatState(full))).toEqual(full);
  });

  it.each([
    ['1m', 60_000],
    ['5m', 300_000],
    ['1h', 3_600_000],
    ['6h', 21_600_000],
    ['90s', 90_000],
    ['2d', 172_800_000],
  ])('keeps the last %s', (text, ms) => {
    const state = parseState(`?last=${text}`);
    expect(state.range).toEqual({ kind: 'last', ms });
    expect(formatState(state)).toBe(`?last=${text}`);
  });

  it.each([
    'page=x&view=y&sort=z&show=a&side=x',
    'last=0m',
    'last=999999d',
    'last=-5m',
    'from=5&to=5',
    'from=10&to=5',
    'from=x&to=y',
    'from=1e300&to=2e300',
    'from=5',
    'filter=&filter=%3Dx&filter=1a%3Db&filter=a',
    'page=__proto__',
  ])('falls back to the default: %s', (query) => {
    expect({ ...parseState('?' + query), desc: true }).toEqual(DEFAULT_STATE);
  });

  it('bounds what it takes', () => {
    const state = parseState('?service=' + 'x'.repeat(10_000) + '&filter=a%3D'.repeat(500));
    expect(state.service.length).toBe(2048);
    expect(state.filters.length).toBeLessThanOrEqual(50);
  });
});
