import { useMemo, useRef } from 'react';
import { useVirtualizer } from '@tanstack/react-virtual';
import { ArrowDown, ArrowUp, Shrink } from 'lucide-react';
import { getBarColorByPackage } from '../grafana/colors';
import { lightTheme } from '../grafana/ui';
import type { FunctionRow } from '../lib/flamebearer';
import { percent, value } from '../lib/format';
import type { SortKey } from '../lib/urlstate';

interface Props {
  rows: readonly FunctionRow[];
  total: number;
  unit: string;
  sort: SortKey;
  desc: boolean;
  onSort: (key: SortKey, desc: boolean) => void;
  matched: ReadonlySet<string> | undefined;
  onPick: (name: string) => void;
  onSandwich: (name: string) => void;
}

const ROW = 30;

/** Sorts by a column; equal rows by name, so that the order never depends on the answer's. */
export function sortRows(rows: readonly FunctionRow[], sort: SortKey, desc: boolean): FunctionRow[] {
  const sign = desc ? -1 : 1;
  const byName = (a: FunctionRow, b: FunctionRow) => (a.name < b.name ? -1 : a.name > b.name ? 1 : 0);
  return [...rows].sort((a, b) => (sort === 'name' ? sign * byName(a, b) : sign * (a[sort] - b[sort]) || byName(a, b)));
}

/** The functions with their own and their whole share. Only the rows in view are made. */
export function Functions({ rows, total, unit, sort, desc, onSort, matched, onPick, onSandwich }: Props) {
  const scroller = useRef<HTMLDivElement>(null);
  const shown = useMemo(
    () => sortRows(matched ? rows.filter((r) => matched.has(r.name)) : rows, sort, desc),
    [rows, matched, sort, desc],
  );
  const virtual = useVirtualizer({
    count: shown.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => ROW,
    overscan: 12,
  });

  const heading = (key: SortKey, text: string, className: string) => (
    <div role="columnheader" aria-sort={sort === key ? (desc ? 'descending' : 'ascending') : 'none'} className={className}>
      <button type="button" onClick={() => onSort(key, sort === key ? !desc : key !== 'name')}>
        {text}
        {sort === key && (desc ? <ArrowDown /> : <ArrowUp />)}
      </button>
    </div>
  );
  const figure = (v: number) => (
    <div role="cell" className={v === 0 ? 'figure zero' : 'figure'}>
      <span className="bar" style={{ width: `${total > 0 ? Math.min(100, (100 * v) / total) : 0}%` }} />
      <span className="figure-value">{value(v, unit)}</span>
      <span className="figure-share">{percent(v, total)}</span>
    </div>
  );

  return (
    <div className="functions" role="table" aria-label="Functions" aria-rowcount={shown.length + 1}>
      <div role="row" className="table-head" aria-rowindex={1}>
        {heading('name', 'Function', 'name')}
        {heading('self', 'Self', 'figure')}
        {heading('total', 'Total', 'figure')}
      </div>
      <div className="table-body" ref={scroller} role="rowgroup">
        <div style={{ height: virtual.getTotalSize(), position: 'relative' }}>
          {virtual.getVirtualItems().map((v) => {
            const r = shown[v.index];
            return (
              <div role="row" className="row" key={r.name} aria-rowindex={v.index + 2} style={{ height: ROW, transform: `translateY(${v.start}px)` }}>
                <div role="cell" className="name">
                  <span className="swatch" style={{ background: getBarColorByPackage(r.name, lightTheme).toHslString() }} />
                  <button type="button" className="link" title={`${r.name}\nClick to highlight it`} onClick={() => onPick(r.name)}>
                    {r.name}
                  </button>
                  <button type="button" className="ghost on-hover" aria-label={`Callers and callees of ${r.name}`} title="Callers and callees" onClick={() => onSandwich(r.name)}>
                    <Shrink />
                  </button>
                </div>
                {figure(r.self)}
                {figure(r.total)}
              </div>
            );
          })}
        </div>
        {shown.length === 0 && <p className="muted pad">No function by this name.</p>}
      </div>
    </div>
  );
}
