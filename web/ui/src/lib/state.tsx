// The state of the page, kept in the address.

import { createContext, useCallback, useContext, useEffect, useMemo, useState, type ReactNode } from 'react';
import { formatState, parseState, type State } from './urlstate';

export interface StateAccess {
  state: State;
  /** Changes a part of it. `replace` makes no entry in the history: for what is typed. */
  set: (change: Partial<State>, how?: 'push' | 'replace') => void;
  /** The address of the page with a part changed, for links. */
  href: (change: Partial<State>) => string;
}

const Context = createContext<StateAccess | undefined>(undefined);

export function StateProvider({ children }: { children: ReactNode }) {
  const [state, setState] = useState(() => parseState(location.search));

  useEffect(() => {
    const back = () => setState(parseState(location.search));
    window.addEventListener('popstate', back);
    return () => window.removeEventListener('popstate', back);
  }, []);

  const set = useCallback<StateAccess['set']>((change, how = 'push') => {
    // From the address and not from `state`: two changes may come before the next render.
    const next = { ...parseState(location.search), ...change };
    const address = location.pathname + formatState(next);
    if (address !== location.pathname + location.search) {
      if (how === 'push') history.pushState(null, '', address);
      else history.replaceState(null, '', address);
    }
    setState(next);
  }, []);

  const access = useMemo<StateAccess>(
    () => ({ state, set, href: (change) => location.pathname + formatState({ ...state, ...change }) }),
    [state, set],
  );
  return <Context.Provider value={access}>{children}</Context.Provider>;
}

export function useAppState(): StateAccess {
  const access = useContext(Context);
  if (!access) throw new Error('useAppState outside StateProvider');
  return access;
}
