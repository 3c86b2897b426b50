import { describe, expect, it } from 'vitest';
import type { Series } from '../api/querier';
import { applies, breakdown, causesOf, causeWords, CPU, idleOmitted, OFF_CPU, omitIdle, pickedWait, pickWait, unpicked } from './offcpu';
import { parseFilter, selector, type Filter } from './selector';

const filters = (...texts: string[]): Filter[] => texts.map((t) => parseFilter(t)!);
const series = (labels: Record<string, string>, ...values: number[]): Series => ({ labels, points: values.map((value, ms) => ({ ms, value })) });

describe('filters of waits', () => {
  it('picks a cause, another, and none', () => {
    const pod = filters('pod=a');
    const lock = pickWait(pod, 'lock');
    expect(selector('x', lock)).toBe('{service_name="x",pod="a",wait="lock"}');
    const disk = pickWait(lock, 'disk');
    expect(selector('', disk)).toBe('{pod="a",wait="disk"}');
    expect(pickedWait(disk)).toBe('disk');
    expect(pickWait(disk, 'disk')).toEqual(pod);
    expect(pickedWait(pod)).toBeUndefined();
  });

  it('picks the time without a cause', () => {
    const none = pickWait([], '');
    expect(selector('', none)).toBe('{wait=""}');
    expect(pickedWait(none)).toBe('');
    expect(pickWait(none, '')).toEqual([]);
  });

  it('leaves out idle threads and takes them back', () => {
    const without = omitIdle(filters('pod=a', 'idle=true'), true);
    expect(selector('', without)).toBe('{pod="a",idle!="true"}');
    expect(idleOmitted(without)).toBe(true);
    expect(omitIdle(without, false)).toEqual(filters('pod=a'));
  });

  it.each(['idle!=true', 'idle='])('knows that %s leaves them out', (text) => {
    expect(idleOmitted(filters(text))).toBe(true);
    expect(omitIdle(filters(text), false)).toEqual([]);
  });

  it('keeps what was typed', () => {
    const typed = filters('wait=~lock|disk', 'wait!=sleep', 'idle=true');
    expect(pickedWait(typed)).toBeUndefined();
    expect(idleOmitted(typed)).toBe(false);
    expect(unpicked([...typed, ...filters('wait=lock', 'idle!=true')])).toEqual(typed);
  });

  it('does not ask CPU time for them', () => {
    const all = filters('pod=a', 'wait=lock', 'idle!=true');
    expect(all.filter((f) => applies(CPU, f))).toEqual(filters('pod=a'));
    expect(all.filter((f) => applies(OFF_CPU, f))).toEqual(all);
  });
});

describe('time by cause', () => {
  const causes = causesOf([
    series({ wait: 'poll', idle: 'true' }, 500, 400),
    series({ wait: 'lock', idle: 'true' }, 100),
    series({ wait: 'lock' }, 20, 30),
    series({ wait: 'disk' }, 0),
    series({ wait: 'pipe' }, 60),
    series({}, 5),
  ]);

  it('has the largest first, with the idle threads', () => {
    const b = breakdown(causes, false);
    expect(b.causes.map((c) => [c.wait, c.total, c.idle])).toEqual([
      ['poll', 900, 900],
      ['lock', 150, 100],
      ['pipe', 60, 0],
      ['', 5, 0],
    ]);
    expect([b.total, b.idle]).toEqual([1115, 1000]);
  });

  it('and without them, and says how much they are', () => {
    const b = breakdown(causes, true);
    expect(b.causes.map((c) => [c.wait, c.total, c.idle])).toEqual([
      ['pipe', 60, 0],
      ['lock', 50, 0],
      ['', 5, 0],
    ]);
    expect([b.total, b.idle]).toEqual([115, 1000]);
  });

  it('is empty for nothing', () => {
    expect(breakdown(causesOf([]), false)).toEqual({ causes: [], total: 0, idle: 0 });
  });
});

describe('words', () => {
  it.each([
    ['page_fault', 'page fault'],
    ['', 'not known'],
    ['gpu', 'gpu'],
    ['constructor', 'constructor'],
  ])('%j is %s', (wait, name) => expect(causeWords(wait).name).toBe(name));
});
