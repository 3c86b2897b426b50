import { useMemo } from 'react';
import { BarChart3 } from 'lucide-react';
import { parseProfileType } from '../api/querier';
import type { SeriesResult } from '../api/queries';
import { chartData } from '../lib/chartdata';
import { digits, value } from '../lib/format';
import { SERVICE } from '../lib/selector';
import { Chart } from './chart';

interface Props {
  type: string;
  service: string;
  result: SeriesResult | undefined;
  stale: boolean;
  /** The page waits for the first data there is. */
  waiting: boolean;
  onSelect: (from: number, to: number) => void;
  onPick: (name: string) => void;
}

/** The profile's total over time. */
export function SeriesCard({ type, service, result, stale, waiting, onSelect, onPick }: Props) {
  const { name, sampleUnit: unit } = parseProfileType(type);
  const time = unit === 'nanoseconds';
  const cpu = name === 'process_cpu';
  const chart = useMemo(() => {
    if (!result || result.series.length === 0) return undefined;
    // Nanoseconds in a step, by the nanoseconds of the step: how many at once.
    const scale = time ? 1 / (result.step * 1e9) : 1 / result.step;
    return chartData(result.series, result.grid.start, result.grid.end, result.step, (l) => l[SERVICE] ?? (service || 'all'), scale);
  }, [result, time, service]);
  const format = (v: number) => (time ? digits(v) : `${value(v, unit)}/s`);
  const title = cpu && time ? 'CPU in use' : time ? 'Threads off the CPU' : 'Over time';
  return (
    <section className={`card strip ${stale ? 'stale' : ''}`} aria-label={title}>
      <h2>
        <BarChart3 />
        {title}
        <span className="muted">{cpu && time ? 'cores' : time ? 'at once' : 'per second'}</span>
      </h2>
      {chart && result ? (
        <Chart data={chart} start={result.start} end={result.end} format={format} label={title} onSelect={onSelect} onPick={service === '' ? onPick : undefined} />
      ) : (
        <div className="chart-empty muted">{result && !waiting ? 'Nothing in this time range' : ''}</div>
      )}
    </section>
  );
}
