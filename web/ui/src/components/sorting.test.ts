import { describe, expect, it } from 'vitest';
import { parseSearch } from '../lib/search';
import { selectProcesses } from '../pages/targets';
import type { ProcessTarget } from '../api/agent';
import { sortRows } from './functions';

const rows = [
  { name: 'b', self: 1, total: 9 },
  { name: 'a', self: 5, total: 9 },
  { name: 'c', self: 1, total: 2 },
];
const names = (list: Array<{ name: string }>) => list.map((r) => r.name).join('');

describe('functions', () => {
  it('sort by each column, equal ones by name', () => {
    expect(names(sortRows(rows, 'self', true))).toBe('abc');
    expect(names(sortRows(rows, 'self', false))).toBe('bca');
    expect(names(sortRows(rows, 'total', true))).toBe('abc');
    expect(names(sortRows(rows, 'name', true))).toBe('cba');
    expect(names(rows)).toBe('bac');
  });
});

const p = (pid: number, more: Partial<ProcessTarget>): ProcessTarget => ({
  pid, comm: '', exe: '', started: NaN, service: '', job: '', labels: {}, why: '', samples: 0, dropped: {}, stacks: {}, ...more,
});
const list = [
  p(3, { comm: 'shop', service: 'shop', samples: 5, labels: { pod: 'x1' }, started: 10 }),
  p(1, { comm: 'init', why: 'dropped by a rule' }),
  p(2, { comm: 'db', service: 'db', samples: 50, started: 5 }),
];
const pids = (l: ProcessTarget[]) => l.map((x) => x.pid).join('');

describe('processes', () => {
  it('are sorted, unknown ones last', () => {
    expect(pids(selectProcesses(list, undefined, 'all', 'pid', false))).toBe('123');
    expect(pids(selectProcesses(list, undefined, 'all', 'samples', true))).toBe('231');
    expect(pids(selectProcesses(list, undefined, 'all', 'service', false))).toBe('231');
    expect(pids(selectProcesses(list, undefined, 'all', 'service', true))).toBe('321');
    expect(pids(selectProcesses(list, undefined, 'all', 'started', false))).toBe('231');
    expect(pids(selectProcesses(list, undefined, 'all', 'started', true))).toBe('321');
  });

  it('are found by PID, name, label and reason', () => {
    const find = (text: string) => pids(selectProcesses(list, parseSearch(text), 'all', 'pid', false));
    expect(find('"2"')).toBe('2');
    expect(find('pod=x')).toBe('3');
    expect(find('rule')).toBe('1');
    expect(find('SHOP')).toBe('3');
  });

  it('are divided into profiled and not', () => {
    expect(pids(selectProcesses(list, undefined, 'profiled', 'pid', false))).toBe('23');
    expect(pids(selectProcesses(list, undefined, 'not', 'pid', false))).toBe('1');
  });
});
