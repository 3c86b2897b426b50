import { StrictMode } from 'react';
import { createRoot } from 'react-dom/client';
import { QueryClient, QueryClientProvider } from '@tanstack/react-query';
import './styles/base.css';
import './styles/controls.css';
import './styles/pages.css';
import { App } from './app';
import { ErrorBoundary } from './components/errorboundary';
import { StateProvider } from './lib/state';

const client = new QueryClient({
  defaultOptions: {
    // The agent is asked even when the browser believes itself offline: it may be on this host.
    queries: { networkMode: 'always', staleTime: 0, refetchOnWindowFocus: true, gcTime: 60_000 },
  },
});

createRoot(document.getElementById('root')!).render(
  <StrictMode>
    <ErrorBoundary>
      <QueryClientProvider client={client}>
        <StateProvider>
          <App />
        </StateProvider>
      </QueryClientProvider>
    </ErrorBoundary>
  </StrictMode>,
);
