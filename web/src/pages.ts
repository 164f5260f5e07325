/** Every page: one row here, and one file in pages/. Routes, menu, keys and the command palette are made from it. */

import type { ComponentType } from "preact";
import type { IconName } from "./components/Icon";

export type Loader = () => Promise<{ default: ComponentType<never> }>;

/** The parts of the menu, from top to bottom. `Work`: runs and what starts, holds and carries them out. `Flows`: processes
 * that are data, what starts them, and what waits for a person. `Connections`: other systems. `Rules`: what applies to all runs, and who did what. */
export const SECTIONS = ["Work", "Flows", "Connections", "Rules"] as const;
export type Section = (typeof SECTIONS)[number];

interface Page {
  path: string;
  title: string;
  load: Loader;
}

/** A page that stands in the menu. */
export interface MenuPage extends Page {
  icon: IconName;
  section: Section;
  /** Pressed after `g` it opens the page. No two pages have the same. */
  key: string;
  /** The number beside its title. */
  count?: "open" | "dead_letters";
  /** For administrators alone. */
  admin?: boolean;
}

export type PageRow = MenuPage | (Page & { icon?: undefined });

/** Each page is loaded when it is opened. */
export const PAGES: readonly PageRow[] = [
  { path: "/", title: "Overview", section: "Work", icon: "overview", key: "o", load: () => import("./pages/Overview") },
  { path: "/runs", title: "Runs", section: "Work", icon: "runs", key: "r", count: "open", load: () => import("./pages/Runs") },
  { path: "/runs/:id", title: "Run", load: () => import("./pages/Run") },
  { path: "/flows", title: "Flows", section: "Flows", icon: "flows", key: "f", load: () => import("./pages/Flows") },
  { path: "/flows/:id", title: "Flow", load: () => import("./pages/Flow") },
  { path: "/flow-runs/:id", title: "Run of a flow", load: () => import("./pages/FlowRun") },
  { path: "/events", title: "Events", section: "Flows", icon: "events", key: "e", load: () => import("./pages/Events") },
  { path: "/approvals", title: "Approvals", section: "Flows", icon: "approvals", key: "v", load: () => import("./pages/Approvals") },
  { path: "/dead-letters", title: "Dead letters", section: "Work", icon: "dead", key: "d", count: "dead_letters", load: () => import("./pages/DeadLetters") },
  { path: "/queues", title: "Queues", section: "Work", icon: "queues", key: "q", load: () => import("./pages/Queues") },
  { path: "/schedules", title: "Schedules", section: "Work", icon: "schedules", key: "s", load: () => import("./pages/Schedules") },
  { path: "/workers", title: "Workers", section: "Work", icon: "workers", key: "w", load: () => import("./pages/Workers") },
  { path: "/partners", title: "Partners", section: "Connections", icon: "partners", key: "p", load: () => import("./pages/Partners") },
  { path: "/webhooks", title: "Webhooks", section: "Connections", icon: "webhooks", key: "h", load: () => import("./pages/Webhooks") },
  { path: "/bus", title: "Bus", section: "Connections", icon: "bus", key: "b", load: () => import("./pages/Bus") },
  { path: "/cache", title: "Cache", section: "Connections", icon: "cache", key: "m", load: () => import("./pages/Cache") },
  { path: "/quotas", title: "Quotas", section: "Rules", icon: "quotas", key: "u", load: () => import("./pages/Quotas") },
  { path: "/retention", title: "Retention", section: "Rules", icon: "retention", key: "n", load: () => import("./pages/Retention") },
  { path: "/audit", title: "Audit", section: "Rules", icon: "audit", key: "a", load: () => import("./pages/Audit") },
  { path: "/api-keys", title: "API keys", section: "Rules", icon: "keys", key: "k", admin: true, load: () => import("./pages/ApiKeys") },
];

export function isInMenu(page: PageRow): page is MenuPage {
  return page.icon !== undefined;
}
