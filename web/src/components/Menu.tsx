import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";

export interface MenuItem {
  label: string;
  danger?: boolean;
  act: () => void;
}

/** A button that opens a short list of acts. */
export function Menu({ label, items }: { label: string; items: MenuItem[] }): JSX.Element {
  const box = useRef<HTMLDetailsElement>(null);
  useEffect(() => {
    const leave = (event: Event): void => {
      if (box.current?.open && event.target instanceof Node && !box.current.contains(event.target)) box.current.open = false;
    };
    addEventListener("pointerdown", leave);
    addEventListener("focusin", leave);
    return () => {
      removeEventListener("pointerdown", leave);
      removeEventListener("focusin", leave);
    };
  }, []);
  return (
    <details
      ref={box}
      class="menu"
      onKeyDown={(event) => {
        if (event.key === "Escape" && box.current) box.current.open = false;
      }}
    >
      <summary class="btn">{label}</summary>
      <div class="menu-list">
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
