import type { JSX } from "preact";
import type { Attempt, Failure, Json, Step } from "../api/types";
import { attemptFailure, failureKind } from "../lib/failures";
import { parseJson } from "../lib/json";
import { stepLook } from "../lib/states";
import { stepName } from "../lib/timeline";
import { Link, runPath } from "../state/router";
import { CopyId } from "./Copy";
import { Icon } from "./Icon";
import { JsonValue } from "./JsonValue";
import { Chip } from "./StateChip";
import { Clock, Took } from "./Time";

interface Props {
  step: Step;
  onClose: () => void;
  onFork?: () => void;
}

/** One step beside the timeline: input, result or error, and every attempt. */
export function StepDetail({ step, onClose, onFork }: Props): JSX.Element {
  const doing = step.segments.at(-1);
  const look = stepLook(step.state, doing?.end === null ? doing.kind : undefined);
  return (
    <aside class="card detail" aria-label={`Step ${stepName(step)}`}>
      <header>
        <h2 class="clip">
          {step.seq ? `${step.seq} · ` : ""}
          {stepName(step)}
        </h2>
        <span class="row-gap">
          <Chip look={look} />
          <button type="button" class="icon-btn" aria-label="Close" onClick={onClose}>
            <Icon name="close" />
          </button>
        </span>
      </header>
      <dl class="facts-list">
        <dt>asked for</dt>
        <dd>
          <Clock at={step.began_at} />
        </dd>
        <dt>took</dt>
        <dd>
          <Took from={step.began_at} to={step.ended_at} />
        </dd>
        <dt>entries</dt>
        <dd>
          {step.entry}
          {step.answer !== null && ` to ${step.answer}`}
        </dd>
        {step.to && (
          <>
            <dt>run</dt>
            <dd class="clip">
              <Link class="link mono" to={runPath(step.to)}>
                {step.to}
              </Link>
            </dd>
          </>
        )}
      </dl>
      {step.kept && <div class="notice">Another run did this. This one was made from it and keeps the answer.</div>}
      {step.error && <FailureSection failure={step.error} />}
      {step.input !== null && (
        <Section title={step.kind === "timer" ? "Seconds" : "Input"}>
          <JsonValue value={step.input} />
        </Section>
      )}
      {step.output !== null && (
        <Section title={step.kind === "publish" ? "Value" : "Result"}>
          <JsonValue value={step.output} />
        </Section>
      )}
      {step.attempts.length > 0 && (
        <Section title={step.attempts.length < step.tries ? `Attempts (the last ${step.attempts.length} of ${step.tries})` : "Attempts"}>
          {step.attempts.slice(-50).map((one) => (
            <AttemptRow key={one.number} attempt={one} isLast={one === step.attempts.at(-1)} state={step.state} />
          ))}
        </Section>
      )}
      {step.key && (
        <Section title="Key">
          <CopyId text={step.key} />
        </Section>
      )}
      {onFork && (
        <div class="section">
          <button type="button" class="btn" onClick={onFork}>
            <Icon name="fork" />
            Fork from here…
          </button>
        </div>
      )}
    </aside>
  );
}

function Section({ title, children }: { title: string; children: JSX.Element | JSX.Element[] }): JSX.Element {
  return (
    <div class="section">
      <h3>{title}</h3>
      {children}
    </div>
  );
}

function AttemptRow({ attempt, isLast, state }: { attempt: Attempt; isLast: boolean; state: string }): JSX.Element {
  const failure = attemptFailure(attempt);
  const details = attempt.details === null ? null : parseJson(attempt.details);
  const outcome = (): JSX.Element => {
    if (failure) return <b class="tone-fail">{failureKind(failure)}</b>;
    if (attempt.outside && isLast) return <b class="tone-pause">waits outside</b>;
    if (attempt.lost) return <b class="tone-fail">lost with its worker</b>;
    if (!isLast) return <b class="tone-fail">cut off</b>;
    if (state === "done") return <b class="tone-done">done</b>;
    return <b class={attempt.ended_at === null ? "tone-run" : "tone-wait"}>{attempt.ended_at === null ? "running" : state}</b>;
  };
  const head = (
    <>
      <span class="faint mono">{attempt.number}</span>
      <span class="clip">
        <Took from={attempt.started_at} to={attempt.ended_at} />
        {attempt.worker && <span class="dim"> on {attempt.worker}</span>}
      </span>
      {outcome()}
    </>
  );
  if (!failure && details === null) return <div class="attempt">{head}</div>;
  return (
    <details class="attempt-box">
      <summary class="attempt">{head}</summary>
      {failure && <FailureText failure={failure} />}
      {details !== null && "value" in details && (
        <>
          <h3>Last heartbeat</h3>
          <JsonValue value={details.value} />
        </>
      )}
    </details>
  );
}

function FailureSection({ failure }: { failure: Failure }): JSX.Element {
  return (
    <div class="section">
      <h3>Error</h3>
      <FailureText failure={failure} />
    </div>
  );
}

/** Whether the details say no more than the message does. */
function isMessageAlone(failure: Failure): boolean {
  return JSON.stringify(failure.details) === JSON.stringify({ args: [failure.message] });
}

/** An error with its traceback and its causes. */
export function FailureText({ failure }: { failure: Failure }): JSX.Element {
  return (
    <div class="failure">
      <div class="notice fail">
        <b>{failureKind(failure)}</b>: {failure.message}
      </div>
      {failure.details !== undefined && failure.details !== null && !isMessageAlone(failure) && <JsonValue value={failure.details as Json} />}
      {failure.traceback && (
        <pre class="value trace" tabIndex={0}>
          {failure.traceback}
        </pre>
      )}
      {failure.cause && (
        <>
          <h3>Caused by</h3>
          <FailureText failure={failure.cause} />
        </>
      )}
    </div>
  );
}
