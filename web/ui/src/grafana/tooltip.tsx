// The tooltip of the flame graph. It takes the place of the package's own (see
// README.md) and so has that one's properties.

import { useLayoutEffect, useRef, useState } from 'react';
import { createPortal } from 'react-dom';
import type { CollapseConfig, FlameGraphDataContainer, LevelItem } from '@grafana/flamegraph/data';
import { percent, value } from '../lib/format';

interface Props {
  data: FlameGraphDataContainer & { valueField: { config: { unit?: string } } };
  item?: LevelItem;
  totalTicks: number;
  position?: { x: number; y: number };
  collapseConfig?: CollapseConfig;
}

const GAP = 14;

export default function FlameGraphTooltip({ data, item, totalTicks, position, collapseConfig }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const [at, setAt] = useState({ left: 0, top: 0 });

  useLayoutEffect(() => {
    if (!box.current || !position) return;
    const { width, height } = box.current.getBoundingClientRect();
    const right = position.x + GAP + width < window.innerWidth;
    const below = position.y + GAP + height < window.innerHeight;
    setAt({
      left: right ? position.x + GAP : Math.max(4, position.x - GAP - width),
      top: below ? position.y + GAP : Math.max(4, position.y - GAP - height),
    });
  }, [position, item]);

  if (!item || !position) return null;
  const unit = data.valueField.config.unit ?? '';
  const self = data.getSelf(item.itemIndexes);
  return createPortal(
    <div className="flame-tooltip" role="tooltip" ref={box} style={at}>
      <div className="flame-tooltip-name">{data.getLabel(item.itemIndexes[0])}</div>
      {collapseConfig?.collapsed && (
        <div className="muted">and {collapseConfig.items.length - 1} more below it with nearly the same share</div>
      )}
      <dl>
        <dt>Total</dt>
        <dd>{value(item.value, unit)}</dd>
        <dd>{percent(item.value, totalTicks)}</dd>
        <dt>Self</dt>
        <dd>{value(self, unit)}</dd>
        <dd>{percent(self, totalTicks)}</dd>
      </dl>
    </div>,
    document.body,
  );
}
