import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { apiKeys, createApiKey, revokeApiKey, rotateApiKey } from "../api/endpoints";
import type { ApiKey } from "../api/types";
import { ActDialog } from "../components/ActDialog";
import { CopyButton } from "../components/Copy";
import { Dialog } from "../components/Dialog";
import { Empty, Loading, Trouble } from "../components/Empty";
import { Icon } from "../components/Icon";
import { Chip } from "../components/StateChip";
import { Ago } from "../components/Time";
import { millis } from "../lib/time";
import { useResource } from "../state/live";
import { stays } from "../state/session";
import { say } from "../state/toasts";

/** Keys of the REST API and of this dashboard. */
export default function ApiKeys(): JSX.Element {
  const found = useResource("api-keys", apiKeys);
  const [making, setMaking] = useState(false);
  const [act, setAct] = useState<{ key: ApiKey; verb: "rotate" | "revoke" } | null>(null);
  const [made, setMade] = useState<string | null>(null);
  const isAsking = making || made !== null || act !== null; // the first key ends this session: it would never be seen
  useEffect(() => {
    stays.set(isAsking);
    return () => stays.set(false);
  }, [isAsking]);
  const rows = found.data?.api_keys ?? [];
  return (
    <>
      <div class="page-head">
        <div>
          <h1>API keys</h1>
          <p>Who may look, operate and administer. Only a hash of each key is stored.</p>
        </div>
        <button type="button" class="btn go" onClick={() => setMaking(true)}>
          <Icon name="plus" />
          New key
        </button>
      </div>
      {found.error && <Trouble error={found.error} retry={found.reload} />}
      {!found.data && found.loading && <Loading />}
      {found.data && (
        <section class="card scroll-x">
          {rows.length === 0 ? (
            <Empty icon="keys" title="No API keys">
              <p>Without any key this server takes requests from this machine alone. The first key turns sign-in on.</p>
            </Empty>
          ) : (
            <table class="stacks">
              <thead>
                <tr>
                  <th>Name</th>
                  <th>Key</th>
                  <th>Scope</th>
                  <th>Namespace</th>
                  <th class="n">Last used</th>
                  <th class="n">Expires</th>
                  <th>
                    <span class="unseen">Acts</span>
                  </th>
                </tr>
              </thead>
              <tbody>
                {rows.map((key) => {
                  const now = Date.now();
                  const isRevoked = (millis(key.revoked_at) ?? Infinity) <= now;
                  const isOver = isRevoked || (millis(key.expires_at) ?? Infinity) <= now;
                  return (
                    <tr key={key.id}>
                      <td>
                        <b>{key.name}</b> {isOver && <Chip look={{ tone: "stop", label: isRevoked ? "revoked" : "expired" }} />}
                        {key.revoked_at !== null && !isOver && <Chip look={{ tone: "retry", label: "replaced" }} />}
                        <div class="faint small">
                          made <Ago at={key.created_at} /> {key.created_by && `by ${key.created_by}`}
                        </div>
                      </td>
                      <td data-label="Key" class="mono">
                        {key.prefix}…
                      </td>
                      <td data-label="Scope">{key.scope}</td>
                      <td data-label="Namespace" class="mono">
                        {key.namespace}
                      </td>
                      <td data-label="Last used" class="n">
                        <Ago at={key.last_used_at} none="never" />
                      </td>
                      <td data-label="Expires" class="n">
                        <Ago at={isOver ? key.expires_at : (key.revoked_at ?? key.expires_at)} none="never" />
                      </td>
                      <td class="n">
                        {!isOver && (
                          <span class="row-gap end">
                            <button type="button" class="btn slim" onClick={() => setAct({ key, verb: "rotate" })}>
                              Rotate
                            </button>
                            <button type="button" class="btn slim danger" onClick={() => setAct({ key, verb: "revoke" })}>
                              Revoke
                            </button>
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
      {making && (
        <NewKey
          isFirst={rows.length === 0}
          onClose={() => setMaking(false)}
          onMade={(key) => {
            setMade(key);
            found.reload();
          }}
        />
      )}
      {act && (
        <ActDialog
          title={`${act.verb === "rotate" ? "Rotate" : "Revoke"} the key ${act.key.name}`}
          verb={act.verb === "rotate" ? "Rotate" : "Revoke"}
          danger={act.verb === "revoke"}
          withoutReason
          act={async () => {
            if (act.verb === "rotate") setMade((await rotateApiKey(act.key.id, { overlap: 3600 })).key);
            else {
              await revokeApiKey(act.key.id);
              say(`Revoked the key ${act.key.name}.`);
            }
            found.reload();
          }}
          onClose={() => setAct(null)}
        >
          <p>{act.verb === "rotate" ? "A new key is made. The old one works for another hour." : "It stops working at once, and who is signed in with it is signed out."}</p>
        </ActDialog>
      )}
      {made && (
        <Dialog
          title="The new key"
          onClose={() => setMade(null)}
          footer={
            <button type="button" class="btn go" onClick={() => setMade(null)}>
              I have copied it
            </button>
          }
        >
          <p>This is shown once. Copy it now.</p>
          <div class="value-box shown">
            <pre class="value" tabIndex={0}>
              {made}
            </pre>
            <CopyButton text={made} />
          </div>
        </Dialog>
      )}
    </>
  );
}

function NewKey({ isFirst, onClose, onMade }: { isFirst: boolean; onClose: () => void; onMade: (key: string) => void }): JSX.Element {
  const [name, setName] = useState("");
  const [scope, setScope] = useState(isFirst ? "admin" : "viewer");
  const [days, setDays] = useState("90");
  const carryOut = async (): Promise<void> => {
    const seconds = Number(days) * 86_400;
    onMade((await createApiKey({ name, scope, ...(seconds > 0 ? { expires: seconds } : {}) })).key);
  };
  return (
    <ActDialog title="New API key" verb="Make the key" withoutReason disabled={!name.trim()} act={carryOut} onClose={onClose}>
      <label class="field">
        <span>Name</span>
        <input class="input" value={name} autocomplete="off" onInput={(event) => setName(event.currentTarget.value)} />
      </label>
      <label class="field">
        <span>Scope</span>
        <select class="input" value={scope} onChange={(event) => setScope(event.currentTarget.value)}>
          <option value="viewer" selected={scope === "viewer"}>viewer: looks</option>
          <option value="operator" selected={scope === "operator"}>operator: starts, signals, pauses, retries</option>
          <option value="admin" selected={scope === "admin"}>admin: also keys, quotas, retention and deletion</option>
        </select>
      </label>
      <label class="field">
        <span>
          Days until it expires <span class="hint">(0: never)</span>
        </span>
        <input class="input" type="number" min="0" value={days} onInput={(event) => setDays(event.currentTarget.value)} />
      </label>
    </ActDialog>
  );
}
