// The menu of a bar of the flame graph. It takes the place of the package's own
// (see README.md) and so has that one's properties.

import { useEffect, useLayoutEffect, useRef, useState, type KeyboardEvent } from 'react';
import { createPortal } from 'react-dom';
import { ChevronsDownUp, ChevronsUpDown, Copy, Crosshair, Search, Shrink } from 'lucide-react';
import type { ClickedItemData } from '@grafana/flamegraph/canvas';
import type { CollapseConfig } from '@grafana/flamegraph/data';
import { copyText } from '../lib/clipboard';
import { useFlameActions } from './actions';

interface Props {
  itemData: ClickedItemData;
  collapseConfig?: CollapseConfig;
  collapsing?: boolean;
  allGroupsExpanded: boolean;
  allGroupsCollapsed: boolean;
  onMenuItemClick: () => void;
  onItemFocus: () => void;
  onSandwich: () => void;
  onExpandGroup: () => void;
  onCollapseGroup: () => void;
  onExpandAllGroups: () => void;
  onCollapseAllGroups: () => void;
}

export default function FlameGraphContextMenu(p: Props) {
  const box = useRef<HTMLDivElement>(null);
  const { onSearch } = useFlameActions();
  const [at, setAt] = useState({ left: p.itemData.posX, top: p.itemData.posY });

  useLayoutEffect(() => {
    const { width, height } = box.current!.getBoundingClientRect();
    setAt({
      left: Math.max(4, Math.min(p.itemData.posX + 2, window.innerWidth - width - 8)),
      top: Math.max(4, Math.min(p.itemData.posY + 2, window.innerHeight - height - 8)),
    });
  }, [p.itemData]);

  useEffect(() => {
    const before = document.activeElement;
    box.current?.querySelector('button')?.focus({ preventScroll: true });
    return () => {
      if (before instanceof HTMLElement) before.focus({ preventScroll: true });
    };
  }, []);

  const onKeyDown = (e: KeyboardEvent) => {
    const items = [...box.current!.querySelectorAll('button')];
    const i = items.indexOf(document.activeElement as HTMLButtonElement);
    if (e.key === 'ArrowDown') items[(i + 1) % items.length].focus();
    else if (e.key === 'ArrowUp') items[(i - 1 + items.length) % items.length].focus();
    else if (e.key === 'Escape' || e.key === 'Tab') p.onMenuItemClick();
    else return;
    e.preventDefault();
    e.stopPropagation();
  };

  const entry = (icon: React.ReactNode, text: string, action: () => void) => (
    <button
      type="button"
      role="menuitem"
      onClick={() => {
        action();
        p.onMenuItemClick();
      }}
    >
      {icon}
      {text}
    </button>
  );

  return createPortal(
    <div className="menu flame-menu" role="menu" aria-label={p.itemData.label} ref={box} style={at} onKeyDown={onKeyDown}>
      <div className="flame-menu-name" title={p.itemData.label}>
        {p.itemData.label}
      </div>
      {entry(<Crosshair />, 'Focus on this block', p.onItemFocus)}
      {entry(<Shrink />, 'Show callers and callees', p.onSandwich)}
      {entry(<Search />, 'Highlight this function', () => onSearch(p.itemData.label))}
      {entry(<Copy />, 'Copy its name', () => void copyText(p.itemData.label))}
      {p.collapsing && (p.collapseConfig || !p.allGroupsExpanded || !p.allGroupsCollapsed) && <hr />}
      {p.collapsing &&
        p.collapseConfig &&
        (p.collapseConfig.collapsed
          ? entry(<ChevronsUpDown />, 'Unfold this group', p.onExpandGroup)
          : entry(<ChevronsDownUp />, 'Fold this group', p.onCollapseGroup))}
      {p.collapsing && !p.allGroupsExpanded && entry(<ChevronsUpDown />, 'Unfold all groups', p.onExpandAllGroups)}
      {p.collapsing && !p.allGroupsCollapsed && entry(<ChevronsDownUp />, 'Fold all groups', p.onCollapseAllGroups)}
    </div>,
    document.body,
  );
}
