// Types of the modules of @grafana/flamegraph that are used (they lie behind
// aliases, see vite.config.ts). From version 13.0.1.

declare module '@grafana/flamegraph/canvas' {
  import type { ReactNode } from 'react';
  import type { CollapsedMap, FlameGraphDataContainer, LevelItem } from '@grafana/flamegraph/data';

  export interface ClickedItemData {
    posX: number;
    posY: number;
    label: string;
    item: LevelItem;
  }

  export interface CanvasProps {
    data: FlameGraphDataContainer;
    /** The part that is shown, as shares of totalViewTicks. */
    rangeMin: number;
    rangeMax: number;
    setRangeMin: (v: number) => void;
    setRangeMax: (v: number) => void;
    /** Labels that stand out; undefined is no search. */
    matchedLabels: ReadonlySet<string> | undefined;
    onItemFocused: (data: ClickedItemData) => void;
    focusedItemData?: ClickedItemData;
    textAlign: 'left' | 'right';
    onSandwich: (label: string) => void;
    colorScheme: 'packageBased' | 'valueBased';
    root: LevelItem;
    direction: 'children' | 'parents';
    depth: number;
    totalProfileTicks: number;
    totalViewTicks: number;
    collapsedMap: CollapsedMap;
    setCollapsedMap: (map: CollapsedMap) => void;
    collapsing?: boolean;
    search: string;
  }

  export default function FlameGraphCanvas(props: CanvasProps): ReactNode;
}

declare module '@grafana/flamegraph/data' {
  export interface LevelItem {
    start: number;
    value: number;
    itemIndexes: number[];
    children: LevelItem[];
    level: number;
    parents?: LevelItem[];
  }
  export interface CollapseConfig {
    items: LevelItem[];
    collapsed: boolean;
  }
  export class CollapsedMap {
    constructor(map?: Map<LevelItem, CollapseConfig>);
    get(item: LevelItem): CollapseConfig | undefined;
    values(): Iterable<CollapseConfig>;
    size(): number;
    setCollapsedStatus(item: LevelItem, collapsed: boolean): CollapsedMap;
    setAllCollapsedStatus(collapsed: boolean): CollapsedMap;
  }
  export interface Frame {
    length: number;
    fields: Array<{ name: string; type: string; values: unknown[]; config: { unit?: string } }>;
  }
  export class FlameGraphDataContainer {
    constructor(data: Frame, options: { collapsing: boolean });
    getLabel(index: number): string;
    getSelf(index: number | number[]): number;
    getUniqueLabels(): string[];
    getLevels(): LevelItem[][];
    getNodesWithLabel(label: string): LevelItem[] | undefined;
    getCollapsedMap(): CollapsedMap;
  }
}

declare module '@grafana/flamegraph/tree' {
  import type { FlameGraphDataContainer, LevelItem } from '@grafana/flamegraph/data';

  /** Merges the stacks above the items, by label; the last level is that of the items. */
  export function mergeParentSubtrees(items: LevelItem[], data: FlameGraphDataContainer): LevelItem[][];
  /** Merges the trees below the items, by label. */
  export function mergeSubtrees(items: LevelItem[], data: FlameGraphDataContainer): LevelItem[][];
}

declare module '@grafana/flamegraph/colors' {
  export interface Color {
    toHslString(): string;
    clone(): Color;
    lighten(percent: number): Color;
  }
  export function getBarColorByPackage(label: string, theme: { isLight: boolean }): Color;
}
