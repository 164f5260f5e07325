/** JSON for people: indented where it is long, and cut into parts to colour. */

import type { Json } from "../api/types";

const SHORT = 72;

export function pretty(value: Json): string {
  const flat = inline(value);
  return flat.length <= SHORT ? flat : JSON.stringify(value, null, 2);
}

/** On one line, with spaces after commas and colons. */
export function inline(value: Json): string {
  if (Array.isArray(value)) return `[${value.map(inline).join(", ")}]`;
  if (value !== null && typeof value === "object") {
    return `{${Object.entries(value)
      .map(([key, one]) => `${JSON.stringify(key)}: ${inline(one)}`)
      .join(", ")}}`;
  }
  return JSON.stringify(value);
}

/** On one line, cut to a length. */
export function brief(value: Json | undefined, longest = 80): string {
  if (value === undefined) return "";
  return cut(inline(value), longest);
}

/** What an act made different: "rate none → 200/min". What only one of them has is told as it is: "limit 50". */
export function changes(before: Json, after: Json, longest = 90): string {
  if ([before, after].some((one) => one !== null && !asObject(one))) return cut(before === null ? bare(after) : `${bare(before)} → ${bare(after)}`, longest);
  const [old, now] = [asObject(before) ?? {}, asObject(after) ?? {}];
  const shown = Object.entries(after === null ? old : now).filter(([key, value]) => (key in old && after !== null ? inline(old[key] ?? null) !== inline(value) : !isEmpty(value)));
  return cut(shown.map(([key, value]) => `${key.replaceAll("_", " ")} ${key in old && after !== null ? `${bare(old[key])} → ` : ""}${bare(value)}`).join(" · "), longest);
}

function asObject(value: Json): Record<string, Json> | null {
  return value !== null && typeof value === "object" && !Array.isArray(value) ? value : null;
}

function isEmpty(value: Json | undefined): boolean {
  return value === undefined || value === null || value === "";
}

const UUID = /^[0-9a-f]{8}(?=-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$)/;

function bare(value: Json | undefined): string {
  if (value === undefined || isEmpty(value)) return "none";
  return typeof value === "string" ? (UUID.exec(value)?.[0] ?? value) : inline(value);
}

function cut(text: string, longest: number): string {
  return text.length <= longest ? text : `${text.slice(0, longest - 1)}…`;
}

export interface Part {
  kind: "key" | "text" | "number" | "word" | null;
  text: string;
}

const PART = /("(?:[^"\\]|\\.)*")(\s*:)?|(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|(true|false|null)/g;

/** Keys, texts, numbers and words of a JSON text, and what stands between them. */
export function tokens(text: string): Part[] {
  const found: Part[] = [];
  let at = 0;
  for (const hit of text.matchAll(PART)) {
    if (hit.index > at) found.push({ kind: null, text: text.slice(at, hit.index) });
    const [whole, quoted, colon, number] = hit;
    if (quoted !== undefined && colon !== undefined) found.push({ kind: "key", text: quoted }, { kind: null, text: colon });
    else found.push({ kind: quoted !== undefined ? "text" : number !== undefined ? "number" : "word", text: whole });
    at = hit.index + whole.length;
  }
  if (at < text.length) found.push({ kind: null, text: text.slice(at) });
  return found;
}

/** Reads what somebody typed: the value, or why it is none. */
export function parseJson(text: string): { value: Json } | { problem: string } {
  try {
    return { value: JSON.parse(text) as Json };
  } catch (error) {
    return { problem: `This is no JSON: ${error instanceof Error ? error.message : String(error)}` };
  }
}
