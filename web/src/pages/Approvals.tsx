import type { JSX } from "preact";
import { approvals } from "../api/flows";
import { DecideButtons } from "../components/DecideButtons";
import { Empty, Loading, Trouble } from "../components/Empty";
import { JsonValue } from "../components/JsonValue";
import { Ago } from "../components/Time";
import { useResource } from "../state/live";
import { Link } from "../state/router";
import { may, session } from "../state/session";
import { useStore } from "../state/store";

/** What waits for a person. */
export default function Approvals(): JSX.Element {
  const found = useResource("approvals", approvals, ["runs"]);
  const canAct = may("operator", useStore(session));
  const rows = found.data?.approvals ?? [];
  return (
    <>
      <div class="page-head">
        <div>
          <h1>Approvals</h1>
          <p>Runs of flows that wait for a person.</p>
        </div>
      </div>
      {found.error && <Trouble error={found.error} retry={found.reload} />}
      {!found.data && found.loading && <Loading />}
      {found.data && (
        <section class="card scroll-x">
          {rows.length === 0 ? (
            <Empty icon="approvals" title="Nothing waits">
              <p>A step of type approval waits here until a person approves or rejects.</p>
            </Empty>
          ) : (
            <table class="stacks">
              <thead>
                <tr>
                  <th>Question</th>
                  <th>Flow</th>
                  <th>Data</th>
                  <th class="n">Since</th>
                  <th>
                    <span class="unseen">Acts</span>
                  </th>
                </tr>
              </thead>
              <tbody>
                {rows.map((one) => (
                  <tr key={one.step_run_id}>
                    <td class="strong">{one.title}</td>
                    <td data-label="Flow">
                      <Link class="link" to={`/flow-runs/${one.run_id}`}>
                        {one.name}
                      </Link>
                    </td>
                    <td data-label="Data">{one.data === null ? <span class="faint">none</span> : <JsonValue value={one.data} />}</td>
                    <td data-label="Since" class="n">
                      <Ago at={one.since} />
                    </td>
                    <td class="n">
                      {canAct && (
                        <span class="row-gap end">
                          <DecideButtons run={one.run_id} step={one.step} stepRun={one.step_run_id} onDone={found.reload} />
                        </span>
                      )}
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          )}
        </section>
      )}
    </>
  );
}
