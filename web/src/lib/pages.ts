/** Pages of runs that are held in a list, and what becomes of them when a page is read again. */

import type { Run } from "../api/types";

export interface HeldPage {
  /** What it was asked for with. */
  cursor: string | null;
  runs: Run[];
  next: string | null;
}

export interface RunPages {
  pages: HeldPage[];
  /** Runs that came after the list was read: they are announced, and shown when asked for. */
  fresh: Run[];
}

export function rowsOf(held: RunPages): Run[] {
  return held.pages.flatMap((page) => page.runs);
}

/** Takes the news of a page in place: no row moves, and what is new waits. */
export function mergePage(held: RunPages, index: number, runs: readonly Run[], next: string | null): RunPages {
  const page = held.pages[index];
  if (!page) return held;
  if (index === 0 && !rowsOf(held).length) return { pages: [{ cursor: null, runs: [...runs], next }], fresh: [] };
  const news = new Map(runs.map((run) => [run.run_id, run]));
  const shown = new Set(rowsOf(held).map((run) => run.run_id));
  const pages = held.pages.map((one) => ({ ...one, runs: one.runs.map((run) => news.get(run.run_id) ?? run) }));
  if (index > 0) return { ...held, pages };
  const oldest = page.runs.at(-1)?.created_at ?? "";
  return { pages, fresh: runs.filter((run) => !shown.has(run.run_id) && (run.created_at ?? "") >= oldest) };
}

/** Puts what was announced on top. */
export function newest(held: RunPages): RunPages {
  const [first, ...rest] = held.pages;
  if (!first) return held;
  return { pages: [{ ...first, runs: [...held.fresh, ...first.runs] }, ...rest], fresh: [] };
}
