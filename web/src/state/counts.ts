/** Numbers beside the names of pages: what the pages learned last. */

import { store } from "./store";

export const counts = store<{ open?: number; dead_letters?: number }>({});

export function learn(found: { open?: number; dead_letters?: number }): void {
  counts.set((before) => ({ ...before, ...found }));
}
