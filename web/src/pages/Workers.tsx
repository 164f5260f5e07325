import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { workers } from "../api/endpoints";
import type { Worker } from "../api/types";
import { CopyId } from "../components/Copy";
import { Empty, Loading, Trouble } from "../components/Empty";
import { Chip } from "../components/StateChip";
import { Ago } from "../components/Time";
import { WorkerRing } from "../components/WorkerRing";
import { duration, grouped } from "../lib/time";
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
                  <th class="n">Lease</th>
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
                      <td data-label="Lease" class="n">
                        {duration(worker.lease)}
                      </td>
                      <td data-label="Host">{worker.host}</td>
                      <td data-label="Pid" class="n mono">
                        {worker.pid}
                      </td>
                      <td data-label="Queues" class="mono">
                        {worker.queues.join(", ")}
                      </td>
                      <td data-label="Code">
                        <button type="button" class="plain link" aria-expanded={open === worker.worker_id} onClick={() => setOpen(open === worker.worker_id ? null : worker.worker_id)}>
                          {grouped(Object.keys(worker.code).length)} names
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
                          <div class="row-gap">
                            {Object.entries(worker.code).map(([name, print]) => (
                              <span key={name} class="tag" title={print}>
                                {name} {print.slice(0, 7)}
                              </span>
                            ))}
                          </div>
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
