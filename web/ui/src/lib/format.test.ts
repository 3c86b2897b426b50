import { describe, expect, it } from 'vitest';
import { ago, bytes, cores, count, digits, duration, percent, value } from './format';

describe('numbers for people', () => {
  it.each([
    [0, '0 s'],
    [0.4, '0.4 ns'],
    [1, '1 ns'],
    [950, '950 ns'],
    [999.9, '1.00 µs'],
    [1_234, '1.23 µs'],
    [45_600_000, '45.6 ms'],
    [999_999_999, '1.00 s'],
    [1_500_000_000, '1.50 s'],
    [59_990_000_000, '60.0 s'],
    [119_400_000_000, '119 s'],
    [119_600_000_000, '2 min 0 s'],
    [725_000_000_000, '12 min 5 s'],
    [3_599_400_000_000, '59 min 59 s'],
    [3_599_600_000_000, '1 h 0 min'],
    [12_000_000_000_000, '3 h 20 min'],
    [36e14, '1,000 h 0 min'],
    [-1_500_000_000, '-1.50 s'],
    [NaN, '–'],
    [Infinity, '–'],
  ])('duration(%f) is %s', (ns, text) => expect(duration(ns)).toBe(text));

  it.each([
    [0, '0'],
    [0.0004, '0'],
    [0.0123, '0.012'],
    [0.5, '0.5'],
    [1, '1'],
    [1.234, '1.23'],
    [12.34, '12.3'],
    [99.96, '100'],
    [123.4, '123'],
    [12_345, '12,345'],
  ])('digits(%f) is %s', (v, text) => expect(digits(v)).toBe(text));

  it.each([
    [0, 10, '0.0%'],
    [1, 3, '33.3%'],
    [1, 100_000, '<0.1%'],
    [10, 10, '100%'],
    [9.999, 10, '100%'],
    [1, 0, '–'],
    [NaN, 10, '–'],
  ])('percent(%f, %f) is %s', (a, b, text) => expect(percent(a, b)).toBe(text));

  it.each([
    [0, '0 B'],
    [1023, '1,023 B'],
    [1024, '1 KiB'],
    [1_048_576, '1 MiB'],
    [5e20, '454,747,351 TiB'],
  ])('bytes(%f) is %s', (v, text) => expect(bytes(v)).toBe(text));

  it('chooses by the unit', () => {
    expect(value(2e9, 'nanoseconds')).toBe('2.00 s');
    expect(value(2048, 'bytes')).toBe('2 KiB');
    expect(value(2048, 'count')).toBe('2,048');
    expect(count(1234.6)).toBe('1,235');
    expect(cores(1)).toBe('1 core');
    expect(cores(0.83)).toBe('0.83 cores');
  });

  it.each([
    [-5, '0 s ago'],
    [59_000, '59 s ago'],
    [90_000, '2 min ago'],
    [7_200_000, '2 h ago'],
    [300_000_000, '3 days ago'],
  ])('ago(%i) is %s', (ms, text) => expect(ago(ms)).toBe(text));
});
