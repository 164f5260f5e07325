/** A flow as a graph, and where the parts of its document stand in its text. */

import type { FlowStep } from "../api/flows";
import type { Json } from "../api/types";

export interface Node {
  key: string;
  type: string;
  row: number;
  depth: number;
}

export interface Edge {
  from: string;
  to: string;
  /** Why this way is taken; empty: it is the usual one. */
  labels: string[];
  /** It is taken, too, when the step is skipped. */
  plain: boolean;
}

/** A step of a run, or of a dry run. */
export interface Done {
  key: string;
  type: string;
  status: string;
  output: Json;
}

/** What a run did: the status of each step, and the ways that it went on. */
export interface Taken {
  states: Record<string, string>;
  ways: Record<string, Set<string>>;
}

const BLOCKS: Record<string, string[]> = { parallel: ["branches"], for_each: ["steps"], try: ["steps", "catch", "finally"] };
const MOST = 200;
/** The way into a block. */
export const INSIDE = " ";
const SKIPPED = "skipped";

/** Nodes from top to bottom, those of blocks further to the right, and what follows what. */
export function graphOf(steps: readonly FlowStep[]): { nodes: Node[]; edges: Edge[] } {
  const nodes: Node[] = [];
  const edges: Edge[] = [];
  const walk = (block: readonly FlowStep[], depth: number): void => {
    block.forEach((step, place) => {
      if (typeof step !== "object" || step === null || nodes.length >= MOST) return;
      const key = String(step.key ?? "?");
      nodes.push({ key, type: String(step.type ?? "?"), row: nodes.length, depth });
      const config = (step.config ?? {}) as Record<string, unknown>;
      const inner = (BLOCKS[String(step.type)] ?? []).flatMap((name) => lists(config[name]));
      for (const one of inner) {
        if (one[0]) edges.push({ from: key, to: String(one[0].key ?? "?"), labels: [INSIDE], plain: false });
        walk(one, depth + 1);
      }
      const following = String(step.next || block[place + 1]?.key || "");
      for (const [to, label] of ways(step, config, following)) {
        const same = edges.find((edge) => edge.from === key && edge.to === to);
        if (same) same.labels.push(label);
        else edges.push({ from: key, to, labels: [label], plain: to === following });
      }
    });
  };
  walk(steps, 0);
  const known = new Set(nodes.map((node) => node.key));
  return { nodes, edges: edges.filter((edge) => known.has(edge.to)) };
}

/** The path that a run took through the steps of its flow. */
export function pathOf(steps: readonly Done[]): Taken {
  const found: Taken = { states: {}, ways: {} };
  for (const step of steps) {
    found.states[step.key] = step.status;
    const way = wayOf(step);
    if (way !== null) (found.ways[step.key] ??= new Set()).add(way);
  }
  return found;
}

function wayOf({ type, status, output }: Done): string | null {
  if (status === "SKIPPED") return SKIPPED;
  if (status !== "COMPLETED") return null;
  const said = typeof output === "object" && output !== null && !Array.isArray(output) ? output : {};
  if (type === "condition") return said.result ? "true" : "false";
  if (type === "switch") return typeof said.case === "number" ? String(said.case) : "else";
  if (said.timedOut === true) return "too late";
  return type === "approval" && said.approved === false ? "rejected" : "";
}

/** Whether a run went from one step to the other. */
export function isTaken(edge: Edge, taken: Taken): boolean {
  if (!taken.states[edge.from] || !taken.states[edge.to]) return false;
  const ways = taken.ways[edge.from];
  return edge.labels.some((label) => label === INSIDE || ways?.has(label)) || (edge.plain && ways?.has(SKIPPED) === true);
}

function lists(value: unknown): FlowStep[][] {
  if (!Array.isArray(value) || !value.length) return [];
  return Array.isArray(value[0]) ? (value as FlowStep[][]) : [value as FlowStep[]];
}

function ways(step: FlowStep, config: Record<string, unknown>, following: string): [string, string][] {
  if (step.type === "end" || step.type === "fail") return [];
  const named = (name: string, label: string): [string, string][] => (config[name] ? [[String(config[name]), label]] : []);
  if (step.type === "condition") return [[String(config.onTrue || following), "true"], [String(config.onFalse || following), "false"]];
  if (step.type === "switch") {
    const cases = Array.isArray(config.cases) ? (config.cases as { to?: string }[]) : [];
    return [...cases.map((one, place): [string, string] => [String(one?.to ?? ""), String(place)]), [String(config.default || following), "else"]];
  }
  return [[following, ""], ...named("onRejected", "rejected"), ...named("onTimeout", "too late")];
}

