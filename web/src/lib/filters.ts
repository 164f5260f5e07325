/** Filters of the list of runs, and how they stand in the address: the words of the command line and the REST API. */

export interface RunFilters {
  states: string[];
  name: string;
  kind: string;
  queue: string;
  idPrefix: string;
  tags: string[];
  key: string;
  /** A run id. */
  parent: string;
  since: string;
  until: string;
  retrying: boolean;
  tries: number;
}

export const NO_FILTERS: RunFilters = {
  states: [],
  name: "",
  kind: "any",
  queue: "",
  idPrefix: "",
  tags: [],
  key: "",
  parent: "",
  since: "",
  until: "",
  retrying: false,
  tries: 0,
};

const TEXTS = [
  ["name", "name"],
  ["queue", "queue"],
  ["idPrefix", "id_prefix"],
  ["key", "key"],
  ["parent", "parent"],
  ["since", "since"],
  ["until", "until"],
] as const;

export function toQuery(filters: RunFilters): URLSearchParams {
  const query = new URLSearchParams();
  for (const state of filters.states) query.append("state", state);
  if (filters.kind !== "any") query.set("kind", filters.kind);
  for (const [field, word] of TEXTS) if (filters[field]) query.set(word, filters[field]);
  for (const tag of filters.tags) query.append("tag", tag);
  if (filters.retrying) query.set("retrying", "true");
  if (filters.tries > 0) query.set("tries", String(filters.tries));
  return query;
}

export function fromQuery(query: URLSearchParams): RunFilters {
  const found: RunFilters = { ...NO_FILTERS, states: query.getAll("state"), tags: query.getAll("tag") };
  found.kind = query.get("kind") ?? "any";
  for (const [field, word] of TEXTS) found[field] = query.get(word) ?? "";
  found.retrying = query.get("retrying") === "true";
  found.tries = Math.max(0, Math.trunc(Number(query.get("tries")) || 0));
  return found;
}

/** Whether the list shows everything. */
export function isUnfiltered(filters: RunFilters): boolean {
  return toQuery(filters).size === 0;
}

/** What the filters say, for a person: "failed runs of checkout in queue psp". */
export function inWords(filters: RunFilters, count = 2): string {
  const kind = { any: "run", workflow: "workflow run", job: "job", activity: "activity run" }[filters.kind] ?? filters.kind;
  const words = [filters.states.map((state) => state.replace("_", " ")).join(" or "), count === 1 ? kind : `${kind}s`];
  if (filters.retrying || filters.tries) words.push(count === 1 ? "that retries" : "that retry");
  if (filters.name) words.push(`of ${filters.name}`);
  if (filters.queue) words.push(`in queue ${filters.queue}`);
  if (filters.idPrefix) words.push(`whose id begins with ${filters.idPrefix}`);
  if (filters.tags.length) words.push(`with ${filters.tags.join(" and ")}`);
  if (filters.key) words.push(`with key ${filters.key}`);
  if (filters.parent) words.push(`${count === 1 ? "that is a child" : "that are children"} of ${filters.parent.slice(0, 8)}`);
  if (filters.since) words.push(`since ${filters.since}`);
  if (filters.until) words.push(`until ${filters.until}`);
  return words.filter(Boolean).join(" ");
}
