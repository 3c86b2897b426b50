import { describe, expect, it } from 'vitest';
import { FlameGraphDataContainer, type LevelItem } from '@grafana/flamegraph/data';
import { convertFlamebearer } from './flamebearer';
import { findPath, pathOf, rowOf, sandwichOf, step, toFrame } from './flameview';

/** total 100 → a 100 → b 100 → (f 60 → g 60 → f 40, h 30) */
const data = convertFlamebearer({
  names: ['total', 'a', 'b', 'f', 'g', 'h'],
  levels: [
    [0, 100, 0, 0],
    [0, 100, 0, 1],
    [0, 100, 10, 2],
    [0, 60, 0, 3, 0, 30, 30, 5],
    [0, 60, 20, 4],
    [0, 40, 40, 3],
  ].map((values) => ({ values })),
});
const make = (collapsing: boolean) => new FlameGraphDataContainer(toFrame(data, 'nanoseconds'), { collapsing });

describe('the flame graph’s own reading of our data', () => {
  it('has every node, where it belongs', () => {
    const c = make(false);
    expect(c.getLevels().map((l) => l.map((i) => [c.getLabel(i.itemIndexes[0]), i.start, i.value]))).toEqual([
      [['total', 0, 100]],
      [['a', 0, 100]],
      [['b', 0, 100]],
      [['f', 0, 60], ['h', 60, 30]],
      [['g', 0, 60]],
      [['f', 0, 40]],
    ]);
  });
});

describe('paths', () => {
  it('lead back to their item, in fresh data too', () => {
    const c = make(false);
    const g = c.getLevels()[4][0];
    expect(pathOf(c, g)).toEqual(['total', 'a', 'b', 'f', 'g']);
    expect(findPath(c, pathOf(c, g))).toBe(g);
    const fresh = make(false);
    expect(findPath(fresh, pathOf(c, g))).toBe(fresh.getLevels()[4][0]);
    expect(findPath(c, ['total', 'a', 'x'])).toBeUndefined();
    expect(findPath(c, ['x'])).toBeUndefined();
    expect(findPath(c, [])).toBeUndefined();
  });
});

describe('steps of the keyboard', () => {
  const walk = (collapsing: boolean, keys: Array<'up' | 'down' | 'left' | 'right'>) => {
    const c = make(collapsing);
    let at: LevelItem = c.getLevels()[0][0];
    const seen = [];
    for (const k of keys) {
      at = step(at, k, c.getCollapsedMap());
      seen.push(`${c.getLabel(at.itemIndexes[0])}@${rowOf(at, c.getCollapsedMap())}`);
    }
    return seen;
  };

  it('go to callees, callers and neighbours, and stop at the edges', () => {
    expect(walk(false, ['down', 'down', 'down', 'right', 'right', 'left', 'down', 'down', 'down', 'up'])).toEqual([
      'a@1', 'b@2', 'f@3', 'h@3', 'h@3', 'f@3', 'g@4', 'f@5', 'f@5', 'g@4',
    ]);
  });

  it('pass folded frames', () => {
    expect(walk(true, ['down', 'right', 'up'])).toEqual(['f@1', 'h@1', 'total@0']);
  });
});

describe('callers and callees', () => {
  it('count a recursion once', () => {
    const c = make(false);
    const s = sandwichOf(c, 'f')!;
    expect(s.callees[0][0].value).toBe(60);
    expect(s.callees.map((l) => l.map((i) => c.getLabel(i.itemIndexes[0])))).toEqual([['f'], ['g'], ['f']]);
    expect(s.callers.map((l) => l.map((i) => c.getLabel(i.itemIndexes[0])))).toEqual([['total'], ['a'], ['b'], ['f']]);
  });

  it('are none for a name that is not there', () => {
    expect(sandwichOf(make(false), '__proto__')).toBeUndefined();
    expect(sandwichOf(make(false), 'nobody')).toBeUndefined();
  });
});
