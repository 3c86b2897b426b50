// The range of time that is looked at: the last so-many minutes, or from–to.

export type Range = { kind: 'last'; ms: number } | { kind: 'absolute'; from: number; to: number };

const MINUTE = 60_000;

export const PRESETS: ReadonlyArray<{ text: string; words: string; ms: number }> = [
  { text: '1m', words: 'Last minute', ms: MINUTE },
  { text: '5m', words: 'Last 5 minutes', ms: 5 * MINUTE },
  { text: '15m', words: 'Last 15 minutes', ms: 15 * MINUTE },
  { text: '1h', words: 'Last hour', ms: 60 * MINUTE },
  { text: '6h', words: 'Last 6 hours', ms: 360 * MINUTE },
];

export const DEFAULT_RANGE: Range = { kind: 'last', ms: 15 * MINUTE };

/** The shortest range that can be asked for. */
export const MIN_RANGE = 1_000;
const MAX_LAST = 366 * 24 * 60 * MINUTE;
const MAX_TIME = 8.64e15; // of a Date

const UNITS: Record<string, number> = { s: 1_000, m: MINUTE, h: 60 * MINUTE, d: 1440 * MINUTE };

/** Reads "15m", "90s", "6h", "2d"; undefined if it is none. */
export function parseLast(text: string): Range | undefined {
  const m = /^(\d{1,6})([smhd])$/.exec(text);
  if (!m) return undefined;
  const ms = Number(m[1]) * UNITS[m[2]];
  return ms >= MIN_RANGE && ms <= MAX_LAST ? { kind: 'last', ms } : undefined;
}

/** The text that parseLast reads. */
export function lastText(ms: number): string {
  for (const unit of ['d', 'h', 'm']) {
    if (ms % UNITS[unit] === 0 && !(unit === 'd' && ms < 2 * UNITS.d)) return `${ms / UNITS[unit]}${unit}`;
  }
  return `${Math.max(1, Math.round(ms / 1_000))}s`;
}

/** A range from–to in ms since 1970, undefined if it is empty or no time at all. */
export function absolute(from: number, to: number): Range | undefined {
  const ok = Number.isFinite(from) && Number.isFinite(to) && from >= 0 && to <= MAX_TIME && to - from >= MIN_RANGE;
  return ok ? { kind: 'absolute', from: Math.round(from), to: Math.round(to) } : undefined;
}

/** The bounds of a range at a moment, in ms. */
export function bounds(range: Range, now: number): { start: number; end: number } {
  return range.kind === 'absolute'
    ? { start: range.from, end: range.to }
    : { start: now - range.ms, end: now };
}

const STEPS = [15, 30, 60, 120, 300, 600, 1_800, 3_600, 7_200, 21_600, 86_400];

/** The step of a time series over a range, in seconds: at most 120 steps, none shorter than a round. */
export function stepFor(ms: number): number {
  return STEPS.find((s) => ms / 1_000 / s <= 120) ?? Math.ceil(ms / 1_000 / 120);
}

/** The words for a range. */
export function rangeWords(range: Range, dateTime: (ms: number) => string, clock: (ms: number) => string): string {
  if (range.kind === 'last') {
    return PRESETS.find((p) => p.ms === range.ms)?.words ?? `Last ${lastText(range.ms)}`;
  }
  const sameDay = new Date(range.from).toDateString() === new Date(range.to).toDateString();
  return `${dateTime(range.from)} – ${sameDay ? clock(range.to) : dateTime(range.to)}`;
}
