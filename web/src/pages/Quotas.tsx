import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { deleteQuota, quotas, setQuota } from "../api/endpoints";
import type { Quota } from "../api/types";
import { ActDialog } from "../components/ActDialog";
import { Empty, Loading, Trouble } from "../components/Empty";
import { Icon } from "../components/Icon";
import { grouped, percent } from "../lib/time";
import { useResource } from "../state/live";
import { may, session } from "../state/session";
import { useStore } from "../state/store";
import { say } from "../state/toasts";

const NAMES: Record<string, string> = {
  open_runs: "how many runs and jobs may be open",
  starts_per_second: "how many may be started in a second",
  payload_bytes: "how large the input of a start may be, in bytes",
  waiting_messages: "how many messages may wait in the inbox of one run",
};

/** How much the namespace may start. */
export default function Quotas(): JSX.Element {
  const who = useStore(session);
  const canAct = may("admin", who);
  const found = useResource("quotas", quotas, ["runs"]);
  const [edited, setEdited] = useState<Quota | "new" | null>(null);
  const [removed, setRemoved] = useState<Quota | null>(null);
  const rows = found.data?.quotas ?? [];
  return (
    <>
      <div class="page-head">
        <div>
          <h1>Quotas</h1>
          <p>How much this namespace may start. Clients go by a change within a second or so.</p>
        </div>
        {canAct && (
          <button type="button" class="btn go" onClick={() => setEdited("new")}>
            <Icon name="plus" />
            Set a quota
          </button>
        )}
      </div>
      {found.error && <Trouble error={found.error} retry={found.reload} />}
      {!found.data && found.loading && <Loading />}
      {found.data && (
        <section class="card scroll-x">
          {rows.length === 0 ? (
            <Empty icon="quotas" title="No quotas">
              <p>All that is asked for is started. A quota bounds what one namespace can take from the others.</p>
              <code>batuta quotas set open_runs 10000</code>
            </Empty>
          ) : (
            <table class="stacks">
              <thead>
                <tr>
                  <th>Quota</th>
                  <th class="n">Limit</th>
                  <th>Used</th>
                  <th>Of</th>
                  <th>
                    <span class="unseen">Acts</span>
                  </th>
                </tr>
              </thead>
              <tbody>
                {rows.map((quota) => {
                  const share = quota.limit && quota.used !== null ? quota.used / (quota.burst ?? quota.limit) : null;
                  return (
                    <tr key={quota.name}>
                      <td>
                        <b class="mono">{quota.name}</b>
                        <div class="faint small">{NAMES[quota.name]}</div>
                      </td>
                      <td data-label="Limit" class="n">
                        <div>
                          {quota.limit === null ? "none" : grouped(quota.limit)}
                          {quota.burst !== null && <div class="faint small">{grouped(quota.burst)} at once</div>}
                        </div>
                      </td>
                      <td data-label="Used">
                        {share === null ? (
                          <span class="faint">–</span>
                        ) : (
                          <span class="row-gap">
                            <span class="meter grow">
                              <span class={share >= 1 ? "fail" : share > 0.8 ? "retry" : ""} style={{ width: `${Math.min(1, share) * 100}%` }} />
                            </span>
                            <span class="nowrap">{share > 1 ? "over" : percent(share)}</span>
                          </span>
                        )}
                      </td>
                      <td data-label="Of" class="dim">{quota.own ? "this namespace" : "all namespaces (*)"}</td>
                      <td class="n">
                        {canAct && (
                          <span class="row-gap end">
                            <button type="button" class="btn slim" onClick={() => setEdited(quota)}>
                              Change
                            </button>
                            {quota.own && (
                              <button type="button" class="btn slim danger" onClick={() => setRemoved(quota)}>
                                Delete
                              </button>
                            )}
                          </span>
                        )}
                      </td>
                    </tr>
                  );
                })}
              </tbody>
            </table>
          )}
        </section>
      )}
      {edited && <QuotaDialog quota={edited === "new" ? null : edited} onClose={() => setEdited(null)} onDone={found.reload} />}
      {removed && (
        <ActDialog
          title={`Delete the quota ${removed.name}`}
          verb="Delete"
          danger
          act={async (reason) => {
            await deleteQuota(removed.name, reason);
            say(`Deleted the quota ${removed.name}.`);
            found.reload();
          }}
          onClose={() => setRemoved(null)}
        >
          <p>The quota of all namespaces holds then, if there is one.</p>
        </ActDialog>
      )}
    </>
  );
}

function QuotaDialog({ quota, onClose, onDone }: { quota: Quota | null; onClose: () => void; onDone: () => void }): JSX.Element {
  const [name, setName] = useState(quota?.name ?? "open_runs");
  const [limit, setLimit] = useState(quota?.limit === null ? "" : String(quota?.limit ?? ""));
  const [burst, setBurst] = useState(String(quota?.burst ?? ""));
  const carryOut = async (reason: string): Promise<void> => {
    await setQuota(name, { limit: limit.trim() === "" ? null : Number(limit), ...(burst && name === "starts_per_second" ? { burst: Number(burst) } : {}), ...(reason ? { reason } : {}) });
    say(`The quota ${name} is ${limit.trim() || "none"}.`);
    onDone();
  };
  return (
    <ActDialog title={quota ? `Change the quota ${quota.name}` : "Set a quota"} verb="Set" disabled={limit.trim() !== "" && !(Number(limit) >= 0)} act={carryOut} onClose={onClose}>
      <label class="field">
        <span>
          Quota <span class="hint">{NAMES[name]}</span>
        </span>
        <select class="input" value={name} disabled={quota !== null} onChange={(event) => setName(event.currentTarget.value)}>
          {Object.keys(NAMES).map((one) => (
            <option key={one} value={one} selected={one === name}>
              {one}
            </option>
          ))}
        </select>
      </label>
      <label class="field">
        <span>
          Limit <span class="hint">(empty: none, also where all namespaces have one)</span>
        </span>
        <input class="input" type="number" min="0" step="any" value={limit} onInput={(event) => setLimit(event.currentTarget.value)} />
      </label>
      {name === "starts_per_second" && (
        <label class="field">
          <span>
            At once <span class="hint">(empty: as many as in a second)</span>
          </span>
          <input class="input" type="number" min="1" value={burst} onInput={(event) => setBurst(event.currentTarget.value)} />
        </label>
      )}
    </ActDialog>
  );
}
