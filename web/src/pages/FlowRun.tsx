import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { actOnFlowRun, type FlowRun as Run, flowRun, type StepRun } from "../api/flows";
import { ActDialog } from "../components/ActDialog";
import { DecideButtons } from "../components/DecideButtons";
import { Loading, Trouble } from "../components/Empty";
import { FlowGraph } from "../components/FlowGraph";
import { JsonValue } from "../components/JsonValue";
import { Chip } from "../components/StateChip";
import { Ago, Clock, Took } from "../components/Time";
import { pathOf } from "../lib/flow";
import { flowLook } from "../lib/flowStates";
import { useResource } from "../state/live";
import { Link, runPath } from "../state/router";
import { may, session } from "../state/session";
import { useStore } from "../state/store";

/** One run of a flow: the path that it took, each step, and its log. */
export default function FlowRun({ id }: { id: string }): JSX.Element {
  const found = useResource(`flow run ${id}`, (signal) => flowRun(id, signal), ["runs"]);
  const canAct = may("operator", useStore(session));
  const [act, setAct] = useState<"retry" | "cancel" | null>(null);
  if (found.error) return <Trouble error={found.error} retry={found.reload} />;
  if (!found.data) return <Loading />;
  const { run, workflow } = found.data;
  const isOpen = run.status === "PENDING" || run.status === "RUNNING";
  return (
    <>
      <div class="page-head">
        <div>
          <h1>{workflow ? workflow.name : "Run of a flow"}</h1>
          <p class="row-gap">
            <Chip look={flowLook(run.status)} />
            {workflow && (
              <Link class="link" to={`/flows/${workflow.id}`}>
                v{workflow.version}
              </Link>
            )}
            <span>
              began <Ago at={run.created_at} />, {run.finished_at ? "took" : "for"} <Took from={run.started_at ?? run.created_at} to={run.finished_at} />
            </span>
            <Link class="link" to={runPath(run.id)}>
              journal and timeline
            </Link>
          </p>
        </div>
        {canAct && (
          <span class="row-gap">
            {run.status === "FAILED" && (
              <button type="button" class="btn go" onClick={() => setAct("retry")}>
                Retry…
              </button>
            )}
            {isOpen && (
              <button type="button" class="btn" onClick={() => setAct("cancel")}>
                Cancel…
              </button>
            )}
          </span>
        )}
      </div>
      {run.error && (
        <div class="notice fail" role="alert">
          {run.error}
        </div>
      )}
      <div class="flow-sides">
        <div class="flow-side">
          <section class="card scroll-x">
            <header>
              <h2>Steps</h2>
            </header>
            <table class="stacks">
              <thead>
                <tr>
                  <th>Step</th>
                  <th>Status</th>
                  <th class="n">Attempt</th>
                  <th class="n">Took</th>
                </tr>
              </thead>
              <tbody>
                {run.steps.map((step) => (
                  <Row key={step.id} step={step} run={run} canAct={canAct} reload={found.reload} />
                ))}
              </tbody>
            </table>
          </section>
          <section class="card">
            <header>
              <h2>Log</h2>
            </header>
            <ol class="flow-log body">
              {run.logs.map((line) => (
                <li key={line.id} class={line.level}>
                  <Clock at={line.created_at} /> <span class="mono small">{line.level}</span> {line.message}
                </li>
              ))}
            </ol>
          </section>
        </div>
        <div class="flow-side">
          <section class="card">
            <header>
              <h2>Path</h2>
            </header>
            <div class="body">{workflow ? <FlowGraph steps={workflow.steps} taken={pathOf(run.steps.map((step) => ({ ...step, key: step.step_key, type: step.step_type })))} /> : <p class="faint">Its flow is not there any more.</p>}</div>
          </section>
          <section class="card">
            <header>
              <h2>Context</h2>
            </header>
            <div class="body">
              <JsonValue value={run.context} />
            </div>
          </section>
        </div>
      </div>
      {act && (
        <ActDialog
          title={act === "retry" ? "Retry this run?" : "Cancel this run?"}
          verb={act === "retry" ? "Retry" : "Cancel the run"}
          danger={act === "cancel"}
          act={async (reason) => {
            await actOnFlowRun(run.id, act, reason);
            found.reload();
          }}
          onClose={() => setAct(null)}
        >
          <p>{act === "retry" ? "It goes on from the step that failed. What was done before stays." : "It is asked to end: what it registered as compensations is done."}</p>
        </ActDialog>
      )}
    </>
  );
}

function Row({ step, run, canAct, reload }: { step: StepRun; run: Run; canAct: boolean; reload: () => void }): JSX.Element {
  const [open, setOpen] = useState(false);
  const waits = step.step_type === "approval" && step.status === "RUNNING";
  return (
    <>
      <tr>
        <td>
          <button type="button" class="plain strong" aria-expanded={open} onClick={() => setOpen(!open)}>
            {step.step_key}
          </button>{" "}
          <span class="faint small">
            {step.step_type}
            {step.index !== null && `, item ${step.index + 1}`}
          </span>
        </td>
        <td data-label="Status">
          <span class="row-gap">
            <Chip look={flowLook(step.status)} />
            {waits && canAct && <DecideButtons run={run.id} step={step.step_key} stepRun={step.id} onDone={reload} />}
          </span>
        </td>
        <td data-label="Attempt" class="n">
          {step.attempt}
        </td>
        <td data-label="Took" class="n">
          <Took from={step.started_at} to={step.finished_at ?? (run.finished_at || null)} />
        </td>
      </tr>
      {open && (
        <tr>
          <td colSpan={4}>
            {step.error && <p class="tone-fail">{step.error}</p>}
            {step.provider_ref && <p class="mono small">{step.provider_ref}</p>}
            <div class="faint small">Input</div>
            <JsonValue value={step.input} />
            <div class="faint small">Output</div>
            <JsonValue value={step.output} />
          </td>
        </tr>
      )}
    </>
  );
}
