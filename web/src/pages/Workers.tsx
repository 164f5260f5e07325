import { Fragment, type JSX } from "preact";
import { useState } from "preact/hooks";
import { workers } from "../api/endpoints";
import type { Worker } from "../api/types";
import { CopyId } from "../components/Copy";
import { Empty, Loading, Trouble } from "../components/Empty";
import { Chip } from "../components/StateChip";
import { Ago } from "../components/Time";
import { Silent, WorkerRing } from "../components/WorkerRing";
import { grouped } from "../lib/time";
import { useResource } from "../state/live";

/** Who is working: leases, queues and code. */
export default function Workers(): JSX.Element {
  const found = useResource("workers", workers, ["workers"]);
  const [open, setOpen] = useState<string | null>(null);
  const rows = found.data?.workers ?? [];
  const versions = codeVersions(rows);
  return (
    <>
      <div class="page-head">
        <div>
          <h1>Workers</h1>
          <p>{found.data ? `${grouped(rows.filter((one) => one.live).length)} live. The ring shows what is left of the lease; when it is over, others take the runs.` : "\u00a0"}</p>
        </div>
      </div>
      {found.error && <Trouble error={found.error} retry={found.reload} />}
      {!found.data && found.loading && <Loading />}
      {found.data && (
        <section class="card scroll-x">
          {rows.length === 0 ? (
            <Empty icon="workers" title="No workers">
              <p>Nothing runs until a worker is there. Start one with your workflows:</p>
              <code>batuta worker --app MODULE</code>
            </Empty>
          ) : (
            <table class="stacks">
              <thead>
                <tr>
                  <th>Worker</th>
                  <th>State</th>
                  <th class="n">Runs</th>
                  <th class="n">Last beat</th>
                  <th>Host</th>
                  <th class="n">Pid</th>
                  <th>Queues</th>
                  <th>Code</th>
                  <th class="n">Started</th>
                </tr>
              </thead>
              <tbody>
                {rows.map((worker) => (
                  <>
                    <tr key={worker.worker_id}>
                      <td>
                        <span class="row-gap">
                          <WorkerRing worker={worker} />
                          <CopyId text={worker.worker_id} />
                        </span>
                      </td>
                      <td data-label="State">{worker.live ? <Chip look={{ tone: "run", label: "live" }} /> : <Chip look={{ tone: "fail", label: "lost" }} />}</td>
                      <td data-label="Runs" class="n strong">
                        {grouped(worker.runs)}
                      </td>
                      <td data-label="Last beat" class="n">
                        <Silent worker={worker} />
                      </td>
                      <td data-label="Host">{worker.host}</td>
                      <td data-label="Pid" class="n mono">
                        {worker.pid}
                      </td>
                      <td data-label="Queues" class="mono">
                        <span>
                          {worker.queues.map((name, index) => (
                            <Fragment key={name}>
                              {index > 0 && ", "}
                              <span class="nowrap">{name}</span>
                            </Fragment>
                          ))}
                        </span>
                      </td>
                      <td data-label="Code">
                        <button type="button" class="plain link nowrap" aria-expanded={open === worker.worker_id} onClick={() => setOpen(open === worker.worker_id ? null : worker.worker_id)}>
                          {served(worker)}
                        </button>
                        {differs(worker, versions) && <span class="tries">other code than the newest</span>}
                      </td>
                      <td data-label="Started" class="n">
                        <Ago at={worker.started_at} />
                      </td>
                    </tr>
                    {open === worker.worker_id && (
                      <tr>
                        <td colSpan={9}>
                          <dl class="facts-list code-list">
                            {KINDS.map(([kind, many]) => {
                              const names = codeOf(worker, kind);
                              return (
                                names.length > 0 && (
                                  <Fragment key={kind}>
                                    <dt>{many}</dt>
                                    <dd>
                                      {names.map(([name, print]) => (
                                        <span key={name} class="tag" title={kind === "workflow" ? `fingerprint of its code: ${print}` : name}>
                                          {name} {kind === "workflow" && <span class="faint">{print.slice(0, 7)}</span>}
                                        </span>
                                      ))}
                                    </dd>
                                  </Fragment>
                                )
                              );
                            })}
                          </dl>
                        </td>
                      </tr>
                    )}
                  </>
                ))}
              </tbody>
            </table>
          )}
        </section>
      )}
    </>
  );
}

/** Each kind of code, and several of it. */
const KINDS = [
  ["workflow", "workflows"],
  ["job", "jobs"],
  ["activity", "activities"],
] as const;

/** Names of one kind with their fingerprints; those of Batuta itself are left out. */
function codeOf(worker: Worker, kind: string): [string, string][] {
  const found = Object.entries(worker.code).map(([key, print]): [string, string, string] => {
    const [, of, name] = /^(activity|job):(.*)$/s.exec(key) ?? [key, "workflow", key];
    return [of ?? "", name ?? "", print];
  });
  const jobs = new Set(found.filter(([of]) => of === "job").map(([, name]) => name)); // each is an activity, too
  return found.filter(([of, name]) => of === kind && !name.startsWith("batuta.") && !(of === "activity" && jobs.has(name))).map(([, name, print]) => [name, print]);
}

/** "6 workflows, 1 job". */
function served(worker: Worker): string {
  const said = KINDS.flatMap(([kind, many]) => {
    const { length } = codeOf(worker, kind);
    return length ? [`${grouped(length)} ${length === 1 ? kind : many}`] : [];
  });
  return said.slice(0, 2).join(", ") || "nothing";
}

/** The fingerprint of each name on the worker that started last. */
function codeVersions(rows: readonly Worker[]): Map<string, string> {
  const found = new Map<string, string>();
  for (const worker of [...rows].sort((a, b) => a.started_at.localeCompare(b.started_at))) {
    for (const [name, print] of Object.entries(worker.code)) found.set(name, print);
  }
  return found;
}

function differs(worker: Worker, versions: Map<string, string>): boolean {
  return Object.entries(worker.code).some(([name, print]) => versions.get(name) !== print);
}
