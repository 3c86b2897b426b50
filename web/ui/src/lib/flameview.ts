// Positions in the flame graph that outlive a change of its data, and the steps
// of the keyboard through it.

import type { CollapsedMap, FlameGraphDataContainer, Frame, LevelItem } from '@grafana/flamegraph/data';
import { mergeParentSubtrees, mergeSubtrees } from '@grafana/flamegraph/tree';
import { FieldType } from '../grafana/data';
import type { FlameData } from './flamebearer';

/** The data frame that the flame graph reads. */
export function toFrame(data: FlameData, unit: string): Frame {
  const field = (name: string, type: string, values: unknown[], u?: string) => ({ name, type, values, config: { unit: u } });
  return {
    length: data.label.length,
    fields: [
      field('label', FieldType.string, data.label),
      field('level', FieldType.number, data.level),
      field('value', FieldType.number, data.value, unit),
      field('self', FieldType.number, data.self, unit),
    ],
  };
}

/** The functions from the root down to the item. */
export function pathOf(container: FlameGraphDataContainer, item: LevelItem): string[] {
  const path: string[] = [];
  for (let at: LevelItem | undefined = item; at; at = at.parents?.[0]) path.unshift(container.getLabel(at.itemIndexes[0]));
  return path;
}

/** The item at the path; undefined if the profile has no such stack. */
export function findPath(container: FlameGraphDataContainer, path: readonly string[]): LevelItem | undefined {
  let at: LevelItem | undefined = container.getLevels()[0]?.[0];
  if (!at || path.length === 0 || container.getLabel(at.itemIndexes[0]) !== path[0]) return undefined;
  for (const name of path.slice(1)) {
    at = at.children.find((c) => container.getLabel(c.itemIndexes[0]) === name);
    if (!at) return undefined;
  }
  return at;
}

/** Whether the item is drawn: in a folded group only the first is. */
function drawn(item: LevelItem, groups: CollapsedMap): boolean {
  const group = groups.get(item);
  return !group?.collapsed || group.items[0] === item;
}

/** The row in which the item is drawn. */
export function rowOf(item: LevelItem, groups: CollapsedMap): number {
  let row = -1;
  for (let at: LevelItem | undefined = item; at; at = at.parents?.[0]) if (drawn(at, groups)) row++;
  return row;
}

export type Step = 'up' | 'down' | 'left' | 'right';

/** The next drawn item in a direction; the item itself if there is none. Down is to the callees. */
export function step(item: LevelItem, to: Step, groups: CollapsedMap): LevelItem {
  if (to === 'up') {
    for (let at = item.parents?.[0]; at; at = at.parents?.[0]) if (drawn(at, groups)) return at;
    return item;
  }
  if (to === 'down') {
    let at = item;
    while (at.children.length > 0) {
      at = at.children.reduce((a, b) => (b.value > a.value ? b : a));
      if (drawn(at, groups)) return at;
    }
    return item;
  }
  // Siblings; those of a folded group are the siblings of its first.
  const siblings = item.parents?.[0]?.children ?? [item];
  const i = siblings.indexOf(item) + (to === 'right' ? 1 : -1);
  return siblings[i] ?? item;
}

/**
 * The callers and the callees of a function, merged over all its places;
 * undefined if it has none. Of a recursion only the outermost call counts, so
 * that the sum is the function's total and not a multiple of it.
 */
export function sandwichOf(container: FlameGraphDataContainer, label: string): { callers: LevelItem[][]; callees: LevelItem[][] } | undefined {
  const nodes = (container.getNodesWithLabel(label) ?? []).filter((n) => {
    for (let at = n.parents?.[0]; at; at = at.parents?.[0]) if (container.getLabel(at.itemIndexes[0]) === label) return false;
    return true;
  });
  if (nodes.length === 0) return undefined;
  return { callers: mergeParentSubtrees(nodes, container), callees: mergeSubtrees(nodes, container) };
}
