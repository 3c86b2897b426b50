import { useEffect, type MouseEvent } from 'react';
import { Monitor, Moon, Sun } from 'lucide-react';
import { Profiles } from './pages/profiles';
import { StatusPage } from './pages/status';
import { Targets } from './pages/targets';
import { useAppState } from './lib/state';
import { setTheme, useTheme, type ThemeChoice } from './lib/theme';
import type { Page } from './lib/urlstate';

const PAGES: Array<{ page: Page; text: string }> = [
  { page: 'profiles', text: 'Profiles' },
  { page: 'targets', text: 'Targets' },
  { page: 'status', text: 'Status' },
];

export function App() {
  const { state, set, href } = useAppState();
  const title = state.page === 'profiles' ? state.service : PAGES.find((p) => p.page === state.page)!.text;
  useEffect(() => {
    document.title = title === '' ? 'Spanflame' : `${title} · Spanflame`;
  }, [title]);
  const go = (page: Page) => (e: MouseEvent) => {
    if (e.metaKey || e.ctrlKey || e.shiftKey) return;
    e.preventDefault();
    set({ page });
  };
  return (
    <>
      <a className="skip" href="#main" onClick={(e) => { e.preventDefault(); document.getElementById('main')?.focus(); }}>
        Skip to the content
      </a>
      <header className="top">
        <a className="brand" href={href({ page: 'profiles' })} onClick={go('profiles')}>
          <img src="./favicon.svg" alt="" width="22" height="22" />
          Spanflame
        </a>
        <nav aria-label="Pages">
          {PAGES.map((p) => (
            <a key={p.page} href={href({ page: p.page })} aria-current={state.page === p.page ? 'page' : undefined} onClick={go(p.page)}>
              {p.text}
            </a>
          ))}
        </nav>
        <div className="spacer" />
        <ThemeButton />
      </header>
      <main id="main" tabIndex={-1}>
        {state.page === 'profiles' ? <Profiles /> : state.page === 'targets' ? <Targets /> : <StatusPage />}
      </main>
    </>
  );
}

const NEXT: Record<ThemeChoice, ThemeChoice> = { system: 'light', light: 'dark', dark: 'system' };
const THEME_WORDS: Record<ThemeChoice, string> = { system: 'as the system', light: 'light', dark: 'dark' };

function ThemeButton() {
  const { choice } = useTheme();
  const text = `Theme: ${THEME_WORDS[choice]}. Click for ${THEME_WORDS[NEXT[choice]]}.`;
  return (
    <button type="button" className="button icon quiet theme" aria-label={text} title={text} onClick={() => setTheme(NEXT[choice])}>
      {choice === 'system' ? <Monitor /> : choice === 'light' ? <Sun /> : <Moon />}
    </button>
  );
}
