import { describe, expect, it } from 'vitest';
import ledger from '../../../../internal/ledger/ledger.go?raw';
import { fact, lost, pending, REASON_WORDS, viewStatus, words } from './statusview';

const NOW = Date.UTC(2026, 11, 1, 10);

describe('viewStatus', () => {
  it('finds accounts wherever they stand, that of the sampler first', () => {
    const v = viewStatus(
      { sinks: { store: { in: '5', out: 3, dropped: null } }, session: { in: 100, out: 80, dropped: { no_target: 5, x: 0, process_gone: 7 } } },
      NOW,
    );
    expect(v.accounts.map((a) => a.name)).toEqual(['session', 'store']);
    expect(v.accounts[0].dropped).toEqual([{ reason: 'process_gone', n: 7 }, { reason: 'no_target', n: 5 }]);
    expect(lost(v.accounts[0])).toBe(12);
    expect(pending(v.accounts[0])).toBe(8);
    expect(pending(v.accounts[1])).toBe(2);
  });

  it('sorts facts, groups and records', () => {
    const v = viewStatus({ version: '1', store: { enabled: true, max_bytes: 1024 }, endpoints: [{ url: 'u', n: 1 }, { url: 'v' }] }, NOW);
    expect(v.groups).toEqual([
      { name: '', facts: [['Version', '1']] },
      { name: 'Store', facts: [['Enabled', 'yes'], ['Max bytes', '1 KiB']] },
    ]);
    expect(v.tables).toEqual([{ name: 'Endpoints', columns: ['Url', 'N'], rows: [['u', '1'], ['v', '–']] }]);
  });

  it.each([{}, { a: null }, { a: { b: { c: { d: { e: 1 } } } } }, { a: [] }, { a: [1, {}] }, { in: 1, out: 2 }])('takes %j', (doc) => {
    expect(() => viewStatus(doc, NOW)).not.toThrow();
  });
});

describe('fact', () => {
  it.each([
    ['a', true, 'yes'],
    ['a', '', '–'],
    ['x_seconds', 1.5, '1.5 s'],
    ['at', '2026-12-01T09:59:30Z', '30 s ago'],
    ['at', '0001-01-01T00:00:00Z', 'never'],
    ['list', ['a', 'b'], 'a, b'],
  ])('%s = %j', (key, v, text) => expect(fact(key, v, NOW)).toContain(text));

  it('makes words of keys', () => {
    expect(words('max_bytes')).toBe('Max bytes');
    expect(words('goVersion')).toBe('Go version');
  });
});

describe('reasons', () => {
  it('are explained, every one that the agent has', () => {
    const reasons = [...ledger.matchAll(/\bReason\s+=\s+"([a-z_]+)"/g)].map((m) => m[1]);
    expect(reasons.length).toBeGreaterThan(8);
    expect(reasons.filter((r) => !(r in REASON_WORDS))).toEqual([]);
  });
});
