/** The journal of a run, page by page; new entries are added when the run has more. */

import { useEffect, useState } from "preact/hooks";
import { journal } from "../api/endpoints";
import type { Entry } from "../api/types";
import { noteError } from "./session";

export function useJournal(runId: string, count: number): { entries: Entry[]; error: Error | null; isWhole: boolean } {
  const [state, setState] = useState<{ runId: string; entries: Entry[] }>({ runId, entries: [] });
  const [error, setError] = useState<Error | null>(null);
  const entries = state.runId === runId ? state.entries : [];
  const isWhole = entries.length >= count;
  useEffect(() => {
    if (isWhole) return undefined;
    const stop = new AbortController();
    journal(runId, entries.at(-1)?.ord ?? -1, stop.signal).then(
      (found) => {
        setError(null);
        setState((before) => {
          const kept = before.runId === runId ? before.entries : [];
          const last = kept.at(-1)?.ord ?? -1;
          return { runId, entries: [...kept, ...found.entries.filter((entry) => entry.ord > last)] };
        });
      },
      (found: unknown) => {
        if (stop.signal.aborted) return;
        noteError(found);
        setError(found instanceof Error ? found : new Error(String(found)));
      },
    );
    return () => stop.abort();
  }, [runId, count, entries.length, isWhole]);
  return { entries, error, isWhole };
}
