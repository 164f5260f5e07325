/** Live updates: one event stream for all tabs of a browser. The tab that holds the lock reads; the others listen to it. */

import { address, chosenNamespace } from "./http";
import type { Run } from "./types";

export type StreamState = "connecting" | "live" | "reconnecting" | "off";

/** How many runs and dead letters are open. */
export interface OpenCounts {
  open: number;
  dead_letters: number;
}

export interface StreamEvents {
  counts(counts: OpenCounts): void;
  changed(topics: readonly string[]): void;
  run(run: Run): void;
  state(state: StreamState): void;
}

type Message =
  | { type: "counts"; counts: OpenCounts }
  | { type: "changed"; topics: string[] }
  | { type: "run"; run: Run }
  | { type: "state"; state: StreamState }
  | { type: "watch"; tab: string; runs: string[] }
  | { type: "who" };

const NAME = "batuta-stream";
const MOST_WATCHED = 10;
const TOPICS = ["runs", "queues", "workers", "schedules", "dead_letters"];

/** Opens the stream, or listens to the tab that has it. `watch` names the runs that this tab shows. */
export function openStream(events: StreamEvents): { watch(runs: string[]): void; close(): void } {
  const tab = Math.random().toString(36).slice(2);
  const name = `${NAME}:${new URL(document.baseURI).pathname}:${chosenNamespace() ?? ""}`;
  const channel = "BroadcastChannel" in self ? new BroadcastChannel(name) : null;
  const watched = new Map<string, string[]>();
  const stop = new AbortController();
  let source: EventSource | null = null;
  let leads = false;
  let state: StreamState = "connecting";
  let counts: OpenCounts | null = null;

  const tell = (message: Message): void => {
    deliver(message);
    channel?.postMessage(message);
  };
  const deliver = (message: Message): void => {
    if (message.type === "changed") events.changed(message.topics);
    else if (message.type === "run") events.run(message.run);
    else if (message.type === "counts") events.counts((counts = message.counts));
    else if (message.type === "state") events.state((state = message.state));
  };
  const connect = (): void => {
    source?.close();
    if (stop.signal.aborted) return;
    const query = new URLSearchParams();
    for (const run of new Set([...watched.values()].flat().slice(0, MOST_WATCHED))) query.append("run", run);
    source = new EventSource(address("events", query));
    source.addEventListener("hello", (event) => {
      const found = parse<{ counts?: OpenCounts }>(event);
      if (found?.counts) tell({ type: "counts", counts: found.counts });
      tell({ type: "state", state: "live" });
    });
    source.addEventListener("changed", (event) => {
      const found = parse<{ topics?: string[]; counts?: OpenCounts }>(event);
      if (found?.counts) tell({ type: "counts", counts: found.counts });
      if (found) tell({ type: "changed", topics: found.topics ?? [] });
    });
    source.addEventListener("run", (event) => {
      const run = parse<Run>(event);
      if (run) tell({ type: "run", run });
    });
    source.addEventListener("store", (event) => {
      const found = parse<{ reachable?: boolean }>(event);
      tell({ type: "state", state: found?.reachable ? "live" : "reconnecting" });
    });
    source.addEventListener("bye", () => tell({ type: "state", state: "reconnecting" }));
    source.addEventListener("error", () => {
      tell({ type: "state", state: "reconnecting" });
      if (source?.readyState === EventSource.CLOSED) setTimeout(again, 3_000);
    });
  };
  /** The server refused the stream. Pages ask for themselves meanwhile, and hear why: they may have to sign in. */
  const again = (): void => {
    if (!stop.signal.aborted) tell({ type: "changed", topics: TOPICS });
    connect();
  };
  let soon: ReturnType<typeof setTimeout> | undefined;
  /** Waits a moment: tabs and pages that open together say what they watch, and one connection is made for all. */
  const connectSoon = (): void => {
    clearTimeout(soon);
    soon = setTimeout(connect, 120);
  };
  const lead = (): void => {
    leads = true;
    channel?.postMessage({ type: "who" } satisfies Message);
    connectSoon();
  };

  channel?.addEventListener("message", (event: MessageEvent<Message>) => {
    const message = event.data;
    if (message.type === "who") channel.postMessage({ type: "watch", tab, runs: watched.get(tab) ?? [] } satisfies Message);
    else if (message.type === "watch") {
      const before = JSON.stringify(watched.get(message.tab) ?? []);
      watched.set(message.tab, message.runs);
      if (!leads) return;
      channel.postMessage({ type: "state", state } satisfies Message);
      if (counts) channel.postMessage({ type: "counts", counts } satisfies Message);
      if (JSON.stringify(message.runs) !== before) connectSoon();
    } else deliver(message);
  });
  if (channel && navigator.locks) {
    navigator.locks
      .request(name, { signal: stop.signal }, () => {
        lead();
        return new Promise<void>((resolve) => stop.signal.addEventListener("abort", () => resolve()));
      })
      .catch(() => undefined); // closed before it had the lock
    channel.postMessage({ type: "watch", tab, runs: [] } satisfies Message);
  } else lead();

  return {
    watch(runs) {
      if (JSON.stringify(watched.get(tab) ?? []) === JSON.stringify(runs)) return;
      watched.set(tab, runs);
      channel?.postMessage({ type: "watch", tab, runs } satisfies Message);
      if (leads) connectSoon();
    },
    close() {
      channel?.postMessage({ type: "watch", tab, runs: [] } satisfies Message);
      stop.abort();
      clearTimeout(soon);
      source?.close();
      channel?.close();
    },
  };
}

function parse<T>(event: Event): T | null {
  try {
    return JSON.parse((event as MessageEvent<string>).data) as T;
  } catch {
    return null;
  }
}
