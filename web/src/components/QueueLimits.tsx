import type { JSX } from "preact";
import type { Queue } from "../api/types";

/** "50 at once · 1 a key · 100/s", or "no limit". */
export function QueueLimits({ queue }: { queue: Queue }): JSX.Element {
  const said = [
    queue.concurrency !== null && `${queue.concurrency} at once`,
    queue.key_concurrency !== null && `${queue.key_concurrency} a key`,
    queue.rate,
    queue.key_rate && `${queue.key_rate} a key`,
  ].filter(Boolean);
  return <>{said.join(" · ") || "no limit"}</>;
}
