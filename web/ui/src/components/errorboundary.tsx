import { Component, type ReactNode } from 'react';

/** Shows what went wrong in the page itself, instead of a blank screen. */
export class ErrorBoundary extends Component<{ children: ReactNode }, { error?: Error }> {
  state: { error?: Error } = {};

  static getDerivedStateFromError(error: Error) {
    return { error };
  }

  render() {
    const { error } = this.state;
    if (!error) return this.props.children;
    return (
      <div className="empty-state" role="alert">
        <h2>The page failed</h2>
        <div className="empty-text">
          {error.message}. The agent goes on; only this page stopped.
        </div>
        <div className="empty-actions">
          <button type="button" className="button" onClick={() => location.reload()}>
            Load it again
          </button>
          <a className="button" href={location.pathname}>
            Start afresh
          </a>
        </div>
      </div>
    );
  }
}
