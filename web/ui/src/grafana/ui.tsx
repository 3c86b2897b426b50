// What @grafana/flamegraph needs of @grafana/ui: the theme.

import { createContext, useContext } from 'react';

/** The part of a theme that the drawing reads. */
export interface FlameTheme {
  isLight: boolean;
  /** Bars that are too narrow or don't match the search are made from `background.secondary`. */
  colors: { background: { secondary: string } };
}

export const lightTheme: FlameTheme = { isLight: true, colors: { background: { secondary: '#f4f5f7' } } };
export const darkTheme: FlameTheme = { isLight: false, colors: { background: { secondary: '#1d2026' } } };

export const ThemeContext = createContext<FlameTheme>(lightTheme);

export function useTheme2(): FlameTheme {
  return useContext(ThemeContext);
}
