import { useDeferredValue, useMemo, useState } from 'react';
import { keepPreviousData, useQuery } from '@tanstack/react-query';
import { BarChart3, Columns2, Download, Flame as FlameIcon, FoldVertical, Hourglass, Layers, RefreshCw, SearchX, ServerOff, Table2 } from 'lucide-react';
import { ApiError, serverNow } from '../api/client';
import { downloadPprof, fileName } from '../api/pprof';
import { labelValues, mergeStacktraces, parseProfileType, profileTypes, selectSeries, type ProfileType } from '../api/querier';
import { Banner, Empty, SearchBox, Segmented } from '../components/bits';
import { Chart } from '../components/chart';
import { Combobox } from '../components/combobox';
import { Filters } from '../components/filters';
import { Flame } from '../components/flame';
import { Functions } from '../components/functions';
import { TimePicker } from '../components/timepicker';
import { chartData } from '../lib/chartdata';
import { shareOf } from '../lib/flamebearer';
import { digits, percent, value } from '../lib/format';
import { exactSearch, parseSearch } from '../lib/search';
import { SERVICE, selector } from '../lib/selector';
import { useAppState } from '../lib/state';
import { absolute, bounds, stepFor } from '../lib/timerange';
import type { View } from '../lib/urlstate';
import { polling } from '../lib/polling';

const TYPE_WORDS: Record<string, string> = { process_cpu: 'CPU time', off_cpu: 'Waiting time (off-CPU)' };
const FIRST_TYPE = 'process_cpu:cpu:nanoseconds:cpu:nanoseconds';

function typeWords(t: ProfileType, all: ProfileType[]): string {
  const words = TYPE_WORDS[t.name] ?? `${t.name} · ${t.sampleType}`;
  // Two types of the same name differ in what they count.
  return all.some((o) => o.id !== t.id && o.name === t.name) ? `${t.name} · ${t.sampleType} (${t.sampleUnit})` : words;
}

const VIEWS = [
  { value: 'both' as View, text: 'Both', icon: <Columns2 /> },
  { value: 'flame' as View, text: 'Flame graph', icon: <FlameIcon /> },
  { value: 'table' as View, text: 'Table', icon: <Table2 /> },
];

