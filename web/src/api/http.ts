/** Requests to the REST API: relative to where the dashboard is mounted, with CSRF token, idempotency key and ETag. */

export interface Problem {
  type: string;
  title: string;
  status: number;
  detail: string;
  code: string;
  trace_id: string;
  path?: string;
  retry_after?: number;
  workers?: string[];
}

/** The server refused, or could not be reached (status 0). */
export class ApiError extends Error {
  readonly problem: Problem;

  constructor(problem: Problem) {
    super(problem.detail || problem.title);
    this.problem = problem;
  }

  get isSignIn(): boolean {
    return this.problem.status === 401;
  }
}

export type Query = URLSearchParams | Record<string, string | number | boolean | null | undefined>;

let csrfToken: string | null = null;
let namespace: string | null = null;
/** What is asked for is of no namespace, or of all of them. */
const OF_NO_NAMESPACE: readonly string[] = ["session", "namespaces"];
const etags = new Map<string, { etag: string; body: unknown }>();
const MOST_REMEMBERED = 40;

export function setCsrfToken(token: string | null): void {
  csrfToken = token;
}

/** The namespace that every request is for; null: that of the credential. */
export function setNamespace(name: string | null): void {
  namespace = name;
}

export function chosenNamespace(): string | null {
  return namespace;
}

export function forgetAnswers(): void {
  etags.clear();
}

/** An address below /api/v1, or below /api when it begins with a slash. Segments must be encoded by the caller: see `segment`. */
export function address(path: string, query?: Query): string {
  const url = new URL(path.startsWith("/") ? `api${path}` : `api/v1/${path}`, document.baseURI);
  if (query instanceof URLSearchParams) url.search = query.toString();
  else if (query) {
    for (const [name, value] of Object.entries(query)) {
      if (value !== null && value !== undefined && value !== "") url.searchParams.set(name, String(value));
    }
  }
  if (namespace !== null && !OF_NO_NAMESPACE.includes(path)) url.searchParams.set("namespace", namespace);
  return url.toString();
}

/** One segment of a path: ids may hold slashes. */
export function segment(text: string): string {
  return encodeURIComponent(text);
}

/** Reads; an answer that has not changed is the same object as before. */
export async function get<T>(path: string, query?: Query, signal?: AbortSignal): Promise<T> {
  const url = address(path, query);
  const known = etags.get(url);
  const headers: Record<string, string> = { Accept: "application/json" };
  if (known) headers["If-None-Match"] = known.etag;
  const answer = await send(url, { headers, credentials: "same-origin", cache: "no-store", signal: signal ?? null });
  if (answer.status === 304 && known) return known.body as T;
  const body = await read<T>(answer);
  const etag = answer.headers.get("ETag");
  etags.delete(url);
  if (etag) {
    etags.set(url, { etag, body });
    const oldest = etags.keys().next().value;
    if (etags.size > MOST_REMEMBERED && oldest !== undefined) etags.delete(oldest);
  }
  return body;
}

/** Writes. The same call is carried out once, also when it is sent again after a lost answer. */
export async function write<T>(method: "POST" | "PUT" | "PATCH" | "DELETE", path: string, body?: unknown, query?: Query): Promise<T> {
  const headers: Record<string, string> = { Accept: "application/json" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (csrfToken) headers["X-CSRF-Token"] = csrfToken;
  if (method === "POST") headers["Idempotency-Key"] = randomKey();
  const init: RequestInit = { method, headers, credentials: "same-origin", cache: "no-store" };
  if (body !== undefined) init.body = JSON.stringify(body);
  const url = address(path, query);
  try {
    return await read<T>(await send(url, init));
  } catch (error) {
    const isLost = error instanceof ApiError && error.problem.status === 0 && method === "POST";
    if (!isLost) throw error;
    return read<T>(await send(url, init)); // the key makes it safe
  }
}

function randomKey(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

async function send(url: string, init: RequestInit): Promise<Response> {
  try {
    return await fetch(url, init);
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError({
      type: "about:blank",
      title: "The server does not answer",
      status: 0,
      detail: "The server does not answer. The page tries again by itself; check that `batuta server` runs.",
      code: "unreachable",
      trace_id: "",
    });
  }
}

async function read<T>(answer: Response): Promise<T> {
  if (answer.status === 204) return undefined as T;
  const text = await answer.text();
  let body: unknown;
  try {
    body = text ? JSON.parse(text) : undefined;
  } catch {
    body = undefined;
  }
  if (answer.ok) return body as T;
  const told = typeof body === "object" && body !== null ? (body as Partial<Problem>) : {};
  throw new ApiError({
    type: "about:blank",
    title: answer.statusText || "Error",
    detail: told.title ?? `The server answered ${answer.status}.`,
    code: "error",
    trace_id: answer.headers.get("X-Trace-Id") ?? "",
    ...told,
    status: answer.status,
  });
}
