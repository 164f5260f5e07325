/** The stream's state, and resources that are asked for again when the stream says that they changed. */

import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { openStream, type StreamState } from "../api/stream";
import type { Run } from "../api/types";
import { counts } from "./counts";
import { noteError } from "./session";
import { store } from "./store";

export const streamState = store<StreamState>("off");

type ChangeListener = (topics: readonly string[]) => void;
const onChange = new Set<ChangeListener>();
const onRun = new Set<(run: Run) => void>();
let stream: ReturnType<typeof openStream> | null = null;
let wasLive = false;

export function startStream(): void {
  stream ??= openStream({
    counts: counts.set,
    changed: (topics) => onChange.forEach((listener) => listener(topics)),
    run: (run) => onRun.forEach((listener) => listener(run)),
    state: (state) => {
      streamState.set(state);
      if (state === "live") onChange.forEach((listener) => listener(wasLive ? [] : ["run"])); // something may have been missed
      wasLive ||= state === "live";
    },
  });
}

export function stopStream(): void {
  stream?.close();
  stream = null;
  wasLive = false;
  streamState.set("off");
  counts.set({});
}

/** Calls back when one of the topics changed; no topics in the event mean that all may have. */
export function useChanges(topics: readonly string[], listener: () => void): void {
  const latest = useRef(listener);
  latest.current = listener;
  const wanted = topics.join();
  useEffect(() => {
    const one: ChangeListener = (found) => {
      if (!found.length || found.some((topic) => wanted.split(",").includes(topic))) latest.current();
    };
    onChange.add(one);
    return () => void onChange.delete(one);
  }, [wanted]);
}

/** Follows one run: calls back when it changed. */
export function useRunChanges(runId: string | null, listener: () => void): void {
  const latest = useRef(listener);
  latest.current = listener;
  useEffect(() => {
    if (runId === null) return undefined;
    const one = (run: Run): void => {
      if (run.run_id === runId) latest.current();
    };
    onRun.add(one);
    stream?.watch([runId]);
    return () => {
      onRun.delete(one);
      stream?.watch([]);
    };
  }, [runId]);
}

export interface Resource<T> {
  data: T | null;
  error: Error | null;
  loading: boolean;
  reload(): void;
}

const PAUSE = (): number => 700;
/** What takes long to load is asked for less often, up to this many milliseconds: a large namespace is not counted all the time. */
const LONGEST_PAUSE = 8_000;
const PAUSE_OVER_LOAD = 4;

/** Loads by key, keeps what it has while it loads again, and never loads twice at once. */
export function useResource<T>(key: string | null, load: (signal: AbortSignal) => Promise<T>, topics: readonly string[] = [], pause: (data: T) => number = PAUSE): Resource<T> {
  const [state, setState] = useState<{ key: string | null; data: T | null; error: Error | null; loading: boolean }>({
    key,
    data: null,
    error: null,
    loading: key !== null,
  });
  const latest = useRef(load);
  latest.current = load;
  const busy = useRef<{ key: string; again: boolean; stop: AbortController } | null>(null);

  const run = useCallback((wanted: string): void => {
    if (busy.current?.key === wanted) {
      busy.current.again = true;
      return;
    }
    busy.current?.stop.abort();
    const mine = { key: wanted, again: false, stop: new AbortController() };
    busy.current = mine;
    const began = performance.now();
    const settle = (data: T | null, error: Error | null): void => {
      if (busy.current !== mine) return;
      setState((before) => ({ key: wanted, data: data ?? (before.key === wanted ? before.data : null), error, loading: false }));
      const tired = Math.min(PAUSE_OVER_LOAD * (performance.now() - began), LONGEST_PAUSE);
      setTimeout(() => {
        if (busy.current !== mine) return;
        busy.current = null;
        if (mine.again) run(wanted);
      }, data === null ? 2_000 : Math.max(pause(data), tired));
    };
    latest.current(mine.stop.signal).then(
      (data) => settle(data, null),
      (error: unknown) => {
        if (mine.stop.signal.aborted) return;
        noteError(error);
        settle(null, error instanceof Error ? error : new Error(String(error)));
      },
    );
  }, []);

  useEffect(() => {
    if (key === null) return undefined;
    setState((before) => (before.key === key ? before : { key, data: null, error: null, loading: true }));
    run(key);
    return () => {
      busy.current?.stop.abort();
      busy.current = null;
    };
  }, [key, run]);

  const reload = useCallback(() => {
    if (key !== null) run(key);
  }, [key, run]);
  useChanges(topics, reload);
  const isOld = state.key !== key;
  return { data: isOld ? null : state.data, error: isOld ? null : state.error, loading: isOld || state.loading, reload };
}
