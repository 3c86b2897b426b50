import { describe, expect, it } from 'vitest';
import { getBarColorByPackage as original } from '@grafana/flamegraph/colors';
import { getBarColorByPackage } from './colors';

const theme = { isLight: false };

describe('colours', () => {
  it('are those of the package', () => {
    for (const name of ['main.f', 'net/http.(*conn).serve', 'std::rt::main', 'do_syscall_64', 'a.py:f:1', '']) {
      expect(getBarColorByPackage(name, theme).toHslString()).toBe(original(name, theme).toHslString());
    }
  });

  it('are not changed by who gets them', () => {
    const before = getBarColorByPackage('main.f', theme).toHslString();
    getBarColorByPackage('main.f', theme).lighten(40);
    expect(getBarColorByPackage('main.f', theme).toHslString()).toBe(before);
  });

  it('cost little for long names', () => {
    const start = performance.now();
    for (let i = 0; i < 500; i++) getBarColorByPackage(`_Z${i}` + 'abcdefgh'.repeat(500), theme);
    // The package's own function takes some 15 s for them.
    expect(performance.now() - start).toBeLessThan(1_000);
  });
});
