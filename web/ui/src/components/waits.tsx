import { useMemo } from 'react';
import { Hourglass } from 'lucide-react';
import { duration, percent } from '../lib/format';
import { ADDED_UP, breakdown, causeWords, idleOmitted, omitIdle, pickedWait, pickWait, type Cause } from '../lib/offcpu';
import type { Filter } from '../lib/selector';

interface Props {
  causes: readonly Cause[] | undefined;
  stale: boolean;
  filters: Filter[];
  onChange: (filters: Filter[]) => void;
}

/** The time off the CPU by what was waited for; a click on a cause picks it. */
export function Waits({ causes, stale, filters, onChange }: Props) {
  const withoutIdle = idleOmitted(filters);
  const picked = pickedWait(filters);
  const b = useMemo(() => breakdown(causes ?? [], withoutIdle), [causes, withoutIdle]);
  const all = b.total + (withoutIdle ? b.idle : 0);
  const part = (c: Cause, kind: 'busy' | 'idle') =>
    c[kind] > 0 && <span className={kind} style={{ flexGrow: c[kind] / (c.busy + c.idle) }} title={`${causeWords(c.wait).name}${kind === 'idle' ? ', idle threads' : ''}: ${duration(c[kind])}`} />;

  return (
    <section className={`card strip waits ${stale ? 'stale' : ''}`} aria-label="Time off the CPU by wait">
      <h2>
        <Hourglass />
        Time off the CPU, by wait
        <span className="muted" title={ADDED_UP}>
          all threads added up
        </span>
        <button
          type="button"
          className="button toggle"
          aria-pressed={withoutIdle}
          disabled={b.idle === 0 && !withoutIdle}
          title="Idle threads wait for work: event loops, parked threads of pools"
          onClick={() => onChange(omitIdle(filters, !withoutIdle))}
        >
          Leave out idle
          {b.idle > 0 && (
            <span className="muted">
              {duration(b.idle)} · {percent(b.idle, all)}
            </span>
          )}
        </button>
      </h2>
      <div className="waits-bar" aria-hidden="true">
        {b.causes.map((c) => (
          <div
            key={c.wait}
            className={picked !== undefined && picked !== c.wait ? 'unpicked' : ''}
            data-wait={c.wait}
            style={{ flexGrow: c.total / b.total }}
            onClick={() => onChange(pickWait(filters, c.wait))}
          >
            {part(c, 'busy')}
            {part(c, 'idle')}
          </div>
        ))}
      </div>
      <div className="legend" role="group" aria-label="What was waited for">
        {b.causes.map((c) => {
          const { name, meaning } = causeWords(c.wait);
          return (
            <button
              key={c.wait}
              type="button"
              aria-pressed={picked === c.wait}
              title={`Off the CPU ${meaning}${c.idle > 0 ? `; ${duration(c.idle)} of it idle threads` : ''}.\nClick to ${picked === c.wait ? 'show all' : 'show only this'}`}
              onClick={() => onChange(pickWait(filters, c.wait))}
            >
              <span className="swatch" data-wait={c.wait} />
              <span className="legend-name">{name}</span>
              <span className="legend-value">{duration(c.total)}</span>
              <span className="legend-share">{percent(c.total, b.total)}</span>
            </button>
          );
        })}
        {causes && b.causes.length === 0 && <span className="muted">Nothing in this time range</span>}
      </div>
    </section>
  );
}
