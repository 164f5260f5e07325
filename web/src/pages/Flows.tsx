import type { JSX } from "preact";
import { flows, type FlowRow, type Version } from "../api/flows";
import { Empty, Loading, Trouble } from "../components/Empty";
import { Icon } from "../components/Icon";
import { Chip } from "../components/StateChip";
import { Ago } from "../components/Time";
import { flowLook } from "../lib/flowStates";
import { useResource } from "../state/live";
import { Link } from "../state/router";
import { may, session } from "../state/session";
import { useStore } from "../state/store";

/** Flows: their versions, and their last runs. */
export default function Flows(): JSX.Element {
  const found = useResource("flows", flows, ["runs"]);
  const canAct = may("operator", useStore(session));
  const rows = found.data?.flows ?? [];
  return (
    <>
      <div class="page-head">
        <div>
          <h1>Flows</h1>
          <p>Workflows as JSON documents, started by events.</p>
        </div>
        {canAct && (
          <Link class="btn go" to="/flows/new">
            <Icon name="plus" />
            New flow
          </Link>
        )}
      </div>
      {found.error && <Trouble error={found.error} retry={found.reload} />}
      {!found.data && found.loading && <Loading />}
      {found.data && (
        <section class="card scroll-x">
          {rows.length === 0 ? (
            <Empty icon="flows" title="No flows">
              <p>A flow says in JSON what happens after an event: conditions, actions, waits and approvals. Make one here, or:</p>
              <code>batuta flows push reminder.json --publish</code>
            </Empty>
          ) : (
            <table class="stacks">
              <thead>
                <tr>
                  <th>Flow</th>
                  <th>Started by</th>
                  <th>Versions</th>
                  <th>Last runs</th>
                </tr>
              </thead>
              <tbody>{rows.map(row)}</tbody>
            </table>
          )}
        </section>
      )}
    </>
  );
}

function row(flow: FlowRow): JSX.Element {
  return (
    <tr key={flow.name}>
      <td>
        <Link class="link strong" to={`/flows/${flow.versions[0]?.id ?? ""}`}>
          {flow.name}
        </Link>
        {flow.description && <div class="faint small">{flow.description}</div>}
      </td>
      <td data-label="Started by" class="mono small">
        {flow.trigger_type || "by hand"}
      </td>
      <td data-label="Versions">
        <span class="row-gap">
          {flow.versions.slice(0, 6).map((one) => (
            <VersionLink key={one.id} one={one} />
          ))}
        </span>
      </td>
      <td data-label="Last runs">
        <span class="row-gap">
          {flow.runs.length === 0 && <span class="faint">none yet</span>}
          {flow.runs.slice(0, 3).map((run) => (
            <Link key={run.id} class="link-quiet" to={`/flow-runs/${run.id}`}>
              <Chip look={flowLook(run.status)} />
            </Link>
          ))}
          {flow.runs[0] && <Ago at={flow.runs[0].created_at} />}
        </span>
      </td>
    </tr>
  );
}

export function VersionLink({ one, current = "" }: { one: Version; current?: string }): JSX.Element {
  const said = one.is_active ? "active" : one.published_at ? "published" : "draft";
  return (
    <Link class={one.id === current ? "strong" : "link"} to={`/flows/${one.id}`}>
      v{one.version} <span class="faint small">{said}</span>
    </Link>
  );
}
