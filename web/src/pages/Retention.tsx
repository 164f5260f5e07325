import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { deleteRetention, prune, retention, setRetention } from "../api/endpoints";
import type { RetentionRule } from "../api/types";
import { ActDialog } from "../components/ActDialog";
import { Empty, Loading, Trouble } from "../components/Empty";
import { Icon } from "../components/Icon";
import { StateChip } from "../components/StateChip";
import { CLOSED_STATES, runLook } from "../lib/states";
import { duration, grouped, numberOf, parseDuration } from "../lib/time";
import { useResource } from "../state/live";
import { may, session } from "../state/session";
import { useStore } from "../state/store";
import { say, sayError } from "../state/toasts";

/** How long closed runs are kept. */
export default function Retention(): JSX.Element {
  const canAct = may("admin", useStore(session));
  const found = useResource("retention", retention);
  const [edited, setEdited] = useState<RetentionRule | "new" | null>(null);
  const [removed, setRemoved] = useState<RetentionRule | null>(null);
  const [due, setDue] = useState<number | null>(null);
  const rules = found.data?.retention ?? [];
  const countDue = (): void => void prune({ dry_run: true }).then((answer) => setDue(answer.runs), sayError);
  return (
    <>
      <div class="page-head">
        <div>
          <h1>Retention</h1>
          <p>How long closed runs are kept. The most specific rule holds; workers delete what is older.</p>
        </div>
        {canAct && (
          <span class="row-gap">
            <button type="button" class="btn" disabled={rules.length === 0} onClick={countDue}>
              Prune now…
            </button>
            <button type="button" class="btn go" onClick={() => setEdited("new")}>
              <Icon name="plus" />
              Add a rule
            </button>
          </span>
        )}
      </div>
      {found.error && <Trouble error={found.error} retry={found.reload} />}
      {!found.data && found.loading && <Loading />}
      {found.data && (
        <section class="card scroll-x">
          {rules.length === 0 ? (
            <Empty icon="retention" title="Closed runs are kept for ever">
              <p>Add a rule, and workers delete older ones in the background:</p>
              <code>batuta retention set 30d</code>
            </Empty>
          ) : (
            <table class="stacks">
              <thead>
                <tr>
                  <th>Workflow or job</th>
                  <th>State</th>
                  <th class="n">Kept for</th>
                  <th>
                    <span class="unseen">Acts</span>
                  </th>
                </tr>
              </thead>
              <tbody>
                {rules.map((rule) => (
                  <tr key={`${rule.workflow} ${rule.state}`}>
                    <td data-label="Workflow or job">{rule.workflow ? <b class="mono">{rule.workflow}</b> : <span class="dim">any</span>}</td>
                    <td data-label="State">{rule.state ? <StateChip state={rule.state} /> : <span class="dim">any</span>}</td>
                    <td data-label="Kept for" class="n strong">
                      {kept(rule.keep)}
                    </td>
                    <td class="n">
                      {canAct && (
                        <span class="row-gap end">
                          <button type="button" class="btn slim" onClick={() => setEdited(rule)}>
                            Change
                          </button>
                          <button type="button" class="btn slim danger" onClick={() => setRemoved(rule)}>
                            Delete
                          </button>
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
      {edited && <RuleDialog rule={edited === "new" ? null : edited} onClose={() => setEdited(null)} onDone={found.reload} />}
      {removed && (
        <ActDialog
          title={`Delete the rule for ${inWords(removed)}`}
          verb="Delete"
          danger
          act={async (reason) => {
            await deleteRetention(removed.workflow ?? "", removed.state ?? "", reason);
            say(`Deleted the rule for ${inWords(removed)}.`);
            found.reload();
          }}
          onClose={() => setRemoved(null)}
        >
          <p>A less specific rule holds then; without any, these runs are kept for ever.</p>
        </ActDialog>
      )}
      {due !== null && (
        <ActDialog
          title="Prune now"
          verb={`Delete ${grouped(due)}`}
          danger
          needsReason
          disabled={due === 0}
          act={async (reason) => {
            const done = await prune({ reason });
            say(`Deleted ${numberOf(done.runs, "run")}.`);
          }}
          onClose={() => setDue(null)}
        >
          <p>{due === 0 ? "No run is older than the rules allow." : `${numberOf(due, "run is", "runs are")} older than the rules allow, and deleted with the journal, for good.`}</p>
        </ActDialog>
      )}
    </>
  );
}

function inWords(rule: RetentionRule): string {
  return `${rule.state ? `${runLook(rule.state).label} ` : ""}runs${rule.workflow ? ` of ${rule.workflow}` : ""}`;
}

/** "30 d"; "forever". */
function kept(keep: string): string {
  const seconds = parseDuration(keep);
  return seconds === null ? keep : duration(seconds);
}

function RuleDialog({ rule, onClose, onDone }: { rule: RetentionRule | null; onClose: () => void; onDone: () => void }): JSX.Element {
  const [workflow, setWorkflow] = useState(rule?.workflow ?? "");
  const [state, setState] = useState(rule?.state ?? "");
  const [keep, setKeep] = useState(rule?.keep ?? "30d");
  const act = async (reason: string): Promise<void> => {
    await setRetention({ keep: keep.trim(), workflow: workflow.trim(), state, ...(reason ? { reason } : {}) });
    say(`${inWords({ workflow, state, keep })} are kept for ${keep.trim()}.`);
    onDone();
  };
  return (
    <ActDialog title={rule ? `Change the rule for ${inWords(rule)}` : "Add a rule"} verb="Save" disabled={!keep.trim()} act={act} onClose={onClose}>
      <label class="field">
        <span>
          Workflow or job <span class="hint">(empty: any)</span>
        </span>
        <input class="input" name="workflow" value={workflow} disabled={rule !== null} autocomplete="off" onInput={(event) => setWorkflow(event.currentTarget.value)} />
      </label>
      <label class="field">
        <span>State</span>
        <select class="input" name="state" disabled={rule !== null} onChange={(event) => setState(event.currentTarget.value)}>
          <option value="">any</option>
          {CLOSED_STATES.map((one) => (
            <option key={one} value={one} selected={one === state}>
              {runLook(one).label}
            </option>
          ))}
        </select>
      </label>
      <label class="field">
        <span>
          Keep for <span class="hint">such as 12h, 30d, 8w, or forever</span>
        </span>
        <input class="input" name="keep" value={keep} autocomplete="off" onInput={(event) => setKeep(event.currentTarget.value)} />
      </label>
    </ActDialog>
  );
}
