// Numbers for people. Every value of the page goes through here, so that the
// flame graph, the table and the chart speak of the same thing in the same words.

const NS_STEPS: Array<[number, string]> = [
  [1e9, 's'],
  [1e6, 'ms'],
  [1e3, 'µs'],
  [1, 'ns'],
];

/** Three significant digits, never an exponent, for columns: 0.012, 1.20, 12.0, 123, 1,234. */
function fixed(v: number): string {
  if (!Number.isFinite(v)) return '–';
  const abs = Math.abs(v);
  if (abs >= 99.95) return Math.round(v).toLocaleString('en-US');
  return v.toFixed(abs >= 9.995 ? 1 : abs >= 0.9995 ? 2 : 3);
}

/** The same without zeros at the end: 0.012, 1.2, 12, 123, 1,234. */
export function digits(v: number): string {
  return fixed(v).replace(/(\.\d*?)0+$/, '$1').replace(/\.$/, '');
}

/** A duration in nanoseconds: 950 ns, 1.20 ms, 45.6 s, 12 min 5 s, 3 h 20 min. */
export function duration(ns: number): string {
  if (!Number.isFinite(ns)) return '–';
  if (ns < 0) return '-' + duration(-ns);
  const s = ns / 1e9;
  if (s >= 3599.5) {
    const minutes = Math.round(s / 60);
    return `${Math.floor(minutes / 60).toLocaleString('en-US')} h ${minutes % 60} min`;
  }
  if (s >= 119.5) {
    const seconds = Math.round(s);
    return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  }
  for (const [size, unit] of NS_STEPS) {
    if (ns >= size * 0.9995) return `${size === 1 ? digits(ns) : fixed(ns / size)} ${unit}`;
  }
  return ns === 0 ? '0 s' : `${digits(ns)} ns`;
}

/** Bytes in binary multiples. */
export function bytes(n: number): string {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let i = 0;
  while (Math.abs(n) >= 1023.5 && i < units.length - 1) {
    n /= 1024;
    i++;
  }
  return `${digits(n)} ${units[i]}`;
}

/** A whole number with separators. */
export function count(n: number): string {
  return Number.isFinite(n) ? Math.round(n).toLocaleString('en-US') : '–';
}

/** A value in a profile's unit. */
export function value(v: number, unit: string): string {
  switch (unit) {
    case 'nanoseconds':
    case 'ns':
      return duration(v);
    case 'bytes':
      return bytes(v);
    default:
      return count(v);
  }
}

/** A share of a whole: 12.3%, <0.1%. */
export function percent(part: number, whole: number): string {
  if (!(whole > 0) || !Number.isFinite(part)) return '–';
  const p = (100 * part) / whole;
  if (p > 0 && p < 0.1) return '<0.1%';
  return `${p >= 99.95 ? Math.round(p) : p.toFixed(1)}%`;
}

/** CPUs in use: 0.83 cores. */
export function cores(v: number): string {
  return `${digits(v)} ${v === 1 ? 'core' : 'cores'}`;
}

const two = (n: number) => String(n).padStart(2, '0');

/** The time of day in the reader's zone. */
export function clock(ms: number): string {
  const d = new Date(ms);
  return `${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}`;
}

/** Day and time in the reader's zone: 2026-12-01 10:02:30. */
export function dateTime(ms: number): string {
  const d = new Date(ms);
  return `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())} ${clock(ms)}`;
}

/** How long ago, in words. */
export function ago(ms: number): string {
  const s = Math.max(0, Math.round(ms / 1000));
  if (s < 60) return `${s} s ago`;
  if (s < 3600) return `${Math.round(s / 60)} min ago`;
  if (s < 48 * 3600) return `${Math.round(s / 3600)} h ago`;
  return `${Math.round(s / 86400)} days ago`;
}
