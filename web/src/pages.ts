/** Every page: one row here, and one file in pages/. Routes, menu, keys and the command palette are made from it. */

import type { ComponentType } from "preact";
import type { IconName } from "./components/Icon";

export type Loader = () => Promise<{ default: ComponentType<never> }>;

export interface PageRow {
  path: string;
  title: string;
  load: Loader;
  /** With an icon it stands in the menu. */
  icon?: IconName;
  /** Pressed after `g` it opens the page. */
  key?: string;
  /** The number beside its title. */
  count?: "open" | "dead_letters";
  /** For administrators alone. */
  admin?: boolean;
}

/** Each page is loaded when it is opened. */
export const PAGES: readonly PageRow[] = [
  { path: "/", title: "Overview", icon: "overview", key: "o", load: () => import("./pages/Overview") },
  { path: "/runs", title: "Runs", icon: "runs", key: "r", count: "open", load: () => import("./pages/Runs") },
  { path: "/runs/:id", title: "Run", load: () => import("./pages/Run") },
  { path: "/dead-letters", title: "Dead letters", icon: "dead", key: "d", count: "dead_letters", load: () => import("./pages/DeadLetters") },
  { path: "/queues", title: "Queues", icon: "queues", key: "q", load: () => import("./pages/Queues") },
  { path: "/schedules", title: "Schedules", icon: "schedules", key: "s", load: () => import("./pages/Schedules") },
  { path: "/workers", title: "Workers", icon: "workers", key: "w", load: () => import("./pages/Workers") },
  { path: "/partners", title: "Partners", icon: "partners", key: "p", load: () => import("./pages/Partners") },
  { path: "/quotas", title: "Quotas", icon: "quotas", load: () => import("./pages/Quotas") },
  { path: "/retention", title: "Retention", icon: "retention", load: () => import("./pages/Retention") },
  { path: "/audit", title: "Audit", icon: "audit", key: "a", load: () => import("./pages/Audit") },
  { path: "/api-keys", title: "API keys", icon: "keys", admin: true, load: () => import("./pages/ApiKeys") },
];
