// Light and dark: as the system says, or as the reader chose. public/theme.js
// sets the same attribute before anything is painted.

import { useSyncExternalStore } from 'react';

export type ThemeChoice = 'system' | 'light' | 'dark';

const KEY = 'spanflame.theme';
const dark = window.matchMedia('(prefers-color-scheme: dark)');
const listeners = new Set<() => void>();

function readChoice(): ThemeChoice {
  try {
    const v = localStorage.getItem(KEY);
    return v === 'light' || v === 'dark' ? v : 'system';
  } catch {
    return 'system'; // storage is switched off
  }
}

let choice = readChoice();

function isDark(): boolean {
  return choice === 'dark' || (choice === 'system' && dark.matches);
}

function apply(): void {
  document.documentElement.dataset.theme = isDark() ? 'dark' : 'light';
  for (const l of listeners) l();
}

dark.addEventListener('change', apply);
apply();

/** Sets the theme and remembers it. */
export function setTheme(next: ThemeChoice): void {
  choice = next;
  try {
    if (next === 'system') localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, next);
  } catch {
    // It holds until the page is left.
  }
  apply();
}

function subscribe(l: () => void): () => void {
  listeners.add(l);
  return () => listeners.delete(l);
}

/** What was chosen, and whether that is dark now. */
export function useTheme(): { choice: ThemeChoice; dark: boolean } {
  const snapshot = useSyncExternalStore(subscribe, () => `${choice} ${isDark()}`);
  const [c, d] = snapshot.split(' ');
  return { choice: c as ThemeChoice, dark: d === 'true' };
}
