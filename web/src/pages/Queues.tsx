import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { actOnQueue, limitQueue, listRuns, queues } from "../api/endpoints";
import type { Queue } from "../api/types";
import { ActDialog } from "../components/ActDialog";
import { Empty, Loading, Trouble } from "../components/Empty";
import { Chip } from "../components/StateChip";
import { Ago, Took } from "../components/Time";
import { grouped } from "../lib/time";
import { useListKeys } from "../state/keys";
import { useResource } from "../state/live";
import { Link, runPath } from "../state/router";
import { may, session } from "../state/session";
import { useStore } from "../state/store";
import { say, sayError } from "../state/toasts";

type Limit = "concurrency" | "key_concurrency" | "rate" | "key_rate";

const LIMITS: [Limit, string, string][] = [
  ["concurrency", "Concurrency", "runs at once, of all workers together"],
  ["key_concurrency", "Concurrency per key", "runs at once of one key"],
  ["rate", "Rate", "starts, such as 100/s or 600/min"],
  ["key_rate", "Rate per key", "starts of one key, such as 5/s"],
];

/** What waits and runs in each queue, and its limits, which are edited in place. */
export default function Queues(): JSX.Element {
  const who = useStore(session);
  const canAct = may("operator", who);
  const found = useResource("queues", queues, ["queues", "workers"]);
  const [act, setAct] = useState<{ queue: Queue; verb: "pause" | "resume" } | null>(null);
  const [held, setHeld] = useState<string | null>(null);
  const rows = found.data?.queues ?? [];
  const [at] = useListKeys(rows.length, (index) => setHeld(rows[index]?.name ?? null));
  return (
    <>
      <div class="page-head">
        <div>
          <h1>Queues</h1>
          <p>Limits hold for all workers together, from the next run that is taken on. A click on a limit edits it.</p>
        </div>
      </div>
      {found.error && <Trouble error={found.error} retry={found.reload} />}
      {!found.data && found.loading && <Loading />}
      {found.data && (
        <section class="card scroll-x">
          {rows.length === 0 ? (
            <Empty icon="queues" title="No queues">
              <p>A queue is here once a worker takes from it, a run waits in it, or it has a limit.</p>
              <code>batuta worker --app MODULE --queue NAME</code>
            </Empty>
          ) : (
            <table class="stacks">
              <thead>
                <tr>
                  <th>Queue</th>
                  <th class="n">Ready</th>
                  <th class="n">Oldest</th>
                  <th class="n">Delayed</th>
                  <th class="n">Running</th>
                  <th class="n">Workers</th>
                  {LIMITS.map(([name, label]) => (
                    <th key={name} class="n wraps">
                      {label}
                    </th>
                  ))}
                  <th>
                    <span class="unseen">Acts</span>
                  </th>
                </tr>
              </thead>
              <tbody>
                {rows.map((queue, index) => (
                  <tr key={queue.name} class={index === at ? "on" : ""}>
                    <td>
                      <span class="row-gap">
                        <Link class="mono strong link-quiet" to="/runs" query={new URLSearchParams({ queue: queue.name })}>
                          {queue.name}
                        </Link>
                        {queue.paused && <Chip look={{ tone: "pause", label: "paused" }} title={queue.reason} />}
                        {!queue.paused && queue.ready > 0 && queue.workers === 0 && <Chip look={{ tone: "fail", label: "no worker" }} />}
                      </span>
                      {queue.paused && queue.reason && <div class="faint small">{queue.reason}</div>}
                    </td>
                    <td data-label="Ready" class="n strong">
                      {grouped(queue.ready)}
                    </td>
                    <td data-label="Oldest" class="n">
                      <Ago at={queue.oldest} />
                    </td>
                    <td data-label="Delayed" class="n">
                      {grouped(queue.delayed)}
                    </td>
                    <td data-label="Running" class="n">
                      {queue.running ? (
                        <button type="button" class="plain link" title="who holds what" onClick={() => setHeld(queue.name)}>
                          {grouped(queue.running)}
                        </button>
                      ) : (
                        0
                      )}
                    </td>
                    <td data-label="Workers" class="n">
                      {grouped(queue.workers)}
                    </td>
                    {LIMITS.map(([name, label, hint]) => (
                      <td key={name} data-label={label} class="n">
                        <LimitCell queue={queue} name={name} hint={hint} canEdit={canAct} onSaved={found.reload} />
                      </td>
                    ))}
                    <td class="n">
                      {canAct && (
                        <button type="button" class="btn slim" onClick={() => setAct({ queue, verb: queue.paused ? "resume" : "pause" })}>
                          {queue.paused ? "Resume" : "Pause"}
                        </button>
                      )}
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          )}
        </section>
      )}
      {held && <Holders queue={held} onClose={() => setHeld(null)} />}
      {act && (
        <ActDialog
          title={`${act.verb === "pause" ? "Pause" : "Resume"} the queue ${act.queue.name}`}
          verb={act.verb === "pause" ? "Pause" : "Resume"}
          act={async (reason) => {
            await actOnQueue(act.queue.name, act.verb, reason ? { reason } : {});
            say(`The queue ${act.queue.name} ${act.verb === "pause" ? "is paused" : "goes on"}.`);
            found.reload();
          }}
          onClose={() => setAct(null)}
        >
          <p>
            {act.verb === "pause"
              ? `No worker begins anything more from it. What is running goes on: ${grouped(act.queue.running)} now. ${grouped(act.queue.ready)} wait.`
              : `Workers take from it again: ${grouped(act.queue.ready)} wait.`}
          </p>
        </ActDialog>
      )}
    </>
  );
}

/** A limit. Click it, type another, press Enter; empty removes it. */
function LimitCell({ queue, name, hint, canEdit, onSaved }: { queue: Queue; name: Limit; hint: string; canEdit: boolean; onSaved: () => void }): JSX.Element {
  const value = queue[name];
  const [typed, setTyped] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);
  const said = value === null ? "none" : String(value);
  if (!canEdit) return <span class="mono">{said}</span>;
  if (typed === null) {
    return (
      <button type="button" class={`limit mono ${value === null ? "faint" : ""}`} title={`edit: ${hint}`} aria-label={`${name.replaceAll("_", " ")} of ${queue.name}: ${said}. Edit`} onClick={() => setTyped(value === null ? "" : String(value))}>
        {said}
      </button>
    );
  }
  const save = (): void => {
    const text = typed.trim();
    if (text === (value === null ? "" : String(value))) {
      setTyped(null);
      return;
    }
    const isRate = name === "rate" || name === "key_rate";
    setBusy(true);
    limitQueue(queue.name, { [name]: text === "" ? null : isRate ? text : Number(text) }).then(
      () => {
        say(text === "" ? `${queue.name}: no limit for ${hint}.` : `${queue.name}: ${text} ${hint}.`);
        setBusy(false);
        setTyped(null);
        onSaved();
      },
      (error: unknown) => {
        setBusy(false);
        sayError(error);
      },
    );
  };
  return (
    <input
      class="input limit-input mono"
      aria-label={`${name.replaceAll("_", " ")} of ${queue.name}`}
      placeholder="none"
      title={`${hint}. Empty: no limit. Enter saves, Escape leaves it.`}
      ref={(element) => {
        if (element && document.activeElement !== element && !busy) element.focus();
      }}
      value={typed}
      disabled={busy}
      onInput={(event) => setTyped(event.currentTarget.value)}
      onKeyDown={(event) => {
        if (event.key === "Enter") save();
        if (event.key === "Escape") setTyped(null);
      }}
      onBlur={() => !busy && setTyped(null)}
    />
  );
}

/** Which runs of a queue are held by which workers. */
function Holders({ queue, onClose }: { queue: string; onClose: () => void }): JSX.Element {
  const query = new URLSearchParams({ queue, state: "running", kind: "any", limit: "100" });
  const found = useResource(query.toString(), (signal) => listRuns(query, signal), ["runs"]);
  return (
    <section class="card after">
      <header>
        <h2>Running from {queue}</h2>
        <button type="button" class="btn slim" onClick={onClose}>
          Close
        </button>
      </header>
      {found.error && <Trouble error={found.error} />}
      {found.data?.runs.length === 0 && <div class="list-foot">Nothing runs from it now.</div>}
      <div class="scroll-x">
        <table class="stacks">
          <thead>
            <tr>
              <th>Run</th>
              <th>Workflow or job</th>
              <th>Key</th>
              <th>Worker</th>
              <th class="n">For</th>
            </tr>
          </thead>
          <tbody>
            {found.data?.runs.map((run) => (
              <tr key={run.run_id}>
                <td>
                  <Link class="link mono" to={runPath(run.run_id)}>
                    {run.id}
                  </Link>
                </td>
                <td data-label="Workflow or job">{run.workflow}</td>
                <td data-label="Key" class="mono">
                  {run.key}
                </td>
                <td data-label="Worker" class="mono dim">
                  {run.worker}
                </td>
                <td data-label="For" class="n">
                  <Took from={run.created_at} to={null} />
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}
