/** Short messages that say what came of an act. */

import { ApiError } from "../api/http";
import type { Tone } from "../lib/states";
import { noteError } from "./session";
import { store } from "./store";

export interface Toast {
  id: number;
  tone: Tone;
  text: string;
  /** Where to look next, on one of our own pages. */
  link?: { to: string; text: string };
}

export const toasts = store<Toast[]>([]);
let last = 0;

export function say(text: string, more: { tone?: Tone; link?: { to: string; text: string } } = {}): void {
  const id = (last += 1);
  const made: Toast = { id, text, tone: more.tone ?? "done", ...(more.link ? { link: more.link } : {}) };
  toasts.set((before) => [...before.slice(-3), made]);
  setTimeout(() => dismiss(id), made.tone === "fail" ? 12_000 : 6_000);
}

export function dismiss(id: number): void {
  toasts.set((before) => before.filter((one) => one.id !== id));
}

export function sayError(error: unknown): void {
  noteError(error);
  const trace = error instanceof ApiError && error.problem.trace_id ? ` (trace ${error.problem.trace_id.slice(0, 8)})` : "";
  say((error instanceof Error ? error.message : String(error)) + trace, { tone: "fail" });
}
