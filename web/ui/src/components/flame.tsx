import { useEffect, useMemo, useRef, useState, type KeyboardEvent } from 'react';
import FlameGraphCanvas, { type ClickedItemData } from '@grafana/flamegraph/canvas';
import { FlameGraphDataContainer, type CollapsedMap, type LevelItem } from '@grafana/flamegraph/data';
import { Crosshair, Shrink, X } from 'lucide-react';
import { FlameActionsContext } from '../grafana/actions';
import { useMeasure } from '../grafana/react-use';
import { darkTheme, lightTheme, ThemeContext } from '../grafana/ui';
import type { FlameData } from '../lib/flamebearer';
import { findPath, pathOf, rowOf, sandwichOf, step, toFrame, type Step } from '../lib/flameview';
import { percent, value } from '../lib/format';
import { useTheme } from '../lib/theme';

interface Props {
  data: FlameData;
  unit: string;
  matched: ReadonlySet<string> | undefined;
  search: string;
  /** Fold frames that have nearly the same share as their caller. */
  fold: boolean;
  sandwich: string;
  onSandwich: (label: string) => void;
  onSearch: (label: string) => void;
}

const ROW = 22; // px; PIXELS_PER_LEVEL of the package
const KEYS: Record<string, Step> = { ArrowUp: 'up', ArrowDown: 'down', ArrowLeft: 'left', ArrowRight: 'right' };

