import { createContext, useContext } from 'react';

/** What the menu can do beyond the package's own entries. */
export interface FlameActions {
  onSearch: (label: string) => void;
}

export const FlameActionsContext = createContext<FlameActions>({ onSearch: () => {} });

export function useFlameActions(): FlameActions {
  return useContext(FlameActionsContext);
}
