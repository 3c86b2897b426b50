import { useDeferredValue, useMemo, useRef, useState } from 'react';
import { keepPreviousData, useQuery } from '@tanstack/react-query';
import { useVirtualizer } from '@tanstack/react-virtual';
import { ArrowDown, ArrowUp, ChevronDown, ChevronRight, Cpu, ServerOff } from 'lucide-react';
import { targets, type ProcessTarget, type Targets as TargetList } from '../api/agent';
import { serverNow } from '../api/client';
import { Banner, Empty, SearchBox, Segmented } from '../components/bits';
import { ago, count, dateTime, percent } from '../lib/format';
import { polling } from '../lib/polling';
import { parseSearch, type Matcher } from '../lib/search';
import { useAppState } from '../lib/state';
import type { State } from '../lib/urlstate';

type Column = 'pid' | 'comm' | 'service' | 'why' | 'samples' | 'started';

const ROW = 44;
const COLUMNS: Array<{ key: Column; text: string }> = [
  { key: 'pid', text: 'PID' },
  { key: 'comm', text: 'Process' },
  { key: 'service', text: 'Service' },
  { key: 'why', text: 'Why' },
  { key: 'samples', text: 'Samples' },
  { key: 'started', text: 'Started' },
];
const NUMBERS: Column[] = ['pid', 'samples', 'started'];

/** The processes that a search and a choice leave, in order. Exported for its test. */
export function selectProcesses(all: readonly ProcessTarget[], matcher: Matcher | undefined, show: State['show'], sort: Column, desc: boolean): ProcessTarget[] {
  const hits = all.filter((p) => {
    if (show !== 'all' && (p.service !== '') !== (show === 'profiled')) return false;
    if (!matcher) return true;
    return [String(p.pid), p.comm, p.exe, p.service, p.job, p.why, ...Object.entries(p.labels).map(([k, v]) => `${k}=${v}`)].some(matcher.test);
  });
  const sign = desc ? -1 : 1;
  return hits.sort((a, b) => {
    const [x, y] = [a[sort], b[sort]];
    // What is not known comes last, whichever way it is sorted.
    if (typeof x === 'number' && typeof y === 'number') {
      if (Number.isNaN(x) || Number.isNaN(y)) return Number(Number.isNaN(x)) - Number(Number.isNaN(y)) || a.pid - b.pid;
      return sign * (x - y) || a.pid - b.pid;
    }
    if (x === '' || y === '') return Number(x === '') - Number(y === '') || a.pid - b.pid;
    return sign * (x < y ? -1 : x > y ? 1 : 0) || a.pid - b.pid;
  });
}

export function Targets() {
  const { state, set } = useAppState();
  const [sort, setSort] = useState<{ key: Column; desc: boolean }>({ key: 'samples', desc: true });
  const [open, setOpen] = useState<string>();
  const find = useDeferredValue(state.find);
  const matcher = useMemo(() => parseSearch(find), [find]);
  const result = useQuery({
    queryKey: ['targets'],
    queryFn: ({ signal }) => targets(signal),
    ...polling<TargetList>(true, (d) => d.processes.length === 0),
    placeholderData: keepPreviousData,
  });
  const all = result.data?.processes;
  const rows = useMemo(() => selectProcesses(all ?? [], matcher, state.show, sort.key, sort.desc), [all, matcher, state.show, sort]);
  const profiled = useMemo(() => (all ?? []).filter((p) => p.service !== '').length, [all]);

  const scroller = useRef<HTMLDivElement>(null);
  const keyOf = (p: ProcessTarget) => `${p.pid} ${p.started}`;
  const virtual = useVirtualizer({
    count: rows.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => ROW,
    getItemKey: (i) => keyOf(rows[i]),
    overscan: 8,
  });

  return (
    <div className="page targets">
      <div className="page-head">
        <div>
          <h1>Targets</h1>
          <p className="muted">
            {all
              ? `${count(profiled)} of ${count(all.length)} processes of this host are profiled.`
              : 'The processes of this host, and which service each is profiled as.'}
          </p>
        </div>
        <div className="spacer" />
        <SearchBox label="Search processes" placeholder="PID, name, service, label=value…" value={state.find} onChange={(v) => set({ find: v }, 'replace')} error={matcher?.error} />
        <Segmented
          label="Which processes"
          value={state.show}
          options={[
            { value: 'all', text: 'All' },
            { value: 'profiled', text: 'Profiled' },
            { value: 'not', text: 'Not profiled' },
          ]}
          onChange={(show) => set({ show })}
        />
      </div>
      {result.isError && (
        <Banner>
          <b>The list of targets didn’t come</b>: {result.error.message}.{all ? ' This is the last one.' : ''} It is asked for again every few seconds.
        </Banner>
      )}
      {!all ? (
        <div className="card grow">
          <Empty icon={result.isError ? <ServerOff /> : <Cpu />} title={result.isError ? 'No answer yet' : 'Loading…'} />
        </div>
      ) : (
        <section className="card grow process-table" role="table" aria-label="Processes" aria-rowcount={rows.length + 1}>
          <div role="row" className="table-head" aria-rowindex={1}>
            {COLUMNS.map((c) => (
              <div key={c.key} role="columnheader" className={c.key} aria-sort={sort.key === c.key ? (sort.desc ? 'descending' : 'ascending') : 'none'}>
                <button
                  type="button"
                  onClick={() => setSort({ key: c.key, desc: sort.key === c.key ? !sort.desc : NUMBERS.includes(c.key) && c.key !== 'pid' })}
                >
                  {c.text}
                  {sort.key === c.key && (sort.desc ? <ArrowDown /> : <ArrowUp />)}
                </button>
              </div>
            ))}
          </div>
          <div className="table-body" ref={scroller} role="rowgroup">
            <div style={{ height: virtual.getTotalSize(), position: 'relative' }}>
              {virtual.getVirtualItems().map((v) => {
                const p = rows[v.index];
                const key = keyOf(p);
                return (
                  <div
                    key={key}
                    data-index={v.index}
                    ref={virtual.measureElement}
                    className="row-box"
                    style={{ transform: `translateY(${v.start}px)` }}
                  >
                    <ProcessRow p={p} index={v.index + 2} open={open === key} onToggle={() => setOpen(open === key ? undefined : key)} />
                  </div>
                );
              })}
            </div>
            {rows.length === 0 && <p className="muted pad">No process matches.</p>}
          </div>
        </section>
      )}
      {result.data && result.data.unmatched.length > 0 && <Unmatched list={result.data.unmatched} />}
    </div>
  );
}

