/** What may stand at a place of a flow's document: names and values of its JSON Schema, and the keys of its steps. */

export interface JsonSchema {
  $ref?: string;
  $defs?: Record<string, JsonSchema>;
  properties?: Record<string, JsonSchema>;
  items?: JsonSchema;
  anyOf?: JsonSchema[];
  enum?: unknown[];
  type?: string;
  description?: string;
  default?: unknown;
}

export interface Proposal {
  label: string;
  insert: string;
  about: string;
}

export interface Completion {
  /** The part of the text that a proposal takes the place of. */
  from: number;
  to: number;
  proposals: Proposal[];
}

interface Level {
  kind: "object" | "array";
  /** In an object: the name whose value comes, or null where a name is due. */
  name: string | null;
  names: string[];
  /** The value of its `type`. */
  type: string | null;
}

const TARGETS = new Set(["next", "onTrue", "onFalse", "to", "default", "onRejected", "onTimeout"]);
const MOST = 40;

/** What fits at an offset. Null: nothing is known there. */
export function complete(text: string, at: number, schema: JsonSchema): Completion | null {
  const { levels, begin } = levelsAt(text, at);
  const level = levels[levels.length - 1];
  if (!level) return null;
  const end = endOfWord(text, at, begin);
  const typed = text.slice(begin, at).replace(/^"/, "").toLowerCase();
  const found = level.kind === "object" && level.name === null ? names(text, end, levels, schema) : values(text, levels, schema);
  const proposals = found.filter((one) => one.label.toLowerCase().startsWith(typed)).slice(0, MOST);
  return proposals.length ? { from: begin, to: end, proposals } : null;
}

/** The objects and lists around an offset, and where the word at the offset begins. */
function levelsAt(text: string, at: number): { levels: Level[]; begin: number } {
  const levels: Level[] = [];
  let place = 0;
  let begin = at;
  while (place < at) {
    const sign = text[place] ?? "";
    const level = levels[levels.length - 1];
    if (sign === '"') {
      const end = endOfString(text, place);
      if (end >= at && !(end === at && text[end - 1] === '"' && end - place > 1)) {
        begin = place;
        break;
      }
      const word = text.slice(place + 1, end - 1);
      if (level?.kind === "object") {
        if (level.name === null) {
          level.names.push(word);
          level.name = word;
        } else if (level.name === "type") level.type = word;
      }
      place = end;
      begin = at;
      continue;
    }
    if (sign === "{" || sign === "[") levels.push({ kind: sign === "{" ? "object" : "array", name: null, names: [], type: null });
    else if (sign === "}" || sign === "]") levels.pop();
    else if (sign === "," && level) level.name = null;
    place += 1;
    if (/[A-Za-z]/.test(sign)) begin = /[A-Za-z]/.test(text[place - 2] ?? "") ? begin : place - 1;
    else begin = at;
  }
  ahead(text, at, levels);
  return { levels, begin };
}

/** Names, and types, that the objects around the offset have after it. */
function ahead(text: string, at: number, levels: Level[]): void {
  let around = levels.length - 1;
  let depth = 0;
  for (let place = at; place < text.length && around >= 0; place += 1) {
    const sign = text[place];
    if (sign === "{" || sign === "[") depth += 1;
    else if (sign === "}" || sign === "]") {
      if (depth) depth -= 1;
      else around -= 1;
    } else if (sign === '"') {
      const end = endOfString(text, place);
      const named = /^\s*:\s*("([^"\\]*)")?/.exec(text.slice(end, end + 200));
      const level = levels[around];
      if (depth === 0 && named && level?.kind === "object") {
        const word = text.slice(place + 1, end - 1);
        level.names.push(word);
        if (word === "type" && named[2] !== undefined) level.type = named[2];
      }
      place = end - 1;
    }
  }
}

/** After the closing quote, or the end of the line. */
function endOfString(text: string, begin: number): number {
  let place = begin + 1;
  while (place < text.length && text[place] !== '"' && text[place] !== "\n") place += text[place] === "\\" ? 2 : 1;
  return Math.min(text.length, text[place] === '"' ? place + 1 : place);
}

