import type { JSX } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

/** Rows of one height, of which only those in view are made. The page itself scrolls. */
export function VirtualList(props: {
  count: number;
  rowHeight: number;
  render: (index: number) => JSX.Element;
  /** Called with the first and last row in view. */
  onRange?: (first: number, last: number) => void;
  /** Brought into view when it changes. */
  focus?: number;
  role?: "list" | "presentation";
  label?: string;
}): JSX.Element {
  const { count, rowHeight, onRange } = props;
  const box = useRef<HTMLDivElement>(null);
  const [range, setRange] = useState({ first: 0, last: Math.min(count, 40) });

  useLayoutEffect(() => {
    let frame = 0;
    const measure = (): void => {
      frame = 0;
      if (!box.current) return;
      const top = box.current.getBoundingClientRect().top;
      const over = 12;
      const first = Math.max(0, Math.floor(-top / rowHeight) - over);
      const last = Math.min(count, Math.ceil((innerHeight - top) / rowHeight) + over);
      setRange((before) => (before.first === first && before.last === last ? before : { first, last }));
    };
    const ask = (): void => {
      frame ||= requestAnimationFrame(measure);
    };
    measure();
    addEventListener("scroll", ask, { passive: true });
    addEventListener("resize", ask);
    return () => {
      cancelAnimationFrame(frame);
      removeEventListener("scroll", ask);
      removeEventListener("resize", ask);
    };
  }, [count, rowHeight]);

  useEffect(() => onRange?.(range.first, Math.min(range.last, count)), [range.first, range.last, count, onRange]);

  useEffect(() => {
    if (props.focus === undefined || props.focus < 0 || !box.current) return;
    const top = box.current.getBoundingClientRect().top + props.focus * rowHeight;
    const margin = 120;
    if (top < margin) scrollBy(0, top - margin);
    else if (top + rowHeight > innerHeight - 40) scrollBy(0, top + rowHeight - innerHeight + 40);
  }, [props.focus, rowHeight]);

  const rows: JSX.Element[] = [];
  for (let index = range.first; index < Math.min(range.last, count); index += 1) rows.push(props.render(index));
  return (
    <div ref={box} class="virtual" style={{ height: `${count * rowHeight}px` }} role={props.role ?? "presentation"} {...(props.label ? { "aria-label": props.label } : {})}>
      <div class="virtual-rows" style={{ transform: `translateY(${range.first * rowHeight}px)` }} role="presentation">
        {rows}
      </div>
    </div>
  );
}
