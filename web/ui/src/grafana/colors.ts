// The colours of bars. The package finds the part of a name that decides the
// colour by trying regular expressions whose time grows with the square of the
// name's length, at each drawing anew. Names come from the programs that are
// profiled and may be long, so here only their beginning counts, once.

import { getBarColorByPackage as original, type Color } from '@grafana/flamegraph/colors';

export * from '@grafana/flamegraph/colors';

const LONGEST = 160;
const MOST = 50_000;
const known = new Map<string, Color>();

/** The colour of a function's bar; functions of one package have the same. */
export function getBarColorByPackage(label: string, theme: { isLight: boolean }): Color {
  const name = label.slice(0, LONGEST);
  const key = `${theme.isLight} ${name}`;
  let color = known.get(key);
  if (!color) {
    if (known.size >= MOST) known.clear();
    color = original(name, theme);
    known.set(key, color);
  }
  return color.clone(); // the drawing changes what it gets
}