export function Profiles() {
  const { state, set } = useAppState();
  const { service, filters, range } = state;
  const live = state.live && range.kind === 'last';
  const now = () => bounds(range, serverNow());
  const where = selector(service, filters);

  const types = useQuery({
    queryKey: ['types', range],
    queryFn: ({ signal }) => profileTypes(now(), signal),
    ...polling<ProfileType[]>(live, (d) => d.length === 0),
    placeholderData: keepPreviousData,
  });
  const knownTypes = types.data ?? [];
  const type = state.type || (knownTypes.find((t) => t.id === FIRST_TYPE) ?? knownTypes[0])?.id || FIRST_TYPE;
  const unit = parseProfileType(type).sampleUnit;

  const services = useQuery({
    queryKey: ['services', range],
    queryFn: ({ signal }) => labelValues(SERVICE, [], now(), signal),
    ...polling<string[]>(live, (d) => d.length === 0),
    placeholderData: keepPreviousData,
  });

  const profile = useQuery({
    queryKey: ['profile', type, where, range],
    queryFn: async ({ signal }) => {
      const window = now();
      return { data: await mergeStacktraces(type, where, window, signal), window };
    },
    ...polling<{ data: { total: number } }>(live, (d) => where === '{}' && d.data.total === 0),
    placeholderData: keepPreviousData,
  });

  const groupBy = service === '' ? [SERVICE] : [];
  const series = useQuery({
    queryKey: ['series', type, where, range, groupBy],
    queryFn: async ({ signal }) => {
      const { start, end } = now();
      const step = stepFor(end - start);
      // Steps that begin at the same moments each time keep the picture steady.
      const grid = { start: Math.floor(start / 1000 / step) * step * 1000, end };
      return { series: await selectSeries(type, where, grid, groupBy, step, signal), step, grid, start, end };
    },
    ...polling<{ series: unknown[] }>(live, (d) => where === '{}' && d.series.length === 0),
    placeholderData: keepPreviousData,
  });

  const failure = [profile, types, services, series].find((q) => q.isError)?.error ?? null;
  const storeOff = failure instanceof ApiError && failure.kind === 'missing';
  const data = profile.data?.data;
  const reset = { service: '', filters: [] };
  const window = profile.data?.window;

  const waiting = service === '' && filters.length === 0 && (services.data?.length ?? 0) === 0;

  const serviceOptions = useMemo(() => {
    const names = services.data ?? [];
    const all = names.includes(service) || service === '' ? names : [service, ...names];
    return [{ value: '', text: 'All services', note: `${names.length}` }, ...all.map((v) => ({ value: v }))];
  }, [services.data, service]);

  return (
    <div className="page profiles">
      <div className="toolbar" role="group" aria-label="What is shown">
        <Combobox label="Service" className="service" icon={<Layers />} value={service} options={serviceOptions} onChange={(v) => set({ service: v, sandwich: '' })} loading={services.isLoading} />
        <select className="type" aria-label="Profile type" value={type} onChange={(e) => set({ type: e.target.value, sandwich: '' })}>
          {(knownTypes.some((t) => t.id === type) ? knownTypes : [parseProfileType(type), ...knownTypes]).map((t) => (
            <option key={t.id} value={t.id}>
              {typeWords(t, knownTypes)}
            </option>
          ))}
        </select>
        <Filters service={service} filters={filters} range={range} onChange={(f) => set({ filters: f })} />
        <div className="spacer" />
        <TimePicker range={range} onChange={(r) => set({ range: r })} />
        <button
          type="button"
          className="button live"
          aria-pressed={live}
          title={live ? 'Refreshed every 15 seconds; click to stop' : 'Click to refresh every 15 seconds, up to now'}
          onClick={() => set(range.kind === 'absolute' ? { range: { kind: 'last', ms: 900_000 }, live: true } : { live: !state.live })}
        >
          <span className="live-dot" />
          Live
        </button>
        <button
          type="button"
          className="button icon"
          aria-label="Refresh now"
          title="Refresh now"
          onClick={() => {
            for (const q of [types, services, profile, series]) void q.refetch();
          }}
        >
          <RefreshCw className={profile.isFetching ? 'spin' : ''} />
        </button>
      </div>

      {failure && !storeOff && (data || profile.isError) && (
        <Banner action={<button type="button" className="button" onClick={() => void profile.refetch()}>Try again</button>}>
          {failure instanceof ApiError && failure.kind === 'unreachable' ? (
            <>
              <b>The agent doesn’t answer</b>: {failure.message}.{data ? ' This is the last picture it gave;' : ''} it is asked again every few seconds.
            </>
          ) : (
            <>
              <b>The agent refused the query</b>: {failure.message}.
            </>
          )}
        </Banner>
      )}

      {storeOff ? (
        <div className="card grow">
          <Empty icon={<ServerOff />} title="This agent keeps no profiles itself">
            Its store is switched off (<code>store.enabled: false</code>), so there is nothing to show here. Its profiles are at the servers that it pushes to; the{' '}
            <a href="?page=status" onClick={(e) => { e.preventDefault(); set({ page: 'status' }); }}>status page</a> names them.
          </Empty>
        </div>
      ) : (
        <>
          <SeriesCard
            type={type}
            unit={unit}
            service={service}
            result={series.data}
            stale={series.isPlaceholderData}
            waiting={waiting}
            onSelect={(from, to) => {
              const r = absolute(from, to);
              if (r) set({ range: r });
            }}
            onPick={(name) => set({ service: name, sandwich: '' })}
          />
          {data && data.total > 0 && window ? (
            <ProfileCard data={data} window={window} unit={unit} type={type} where={where} stale={profile.isPlaceholderData} />
          ) : (
            <div className="card grow">
              {profile.isLoading || (profile.isPlaceholderData && profile.isFetching) ? (
                <Empty icon={<Hourglass />} title="Loading…" />
              ) : profile.isError && !data ? (
                <Empty icon={<ServerOff />} title="No answer yet" />
              ) : waiting ? (
                <Empty icon={<Hourglass />} title={live ? 'Waiting for the first profile' : 'No profiles in this time'}>
                  {live
                    ? 'A fresh agent has its first picture after a few seconds; this page looks every second. If nothing comes, the Targets page says which processes are profiled and why others are not.'
                    : 'The agent kept nothing from this time range. Choose another one, or switch to Live.'}
                </Empty>
              ) : (
                <Empty
                  icon={<SearchX />}
                  title="No samples here"
                  actions={
                    <>
                      {(service !== '' || filters.length > 0) && (
                        <button type="button" className="button" onClick={() => set(reset)}>
                          Show all services
                        </button>
                      )}
                      <button type="button" className="button" onClick={() => set({ range: { kind: 'last', ms: 3_600_000 } })}>
                        Look at the last hour
                      </button>
                    </>
                  }
                >
                  Nothing was sampled that matches {where === '{}' ? 'this time range' : <code>{where}</code>}. A service that used no CPU in this time has no profile either.
                </Empty>
              )}
            </div>
          )}
        </>
      )}
    </div>
  );
}

