/** Who is signed in, and what that person may do. */

import { ApiError, forgetAnswers, get, setCsrfToken, setNamespace, write } from "../api/http";
import { store } from "./store";

export type Scope = "viewer" | "operator" | "admin";

export interface Session {
  authenticated: boolean;
  sign_in: "key" | "none";
  csrf_token: string | null;
  principal: { name: string; scope: Scope; namespace: string; kind: string } | null;
  namespace: string;
  version: string;
  /** Pages of the application that the dashboard is mounted in. */
  pages?: { title: string; path: string }[];
}

/** null: not known yet. */
export const session = store<Session | null>(null);

/** The page stays although its session is over: it shows something that is shown once. */
export const stays = store(false);

export async function loadSession(): Promise<void> {
  keep(await get<Session>("session"));
}

export async function signIn(key: string): Promise<void> {
  await loadSession(); // its CSRF token
  forgetAnswers();
  keep(await write<Session>("POST", "session", { key }));
}

export async function signOut(): Promise<void> {
  session.set(null); // pages and the stream go first: what they ask for would be refused
  try {
    await write<undefined>("DELETE", "session");
  } finally {
    forgetAnswers();
    await loadSession();
  }
}

/** Another request found that the session is over. */
export function noteError(error: unknown): void {
  const now = session.get();
  if (error instanceof ApiError && error.isSignIn && now?.authenticated) {
    session.set({ ...now, authenticated: false, principal: null });
  }
}

function keep(found: Session): void {
  const namespace = seesAll(found) ? chosen() : null;
  setNamespace(namespace);
  setCsrfToken(found.csrf_token);
  session.set(namespace === null ? found : { ...found, namespace });
}

/** Whether the credential is for all namespaces. */
export function seesAll(who: Session | null): boolean {
  return who?.principal?.namespace === "*";
}

const CHOSEN = "batuta-namespace";

function chosen(): string | null {
  try {
    return sessionStorage.getItem(CHOSEN);
  } catch {
    return null; // storage may be forbidden
  }
}

/** Shows another namespace in this tab, from the overview on. */
export function chooseNamespace(name: string): void {
  try {
    sessionStorage.setItem(CHOSEN, name);
  } catch {
    return;
  }
  location.assign(document.baseURI);
}

const RANK: Record<Scope, number> = { viewer: 0, operator: 1, admin: 2 };

export function may(scope: Scope, who: Session | null): boolean {
  const has = who?.principal?.scope;
  return has !== undefined && RANK[has] >= RANK[scope];
}
