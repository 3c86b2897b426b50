// The flame graph as the query API sends it ("flamebearer": levels of
// quadruples), turned into a nested set in depth-first order, which is what the
// flame graph component and the table read.
//
// Format: https://github.com/grafana/pyroscope/blob/main/api/querier/v1/querier.proto,
// messages FlameGraph and Level. The answer may come from any server, so nothing
// in it is trusted: what doesn't fit is left out and counted in `damaged`.

import { toNumber } from './numbers';

/** The answer of SelectMergeStacktraces; every field may be missing. */
export interface Flamebearer {
  names?: unknown;
  levels?: unknown;
  total?: unknown;
}

/** One function, over all the places where it is called. Values in the profile's unit. */
export interface FunctionRow {
  name: string;
  /** Of the function itself. */
  self: number;
  /** With what it calls; recursion counts once. */
  total: number;
}

/** A profile: parallel arrays, one element a node, in depth-first order. Node 0 is the root. */
export interface FlameData {
  label: string[];
  level: number[];
  value: number[];
  self: number[];
  total: number;
  rows: FunctionRow[];
  /** Nodes that were left out or cut as they made no sense. */
  damaged: number;
}

export const MAX_NODES = 100_000;
export const MAX_DEPTH = 2_048;
const MAX_NAME = 4_096;
const UNKNOWN = '[unknown]';
const ROOT = 'total';

interface Block {
  start: number;
  end: number;
  self: number;
  name: string;
  children: Block[];
}

/** Converts an answer. Never throws; an unusable answer gives an empty profile. */
export function convertFlamebearer(input: Flamebearer | null | undefined): FlameData {
  const names = Array.isArray(input?.names) ? (input.names as unknown[]) : [];
  const levels = Array.isArray(input?.levels) ? (input.levels as unknown[]) : [];
  const state = { left: MAX_NODES, damaged: 0 };

  let parents: Block[] = [];
  let roots: Block[] = [];
  for (let depth = 0; depth < levels.length; depth++) {
    if (depth >= MAX_DEPTH || state.left <= 0) {
      state.damaged += countBlocks(levels.slice(depth));
      break;
    }
    const blocks = readLevel(levels[depth], names, state);
    if (depth === 0) {
      roots = blocks;
      parents = blocks;
    } else {
      parents = attach(parents, blocks, state);
    }
    if (parents.length === 0) {
      state.damaged += countBlocks(levels.slice(depth + 1));
      break;
    }
  }
  return flatten(singleRoot(roots), state.damaged);
}

/** The profile without a single sample. */
export const emptyProfile: FlameData = {
  label: [],
  level: [],
  value: [],
  self: [],
  total: 0,
  rows: [],
  damaged: 0,
};

function quadruples(level: unknown): unknown[] {
  const values = (level as { values?: unknown } | null)?.values;
  return Array.isArray(values) ? (values as unknown[]) : [];
}

function countBlocks(levels: unknown[]): number {
  return levels.reduce<number>((n, level) => n + Math.ceil(quadruples(level).length / 4), 0);
}

function readLevel(level: unknown, names: unknown[], state: { left: number; damaged: number }): Block[] {
  const values = quadruples(level);
  const blocks: Block[] = [];
  let position = 0;
  for (let i = 0; i < values.length; i += 4) {
    const [offset, total, self, index] = [0, 1, 2, 3].map((k) => toNumber(values[i + k]));
    if (i + 4 > values.length || !(offset >= 0) || !(total >= 0) || state.left <= 0) {
      // Where the next block begins can't be known any more.
      state.damaged += Math.ceil((values.length - i) / 4);
      break;
    }
    const start = position + offset;
    position = start + total;
    if (!Number.isFinite(position)) {
      state.damaged += Math.ceil((values.length - i) / 4);
      break;
    }
    if (total === 0) continue; // no samples: it would have no width
    if (!(self >= 0 && self <= total)) state.damaged++;
    const name = names[index];
    blocks.push({
      start,
      end: position,
      self: Math.min(self >= 0 ? self : 0, total),
      name: typeof name === 'string' && name !== '' ? name.slice(0, MAX_NAME) : UNKNOWN,
      children: [],
    });
    state.left--;
  }
  return blocks;
}

/** Hangs blocks below the parents that they lie in and returns those that found one. Both are in order. */
function attach(parents: Block[], blocks: Block[], state: { damaged: number }): Block[] {
  const kept: Block[] = [];
  let p = 0;
  for (const block of blocks) {
    while (p < parents.length && parents[p].end <= block.start) p++;
    const parent = parents[p];
    if (!parent || parent.start > block.start) {
      state.damaged++;
      continue;
    }
    if (block.end > parent.end) {
      state.damaged++;
      block.end = parent.end;
      block.self = Math.min(block.self, block.end - block.start);
    }
    parent.children.push(block);
    kept.push(block);
  }
  return kept;
}

function singleRoot(roots: Block[]): Block | undefined {
  if (roots.length <= 1) return roots[0];
  const size = roots.reduce((n, r) => n + r.end - r.start, 0);
  return { start: 0, end: size, self: 0, name: ROOT, children: roots };
}

function flatten(root: Block | undefined, damaged: number): FlameData {
  const out: FlameData = { label: [], level: [], value: [], self: [], total: 0, rows: [], damaged };
  if (!root) return out;
  const stack: Array<{ block: Block; level: number }> = [{ block: root, level: 0 }];
  for (let next = stack.pop(); next; next = stack.pop()) {
    const { block, level } = next;
    out.label.push(block.name);
    out.level.push(level);
    out.value.push(block.end - block.start);
    out.self.push(block.self);
    for (let i = block.children.length - 1; i >= 0; i--) {
      stack.push({ block: block.children[i], level: level + 1 });
    }
  }
  out.total = out.value[0];
  out.rows = functionRows(out);
  return out;
}

/** Sums up by function. The root is no function. */
function functionRows(data: FlameData): FunctionRow[] {
  const rows = new Map<string, FunctionRow & { open: number }>();
  const path: Array<{ open: number }> = [];
  for (let i = 1; i < data.label.length; i++) {
    while (path.length >= data.level[i]) path.pop()!.open--;
    const name = data.label[i];
    let row = rows.get(name);
    if (!row) {
      row = { name, self: 0, total: 0, open: 0 };
      rows.set(name, row);
    }
    row.self += data.self[i];
    if (row.open === 0) row.total += data.value[i];
    row.open++;
    path.push(row);
  }
  return [...rows.values()].map(({ name, self, total }) => ({ name, self, total }));
}

/** The sum over the topmost nodes whose function is in the set, so that nothing counts twice. */
export function shareOf(data: FlameData, labels: ReadonlySet<string>): number {
  let sum = 0;
  let skipBelow = Infinity;
  for (let i = 1; i < data.label.length; i++) {
    if (data.level[i] > skipBelow) continue;
    skipBelow = Infinity;
    if (labels.has(data.label[i])) {
      sum += data.value[i];
      skipBelow = data.level[i];
    }
  }
  return sum;
}
