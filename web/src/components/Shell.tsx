import type { ComponentChildren, JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { compact } from "../lib/time";
import { isInMenu, PAGES, SECTIONS } from "../pages";
import { counts } from "../state/counts";
import { useKeys } from "../state/keys";
import { streamState } from "../state/live";
import { Link, navigate, usePlace } from "../state/router";
import { may, seesAll, type Session, session, signOut } from "../state/session";
import { useStore } from "../state/store";
import { theme, toggleTheme } from "../state/theme";
import { sayError } from "../state/toasts";
import { Help } from "./Help";
import { Brand, Icon, type IconName } from "./Icon";
import { NamespaceDialog } from "./NamespaceDialog";
import { Palette, type PaletteCommand } from "./Palette";
import { StartDialog } from "./StartDialog";
import { Toasts } from "./Toasts";

interface MenuRow {
  path: string;
  title: string;
  icon: IconName;
  section: string;
  key?: string;
  count?: "open" | "dead_letters";
}

/** Our pages by section, then those of the application that the dashboard is mounted in. */
function menu(who: Session | null): MenuRow[] {
  const shown = PAGES.filter(isInMenu).filter((page) => !page.admin || may("admin", who));
  const ours = SECTIONS.flatMap((section) => shown.filter((page) => page.section === section));
  return [...ours, ...(who?.pages ?? []).map((page) => ({ ...page, icon: "page" as const, section: "Application" }))];
}

const LIVE = { live: "live", connecting: "connecting", reconnecting: "reconnecting", off: "not live" } as const;

function isOn(to: string, path: string): boolean {
  return to === "/" ? path === "/" : path === to || path.startsWith(`${to}/`);
}

/** Rail, top bar, palette and keys around every page. */
export function Shell({ children }: { children: ComponentChildren }): JSX.Element {
  const { path } = usePlace();
  const who = useStore(session);
  const live = useStore(streamState);
  const look = useStore(theme);
  const known = useStore(counts);
  const [dialog, setDialog] = useState<"palette" | "help" | "start" | "namespace" | null>(null);
  const [isOpen, setOpen] = useState(false);
  useEffect(() => setOpen(false), [path]);
  useEffect(() => {
    const press = (event: KeyboardEvent): void => {
      if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
        event.preventDefault();
        setDialog((before) => (before === "palette" ? null : "palette"));
      }
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
  const nav = useMemo(() => menu(who), [who]);
  const leave = (): void => void signOut().catch(sayError);
  const jumps = Object.fromEntries(nav.filter((item) => item.key).map((item) => [`g ${item.key}`, () => navigate(item.path)]));
  useKeys({ ...jumps, "?": () => setDialog("help"), t: () => toggleTheme() });

  const commands = useMemo<PaletteCommand[]>(() => {
    const found: PaletteCommand[] = nav.map((item) => ({
      title: `Go to ${item.title}`,
      icon: item.icon,
      ...(item.key ? { hint: `g ${item.key}` } : {}),
      act: () => navigate(item.path),
    }));
    const lists: [string, string][] = [
      ["Show failed runs", "state=failed&state=timed_out"],
      ["Show runs that retry", "retrying=true"],
      ["Show parked runs", "state=needs_code&state=poisoned"],
      ["Show paused runs", "state=paused"],
      ["Show running runs", "state=running"],
    ];
    found.push(...lists.map<PaletteCommand>(([title, query]) => ({ title, icon: "search", act: () => navigate("/runs", query) })));
    if (may("operator", who)) found.push({ title: "Start a run", icon: "plus", act: () => setDialog("start") });
    found.push({ title: "Switch between dark and light", hint: "t", icon: "moon", act: toggleTheme });
    found.push({ title: "Show the keys", hint: "?", icon: "help", act: () => setDialog("help") });
    if (seesAll(who)) found.push({ title: "Choose a namespace", icon: "search", act: () => setDialog("namespace") });
    if (who?.principal?.kind === "key") found.push({ title: "Sign out", icon: "out", act: leave });
    return found;
  }, [nav, who]);

  return (
    <div class="shell">
      <a class="skip" href="#main">
        Skip to the page
      </a>
      <aside class={`rail ${isOpen ? "open" : ""}`}>
        <Link to="/" class="brand">
          <Brand />
          Batuta
        </Link>
        <nav aria-label="Pages">
          {[...new Set(nav.map((item) => item.section))].map((section) => (
            <div key={section} role="group" aria-label={section}>
              <p aria-hidden="true">{section}</p>
              {nav.filter((item) => item.section === section).map((item) => (
                <Link
                  key={item.path}
                  to={item.path}
                  class={isOn(item.path, path) ? "on" : ""}
                  {...(item.key ? { title: `g ${item.key}` } : {})}
                  {...(isOn(item.path, path) ? { "aria-current": "page" } : {})}
                >
                  <Icon name={item.icon} />
                  <span>{item.title}</span>
                  {item.count && (known[item.count] ?? 0) > 0 && (
                    <span class={`count ${item.count === "dead_letters" ? "bad" : ""}`}>{compact(known[item.count] ?? 0)}</span>
                  )}
                </Link>
              ))}
            </div>
          ))}
        </nav>
        <div class="foot">
          {seesAll(who) ? (
            <button type="button" class="plain link" title="Choose a namespace" onClick={() => setDialog("namespace")}>
              {who?.namespace}
            </button>
          ) : (
            who?.namespace
          )}
          <br />
          {who?.version}
        </div>
      </aside>
      {isOpen && <button type="button" class="veil" aria-label="Close the menu" onClick={() => setOpen(false)} />}
      <div>
        <header class="top">
          <button type="button" class="icon-btn menu-btn" aria-label="Menu" aria-expanded={isOpen} onClick={() => setOpen(true)}>
            <Icon name="menu" />
          </button>
          <button type="button" class="find" onClick={() => setDialog("palette")}>
            <span class="clip">
              Find<span class="hide-s"> a run, a page or a command</span>
            </span>
            <kbd>Ctrl K</kbd>
          </button>
          <span class="spacer" />
          <span class={`live ${live}`} role="status">
            <span class="dot" />
            <span class="hide-s">{LIVE[live]}</span>
          </span>
          <button
            type="button"
            class="icon-btn"
            aria-label={look === "dark" ? "Switch to light" : "Switch to dark"}
            title={look === "dark" ? "light (t)" : "dark (t)"}
            onClick={toggleTheme}
          >
            <Icon name={look === "dark" ? "sun" : "moon"} />
          </button>
          <button type="button" class="icon-btn hide-s" aria-label="Keys" title="keys (?)" onClick={() => setDialog("help")}>
            <Icon name="help" />
          </button>
          {who && !seesAll(who) && <span class="chip wait hide-s">{who.principal?.namespace ?? who.namespace}</span>}
          {seesAll(who) && (
            <button type="button" class="chip wait hide-s" aria-label={`Namespace ${who?.namespace}: choose another`} title="Choose a namespace" onClick={() => setDialog("namespace")}>
              {who?.namespace}
            </button>
          )}
          {who?.principal?.kind === "key" && (
            <button type="button" class="icon-btn" aria-label={`Sign out ${who.principal.name}`} title={`sign out ${who.principal.name} (${who.principal.scope})`} onClick={leave}>
              <Icon name="out" />
            </button>
          )}
        </header>
        <main class="page" id="main" tabIndex={-1}>
          {children}
        </main>
      </div>
      {dialog === "palette" && <Palette commands={commands} onClose={() => setDialog(null)} />}
      {dialog === "help" && <Help onClose={() => setDialog(null)} />}
      {dialog === "namespace" && <NamespaceDialog onClose={() => setDialog(null)} />}
      {dialog === "start" && <StartDialog onClose={() => setDialog(null)} />}
      <Toasts />
    </div>
  );
}
