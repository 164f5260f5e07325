import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";

const GAP = 4;

export interface MenuItem {
  label: string;
  danger?: boolean;
  act: () => void;
}

/** A button that opens a short list of acts. Tables scroll, and would cut the list off: it lies above them. */
export function Menu({ label, items }: { label: string; items: MenuItem[] }): JSX.Element {
  const box = useRef<HTMLDetailsElement>(null);
  const list = useRef<HTMLDivElement>(null);
  const place = (): void => {
    if (!box.current?.open || !list.current) return;
    const { right, top, bottom } = box.current.getBoundingClientRect();
    const isAbove = bottom + GAP + list.current.offsetHeight > innerHeight && top > list.current.offsetHeight + GAP;
    list.current.style.left = `${Math.max(GAP, right - list.current.offsetWidth)}px`;
    list.current.style.top = `${isAbove ? top - GAP - list.current.offsetHeight : bottom + GAP}px`;
  };
  useEffect(() => {
    const leave = (event: Event): void => {
      if (box.current?.open && event.target instanceof Node && !box.current.contains(event.target)) box.current.open = false;
    };
    const close = (): void => {
      if (box.current) box.current.open = false;
    };
    addEventListener("pointerdown", leave);
    addEventListener("focusin", leave);
    addEventListener("scroll", close, true);
    return () => {
      removeEventListener("scroll", close, true);
      removeEventListener("pointerdown", leave);
      removeEventListener("focusin", leave);
    };
  }, []);
  return (
    <details
      ref={box}
      class="menu"
      onToggle={place}
      onKeyDown={(event) => {
        if (event.key === "Escape" && box.current) box.current.open = false;
      }}
    >
      <summary class="btn">{label}</summary>
      <div class="menu-list" ref={list}>
        {items.map((item) => (
          <button
            key={item.label}
            type="button"
            class={item.danger ? "tone-fail" : ""}
            onClick={() => {
              if (box.current) box.current.open = false;
              item.act();
            }}
          >
            {item.label}
          </button>
        ))}
      </div>
    </details>
  );
}
