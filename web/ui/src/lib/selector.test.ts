import { describe, expect, it } from 'vitest';
import { exactSearch, parseSearch } from './search';
import { filterText, parseFilter, selector } from './selector';
import { absolute, bounds, stepFor } from './timerange';

describe('selector', () => {
  it('is empty for everything', () => expect(selector('', [])).toBe('{}'));

  it('quotes values', () => {
    expect(selector('a"b\\c\nd', [{ name: 'pod', op: '=~', value: 'x\\.y' }])).toBe(
      '{service_name="a\\"b\\\\c\\nd",pod=~"x\\\\.y"}',
    );
  });

  it.each(['a=b', 'a!=b', 'a=~b', 'a!~b', 'a=', 'a==b', 'a=~=~', 'a=x y\nz'])('reads the filter %s', (text) => {
    const f = parseFilter(text);
    expect(f).toBeDefined();
    expect(filterText(f!)).toBe(text);
  });

  it.each(['', 'a', '=b', '1a=b', 'a b=c', 'a-b=c', 'a~b'])('refuses the filter %j', (text) => {
    expect(parseFilter(text)).toBeUndefined();
  });
});

describe('search', () => {
  it('finds words anywhere, in any case', () => {
    const m = parseSearch(' Exec ');
    expect(m?.test('execute')).toBe(true);
    expect(m?.test('main')).toBe(false);
  });

  it('takes signs as they are', () => {
    expect(parseSearch('(*Shop).')?.test('main.(*Shop).Checkout')).toBe(true);
    expect(parseSearch('[')?.test('[vdso]')).toBe(true);
  });

  it('finds exactly what is in quotes', () => {
    const m = parseSearch(exactSearch('main.f'));
    expect(m?.test('main.f')).toBe(true);
    expect(m?.test('main.f2')).toBe(false);
    expect(parseSearch(exactSearch('operator""_x'))?.test('operator""_x')).toBe(true);
  });

  it('knows regular expressions and says what is wrong with one', () => {
    expect(parseSearch('/^main\\./')?.test('main.f')).toBe(true);
    const bad = parseSearch('/(/');
    expect(bad?.error).toMatch(/unterminated/i);
    expect(bad?.test('(')).toBe(false);
  });

  it('is none for blanks', () => expect(parseSearch('  ')).toBeUndefined());
});

describe('time range', () => {
  it('takes the bounds from now', () => {
    expect(bounds({ kind: 'last', ms: 1000 }, 5000)).toEqual({ start: 4000, end: 5000 });
    expect(bounds({ kind: 'absolute', from: 1, to: 2 }, 5000)).toEqual({ start: 1, end: 2 });
  });

  it('refuses what is no range', () => {
    expect(absolute(10_000, 10_500)).toBeUndefined();
    expect(absolute(NaN, 5)).toBeUndefined();
    expect(absolute(-5_000, 5_000)).toBeUndefined();
  });

  it.each([60_000, 900_000, 3_600_000, 21_600_000, 30 * 86_400_000, 3_650 * 86_400_000])('makes at most 120 steps of %i ms', (ms) => {
    const step = stepFor(ms);
    expect(step).toBeGreaterThanOrEqual(15);
    expect(ms / 1000 / step).toBeLessThanOrEqual(120);
  });
});
