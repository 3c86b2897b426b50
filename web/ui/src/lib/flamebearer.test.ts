import { describe, expect, it } from 'vitest';
import { convertFlamebearer, MAX_DEPTH, MAX_NODES, shareOf } from './flamebearer';

const level = (...values: unknown[]) => ({ values });

/** total 10 → a 7 (self 1) → b 4, c 2 (c under a begins 1 after b); total → b 3 */
const sound = {
  names: ['total', 'a', 'b', 'c'],
  levels: [
    level('0', '10', '0', '0'),
    level('0', '7', '1', '1', '0', '3', '3', '2'),
    level('0', '4', '4', '2', '1', '2', '2', '3'),
  ],
  total: '10',
};

describe('convertFlamebearer', () => {
  it('lays the levels out depth first', () => {
    const d = convertFlamebearer(sound);
    expect(d.label).toEqual(['total', 'a', 'b', 'c', 'b']);
    expect(d.level).toEqual([0, 1, 2, 2, 1]);
    expect(d.value).toEqual([10, 7, 4, 2, 3]);
    expect(d.self).toEqual([0, 1, 4, 2, 3]);
    expect(d.total).toBe(10);
    expect(d.damaged).toBe(0);
  });

  it('reads offsets as from the end of the block before, and finds the parent by position', () => {
    const d = convertFlamebearer({
      names: ['total', 'a', 'b', 'leaf'],
      levels: [level(0, 20, 5, 0), level(2, 5, 5, 1, 3, 10, 4, 2), level(12, 6, 6, 3)],
    });
    expect(d.label).toEqual(['total', 'a', 'b', 'leaf']);
    expect(d.level).toEqual([0, 1, 1, 2]);
    expect(d.damaged).toBe(0);
  });

  it('sums up by function', () => {
    const d = convertFlamebearer(sound);
    expect(d.rows).toEqual([
      { name: 'a', self: 1, total: 7 },
      { name: 'b', self: 7, total: 7 },
      { name: 'c', self: 2, total: 2 },
    ]);
  });

  it('counts a recursion once', () => {
    const d = convertFlamebearer({
      names: ['total', 'f', 'g'],
      levels: [level(0, 9, 0, 0), level(0, 9, 1, 1), level(0, 8, 2, 2), level(0, 6, 6, 1)],
    });
    expect(d.rows).toEqual([
      { name: 'f', self: 7, total: 9 },
      { name: 'g', self: 2, total: 8 },
    ]);
  });

  it.each([
    ['nothing', undefined],
    ['null', null],
    ['an empty object', {}],
    ['no levels', { names: ['total'], levels: [] }],
    ['levels of the wrong kind', { names: 'x', levels: 'y' }],
    ['a level that is null', { names: [], levels: [null] }],
    ['a profile of no samples', { names: ['total'], levels: [level('0', '0', '0', '0')], total: '0' }],
  ])('gives an empty profile for %s', (_, input) => {
    const d = convertFlamebearer(input as never);
    expect(d.label).toEqual([]);
    expect(d.total).toBe(0);
    expect(d.rows).toEqual([]);
  });

  it.each([
    ['a quadruple that is cut off', level(0, 4, 4, 1, 0, 3), 1],
    ['a negative offset', level(-1, 4, 4, 1), 1],
    ['a negative total', level(0, -4, 4, 1), 1],
    ['a value that is no number', level(0, 'x', 4, 1), 1],
    ['an infinite value', level('1e999', 4, 4, 1), 1],
    ['a block outside every parent', level(50, 4, 4, 1), 1],
    ['a block that reaches beyond its parent', level(8, 40, 40, 1), 1],
    ['more self than total', level(0, 4, 5, 1), 1],
    ['a negative self', level(0, 4, -5, 1), 1],
  ])('keeps the rest and counts %s', (_, bad, damaged) => {
    const d = convertFlamebearer({ names: ['total', 'a'], levels: [level(0, 10, 6, 0), bad] });
    expect(d.damaged).toBe(damaged);
    expect(d.label[0]).toBe('total');
    expect(d.value[0]).toBe(10);
    for (let i = 0; i < d.label.length; i++) {
      expect(d.self[i]).toBeGreaterThanOrEqual(0);
      expect(d.self[i]).toBeLessThanOrEqual(d.value[i]);
      expect(d.value[i]).toBeLessThanOrEqual(10);
    }
  });

  it('names what has no name', () => {
    const d = convertFlamebearer({
      names: ['total', '', 7],
      levels: [level(0, 9, 0, 0), level(0, 3, 3, 1, 0, 3, 3, 2, 0, 2, 2, 99, 0, 1, 1, 'x')],
    });
    expect(d.label.slice(1)).toEqual(['[unknown]', '[unknown]', '[unknown]', '[unknown]']);
    expect(d.rows).toEqual([{ name: '[unknown]', self: 9, total: 9 }]);
  });

  it('is not misled by names of object properties', () => {
    const d = convertFlamebearer({
      names: ['total', '__proto__', 'constructor', 'toString'],
      levels: [level(0, 6, 0, 0), level(0, 1, 1, 1, 0, 2, 2, 2, 0, 3, 3, 3)],
    });
    expect(d.rows.map((r) => [r.name, r.self])).toEqual([
      ['__proto__', 1],
      ['constructor', 2],
      ['toString', 3],
    ]);
  });

  it('puts several roots under one', () => {
    const d = convertFlamebearer({ names: ['x', 'y'], levels: [level(0, 4, 4, 0, 2, 6, 6, 1)] });
    expect(d.label).toEqual(['total', 'x', 'y']);
    expect(d.value).toEqual([10, 4, 6]);
  });

  it('bounds the depth', () => {
    const levels = Array.from({ length: MAX_DEPTH + 100 }, () => level(0, 5, 0, 0));
    const d = convertFlamebearer({ names: ['f'], levels });
    expect(d.label.length).toBe(MAX_DEPTH);
    expect(d.damaged).toBe(100);
  });

  it('bounds the nodes', () => {
    const wide: number[] = [];
    for (let i = 0; i < MAX_NODES + 50; i++) wide.push(0, 1, 1, 1);
    const d = convertFlamebearer({ names: ['total', 'f'], levels: [level(0, MAX_NODES + 50, 0, 0), { values: wide }] });
    expect(d.label.length).toBe(MAX_NODES);
    expect(d.damaged).toBe(51);
  });

  it('survives random levels, and what it gives is a tree', () => {
    let seed = 1;
    const rnd = (n: number) => (seed = (seed * 1103515245 + 12345) % 2147483648) % n;
    for (let round = 0; round < 300; round++) {
      const levels = Array.from({ length: rnd(6) }, () =>
        level(...Array.from({ length: rnd(30) }, () => [rnd(50), String(rnd(50)), -rnd(5), NaN, null, {}, '1e400'][rnd(100) < 90 ? rnd(2) : rnd(7)])),
      );
      const d = convertFlamebearer({ names: ['a', 'b'], levels });
      const below: number[] = [];
      for (let i = 0; i < d.label.length; i++) {
        expect(d.level[i]).toBeLessThanOrEqual(i === 0 ? 0 : d.level[i - 1] + 1);
        below[d.level[i]] = d.value[i];
        if (d.level[i] > 0) expect((below[d.level[i] - 1] -= d.value[i])).toBeGreaterThanOrEqual(0);
      }
    }
  });
});

describe('shareOf', () => {
  it('counts what lies below a hit only once', () => {
    const d = convertFlamebearer(sound);
    expect(shareOf(d, new Set(['a', 'b']))).toBe(10);
    expect(shareOf(d, new Set(['b']))).toBe(7);
    expect(shareOf(d, new Set(['c', 'a']))).toBe(7);
    expect(shareOf(d, new Set(['none']))).toBe(0);
  });
});
