/** The keyboard: shortcuts for the whole page, and j, k, Enter in lists. */

import { useEffect, useRef, useState } from "preact/hooks";

function isTyping(event: KeyboardEvent): boolean {
  const at = event.target;
  return at instanceof HTMLElement && (at.isContentEditable || ["INPUT", "TEXTAREA", "SELECT"].includes(at.tagName));
}

function isModal(): boolean {
  return document.querySelector("dialog[open]") !== null;
}

/** Keys by name (`?`, `g r`, `Escape`). None works while somebody types or a dialog is open. */
export function useKeys(bindings: Record<string, (event: KeyboardEvent) => void>): void {
  const latest = useRef(bindings);
  latest.current = bindings;
  useEffect(() => {
    let before = "";
    let since = 0;
    const press = (event: KeyboardEvent): void => {
      if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || isTyping(event) || isModal()) return;
      const sequence = performance.now() - since < 900 ? `${before} ${event.key}` : "";
      const act = latest.current[sequence] ?? latest.current[event.key];
      before = event.key;
      since = performance.now();
      act?.(event);
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
}

/** A list of which one row is chosen by j and k (or arrows with the list in focus), and opened by Enter. */
export function useListKeys(count: number, open: (index: number) => void, more: Record<string, (index: number) => void> = {}): [number, (index: number) => void] {
  const [at, setAt] = useState(-1);
  const go = (step: number) => (event: KeyboardEvent): void => {
    if (!count) return;
    event.preventDefault();
    setAt((before) => Math.min(count - 1, Math.max(0, before + step)));
  };
  const enter = (event: KeyboardEvent): void => {
    const target = event.target;
    if (target instanceof HTMLElement && ["A", "BUTTON", "SUMMARY"].includes(target.tagName)) return;
    if (at >= 0 && at < count) open(at);
  };
  const others = Object.fromEntries(
    Object.entries(more).map(([key, act]) => [
      key,
      (event: KeyboardEvent) => {
        if (at < 0 || at >= count) return;
        event.preventDefault();
        act(at);
      },
    ]),
  );
  useKeys({ j: go(1), k: go(-1), Enter: enter, ...others });
  return [Math.min(at, count - 1), setAt];
}
