import { Hourglass, SearchX, ServerOff } from 'lucide-react';
import type { ProfileType } from '../api/querier';
import { OFF_CPU } from '../lib/offcpu';
import { useAppState } from '../lib/state';
import { Empty } from './bits';

interface Props {
  type: string;
  where: string;
  /** The types that there are; undefined if that isn't known yet. */
  types: readonly ProfileType[] | undefined;
  loading: boolean;
  failed: boolean;
  /** There is nothing at all yet, of any type. */
  waiting: boolean;
  live: boolean;
}

const ENABLE = `profiles:
  off_cpu:
    enabled: true`;

/** What stands in the place of a profile without samples, and why it has none. */
export function Nothing({ type, where, types, loading, failed, waiting, live }: Props) {
  const { state, set } = useAppState();
  if (loading) return <Empty icon={<Hourglass />} title="Loading…" />;
  if (failed) return <Empty icon={<ServerOff />} title="No answer yet" />;
  if (waiting) {
    return (
      <Empty icon={<Hourglass />} title={live ? 'Waiting for the first profile' : 'No profiles in this time'}>
        {live
          ? 'A fresh agent has its first picture after a few seconds; this page looks every second. If nothing comes, the Targets page says which processes are profiled and why others are not.'
          : 'The agent kept nothing from this time range. Choose another one, or switch to Live.'}
      </Empty>
    );
  }
  if (type === OFF_CPU && types && !types.some((t) => t.id === OFF_CPU)) {
    return (
      <Empty icon={<Hourglass />} title="No off-CPU profiles in this time">
        The agent makes them if its configuration says so. Add these lines, and reload it:
        <pre className="lines">{ENABLE}</pre>
      </Empty>
    );
  }
  return (
    <Empty
      icon={<SearchX />}
      title="No samples here"
      actions={
        <>
          {(state.service !== '' || state.filters.length > 0) && (
            <button type="button" className="button" onClick={() => set({ service: '', filters: [] })}>
              Show all services
            </button>
          )}
          <button type="button" className="button" onClick={() => set({ range: { kind: 'last', ms: 3_600_000 } })}>
            Look at the last hour
          </button>
        </>
      }
    >
      Nothing was sampled that matches {where === '{}' ? 'this time range' : <code>{where}</code>}.{' '}
      {type === OFF_CPU ? 'A service whose threads waited for short times only has no profile either.' : 'A service that used no CPU in this time has no profile either.'}
    </Empty>
  );
}
