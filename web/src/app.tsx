import type { ComponentType, JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Empty, Loading, Trouble } from "./components/Empty";
import { Shell } from "./components/Shell";
import { type Loader, PAGES } from "./pages";
import { startStream, stopStream } from "./state/live";
import { Link, match, usePlace } from "./state/router";
import { loadSession, session, stays } from "./state/session";
import { useStore } from "./state/store";

type Page = ComponentType<Record<string, string>>;

/** Begins to load the page of an address, while the session is asked for. */
export function preload(path: string): void {
  const page = PAGES.find((one) => match(one.path, path));
  page?.load().catch(() => undefined); // the page itself says so when it is opened
}

const applicationPage: Loader = () => import("./pages/Application");
const signInPage: Loader = () => import("./pages/SignIn");
const loaded = new Map<Loader, Page>();

/** A page that has been loaded, or null while it comes. */
function usePage(loader: Loader): { page: Page | null; error: Error | null } {
  const [, again] = useState(0);
  const [error, setError] = useState<Error | null>(null);
  useEffect(() => {
    setError(null);
    if (loaded.has(loader)) return;
    loader().then(
      (found) => {
        loaded.set(loader, found.default as unknown as Page);
        again((before) => before + 1);
      },
      () => setError(new Error("A part of the dashboard could not be loaded: the server may have a new version. Load the page again.")),
    );
  }, [loader]);
  return { page: loaded.get(loader) ?? null, error };
}

export function App(): JSX.Element {
  const who = useStore(session);
  const [error, setError] = useState<Error | null>(null);
  const load = (): void => {
    setError(null);
    loadSession().catch(setError);
  };
  useEffect(load, []);
  const isIn = who?.authenticated ?? false;
  const isKept = useStore(stays);
  useEffect(() => {
    if (!isIn) return undefined;
    startStream();
    return stopStream;
  }, [isIn]);
  if (error) {
    return (
      <main class="page">
        <Trouble error={error} retry={load} />
      </main>
    );
  }
  if (!who) return <Loading />;
  return isIn || isKept ? <Routes /> : <Lazy loader={signInPage} values={{}} />;
}

function Routes(): JSX.Element {
  const { path } = usePlace();
  const own = useStore(session)?.pages?.map((one) => ({ ...one, load: applicationPage })) ?? [];
  for (const page of [...PAGES, ...own]) {
    const values = match(page.path, path);
    if (values) {
      return (
        <Shell>
          <Lazy key={page.path} loader={page.load} values={page.load === applicationPage ? { path: page.path, title: page.title } : values} title={page.title} />
        </Shell>
      );
    }
  }
  return (
    <Shell>
      <Empty icon="search" title="There is no such page">
        <p>Check the address, or begin at the overview.</p>
        <Link class="btn" to="/">
          Overview
        </Link>
      </Empty>
    </Shell>
  );
}

function Lazy({ loader, values, title }: { loader: Loader; values: Record<string, string>; title?: string }): JSX.Element {
  const { page: Found, error } = usePage(loader);
  useEffect(() => {
    document.title = title ? `${title} · Batuta` : "Batuta";
  }, [title]);
  if (error) return <Trouble error={error} retry={() => location.reload()} />;
  return Found ? <Found {...values} /> : <Loading />;
}
