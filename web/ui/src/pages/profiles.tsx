import { useMemo, type ReactNode } from 'react';
import { keepPreviousData, useQuery } from '@tanstack/react-query';
import { Cpu, Hourglass, Layers, RefreshCw, ServerOff, SquareSplitHorizontal } from 'lucide-react';
import { ApiError, serverNow } from '../api/client';
import { labelValues, parseProfileType, profileTypes, type ProfileType } from '../api/querier';
import { useCauses, useProfile, useSeries } from '../api/queries';
import { Banner, Empty, Segmented } from '../components/bits';
import { Combobox } from '../components/combobox';
import { Filters } from '../components/filters';
import { Nothing } from '../components/nothing';
import { ProfileCard, ProfilePair, type Shown } from '../components/profilecard';
import { SeriesCard } from '../components/seriescard';
import { TimePicker } from '../components/timepicker';
import { Waits } from '../components/waits';
import { applies, CPU, OFF_CPU, unpicked } from '../lib/offcpu';
import { polling } from '../lib/polling';
import { SERVICE, selector } from '../lib/selector';
import { useAppState } from '../lib/state';
import { absolute, bounds } from '../lib/timerange';

const TYPE_WORDS: Record<string, string> = { process_cpu: 'CPU time', off_cpu: 'Time off the CPU' };

function typeWords(t: ProfileType, all: ProfileType[]): string {
  const words = TYPE_WORDS[t.name] ?? `${t.name} · ${t.sampleType}`;
  // Two types of the same name differ in what they count.
  return all.some((o) => o.id !== t.id && o.name === t.name) ? `${t.name} · ${t.sampleType} (${t.sampleUnit})` : words;
}

type Kind = 'cpu' | 'off' | 'side' | 'else';

const KINDS: ReadonlyArray<{ value: Kind; text: string; icon: ReactNode }> = [
  { value: 'cpu', text: 'CPU', icon: <Cpu /> },
  { value: 'off', text: 'Off-CPU', icon: <Hourglass /> },
  { value: 'side', text: 'Side by side', icon: <SquareSplitHorizontal /> },
];

