// Time series → the stacked columns that the chart draws.

import type { Series } from '../api/querier';

export interface Stack {
  name: string;
  /** Mean over the range, in the chart's unit. */
  mean: number;
}

export interface ChartData {
  /** Seconds since 1970, one a step. */
  times: number[];
  /** The value of each stack alone, null where nothing at all is known. */
  values: Array<Array<number | null>>;
  /** The same, stacked up. */
  stacked: Array<Array<number | null>>;
  stacks: Stack[];
}

/** The name of what is left beside the largest series. */
export const OTHERS = 'others';
const MAX_STEPS = 20_000;

/**
 * Lays series on a grid of steps, keeps the `most` largest and adds the rest up.
 * `scale` turns a step's sum into the chart's unit. A step without a point of any
 * series is unknown; one in which others have a point counts as 0. The step that
 * goes beyond the end is not complete, and left out unless it is all there is.
 */
export function chartData(
  series: readonly Series[],
  start: number,
  end: number,
  step: number,
  name: (labels: Record<string, string>) => string,
  scale: number,
  most = 6,
): ChartData {
  const stepMs = step * 1000;
  const steps = Math.min(MAX_STEPS, Math.max(0, Math.ceil((end - start) / stepMs)) + 1);
  const known = new Array<boolean>(steps).fill(false);
  const byName = new Map<string, { sum: number; cells: Float64Array }>();
  for (const s of series) {
    const key = name(s.labels);
    let row = byName.get(key);
    if (!row) byName.set(key, (row = { sum: 0, cells: new Float64Array(steps) }));
    for (const p of s.points) {
      const at = Math.round((p.ms - start) / stepMs);
      if (at < 0 || at >= steps) continue;
      known[at] = true;
      row.cells[at] += p.value * scale;
      row.sum += p.value * scale;
    }
  }

  const complete = Math.min(steps, Math.floor((end - start) / stepMs) + 1);
  if (known.slice(0, complete).some(Boolean)) {
    for (let i = complete; i < steps; i++) {
      known[i] = false;
      for (const r of byName.values()) {
        r.sum -= r.cells[i];
        r.cells[i] = 0;
      }
    }
  }

  const rows = [...byName].map(([n, r]) => ({ name: n, ...r })).sort((a, b) => b.sum - a.sum || (a.name < b.name ? -1 : 1));
  const kept = rows.slice(0, rows.length > most + 1 ? most : most + 1);
  const rest = rows.slice(kept.length);
  if (rest.length > 0) {
    const cells = new Float64Array(steps);
    for (const r of rest) r.cells.forEach((v, i) => (cells[i] += v));
    kept.push({ name: `${rest.length} ${OTHERS}`, sum: rest.reduce((n, r) => n + r.sum, 0), cells });
  }

  const knownSteps = known.filter(Boolean).length;
  const values = kept.map((r) => known.map((k, i) => (k ? r.cells[i] : null)));
  const below = new Float64Array(steps);
  const stacked = values.map((row) => row.map((v, i) => (v === null ? null : (below[i] += v))));
  return {
    times: known.map((_, i) => (start + i * stepMs) / 1000),
    values,
    stacked,
    stacks: kept.map((r) => ({ name: r.name, mean: knownSteps > 0 ? r.sum / knownSteps : 0 })),
  };
}
