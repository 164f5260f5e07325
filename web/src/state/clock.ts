/** The time, for "42 s ago": ticks once a second while the page can be seen. */

import { useEffect, useState } from "preact/hooks";
import { store } from "./store";

const now = store(Date.now());
let followers = 0;
let timer: ReturnType<typeof setInterval> | undefined;

function tick(): void {
  if (!document.hidden) now.set(Date.now());
}

/** Now, in milliseconds; the component is drawn again every second. */
export function useNow(isNeeded = true): number {
  const [value, setValue] = useState(now.get());
  useEffect(() => {
    if (!isNeeded) return undefined;
    followers += 1;
    if (followers === 1) timer = setInterval(tick, 1_000);
    now.set(Date.now());
    setValue(now.get());
    const leave = now.follow(setValue);
    return () => {
      leave();
      followers -= 1;
      if (followers === 0) clearInterval(timer);
    };
  }, [isNeeded]);
  return value;
}
