import { useDeferredValue, useMemo, useState, type ReactNode } from 'react';
import { Columns2, Download, Flame as FlameIcon, FoldVertical, Table2 } from 'lucide-react';
import { downloadPprof, fileName } from '../api/pprof';
import { parseProfileType, type Window } from '../api/querier';
import { shareOf, type FlameData } from '../lib/flamebearer';
import { percent, value } from '../lib/format';
import { ADDED_UP, OFF_CPU } from '../lib/offcpu';
import { exactSearch, parseSearch } from '../lib/search';
import { useAppState } from '../lib/state';
import type { View } from '../lib/urlstate';
import { Banner, SearchBox, Segmented } from './bits';
import { Flame } from './flame';
import { Functions } from './functions';

const VIEWS = [
  { value: 'both' as View, text: 'Both', icon: <Columns2 /> },
  { value: 'flame' as View, text: 'Flame graph', icon: <FlameIcon /> },
  { value: 'table' as View, text: 'Table', icon: <Table2 /> },
];

/** A profile of a type, and how it was asked for. */
export interface Shown {
  data: FlameData;
  window: Window;
  type: string;
  where: string;
  stale: boolean;
}

/** The search that all profiles on the page share. */
function useSearch() {
  const { state } = useAppState();
  const search = useDeferredValue(state.search);
  return { search, matcher: useMemo(() => parseSearch(search), [search]) };
}

type Matched = ReadonlySet<string> | undefined;

/** The functions that the search finds; undefined without a search. */
function useMatched(data: FlameData): Matched {
  const { matcher } = useSearch();
  return useMemo(() => (matcher ? new Set(data.rows.filter((r) => matcher.test(r.name)).map((r) => r.name)) : undefined), [matcher, data]);
}

/** One profile with its table. */
export function ProfileCard({ shown }: { shown: Shown }) {
  const { state } = useAppState();
  const matched = useMatched(shown.data);
  const download = useDownload(shown);
  return (
    <section className={`card grow profile ${shown.stale ? 'stale' : ''}`} aria-label="Profile">
      <div className="card-head">
        <Total shown={shown} matched={matched} />
        <Controls views={VIEWS} view={state.view} />
        {download.button}
      </div>
      {download.failure}
      <Body shown={shown} view={state.view} matched={matched} />
    </section>
  );
}

interface Side {
  title: string;
  icon: ReactNode;
  shown: Shown | undefined;
  /** What stands in its place if there is none. */
  empty: ReactNode;
}

/** Two profiles beside each other, with one search. */
export function ProfilePair({ sides }: { sides: readonly Side[] }) {
  const { state } = useAppState();
  const view = state.view === 'table' ? 'table' : 'flame';
  return (
    <section className="card grow profile pair" aria-label="Profiles side by side">
      <div className="card-head">
        <Controls views={VIEWS.slice(1)} view={view} />
      </div>
      <div className="sides">
        {sides.map((s) => (
          <section key={s.title} className={`side ${s.shown?.stale ? 'stale' : ''}`} aria-label={s.title}>
            {s.shown ? (
              <SideProfile {...s} shown={s.shown} view={view} />
            ) : (
              <>
                <SideTitle {...s} />
                {s.empty}
              </>
            )}
          </section>
        ))}
      </div>
    </section>
  );
}

function SideTitle({ title, icon, children }: { title: string; icon: ReactNode; children?: ReactNode }) {
  return (
    <div className="side-head">
      <h2>
        {icon}
        {title}
      </h2>
      {children}
    </div>
  );
}

function SideProfile({ title, icon, shown, view }: { title: string; icon: ReactNode; shown: Shown; view: View }) {
  const matched = useMatched(shown.data);
  const download = useDownload(shown, title);
  return (
    <>
      <SideTitle title={title} icon={icon}>
        <Total shown={shown} matched={matched} named />
        {download.button}
      </SideTitle>
      {download.failure}
      <Body shown={shown} view={view} matched={matched} />
    </>
  );
}