/** The flame graph, or the callers and callees of one function. */
export function Flame({ data, unit, matched, search, fold, sandwich, onSandwich, onSearch }: Props) {
  const { dark } = useTheme();
  const container = useMemo(() => new FlameGraphDataContainer(toFrame(data, unit), { collapsing: fold }), [data, unit, fold]);
  const [groups, setGroups] = useState<{ of: FlameGraphDataContainer; map: CollapsedMap }>();
  const [focusPath, setFocusPath] = useState<string[]>([]);
  const [cursor, setCursor] = useState<LevelItem>();
  const [sizeRef, { width }] = useMeasure<HTMLDivElement>();
  const scroller = useRef<HTMLDivElement>(null);

  const levels = container.getLevels();
  const root = levels[0][0];
  const map = groups?.of === container ? groups.map : container.getCollapsedMap();
  const setMap = (m: CollapsedMap) => setGroups({ of: container, map: m });

  const focus = useMemo(() => (focusPath.length > 1 ? findPath(container, focusPath) : undefined), [container, focusPath]);
  const rangeMin = focus ? focus.start / root.value : 0;
  const rangeMax = focus ? (focus.start + focus.value) / root.value : 1;
  const focused: ClickedItemData | undefined = focus && {
    posX: 0,
    posY: 0,
    item: focus,
    label: container.getLabel(focus.itemIndexes[0]),
  };

  const sandwichLevels = useMemo(() => {
    if (sandwich === '') return undefined;
    return sandwichOf(container, sandwich);
  }, [container, sandwich]);

  useEffect(() => setCursor(undefined), [container, sandwich]);

  const common = {
    data: container,
    matchedLabels: matched,
    textAlign: 'left' as const,
    colorScheme: 'packageBased' as const,
    onSandwich,
    search,
    totalProfileTicks: root.value,
    collapsedMap: map,
    setCollapsedMap: setMap,
  };
  const nothing = () => {};

  const onKeyDown = (e: KeyboardEvent) => {
    if (sandwichLevels || e.altKey || e.ctrlKey || e.metaKey) return;
    const at = cursor ?? focus ?? root;
    if (e.key in KEYS) {
      const next = cursor ? step(at, KEYS[e.key], map) : at;
      setCursor(next);
      scroller.current?.scrollTo({ top: Math.max(0, rowOf(next, map) * ROW - 120) });
    } else if (e.key === 'Enter') setFocusPath(pathOf(container, at));
    else if (e.key === 'Escape' && (focus || cursor)) {
      setFocusPath([]);
      setCursor(undefined);
    } else if (e.key === 's') onSandwich(container.getLabel(at.itemIndexes[0]));
    else return;
    e.preventDefault();
  };

  const tell = (item: LevelItem) =>
    `${container.getLabel(item.itemIndexes[0])}: total ${value(item.value, unit)} (${percent(item.value, root.value)}), ` +
    `self ${value(container.getSelf(item.itemIndexes), unit)}`;

  return (
    <ThemeContext.Provider value={dark ? darkTheme : lightTheme}>
      <FlameActionsContext.Provider value={{ onSearch }}>
        <div className="flame">
          {(focus || sandwich !== '') && (
            <div className="crumbs">
              {sandwich !== '' && (
                <Crumb icon={<Shrink />} title="Callers and callees of" text={sandwich} onClose={() => onSandwich('')} closeLabel="Back to the whole flame graph" />
              )}
              {focus && sandwich === '' && (
                <Crumb
                  icon={<Crosshair />}
                  title="Focus on"
                  text={`${focused!.label} · ${percent(focus.value, root.value)} of the whole`}
                  onClose={() => setFocusPath([])}
                  closeLabel="Show the whole flame graph"
                />
              )}
            </div>
          )}
          <div
            className="flame-scroll"
            ref={scroller}
            tabIndex={0}
            role="application"
            aria-roledescription="flame graph"
            aria-label={`Flame graph of ${data.rows.length} functions, ${value(data.total, unit)} in all. Arrow keys move, Enter focuses, s shows callers and callees, Escape goes back. The table has the same figures.`}
            onKeyDown={onKeyDown}
          >
            {sandwichLevels ? (
              <>
                <div className="sandwich-title">Callers</div>
                <FlameGraphCanvas
                  {...common}
                  rangeMin={0}
                  rangeMax={1}
                  setRangeMin={nothing}
                  setRangeMax={nothing}
                  onItemFocused={nothing}
                  totalViewTicks={sandwichLevels.callees[0][0].value}
                  root={sandwichLevels.callers[sandwichLevels.callers.length - 1][0]}
                  depth={sandwichLevels.callers.length}
                  direction="parents"
                  collapsing={false}
                />
                <div className="sandwich-title">Callees</div>
                <FlameGraphCanvas
                  {...common}
                  rangeMin={0}
                  rangeMax={1}
                  setRangeMin={nothing}
                  setRangeMax={nothing}
                  onItemFocused={nothing}
                  totalViewTicks={sandwichLevels.callees[0][0].value}
                  root={sandwichLevels.callees[0][0]}
                  depth={sandwichLevels.callees.length}
                  direction="children"
                  collapsing={false}
                />
              </>
            ) : sandwich !== '' ? (
              <p className="muted pad">
                {sandwich} is not in this profile.
              </p>
            ) : (
              <div ref={sizeRef} className="flame-canvas">
                <FlameGraphCanvas
                  {...common}
                  rangeMin={rangeMin}
                  rangeMax={rangeMax}
                  setRangeMin={nothing}
                  setRangeMax={nothing}
                  onItemFocused={(c) => setFocusPath(pathOf(container, c.item))}
                  focusedItemData={focused}
                  totalViewTicks={root.value}
                  root={root}
                  depth={levels.length}
                  direction="children"
                  collapsing={fold}
                />
                {cursor && width > 0 && (
                  <div className="flame-cursor" style={cursorBox(cursor, map, width, root.value, rangeMin, rangeMax)} />
                )}
              </div>
            )}
          </div>
          <div className="visually-hidden" aria-live="polite">
            {cursor && tell(cursor)}
          </div>
          {cursor && <div className="flame-status">{tell(cursor)}</div>}
        </div>
      </FlameActionsContext.Provider>
    </ThemeContext.Provider>
  );
}

function cursorBox(item: LevelItem, groups: CollapsedMap, width: number, total: number, min: number, max: number) {
  const scale = width / (max - min) / total;
  const left = Math.max(0, (item.start - total * min) * scale);
  const right = Math.min(width, (item.start + item.value - total * min) * scale);
  return { left, top: rowOf(item, groups) * ROW, width: Math.max(3, right - left), height: ROW };
}

interface CrumbProps {
  icon: React.ReactNode;
  title: string;
  text: string;
  onClose: () => void;
  closeLabel: string;
}

function Crumb({ icon, title, text, onClose, closeLabel }: CrumbProps) {
  return (
    <div className="chip crumb">
      {icon}
      <span className="muted">{title}</span>
      <span className="crumb-text" title={text}>
        {text}
      </span>
      <button type="button" className="ghost" aria-label={closeLabel} title={closeLabel} onClick={onClose}>
        <X />
      </button>
    </div>
  );
}
