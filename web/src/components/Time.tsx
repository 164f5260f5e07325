import type { JSX } from "preact";
import { clock, duration, exact, millis, relative } from "../lib/time";
import { useNow } from "../state/clock";

/** "42 s ago", with the exact time on hover. */
export function Ago({ at, none = "–" }: { at: string | null | undefined; none?: string }): JSX.Element {
  const time = millis(at);
  const now = useNow(time !== null);
  if (time === null) return <span class="faint">{none}</span>;
  return (
    <time dateTime={at ?? ""} title={exact(time)} class="nowrap">
      {relative(time, now)}
    </time>
  );
}

/** The time of day, with the date on hover. */
export function Clock({ at }: { at: string | null | undefined }): JSX.Element {
  const time = millis(at);
  if (time === null) return <span class="faint">–</span>;
  return (
    <time dateTime={at ?? ""} title={exact(time)} class="nowrap">
      {clock(time)}
    </time>
  );
}

/** How long it took, or takes so far. */
export function Took({ from, to }: { from: string | null; to: string | null }): JSX.Element {
  const [start, end] = [millis(from), millis(to)];
  const now = useNow(end === null);
  if (start === null) return <span class="faint">–</span>;
  return <span class="nowrap">{duration(Math.max(0, (end ?? now) - start) / 1000)}</span>;
}
