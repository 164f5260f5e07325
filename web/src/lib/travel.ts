/** Time travel: what a run knew, and what it waited for, after each entry of its journal. */

import type { Command, Entry, Failure, Json } from "../api/types";

export interface Call {
  seq: number;
  kind: string;
  name: string;
  input: Json;
  /** The entry that issued it. */
  entry: number;
}

export interface Known {
  seq: number;
  kind: string;
  name: string;
  entry: number;
  value?: Json;
  error?: Failure;
}

export interface Moment {
  ord: number;
  at: string;
  /** What came in with this entry. */
  input: Known;
  /** What the code did then. */
  issued: Command[];
  /** Calls that have no answer yet. */
  awaited: Call[];
  /** Answers and messages so far, newest last. */
  known: Known[];
  published: Record<string, Json>;
  ended: Command | null;
}

const CALLS = new Set(["activity", "timer", "child"]);
const ENDS = new Set(["complete", "fail", "cancelled", "continue"]);

/** The moment after entry `ord`. */
export function momentAt(entries: readonly Entry[], ord: number): Moment | null {
  const awaited = new Map<number, Call>();
  const calls = new Map<number, Call>();
  const known: Known[] = [];
  const published: Record<string, Json> = {};
  let found: Moment | null = null;
  for (const entry of entries) {
    if (entry.ord > ord) break;
    const body = entry.body;
    const seq = body.seq ?? 0;
    const call = calls.get(seq);
    awaited.delete(seq);
    const input: Known = {
      seq,
      kind: entry.kind,
      name: body.name || call?.name || "",
      entry: entry.ord,
      ...(body.value === undefined ? {} : { value: body.value }),
      ...(body.error === undefined ? {} : { error: body.error }),
    };
    if (entry.kind !== "started" && entry.kind !== "forked") known.push(input);
    let ended: Command | null = null;
    for (const command of body.commands ?? []) {
      if (CALLS.has(command.kind)) {
        const made: Call = {
          seq: command.seq,
          kind: command.kind,
          name: command.name ?? "",
          input: command.value ?? null,
          entry: entry.ord,
        };
        calls.set(command.seq, made);
        awaited.set(command.seq, made);
      } else if (command.kind === "cancel" && command.target) awaited.delete(command.target);
      else if (command.kind === "publish") published[command.name ?? ""] = command.value ?? null;
      else if (ENDS.has(command.kind)) ended = command;
    }
    found = {
      ord: entry.ord,
      at: entry.at,
      input,
      issued: body.commands ?? [],
      awaited: ended ? [] : [...awaited.values()],
      known: [...known],
      published: { ...published },
      ended,
    };
  }
  return found;
}
