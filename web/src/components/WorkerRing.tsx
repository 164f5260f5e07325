import type { JSX } from "preact";
import { useState } from "preact/hooks";
import type { Worker } from "../api/types";
import { duration } from "../lib/time";
import { useNow } from "../state/clock";
import { Ring } from "./Charts";

/** Seconds since its last beat. */
function useSilence(worker: Worker): number {
  const now = useNow();
  const [seen, setSeen] = useState({ worker, at: Date.now() });
  if (seen.worker !== worker) setSeen({ worker, at: Date.now() });
  return worker.silent + Math.max(0, now - seen.at) / 1000;
}

export function Silent({ worker }: { worker: Worker }): JSX.Element {
  return (
    <span class="nowrap" title={`its lease lasts ${duration(worker.lease)} from each beat`}>
      {duration(Math.floor(useSilence(worker)))} ago
    </span>
  );
}

/** What is left of a worker's lease since its last beat. */
export function WorkerRing({ worker }: { worker: Worker }): JSX.Element {
  const silent = useSilence(worker);
  const share = worker.live ? Math.max(0.04, 1 - silent / worker.lease) : 0;
  const tone = !worker.live ? "fail" : share > 0.4 ? "done" : "retry";
  return <Ring share={share} tone={tone} label={worker.live ? `last beat ${duration(silent)} ago` : `silent for ${duration(silent)}: its lease is over`} />;
}
