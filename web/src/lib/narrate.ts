/** A sentence or two that say what happened to a run, made from its timeline. */

import type { CodeSchema, Run, Step, Timeline } from "../api/types";
import { attemptFailure, failureKind } from "./failures";
import { duration, millis } from "./time";
import { stepName } from "./timeline";

const GATE = /^gate:([^;]+)(?:; )?/;

/** What an operator would ask first: is it stuck, why, and since when? */
export function narrate(run: Run, timeline: Timeline, now: number, takes: CodeSchema | null = null): string[] {
  const said: string[] = [];
  if (timeline.sealed) return [`Its journal cannot be read here: ${timeline.sealed}`];
  if (run.state === "paused") said.push(`An operator paused it ${since(run.paused_at, now)}.`);
  const gate = GATE.exec(run.reason)?.[1];
  if (gate) said.push(`It waits at the gate ${gate}, which costs no attempt: the page Partners shows what the breaker or limit allows.`);
  const reason = run.reason.replace(GATE, "");
  if (reason) said.push(sentence(reason));
  const open = timeline.steps.filter((step) => step.state === "open");
  const retrying = open.filter((step) => step.segments.at(-1)?.kind === "backoff");
  for (const step of retrying.slice(0, 2)) said.push(retry(step, now));
  if (!open.length && run.state === "waiting" && !run.reason) {
    said.push(`It has waited for a message ${since(timeline.segments.at(-1)?.start ?? null, now)}.${messages(takes)}`);
  }
  if (!retrying.length && run.state === "waiting") said.push(...open.filter((step) => !gate || !isQueued(step)).slice(0, 2).map((step) => waits(step, now)));
  said.push(...timeline.steps.flatMap(cutOff).slice(0, 2));
  if (run.deaths > 0) {
    said.push(`${times(run.deaths, "worker")} died while it ran this; another took over and replayed the journal.`);
  }
  const end = timeline.steps.find((step) => step.kind === "end" && step.error);
  if (end?.error && !run.reason.includes(end.error.message)) said.push(`It ended with ${failureKind(end.error)}: ${sentence(end.error.message)}`);
  return said;
}

/** What may be sent to it, as far as a worker has said so. */
function messages(takes: CodeSchema | null): string {
  const some = (what: string, names: string[]): string[] => (names.length ? [`${what}${names.length === 1 ? "" : "s"} ${names.join(", ")}`] : []);
  const parts = takes ? [...some("signal", takes.signals.map((one) => one.name)), ...some("update", takes.updates.map((one) => one.name))] : [];
  return parts.length ? ` It takes the ${parts.join(" and the ")}.` : "";
}

function retry(step: Step, now: number): string {
  const last = step.attempts.at(-1);
  const failure = last ? attemptFailure(last) : null;
  const next = millis(last?.next_at ?? null);
  const when = next === null ? "" : next > now ? ` The next try is in ${duration((next - now) / 1000)}.` : " The next try is due.";
  const why = failure ? ` with ${failureKind(failure)}` : "";
  return `${stepName(step)} has failed ${times(step.tries, "time")}${why}.${when}`;
}

function waits(step: Step, now: number): string {
  const long = since(step.began_at, now);
  if (step.segments.at(-1)?.kind === "outside") return `It waits for an answer from outside for ${stepName(step)}, ${long}.`;
  if (isQueued(step)) return `${stepName(step)} waits for a worker, ${long}.`;
  if (step.kind === "child") return `It waits for its child ${step.to || step.name}, ${long}.`;
  return `It waits for ${stepName(step)}, ${long}.`;
}

function isQueued(step: Step): boolean {
  return step.segments.at(-1)?.kind === "queued";
}

/** Attempts whose worker died. */
function cutOff(step: Step): string[] {
  return step.attempts.flatMap((one) => {
    const [from, to] = [millis(one.started_at), millis(one.ended_at)];
    if (!one.lost || from === null || to === null) return [];
    return [
      `The worker was lost during attempt ${one.number} of ${stepName(step)}; another one took over ${duration((to - from) / 1000)} after it was asked for.`,
    ];
  });
}

function since(iso: string | null, now: number): string {
  const at = millis(iso);
  return at === null ? "for a while" : `for ${duration((now - at) / 1000)}`;
}

function times(count: number, word: string): string {
  return `${count} ${word}${count === 1 ? "" : "s"}`;
}

function sentence(text: string): string {
  const trimmed = text.trim();
  const begun = trimmed.charAt(0).toUpperCase() + trimmed.slice(1);
  return /[.!?]$/.test(begun) ? begun : `${begun}.`;
}