function endOfWord(text: string, at: number, begin: number): number {
  if (text[begin] !== '"' || begin === at) return at;
  const end = endOfString(text, begin);
  return text[end - 1] === '"' && end > at ? end : at;
}

function names(text: string, end: number, levels: Level[], schema: JsonSchema): Proposal[] {
  const level = levels[levels.length - 1];
  const found = new Map<string, JsonSchema>();
  for (const one of schemasOf(levels, schema)) for (const [name, part] of Object.entries(one.properties ?? {})) if (!found.has(name)) found.set(name, part);
  const hasColon = /^\s*:/.test(text.slice(end));
  return [...found]
    .filter(([name]) => !level?.names.includes(name))
    .map(([name, part]) => ({ label: name, insert: hasColon ? JSON.stringify(name) : `${JSON.stringify(name)}: ${begun(part, schema)}`, about: aboutOf(part, schema) }));
}

/** How a value of that schema begins. */
function begun(part: JsonSchema, root: JsonSchema): string {
  const kinds = spread(part, root).map((one) => one.type ?? (one.properties ? "object" : one.enum ? "string" : ""));
  if (kinds.includes("string") && !kinds.includes("object")) return '""';
  if (kinds.includes("object")) return "{}";
  return kinds.includes("array") ? "[]" : "";
}

function values(text: string, levels: Level[], schema: JsonSchema): Proposal[] {
  const name = levels[levels.length - 1]?.name ?? "";
  if (TARGETS.has(name)) return keysOf(text).map((key) => ({ label: key, insert: JSON.stringify(key), about: "a step" }));
  const proposals = schemasAt(levels, schema).flatMap((one): Proposal[] => {
    if (one.enum) return one.enum.map((word) => ({ label: String(word), insert: JSON.stringify(word), about: one.description ?? "" }));
    return one.type === "boolean" ? ["true", "false"].map((word) => ({ label: word, insert: word, about: one.description ?? "" })) : [];
  });
  return [...new Map(proposals.map((one) => [one.label, one])).values()];
}

function keysOf(text: string): string[] {
  return [...new Set([...text.matchAll(/"key"\s*:\s*"([A-Za-z_][A-Za-z0-9_-]*)"/g)].map((found) => found[1] ?? ""))];
}

/** What the innermost object may be. */
function schemasOf(levels: Level[], root: JsonSchema): JsonSchema[] {
  let found = spread(root, root);
  levels.forEach((level, depth) => {
    if (level.kind === "object" && level.type !== null) {
      const fitting = found.filter((one) => one.properties?.type?.enum?.includes(level.type));
      if (fitting.length) found = fitting;
    }
    if (depth < levels.length - 1) found = inside(found, level, root);
  });
  return found;
}

/** What the value may be that comes. */
function schemasAt(levels: Level[], root: JsonSchema): JsonSchema[] {
  const last = levels[levels.length - 1];
  if (!last) return [];
  if (last.name === "type") {
    // Whatever its type is now, each one may take its place.
    return inside(schemasOf([...levels.slice(0, -1), { ...last, type: null }], root), last, root);
  }
  return inside(schemasOf(levels, root), last, root);
}

function inside(found: JsonSchema[], level: Level, root: JsonSchema): JsonSchema[] {
  return found.flatMap((one) => {
    const part = level.kind === "array" ? one.items : one.properties?.[level.name ?? ""];
    return part ? spread(part, root) : [];
  });
}

/** A schema without references and choices. */
function spread(one: JsonSchema, root: JsonSchema): JsonSchema[] {
  const named = one.$ref?.startsWith("#/$defs/") ? root.$defs?.[one.$ref.slice(8)] : undefined;
  if (named) return spread(named, root);
  return one.anyOf ? one.anyOf.flatMap((part) => spread(part, root)) : [one];
}

function aboutOf(part: JsonSchema, root: JsonSchema): string {
  return part.description ?? spread(part, root).find((one) => one.description)?.description ?? "";
}
