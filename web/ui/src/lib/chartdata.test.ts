import { describe, expect, it } from 'vitest';
import { chartData } from './chartdata';

const s = (name: string, points: Array<[number, number]>) => ({
  labels: { service_name: name },
  points: points.map(([ms, value]) => ({ ms, value })),
});
const name = (l: Record<string, string>) => l.service_name;

describe('chartData', () => {
  it('turns nanoseconds a step into cores and stacks them, the largest first', () => {
    const d = chartData([s('a', [[15_000, 7.5e9], [30_000, 15e9]]), s('b', [[15_000, 30e9]])], 0, 30_000, 15, name, 1 / 15e9);
    expect(d.times).toEqual([0, 15, 30]);
    expect(d.stacks.map((x) => x.name)).toEqual(['b', 'a']);
    expect(d.values).toEqual([[null, 2, 0], [null, 0.5, 1]]);
    expect(d.stacked).toEqual([[null, 2, 0], [null, 2.5, 1]]);
    expect(d.stacks.map((x) => x.mean)).toEqual([1, 0.75]);
  });

  it('adds the small ones up', () => {
    const many = Array.from({ length: 30 }, (_, i) => s(`s${i}`, [[0, 100 - i]]));
    const d = chartData(many, 0, 0, 15, name, 1, 4);
    expect(d.stacks.map((x) => x.name)).toEqual(['s0', 's1', 's2', 's3', '26 others']);
    expect(d.stacked[4][0]).toBe(many.reduce((n, x) => n + x.points[0].value, 0));
  });

  it('does not name a single one "others"', () => {
    const d = chartData(Array.from({ length: 5 }, (_, i) => s(`s${i}`, [[0, 5 - i]])), 0, 0, 15, name, 1, 4);
    expect(d.stacks.map((x) => x.name)).toEqual(['s0', 's1', 's2', 's3', 's4']);
  });

  it('leaves out points outside the grid', () => {
    const d = chartData([s('a', [[-60_000, 5], [15_000, 1], [1e15, 9]])], 0, 30_000, 15, name, 1);
    expect(d.values).toEqual([[null, 1, null]]);
  });

  it('leaves out the step that is not complete yet, unless there is no other', () => {
    const both = chartData([s('a', [[15_000, 4], [30_000, 1]])], 0, 20_000, 15, name, 1);
    expect(both.values).toEqual([[null, 4, null]]);
    expect(both.stacks[0].mean).toBe(4);
    const one = chartData([s('a', [[30_000, 1]])], 0, 20_000, 15, name, 1);
    expect(one.values).toEqual([[null, null, 1]]);
  });

  it('is empty for an empty range', () => {
    expect(chartData([], 10, 0, 15, name, 1).stacks).toEqual([]);
  });
});
