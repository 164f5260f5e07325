/** A value that components follow. */

import { useEffect, useState } from "preact/hooks";

export interface Store<T> {
  get(): T;
  set(next: T | ((before: T) => T)): void;
  follow(listener: (value: T) => void): () => void;
}

export function store<T>(initial: T): Store<T> {
  let value = initial;
  const listeners = new Set<(value: T) => void>();
  return {
    get: () => value,
    set(next) {
      const made = typeof next === "function" ? (next as (before: T) => T)(value) : next;
      if (Object.is(made, value)) return;
      value = made;
      for (const listener of [...listeners]) listener(made);
    },
    follow(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
  };
}

export function useStore<T>(from: Store<T>): T {
  const [value, setValue] = useState<T>(() => from.get());
  useEffect(() => {
    setValue(() => from.get());
    return from.follow((next) => setValue(() => next));
  }, [from]);
  return value;
}