/** The total, and how much of it the search finds; `named` if what it is stands beside it. */
function Total({ shown: { data, type }, matched, named = false }: { shown: Shown; matched: Matched; named?: boolean }) {
  const share = useMemo(() => (matched ? shareOf(data, matched) : 0), [matched, data]);
  const off = type === OFF_CPU;
  return (
    <div className="total" title={off ? ADDED_UP : undefined}>
      <b>{value(data.total, parseProfileType(type).sampleUnit)}</b>
      <span className="muted">
        {matched
          ? `${matched.size} ${matched.size === 1 ? 'function' : 'functions'} found · ${percent(share, data.total)} of the time`
          : `${off && !named ? 'off the CPU, ' : ''}in ${data.rows.length.toLocaleString('en-US')} functions`}
      </span>
    </div>
  );
}

/** Search, folding and the choice of the view. */
function Controls({ views, view }: { views: typeof VIEWS; view: View }) {
  const { state, set } = useAppState();
  const { matcher } = useSearch();
  return (
    <>
      <SearchBox label="Search functions" placeholder="Search functions" value={state.search} onChange={(v) => set({ search: v }, 'replace')} error={matcher?.error} />
      {view !== 'table' && (
        <button
          type="button"
          className="button icon toggle"
          aria-pressed={state.fold}
          aria-label="Fold similar frames"
          title={state.fold ? 'Similar frames are folded; click to show all' : 'Fold frames that have nearly the same share as their caller'}
          onClick={() => set({ fold: !state.fold }, 'replace')}
        >
          <FoldVertical />
        </button>
      )}
      <Segmented label="View" value={view} options={views} onChange={(v) => set({ view: v })} />
    </>
  );
}

/** The button that downloads the profile, and what to say if that fails. */
function useDownload({ type, where, window }: Shown, title = '') {
  const { state } = useAppState();
  const [progress, setProgress] = useState<'idle' | 'busy' | string>('idle');
  const save = () => {
    setProgress('busy');
    downloadPprof(type, where, window, fileName(state.service, type, window.end)).then(
      () => setProgress('idle'),
      (err: unknown) => setProgress(err instanceof Error ? err.message : String(err)),
    );
  };
  return {
    button: (
      <button
        type="button"
        className="button"
        aria-label={title === '' ? undefined : `pprof of ${title}`}
        onClick={save}
        disabled={progress === 'busy'}
        title="Download as pprof (.pb.gz), for go tool pprof and others"
      >
        <Download />
        <span>pprof</span>
      </button>
    ),
    failure: progress !== 'idle' && progress !== 'busy' && <Banner>The download failed: {progress}.</Banner>,
  };
}

/** The table and the flame graph. */
function Body({ shown: { data, type }, view, matched }: { shown: Shown; view: View; matched: Matched }) {
  const { state, set } = useAppState();
  const { search } = useSearch();
  const unit = parseProfileType(type).sampleUnit;
  const pick = (name: string) => {
    const text = exactSearch(name);
    set({ search: state.search === text ? '' : text });
  };
  const sandwich = (name: string) => set({ sandwich: name === state.sandwich ? '' : name, view: state.view === 'table' ? 'both' : state.view });

  return (
    <>
      {data.damaged > 0 && <Banner>{data.damaged} blocks of the answer made no sense and were left out or cut; the rest is right.</Banner>}
      <div className={`split ${view}`}>
        {view !== 'flame' && (
          <Functions
            rows={data.rows}
            total={data.total}
            unit={unit}
            sort={state.sort}
            desc={state.desc}
            onSort={(sort, desc) => set({ sort, desc }, 'replace')}
            matched={matched}
            onPick={pick}
            onSandwich={sandwich}
          />
        )}
        {view !== 'table' && (
          <Flame data={data} unit={unit} matched={matched} search={search} fold={state.fold} sandwich={state.sandwich} onSandwich={sandwich} onSearch={pick} />
        )}
      </div>
    </>
  );
}
