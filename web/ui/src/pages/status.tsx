import { keepPreviousData, useQuery } from '@tanstack/react-query';
import { Gauge, ServerOff } from 'lucide-react';
import { status } from '../api/agent';
import { serverNow } from '../api/client';
import { Banner, Empty } from '../components/bits';
import { count, percent } from '../lib/format';
import { lost, pending, REASON_WORDS, viewStatus, type Account } from '../lib/statusview';

const REFRESH = 5_000;

export function StatusPage() {
  const result = useQuery({
    queryKey: ['status'],
    queryFn: async ({ signal }) => ({ doc: await status(signal), at: serverNow() }),
    retry: false,
    refetchInterval: REFRESH,
    placeholderData: keepPreviousData,
  });
  const data = result.data;
  const view = data && viewStatus(data.doc, data.at);
  const [sampler, ...sinks] = view?.accounts ?? [];
  return (
    <div className="page status">
      <div className="page-head">
        <div>
          <h1>Status</h1>
          <p className="muted">What the agent took, what became of it, and what it runs on.</p>
        </div>
      </div>
      {result.isError && (
        <Banner>
          <b>The status didn’t come</b>: {result.error.message}.{view ? ' This is the last one.' : ''} It is asked for again every few seconds.
        </Banner>
      )}
      {!view ? (
        <div className="card grow">
          <Empty icon={result.isError ? <ServerOff /> : <Gauge />} title={result.isError ? 'No answer yet' : 'Loading…'} />
        </div>
      ) : (
        <div className="status-grid">
          {sampler && <Sampler a={sampler} />}
          {sinks.length > 0 && <Sinks list={sinks} />}
          {view.accounts.some((a) => a.dropped.length > 0) && <Dropped list={view.accounts} />}
          {view.groups.map((g) => (
            <section className="card status-card" key={g.name}>
              <h2>{g.name || 'Agent'}</h2>
              <dl className="pairs">
                {g.facts.map(([k, v]) => (
                  <Fact key={k} name={k} value={v} />
                ))}
              </dl>
            </section>
          ))}
          {view.tables.map((t) => (
            <section className="card status-card wide" key={t.name}>
              <h2>{t.name}</h2>
              <div className="table-scroll">
                <table className="status-table">
                  <thead>
                    <tr>
                      {t.columns.map((c) => (
                        <th key={c} scope="col">
                          {c}
                        </th>
                      ))}
                    </tr>
                  </thead>
                  <tbody>
                    {t.rows.map((r, i) => (
                      <tr key={i}>
                        {r.map((c, k) => (
                          <td key={k}>{c}</td>
                        ))}
                      </tr>
                    ))}
                  </tbody>
                </table>
              </div>
            </section>
          ))}
          <details className="card status-card wide raw-box">
            <summary>The status as JSON</summary>
            <pre className="raw">{JSON.stringify(data.doc, null, 2)}</pre>
          </details>
        </div>
      )}
    </div>
  );
}

function Fact({ name, value }: { name: string; value: string }) {
  return (
    <>
      <dt>{name}</dt>
      <dd>{value}</dd>
    </>
  );
}

function Tile({ name, n, note, bad }: { name: string; n: number; note?: string; bad?: boolean }) {
  return (
    <div className="tile">
      <span className="muted">{name}</span>
      <b className={bad ? 'bad' : ''}>{count(n)}</b>
      {note && <span className="muted">{note}</span>}
    </div>
  );
}

function Sampler({ a }: { a: Account }) {
  // What nobody asked for is left out on purpose and is no loss.
  const unwanted = a.dropped.find((d) => d.reason === 'no_target')?.n ?? 0;
  const dropped = lost(a) - unwanted;
  return (
    <section className="card status-card wide" aria-label="Samples">
      <h2>Samples since the start</h2>
      <div className="tiles">
        <Tile name="Taken in the kernel" n={a.in} />
        <Tile name="In profiles" n={a.out} note={percent(a.out, a.in)} />
        <Tile name="Of no target" n={unwanted} note={percent(unwanted, a.in)} />
        <Tile name="Lost" n={dropped} note={percent(dropped, a.in)} bad={dropped > 0} />
        <Tile name="In work" n={pending(a)} note="this round" />
      </div>
    </section>
  );
}

function Sinks({ list }: { list: Account[] }) {
  return (
    <section className="card status-card wide">
      <h2>Where they went</h2>
      <div className="table-scroll">
        <table className="status-table">
          <thead>
            <tr>
              <th scope="col">Sink</th>
              <th scope="col" className="n">
                Samples accepted
              </th>
              <th scope="col" className="n">
                Delivered
              </th>
              <th scope="col" className="n">
                Dropped
              </th>
              <th scope="col" className="n">
                Waiting
              </th>
            </tr>
          </thead>
          <tbody>
            {list.map((a) => (
              <tr key={a.name}>
                <td>{a.name}</td>
                <td className="n">{count(a.in)}</td>
                <td className="n">{count(a.out)}</td>
                <td className="n">{count(lost(a))}</td>
                <td className="n">{count(pending(a))}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

function Dropped({ list }: { list: Account[] }) {
  return (
    <section className="card status-card wide">
      <h2>Dropped, by reason</h2>
      <div className="table-scroll">
        <table className="status-table">
          <thead>
            <tr>
              <th scope="col">Reason</th>
              <th scope="col">Where</th>
              <th scope="col">What it means</th>
              <th scope="col" className="n">
                Samples
              </th>
            </tr>
          </thead>
          <tbody>
            {list.flatMap((a) =>
              a.dropped.map((d) => (
                <tr key={`${a.name} ${d.reason}`}>
                  <td>
                    <code>{d.reason}</code>
                  </td>
                  <td>{a.name}</td>
                  <td>{REASON_WORDS[d.reason] ?? '–'}</td>
                  <td className="n">{count(d.n)}</td>
                </tr>
              )),
            )}
          </tbody>
        </table>
      </div>
    </section>
  );
}
