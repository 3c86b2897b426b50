// What @grafana/flamegraph needs of lodash.

/** Groups items under a key, in the order in which keys first appear. */
export function groupBy<T>(items: readonly T[], key: (item: T) => string): Record<string, T[]> {
  // Not a plain object: a function may be called "__proto__".
  const groups = Object.create(null) as Record<string, T[]>;
  for (const item of items) (groups[key(item)] ??= []).push(item);
  return groups;
}
