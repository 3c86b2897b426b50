import { useEffect, useMemo, useRef, useState } from 'react';
import uPlot from 'uplot';
import 'uplot/dist/uPlot.min.css';
import type { ChartData } from '../lib/chartdata';
import { clock, digits } from '../lib/format';
import { useTheme } from '../lib/theme';

interface Props {
  data: ChartData;
  /** The range on the axis, ms. */
  start: number;
  end: number;
  /** Formats a value with its unit. */
  format: (v: number) => string;
  label: string;
  onSelect: (from: number, to: number) => void;
  /** Makes the names of the legend buttons. */
  onPick?: (name: string) => void;
}

const HEIGHT = 118;
const MIN_DRAG = 4; // px
const LIGHT = ['#4263eb', '#e8590c', '#0c8599', '#ae3ec9', '#2f9e44', '#e03131', '#f08c00', '#868e96'];
const DARK = ['#748ffc', '#ff922b', '#3bc9db', '#da77f2', '#69db7c', '#ff8787', '#ffd43b', '#adb5bd'];

const alpha = (hex: string, a: number) => hex + Math.round(a * 255).toString(16).padStart(2, '0');

/** Stacked areas over time; dragging over them selects a range. */
export function Chart({ data, start, end, format, label, onSelect, onPick }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot>();
  const [at, setAt] = useState<number | null>(null);
  const { dark } = useTheme();
  const colors = dark ? DARK : LIGHT;

  // uPlot keeps the first callbacks that it gets.
  const select = useRef(onSelect);
  select.current = onSelect;

  const table = useMemo(() => [data.times, ...data.stacked] as uPlot.AlignedData, [data]);
  const points = data.values[0]?.filter((v) => v !== null).length ?? 0;

  useEffect(() => {
    const element = box.current!;
    const css = getComputedStyle(document.documentElement);
    const text = css.getPropertyValue('--text-3').trim();
    const grid = css.getPropertyValue('--line').trim();
    const font = '11px ' + css.getPropertyValue('--font').trim();
    const stacks = data.stacked.length;
    const u = new uPlot(
      {
        width: Math.max(200, element.clientWidth),
        height: HEIGHT,
        padding: [8, 12, 0, 0],
        legend: { show: false },
        cursor: {
          y: false,
          points: { show: false },
          drag: { x: true, y: false, setScale: false, dist: MIN_DRAG },
        },
        scales: { x: { time: true, range: () => [start / 1000, end / 1000] }, y: { range: (_, __, max) => [0, max > 0 ? max * 1.08 : 1] } },
        axes: [
          {
            stroke: text,
            font,
            grid: { show: false },
            ticks: { show: false },
            gap: 4,
            size: 24,
            space: 80,
            values: (_, ticks, __, ___, incr) =>
              ticks.map((t) => {
                const c = clock(t * 1000);
                return incr >= 60 ? c.slice(0, 5) : c;
              }),
          },
          { stroke: text, font, grid: { stroke: grid, width: 1 }, ticks: { show: false }, gap: 6, size: 46, space: 22, values: (_, ticks) => ticks.map(digits) },
        ],
        series: [
          {},
          ...data.stacked.map((_, i) => ({
            stroke: colors[i % colors.length],
            width: 1.25,
            fill: i === 0 ? alpha(colors[0], dark ? 0.32 : 0.22) : undefined,
            spanGaps: false,
            points: { show: points < 3, size: 6, fill: colors[i % colors.length] },
          })),
        ],
        bands: Array.from({ length: Math.max(0, stacks - 1) }, (_, i) => ({
          series: [i + 2, i + 1] as [number, number],
          fill: alpha(colors[(i + 1) % colors.length], dark ? 0.32 : 0.22),
        })),
        hooks: {
          setCursor: [(v) => setAt(v.cursor.idx ?? null)],
          setSelect: [
            (v) => {
              if (v.select.width < MIN_DRAG) return;
              const from = v.posToVal(v.select.left, 'x') * 1000;
              const to = v.posToVal(v.select.left + v.select.width, 'x') * 1000;
              v.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
              select.current(from, to);
            },
          ],
        },
      },
      table,
      element,
    );
    plot.current = u;
    const observer = new ResizeObserver(() => u.setSize({ width: Math.max(200, element.clientWidth), height: HEIGHT }));
    observer.observe(element);
    return () => {
      observer.disconnect();
      u.destroy();
      setAt(null);
    };
  }, [table, data, start, end, colors, dark, points]);

  const shown = at !== null && at < data.times.length ? at : null;
  return (
    <figure className="chart">
      <div ref={box} className="chart-canvas" role="img" aria-label={`${label}. ${data.stacks.map((s) => `${s.name}: ${format(s.mean)} on average`).join('; ')}`} />
      <figcaption className="legend">
        {data.stacks.map((s, i) => {
          const v = shown === null ? s.mean : data.values[i][shown];
          const entry = (
            <>
              <span className="swatch" style={{ background: colors[i % colors.length] }} />
              <span className="legend-name">{s.name}</span>
              <span className="legend-value">{v === null ? '–' : format(v)}</span>
            </>
          );
          return onPick && !/^\d+ others$/.test(s.name) ? (
            <button key={s.name} type="button" onClick={() => onPick(s.name)} title={`Show only ${s.name}`}>
              {entry}
            </button>
          ) : (
            <span key={s.name} className="legend-entry">
              {entry}
            </span>
          );
        })}
        <span className="legend-time">{shown === null ? 'average · drag over the chart to zoom in' : `at ${clock(data.times[shown] * 1000)}`}</span>
      </figcaption>
    </figure>
  );
}
