// What @grafana/flamegraph needs of @grafana/ui: the theme.

import { createContext, useContext } from 'react';

/** The part of a theme that the drawing reads. */
export interface FlameTheme {
  isLight: boolean;
  /** Bars that are too narrow or don't match the search are made from `background.secondary`. */
  colors: { background: { secondary: string } };
}

// On light the package makes its colours glaring, so it is told "dark" in both. It
// then makes the colour of unlit bars by lightening this one by a tenth.
export const lightTheme: FlameTheme = { isLight: false, colors: { background: { secondary: '#c2cad6' } } };
export const darkTheme: FlameTheme = { isLight: false, colors: { background: { secondary: '#474d57' } } };

export const ThemeContext = createContext<FlameTheme>(lightTheme);

export function useTheme2(): FlameTheme {
  return useContext(ThemeContext);
}