interface SeriesCardProps {
  type: string;
  unit: string;
  service: string;
  result: { series: Awaited<ReturnType<typeof selectSeries>>; step: number; grid: { start: number; end: number }; start: number; end: number } | undefined;
  stale: boolean;
  /** The page waits for the first data there is. */
  waiting: boolean;
  onSelect: (from: number, to: number) => void;
  onPick: (name: string) => void;
}

function SeriesCard({ type, unit, service, result, stale, waiting, onSelect, onPick }: SeriesCardProps) {
  const time = unit === 'nanoseconds';
  const cpu = parseProfileType(type).name === 'process_cpu';
  const chart = useMemo(() => {
    if (!result || result.series.length === 0) return undefined;
    // Nanoseconds in a step, by the nanoseconds of the step: how many at once.
    const scale = time ? 1 / (result.step * 1e9) : 1 / result.step;
    return chartData(result.series, result.grid.start, result.grid.end, result.step, (l) => l[SERVICE] ?? (service || 'all'), scale);
  }, [result, time, service]);
  const format = (v: number) => (time ? digits(v) : `${value(v, unit)}/s`);
  const title = cpu && time ? 'CPU in use' : time ? 'Threads that wait' : 'Over time';
  return (
    <section className={`card strip ${stale ? 'stale' : ''}`} aria-label={title}>
      <h2>
        <BarChart3 />
        {title}
        <span className="muted">{cpu && time ? 'cores' : time ? 'at once, on average' : 'per second'}</span>
      </h2>
      {chart && result ? (
        <Chart data={chart} start={result.start} end={result.end} format={format} label={title} onSelect={onSelect} onPick={service === '' ? onPick : undefined} />
      ) : (
        <div className="chart-empty muted">{result && !waiting ? 'Nothing in this time range' : ''}</div>
      )}
    </section>
  );
}

interface ProfileCardProps {
  data: Awaited<ReturnType<typeof mergeStacktraces>>;
  window: { start: number; end: number };
  unit: string;
  type: string;
  where: string;
  stale: boolean;
}

function ProfileCard({ data, window, unit, type, where, stale }: ProfileCardProps) {
  const { state, set } = useAppState();
  const search = useDeferredValue(state.search);
  const matcher = useMemo(() => parseSearch(search), [search]);
  const matched = useMemo(
    () => (matcher ? new Set(data.rows.filter((r) => matcher.test(r.name)).map((r) => r.name)) : undefined),
    [matcher, data],
  );
  const share = useMemo(() => (matched ? shareOf(data, matched) : 0), [matched, data]);
  const [download, setDownload] = useState<'idle' | 'busy' | string>('idle');

  const pick = (name: string) => {
    const text = exactSearch(name);
    set({ search: state.search === text ? '' : text });
  };
  const sandwich = (name: string) => set({ sandwich: name === state.sandwich ? '' : name, view: state.view === 'table' ? 'both' : state.view });
  const save = () => {
    setDownload('busy');
    downloadPprof(type, where, window, fileName(state.service, type, window.end)).then(
      () => setDownload('idle'),
      (err: unknown) => setDownload(err instanceof Error ? err.message : String(err)),
    );
  };

  return (
    <section className={`card grow profile ${stale ? 'stale' : ''}`} aria-label="Profile">
      <div className="card-head">
        <div className="total">
          <b>{value(data.total, unit)}</b>
          <span className="muted">
            {matched
              ? `${matched.size} ${matched.size === 1 ? 'function' : 'functions'} found · ${percent(share, data.total)} of the time`
              : `in ${data.rows.length.toLocaleString('en-US')} functions`}
          </span>
        </div>
        <SearchBox label="Search functions" placeholder="Search functions" value={state.search} onChange={(v) => set({ search: v }, 'replace')} error={matcher?.error} />
        {state.view !== 'table' && (
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
        <Segmented label="View" value={state.view} options={VIEWS} onChange={(v) => set({ view: v })} />
        <button type="button" className="button" onClick={save} disabled={download === 'busy'} title="Download as pprof (.pb.gz), for go tool pprof and others">
          <Download />
          <span>pprof</span>
        </button>
      </div>
      {download !== 'idle' && download !== 'busy' && <Banner>The download failed: {download}.</Banner>}
      {data.damaged > 0 && <Banner>{data.damaged} blocks of the answer made no sense and were left out or cut; the rest is right.</Banner>}
      <div className={`split ${state.view}`}>
        {state.view !== 'flame' && (
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
        {state.view !== 'table' && (
          <Flame data={data} unit={unit} matched={matched} search={search} fold={state.fold} sandwich={state.sandwich} onSandwich={sandwich} onSearch={pick} />
        )}
      </div>
    </section>
  );
}
