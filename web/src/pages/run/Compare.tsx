import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { diff } from "../../api/endpoints";
import type { Json, RunDetail, Step, StepDiff } from "../../api/types";
import { Empty, Loading, Trouble } from "../../components/Empty";
import { JsonValue } from "../../components/JsonValue";
import { StateChip } from "../../components/StateChip";
import { Took } from "../../components/Time";
import { failureKind } from "../../lib/failures";
import { brief } from "../../lib/json";
import { grouped, numberOf } from "../../lib/time";
import { stepName } from "../../lib/timeline";
import { useResource } from "../../state/live";
import { Link, runPath } from "../../state/router";

const SHOWN = 300;

/** This run and another one of the same workflow, step by step. */
export function CompareTab({ run, other, onOther }: { run: RunDetail; other: string; onOther: (id: string) => void }): JSX.Element {
  const [typed, setTyped] = useState(other);
  return (
    <div class="stack">
      <form
        class="row-gap"
        onSubmit={(event) => {
          event.preventDefault();
          if (typed.trim()) onOther(typed.trim());
        }}
      >
        <input class="input compare-input mono" placeholder="id or run id of another run" aria-label="Id of the other run" value={typed} onInput={(event) => setTyped(event.currentTarget.value)} />
        <button type="submit" class="btn go" disabled={!typed.trim()}>
          Compare
        </button>
      </form>
      {other ? (
        <Result run={run} other={other} />
      ) : (
        <section class="card">
          <Empty icon="fork" title="Compare with which run?">
            <p>Give the id of another run of {run.workflow}: one that went well, or the run that this one was made from.</p>
          </Empty>
        </section>
      )}
    </div>
  );
}

function Result({ run, other }: { run: RunDetail; other: string }): JSX.Element {
  const found = useResource(`${run.run_id} ${other} ${run.entries}`, (signal) => diff(run.run_id, other, signal));
  const [open, setOpen] = useState<number | null>(null);
  if (found.error) return <Trouble error={found.error} />;
  if (!found.data) return <Loading />;
  const { left, right, same, steps } = found.data;
  const rest = steps.slice(same);
  const isSame = rest.every((pair) => !differs(pair));
  return (
    <section class="card">
      <header>
        <div class="row-gap">
          {[left, right].map((side, index) => (
            <span key={side.run_id} class="row-gap">
              {index > 0 && <span class="faint">and</span>}
              <Link class="link mono" to={runPath(side.run_id)}>
                {side.id}
              </Link>
              <StateChip state={side.state} />
              <span class="dim small">
                <Took from={side.created_at} to={side.closed_at} />
              </span>
            </span>
          ))}
        </div>
        <span class="faint small">{isSame ? `no difference in ${numberOf(steps.length, "step")}` : same ? `the first ${numberOf(same, "step is", "steps are")} the same` : "they differ from the first step on"}</span>
      </header>
      {isSame ? (
        <Empty icon="runs" title="They did the same">
          <p>Times and attempts do not count as a difference.</p>
        </Empty>
      ) : (
        <div class="scroll-x">
          <table>
            <thead>
              <tr>
                <th>Step</th>
                <th>Differs in</th>
                <th>{left.id}</th>
                <th>{right.id}</th>
              </tr>
            </thead>
            <tbody>
              {rest.slice(0, SHOWN).map((pair, index) => (
                <PairRows key={index} pair={pair} isOpen={open === index} onOpen={() => setOpen(open === index ? null : index)} />
              ))}
            </tbody>
          </table>
        </div>
      )}
      {rest.length > SHOWN && <div class="list-foot">{grouped(rest.length - SHOWN)} more steps are left out.</div>}
    </section>
  );
}

function differs(pair: StepDiff): boolean {
  return pair.differs.some((what) => what !== "tries");
}

function PairRows({ pair, isOpen, onOpen }: { pair: StepDiff; isOpen: boolean; onOpen: () => void }): JSX.Element {
  const step = (pair.left ?? pair.right) as Step;
  const only = pair.right === null ? "only left" : pair.left === null ? "only right" : "";
  return (
    <>
      <tr class={`clickable ${differs(pair) ? "differs" : ""}`} onClick={onOpen}>
        <td>
          <button type="button" class="plain" aria-expanded={isOpen}>
            <span class="faint mono">{step.seq || "·"}</span> <b>{stepName(step)}</b>
          </button>
        </td>
        <td class={differs(pair) ? "tone-retry strong" : "faint"}>{only || pair.differs.join(", ") || "same"}</td>
        <td class="mono small wrap-any">{outcome(pair.left)}</td>
        <td class="mono small wrap-any">{outcome(pair.right)}</td>
      </tr>
      {isOpen && (
        <tr>
          <td colSpan={4}>
            <div class="pair">
              <Half step={pair.left} />
              <Half step={pair.right} />
            </div>
          </td>
        </tr>
      )}
    </>
  );
}

function outcome(step: Step | null): string {
  if (!step) return "–";
  if (step.error) return `${failureKind(step.error)}: ${step.error.message}`;
  return step.output === null ? step.state : brief(step.output, 60);
}

function Half({ step }: { step: Step | null }): JSX.Element {
  if (!step) return <p class="faint">It has no such step.</p>;
  const parts: [string, Json][] = [
    ["Input", step.input],
    ["Result", step.output],
  ];
  return (
    <div class="stack">
      {parts.map(([title, value]) =>
        value === null ? null : (
          <div key={title}>
            <h3>{title}</h3>
            <JsonValue value={value} />
          </div>
        ),
      )}
      {step.error && (
        <div class="notice fail">
          <b>{failureKind(step.error)}</b>: {step.error.message}
        </div>
      )}
    </div>
  );
}
