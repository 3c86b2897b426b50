// What @grafana/flamegraph needs of react-use.

import { useCallback, useRef, useState } from 'react';

/** The width and height of an element, followed as it changes. */
export function useMeasure<E extends Element>(): [(element: E | null) => void, { width: number; height: number }] {
  const [size, setSize] = useState({ width: 0, height: 0 });
  const observer = useRef<ResizeObserver>();
  const ref = useCallback((element: E | null) => {
    observer.current?.disconnect();
    if (!element) return;
    observer.current = new ResizeObserver(([entry]) => {
      const { width, height } = entry.contentRect;
      setSize((old) => (old.width === width && old.height === height ? old : { width, height }));
    });
    observer.current.observe(element);
  }, []);
  return [ref, size];
}