/** The line (from 0) of each value of a JSON text, by its path: `steps[2].config.onTrue`. Also of a text that breaks off. */
export function linesOf(text: string): Map<string, number> {
  const found = new Map<string, number>([["", 0]]);
  let at = 0;
  let line = 0;
  const skip = (): void => {
    while (at < text.length && /\s/.test(text[at] ?? "")) if (text[at++] === "\n") line += 1;
  };
  const string = (): string => {
    const begin = at++;
    while (at < text.length && text[at] !== '"' && text[at] !== "\n") at += text[at] === "\\" ? 2 : 1;
    at += 1;
    try {
      return String(JSON.parse(text.slice(begin, at)));
    } catch {
      return "";
    }
  };
  const value = (path: string): boolean => {
    skip();
    if (!found.has(path)) found.set(path, line);
    const sign = text[at];
    if (sign === '"') return string() !== undefined;
    if (sign === "{" || sign === "[") return several(path, sign === "{");
    const begin = at;
    while (at < text.length && !/[\s,\]}]/.test(text[at] ?? "")) at += 1;
    return at > begin;
  };
  const several = (path: string, isObject: boolean): boolean => {
    at += 1;
    for (let place = 0; ; place += 1) {
      skip();
      if (at >= text.length) return false;
      if (text[at] === "}" || text[at] === "]") return (at += 1) > 0;
      let name = `${path}[${place}]`;
      if (isObject) {
        if (text[at] !== '"') return false;
        const here = line;
        const key = string();
        name = path ? `${path}.${key}` : key;
        found.set(name, here);
        skip();
        if (text[at++] !== ":") return false;
      }
      if (!value(name)) return false;
      skip();
      if (text[at] === ",") at += 1;
    }
  };
  value("");
  return found;
}

/** The line of a fault: that of its path, or of the nearest part that is there. What is no JSON says its line itself. */
export function lineOf(path: string, message: string, lines: Map<string, number>): number {
  const said = /line (\d+)/.exec(path ? "" : message);
  if (said) return Number(said[1]) - 1;
  for (let part = path; part; part = part.replace(/(\.[^.[]+|\[\d+\]|^[^.[]+)$/, "")) {
    const line = lines.get(part);
    if (line !== undefined) return line;
  }
  return 0;
}

export const TEMPLATES: Record<string, FlowStep> = {
  condition: { key: "check", type: "condition", config: { rule: { field: "amount", operator: "greater_than", value: 100 }, onFalse: "done" } },
  action: { key: "notify", type: "action", config: { actionType: "webhook" } },
  approval: { key: "ask", type: "approval", config: { title: "May I?" } },
  delay: { key: "wait", type: "delay", config: { duration: "1h" } },
  wait_event: { key: "paid", type: "wait_event", timeout: "30d", config: { event: "invoice_paid" } },
  ai_task: { key: "write", type: "ai_task", config: { prompt: "Write a reminder", fallback: "use_default_template" } },
  set: { key: "note", type: "set", config: { values: { amount: "{{ event.payload.amount }}" } } },
  switch: { key: "choose", type: "switch", config: { cases: [{ when: { field: "amount", operator: "gt", value: 1000 }, to: "done" }] } },
  parallel: { key: "both", type: "parallel", config: { branches: [[{ key: "one", type: "action" }], [{ key: "two", type: "action" }]] } },
  for_each: { key: "each", type: "for_each", config: { items: "{{ event.payload.items }}", steps: [{ key: "send", type: "action" }] } },
  try: { key: "try", type: "try", config: { steps: [{ key: "risky", type: "action" }], catch: [{ key: "note", type: "set", config: { values: { failed: true } } }] } },
  sub_flow: { key: "other", type: "sub_flow", config: { workflow: "other flow" } },
  python: { key: "call", type: "python", config: { activity: "charge", args: ["{{ event.payload.amount }}"] } },
  compensate: { key: "undo", type: "compensate", config: { actionType: "webhook" } },
  fail: { key: "stop", type: "fail", config: { message: "It cannot go on" } },
  end: { key: "done", type: "end" },
};

/** The text with a step put in before the last `end`, with a key of its own. */
export function withStep(text: string, type: string): string {
  const document = JSON.parse(text) as { steps?: FlowStep[] };
  const steps = Array.isArray(document.steps) ? document.steps : [];
  const keys = new Set(graphOf(steps).nodes.map((node) => node.key));
  const made = structuredClone(TEMPLATES[type] ?? {});
  const base = made.key ?? type;
  for (let number = 2; keys.has(made.key ?? ""); number += 1) made.key = `${base}_${number}`;
  const last = steps.findLastIndex((step) => step?.type === "end");
  steps.splice(last < 0 || type === "end" ? steps.length : last, 0, made);
  return JSON.stringify({ ...document, steps }, null, 2);
}