export function Profiles() {
  const { state, set } = useAppState();
  const { service, filters, range } = state;
  const live = state.live && range.kind === 'last';
  const now = () => bounds(range, serverNow());

  const types = useQuery({
    queryKey: ['types', range],
    queryFn: ({ signal }) => profileTypes(now(), signal),
    ...polling<ProfileType[]>(live, (d) => d.length === 0),
    placeholderData: keepPreviousData,
  });
  const knownTypes = types.data ?? [];
  const hasCPU = knownTypes.some((t) => t.id === CPU);
  const hasOff = !types.data || knownTypes.some((t) => t.id === OFF_CPU);
  const type = state.side ? CPU : state.type || (hasCPU ? CPU : knownTypes[0]?.id) || CPU;
  const kind: Kind = state.side ? 'side' : type === CPU ? 'cpu' : type === OFF_CPU ? 'off' : 'else';
  const off = kind === 'off' || kind === 'side';
  const others = [...knownTypes, parseProfileType(type)].some((t) => t.id !== CPU && t.id !== OFF_CPU);

  const services = useQuery({
    queryKey: ['services', range],
    queryFn: ({ signal }) => labelValues(SERVICE, [], now(), signal),
    ...polling<string[]>(live, (d) => d.length === 0),
    placeholderData: keepPreviousData,
  });

  const whereOf = (t: string) => selector(service, filters.filter((f) => applies(t, f)));
  const asked = { range, live, types: types.data };
  const first = { ...asked, type, where: whereOf(type), enabled: true };
  const second = { ...asked, type: OFF_CPU, where: whereOf(OFF_CPU), enabled: kind === 'side' };
  const profile = useProfile(first);
  const offProfile = useProfile(second);
  const series = useSeries(first, service);
  const offSeries = useSeries(second, service);
  const causes = useCauses({ ...second, where: selector(service, unpicked(filters)), enabled: off });

  const queries = [profile, types, services, series, ...(kind === 'side' ? [offProfile, offSeries] : []), ...(off ? [causes] : [])];
  const refetch = () => {
    for (const q of queries) void q.refetch();
  };
  const failure = queries.find((q) => q.isError)?.error ?? null;
  const storeOff = failure instanceof ApiError && failure.kind === 'missing';
  const data = profile.data?.data;

  const waiting = service === '' && filters.length === 0 && (services.data?.length ?? 0) === 0;

  const serviceOptions = useMemo(() => {
    const names = services.data ?? [];
    const all = names.includes(service) || service === '' ? names : [service, ...names];
    return [{ value: '', text: 'All services', note: `${names.length}` }, ...all.map((v) => ({ value: v }))];
  }, [services.data, service]);

  const card = (t: string, answer: typeof series) => (
    <SeriesCard
      type={t}
      service={service}
      result={answer.data}
      stale={answer.isPlaceholderData}
      waiting={waiting}
      onSelect={(from, to) => {
        const r = absolute(from, to);
        if (r) set({ range: r });
      }}
      onPick={(name) => set({ service: name, sandwich: '' })}
    />
  );
  const shownOf = ({ type: t, where }: typeof first, answer: typeof profile): Shown | undefined =>
    answer.data && answer.data.data.total > 0 ? { ...answer.data, type: t, where, stale: answer.isPlaceholderData } : undefined;
  const nothing = ({ type: t, where }: typeof first, answer: typeof profile) => (
    <Nothing
      type={t}
      where={where}
      types={types.data}
      loading={answer.isLoading || (answer.isPlaceholderData && answer.isFetching)}
      failed={answer.isError && !answer.data}
      waiting={waiting}
      live={live}
    />
  );
  const shown = shownOf(first, profile);

  return (
    <div className="page profiles">
      <div className="toolbar" role="group" aria-label="What is shown">
        <Combobox label="Service" className="service" icon={<Layers />} value={service} options={serviceOptions} onChange={(v) => set({ service: v, sandwich: '' })} loading={services.isLoading} />
        <Segmented
          label="CPU or off-CPU"
          value={kind}
          options={hasOff ? KINDS : KINDS.map((k) => (k.value === 'cpu' ? k : { ...k, title: 'No off-CPU profiles in this time; click to see how to get them' }))}
          onChange={(k) => set({ side: k === 'side', type: k === 'off' ? OFF_CPU : hasCPU ? '' : CPU, sandwich: '' })}
        />
        {others && (
          <select className="type" aria-label="Profile type" value={type} onChange={(e) => set({ type: e.target.value, side: false, sandwich: '' })}>
            {(knownTypes.some((t) => t.id === type) ? knownTypes : [parseProfileType(type), ...knownTypes]).map((t) => (
              <option key={t.id} value={t.id}>
                {typeWords(t, knownTypes)}
              </option>
            ))}
          </select>
        )}
        <Filters service={service} filters={filters} applies={(f) => off || applies(type, f)} range={range} onChange={(f) => set({ filters: f })} />
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
          onClick={refetch}
        >
          <RefreshCw className={queries.some((q) => q.isFetching) ? 'spin' : ''} />
        </button>
      </div>

      {failure && !storeOff && (data || profile.isError) && (
        <Banner action={<button type="button" className="button" onClick={refetch}>Try again</button>}>
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
          {kind === 'side' ? (
            <div className="strips">
              {card(CPU, series)}
              {card(OFF_CPU, offSeries)}
            </div>
          ) : (
            card(type, series)
          )}
          {off && hasOff && (
            <Waits causes={waiting ? undefined : causes.data} stale={causes.isPlaceholderData} filters={filters} onChange={(f) => set({ filters: f })} />
          )}
          {kind === 'side' ? (
            <ProfilePair
              sides={[
                { title: 'CPU time', icon: <Cpu />, shown: shownOf(first, profile), empty: nothing(first, profile) },
                { title: 'Time off the CPU', icon: <Hourglass />, shown: shownOf(second, offProfile), empty: nothing(second, offProfile) },
              ]}
            />
          ) : shown ? (
            <ProfileCard shown={shown} />
          ) : (
            <div className="card grow">{nothing(first, profile)}</div>
          )}
        </>
      )}
    </div>
  );
}
