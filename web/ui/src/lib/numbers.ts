/** A number from JSON, where 64-bit integers come as strings. NaN if it is neither. */
export function toNumber(v: unknown): number {
  if (typeof v === 'number') return v;
  if (typeof v === 'string' && v.trim() !== '') return Number(v);
  return NaN;
}

/** A count from JSON: 0 if it is missing or no number. */
export function toCount(v: unknown): number {
  const n = toNumber(v);
  return Number.isFinite(n) ? n : 0;
}