function ProcessRow({ p, index, open, onToggle }: { p: ProcessTarget; index: number; open: boolean; onToggle: () => void }) {
  const { href, set } = useAppState();
  const lost = Object.values(p.dropped).reduce((a, b) => a + b, 0);
  const stacks = Object.values(p.stacks).reduce((a, b) => a + b, 0);
  const cut = stacks - (p.stacks.whole ?? 0);
  return (
    <>
      <div role="row" className="row" aria-rowindex={index} data-pid={p.pid}>
        <div role="cell" className="pid">
          <button type="button" className="ghost" aria-expanded={open} aria-label={`Details of process ${p.pid}`} onClick={onToggle}>
            {open ? <ChevronDown /> : <ChevronRight />}
          </button>
          {p.pid}
        </div>
        <div role="cell" className="comm">
          <b>{p.comm || '–'}</b>
          <span className="muted" title={p.exe}>
            {p.exe}
          </span>
        </div>
        <div role="cell" className="service">
          {p.service !== '' ? (
            <a
              className="badge"
              href={href({ page: 'profiles', service: p.service, filters: [], sandwich: '' })}
              title={`Look at ${p.service}`}
              onClick={(e) => {
                if (e.metaKey || e.ctrlKey || e.shiftKey) return;
                e.preventDefault();
                set({ page: 'profiles', service: p.service, filters: [], sandwich: '' });
              }}
            >
              {p.service}
            </a>
          ) : (
            <span className="badge none">not profiled</span>
          )}
        </div>
        <div role="cell" className="why" title={p.why}>
          {p.why || '–'}
        </div>
        <div role="cell" className="samples">
          {count(p.samples)}
          {lost > 0 && (
            <span className="lost" title={Object.entries(p.dropped).map(([r, n]) => `${n} dropped: ${r}`).join('\n')}>
              {count(lost)} dropped
            </span>
          )}
          {cut > stacks / 20 && (
            <span className="lost" title={`Stacks that do not end in their root frame.\n${describeCuts(p.stacks)}`}>
              {percent(cut, stacks)} cut
            </span>
          )}
        </div>
        <div role="cell" className="started" title={Number.isNaN(p.started) ? '' : dateTime(p.started)}>
          {Number.isNaN(p.started) ? '–' : ago(serverNow() - p.started)}
        </div>
      </div>
      {open && (
        <div className="details">
          <dl>
            <dt>Why</dt>
            <dd>{p.why || 'The agent gives no reason.'}</dd>
            {p.job && (
              <>
                <dt>Job</dt>
                <dd>{p.job}</dd>
              </>
            )}
            <dt>Executable</dt>
            <dd>{p.exe || 'not known'}</dd>
            <dt>Labels</dt>
            <dd>
              <Labels labels={p.labels} />
            </dd>
            {stacks > 0 && (
              <>
                <dt>Stacks</dt>
                <dd>
                  {percent(stacks - cut, stacks)} of {count(stacks)} are whole{cut > 0 && `; cut: ${describeCuts(p.stacks)}`}
                </dd>
              </>
            )}
            {lost > 0 && (
              <>
                <dt>Dropped</dt>
                <dd>
                  {Object.entries(p.dropped)
                    .map(([r, n]) => `${r}: ${count(n)}`)
                    .join(', ')}
                </dd>
              </>
            )}
          </dl>
        </div>
      )}
    </>
  );
}

/** Why stacks are cut, and how many: "no_row: 3, not_loaded_yet: 1". */
function describeCuts(stacks: Record<string, number>): string {
  return Object.entries(stacks)
    .filter(([end]) => end !== 'whole')
    .sort((a, b) => b[1] - a[1])
    .map(([end, n]) => `${end}: ${count(n)}`)
    .join(', ');
}

function Labels({ labels }: { labels: Record<string, string> }) {
  const entries = Object.entries(labels).slice(0, 100);
  if (entries.length === 0) return <span className="muted">none</span>;
  return (
    <span className="labels">
      {entries.map(([k, v]) => (
        <code key={k}>
          {k}=<b>{v}</b>
        </code>
      ))}
    </span>
  );
}

const MAX_UNMATCHED = 200;

function Unmatched({ list }: { list: TargetList['unmatched'] }) {
  return (
    <details className="card unmatched">
      <summary>
        {count(list.length)} discovered {list.length === 1 ? 'target has' : 'targets have'} no process on this host
      </summary>
      <ul>
        {list.slice(0, MAX_UNMATCHED).map((u, i) => (
          <li key={i}>
            <b>{u.job || 'no job'}</b> <span className="muted">{u.why}</span>
            <Labels labels={u.labels} />
          </li>
        ))}
        {list.length > MAX_UNMATCHED && <li className="muted">and {count(list.length - MAX_UNMATCHED)} more</li>}
      </ul>
    </details>
  );
}
