/** Routing by the browser's history, below the path that the dashboard is mounted at. */

import type { ComponentChildren, JSX } from "preact";
import { store, useStore } from "./store";

export interface Place {
  /** Without the mount path: `/runs/order-1`. */
  path: string;
  query: URLSearchParams;
}

const base = new URL(document.baseURI).pathname.replace(/\/$/, "");
const place = store<Place>(here());

/** Where the browser is. */
export function here(): Place {
  const path = location.pathname.startsWith(base) ? location.pathname.slice(base.length) : location.pathname;
  return { path: path || "/", query: new URLSearchParams(location.search) };
}

/** Says whether the page may be left. */
let mayLeave = (): boolean => true;

/** Asks before the page is left, by a link, by the browser's history or for good, while `isUnsaved` says so. The end of it is returned. */
export function askBeforeLeaving(isUnsaved: () => boolean): () => void {
  const beforeUnload = (event: Event): void => {
    if (isUnsaved()) event.preventDefault();
  };
  mayLeave = () => !isUnsaved() || confirm("Leave without saving? What you changed here will be lost.");
  addEventListener("beforeunload", beforeUnload);
  return () => {
    mayLeave = () => true;
    removeEventListener("beforeunload", beforeUnload);
  };
}

addEventListener("popstate", () => {
  const { path, query } = place.get();
  if (here().path === path || mayLeave()) place.set(here());
  else history.pushState(null, "", href(path, query));
});

export function usePlace(): Place {
  return useStore(place);
}

/** The address of one of our own pages. */
export function href(path: string, query?: URLSearchParams | string): string {
  const search = query?.toString() ?? "";
  return `${base}${path}${search ? `?${search}` : ""}`;
}

export function navigate(path: string, query?: URLSearchParams | string, how: { replace?: boolean } = {}): void {
  const to = href(path, query);
  if (to === location.pathname + location.search) return;
  if (place.get().path !== path && !mayLeave()) return;
  if (how.replace) history.replaceState(null, "", to);
  else history.pushState(null, "", to);
  const samePage = place.get().path === path;
  place.set(here());
  if (!samePage) scrollTo(0, 0);
}

/** Takes the place of the query alone: a filter, a tab, a selection. */
export function setQuery(query: URLSearchParams, how: { replace?: boolean } = { replace: true }): void {
  navigate(place.get().path, query, how);
}

/** A link to one of our own pages; nothing else can be linked to. */
export function Link(props: {
  to: string;
  query?: URLSearchParams | string;
  class?: string;
  title?: string;
  tabIndex?: number;
  "aria-label"?: string;
  "aria-current"?: "page";
  children: ComponentChildren;
}): JSX.Element {
  const { to, query, children, ...rest } = props;
  const follow = (event: MouseEvent): void => {
    if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    navigate(to, query);
  };
  return (
    <a {...rest} href={href(to, query)} onClick={follow}>
      {children}
    </a>
  );
}

/** Matches `/runs/:id`; null when it does not. Segments are decoded. */
export function match(pattern: string, path: string): Record<string, string> | null {
  const [wanted, given] = [pattern.split("/"), path.replace(/(.)\/$/, "$1").split("/")];
  if (wanted.length !== given.length) return null;
  const found: Record<string, string> = {};
  for (const [index, part] of wanted.entries()) {
    const text = given[index] ?? "";
    if (!part.startsWith(":")) {
      if (part !== text) return null;
      continue;
    }
    try {
      found[part.slice(1)] = decodeURIComponent(text);
    } catch {
      return null;
    }
  }
  return found;
}

export function runPath(id: string): string {
  return `/runs/${encodeURIComponent(id)}`;
}
