import { useState } from 'react';
import { Clock, ZoomOut } from 'lucide-react';
import { serverNow } from '../api/client';
import { clock, dateTime } from '../lib/format';
import { absolute, bounds, PRESETS, rangeWords, type Range } from '../lib/timerange';
import { Popover } from './popover';

interface Props {
  range: Range;
  onChange: (range: Range) => void;
}

const MAX_ZOOM = 31 * 86_400_000;

// The text of a datetime-local field, in the reader's zone.
const fieldText = (ms: number) => dateTime(ms).replace(' ', 'T');

/** The choice of the time range. */
export function TimePicker({ range, onChange }: Props) {
  const zoomOut = () => {
    const { start, end } = bounds(range, serverNow());
    const size = Math.min(2 * (end - start), MAX_ZOOM);
    const to = Math.min((start + end) / 2 + size / 2, serverNow());
    const next = absolute(Math.max(0, to - size), to);
    if (next) onChange(next);
  };
  return (
    <div className="joined">
      <Popover
        label="Time range"
        align="right"
        button={
          <>
            <Clock />
            <span>{rangeWords(range, dateTime, clock)}</span>
          </>
        }
      >
        {(close) => (
          <>
            <div className="menu-list" role="group" aria-label="Up to now">
              {PRESETS.map((p) => (
                <button
                  key={p.text}
                  type="button"
                  aria-pressed={range.kind === 'last' && range.ms === p.ms}
                  onClick={() => {
                    onChange({ kind: 'last', ms: p.ms });
                    close();
                  }}
                >
                  {p.words}
                </button>
              ))}
            </div>
            <Custom
              range={range}
              onChange={(r) => {
                onChange(r);
                close();
              }}
            />
          </>
        )}
      </Popover>
      <button type="button" className="button icon" aria-label="Zoom out: twice the time range" title="Zoom out: twice the time range" onClick={zoomOut}>
        <ZoomOut />
      </button>
    </div>
  );
}

function Custom({ range, onChange }: Props) {
  const [initial] = useState(() => bounds(range, serverNow()));
  const [from, setFrom] = useState(fieldText(initial.start));
  const [to, setTo] = useState(fieldText(initial.end));
  const next = absolute(new Date(from).getTime(), new Date(to).getTime());
  return (
    <form
      className="custom-range"
      onSubmit={(e) => {
        e.preventDefault();
        if (next) onChange(next);
      }}
    >
      <label>
        From
        <input type="datetime-local" step="1" value={from} onChange={(e) => setFrom(e.target.value)} />
      </label>
      <label>
        To
        <input type="datetime-local" step="1" value={to} onChange={(e) => setTo(e.target.value)} />
      </label>
      {!next && <p className="field-error">The end must come after the start.</p>}
      <button type="submit" className="button primary" disabled={!next}>
        Show this range
      </button>
    </form>
  );
}
