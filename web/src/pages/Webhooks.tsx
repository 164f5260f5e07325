import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { actOnEndpoint, attemptsOf, changeEndpoint, createEndpoint, deleteEndpoint, resendDelivery, rotateEndpoint, webhooks } from "../api/endpoints";
import type { Attempt, Run, WebhookEndpoint } from "../api/types";
import { ActDialog } from "../components/ActDialog";
import { CopyButton } from "../components/Copy";
import { Dialog } from "../components/Dialog";
import { Empty, Loading, Trouble } from "../components/Empty";
import { Icon } from "../components/Icon";
import { Menu } from "../components/Menu";
import { Chip, StateChip } from "../components/StateChip";
import { Ago, Took } from "../components/Time";
import { attemptFailure } from "../lib/failures";
import { isClosed, type Look } from "../lib/states";
import { useResource } from "../state/live";
import { Link, runPath, setQuery, usePlace } from "../state/router";
import { may, session } from "../state/session";
import { useStore } from "../state/store";
import { say, sayError } from "../state/toasts";

type Verb = "enable" | "disable" | "rotate" | "delete";

const SAYS: Record<Verb, string> = {
  enable: "New events are sent to it again. What failed meanwhile is among its deliveries, and can be sent again.",
  disable: "New events are not sent to it. Deliveries that are under way fail, and can be sent again.",
  rotate: "Webhooks are signed with a new secret, and for another day with the old one, too.",
  delete: "It is forgotten. Deliveries that are under way fail.",
};
const WORDS: Record<Verb, string> = { enable: "Enable", disable: "Disable", rotate: "Rotate the secret of", delete: "Delete" };

function look(one: WebhookEndpoint): Look {
  if (!one.enabled) return { tone: "stop", label: "disabled" };
  if (one.breaker === "open" || one.breaker === "half-open") return { tone: "fail", label: `breaker ${one.breaker}` };
  return one.failing_since ? { tone: "retry", label: "failing" } : { tone: "done", label: "enabled" };
}

/** Endpoints of other people, and what was delivered to them. */
export default function Webhooks(): JSX.Element {
  const who = useStore(session);
  const place = usePlace();
  const query = new URLSearchParams();
  for (const name of ["endpoint", "state"]) {
    const value = place.query.get(name);
    if (value) query.set(name, value);
  }
  const found = useResource(`webhooks?${query}`, (signal) => webhooks(query, signal), ["runs"]);
  const [edited, setEdited] = useState<WebhookEndpoint | "new" | null>(null);
  const [act, setAct] = useState<{ endpoint: WebhookEndpoint; verb: Verb } | null>(null);
  const [secret, setSecret] = useState<string | null>(null);
  const filter = (name: string, value: string): void => {
    const next = new URLSearchParams(query);
    if (value) next.set(name, value);
    else next.delete(name);
    setQuery(next);
  };
  const endpoints = found.data?.endpoints ?? [];
  const carryOut = async (reason: string): Promise<void> => {
    if (!act) return;
    const { endpoint, verb } = act;
    if (verb === "rotate") setSecret((await rotateEndpoint(endpoint.id, { reason })).secret);
    else if (verb === "delete") await deleteEndpoint(endpoint.id, reason);
    else await actOnEndpoint(endpoint.id, verb, { reason });
    found.reload();
  };
  return (
    <>
      <div class="page-head">
        <div>
          <h1>Webhooks</h1>
          <p>Events for other people's endpoints: signed, tried again, each endpoint behind a breaker of its own.</p>
        </div>
        {may("admin", who) && (
          <button type="button" class="btn go" onClick={() => setEdited("new")}>
            <Icon name="plus" />
            New endpoint
          </button>
        )}
      </div>
      {found.error && <Trouble error={found.error} retry={found.reload} />}
      {!found.data && found.loading && <Loading />}
      {found.data && endpoints.length === 0 && (
        <section class="card">
          <Empty icon="webhooks" title="No endpoints">
            <p>Add one here or in code, then send events. Workers with webhooks=True deliver them.</p>
            <code>await client.webhooks.send("order.paid", {"{"}"order": 17{"}"})</code>
          </Empty>
        </section>
      )}
      {endpoints.length > 0 && (
        <section class="card scroll-x">
          <table class="stacks">
            <thead>
              <tr>
                <th>Endpoint</th>
                <th>Takes</th>
                <th>State</th>
                <th>Allows</th>
                <th>
                  <span class="unseen">Acts</span>
                </th>
              </tr>
            </thead>
            <tbody>
              {endpoints.map((one) => (
                <EndpointRow key={one.id} one={one} edit={() => setEdited(one)} act={(verb) => setAct({ endpoint: one, verb })} show={() => filter("endpoint", one.id)} tested={found.reload} />
              ))}
            </tbody>
          </table>
        </section>
      )}
      {found.data && (endpoints.length > 0 || found.data.deliveries.length > 0) && (
        <Deliveries runs={found.data.deliveries} endpoints={endpoints} query={query} filter={filter} canAct={may("operator", who)} changed={found.reload} />
      )}
      {edited && <EndpointDialog endpoint={edited === "new" ? null : edited} onClose={() => setEdited(null)} onMade={setSecret} onDone={found.reload} />}
      {act && (
        <ActDialog title={`${WORDS[act.verb]} ${act.endpoint.url}`} verb={act.verb === "rotate" ? "Rotate" : WORDS[act.verb]} danger={act.verb === "delete" || act.verb === "disable"} act={carryOut} onClose={() => setAct(null)}>
          <p>{SAYS[act.verb]}</p>
        </ActDialog>
      )}
      {secret && <SecretDialog secret={secret} onClose={() => setSecret(null)} />}
    </>
  );
}

function EndpointRow(props: { one: WebhookEndpoint; edit: () => void; act: (verb: Verb) => void; show: () => void; tested: () => void }): JSX.Element {
  const { one } = props;
  const who = useStore(session);
  return (
    <tr>
      <td>
        <button type="button" class="plain mono strong" onClick={props.show} title="Its deliveries">
          {one.url}
        </button>
        <div class="faint small">
          {one.description && `${one.description} · `}
          <span class="mono">{one.id}</span>
        </div>
      </td>
      <td data-label="Takes" class="mono">
        {one.types.join(", ") || "all events"}
      </td>
      <td data-label="State">
        <Chip look={look(one)} />
        {one.reason && <div class="faint small">{one.reason}</div>}
        {one.failing_since && (
          <div class="faint small">
            fails since <Ago at={one.failing_since} />
          </div>
        )}
      </td>
      <td data-label="Allows" class="dim nowrap">
        {one.limit || "10 at once"}
      </td>
      <td class="n">
        <span class="row-gap end">
          {may("operator", who) && one.enabled && (
            <button
              type="button"
              class="btn slim"
              onClick={() => {
                actOnEndpoint(one.id, "test").then(() => {
                  say("A test event is on its way.");
                  props.tested();
                }, sayError);
              }}
            >
              Test
            </button>
          )}
          {may("operator", who) && (
            <button type="button" class="btn slim" onClick={() => props.act(one.enabled ? "disable" : "enable")}>
              {one.enabled ? "Disable" : "Enable"}
            </button>
          )}
          {may("admin", who) && (
            <Menu
              label="More"
              items={[
                { label: "Change…", act: props.edit },
                { label: "Rotate the secret…", act: () => props.act("rotate") },
                { label: "Delete…", danger: true, act: () => props.act("delete") },
              ]}
            />
          )}
        </span>
      </td>
    </tr>
  );
}

const STATES = ["pending", "running", "waiting", "completed", "failed", "timed_out"];

function Deliveries(props: { runs: Run[]; endpoints: WebhookEndpoint[]; query: URLSearchParams; filter: (name: string, value: string) => void; canAct: boolean; changed: () => void }): JSX.Element {
  const [open, setOpen] = useState<string | null>(null);
  return (
    <section class="card after">
      <header>
        <h2>Deliveries</h2>
        <span class="row-gap end">
          <label class="unseen" for="of-endpoint">
            Endpoint
          </label>
          <select id="of-endpoint" class="input" value={props.query.get("endpoint") ?? ""} onChange={(event) => props.filter("endpoint", event.currentTarget.value)}>
            <option value="">All endpoints</option>
            {props.endpoints.map((one) => (
              <option key={one.id} value={one.id}>
                {one.url}
              </option>
            ))}
          </select>
          <label class="unseen" for="in-state">
            State
          </label>
          <select id="in-state" class="input" value={props.query.get("state") ?? ""} onChange={(event) => props.filter("state", event.currentTarget.value)}>
            <option value="">All states</option>
            {STATES.map((state) => (
              <option key={state} value={state}>
                {state.replace("_", " ")}
              </option>
            ))}
          </select>
        </span>
      </header>
      {props.runs.length === 0 ? (
        <p class="faint facts-list">No delivery matches.</p>
      ) : (
        <div class="scroll-x">
          <table class="stacks">
            <thead>
              <tr>
                <th>Event</th>
                <th>Endpoint</th>
                <th>State</th>
                <th class="n">Sent</th>
                <th class="n">Next attempt</th>
                <th>
                  <span class="unseen">Acts</span>
                </th>
              </tr>
            </thead>
            <tbody>
              {props.runs.map((run) => (
                <DeliveryRow key={run.run_id} run={run} url={props.endpoints.find((one) => one.id === run.tags.endpoint)?.url ?? run.tags.endpoint ?? ""} open={open === run.run_id} toggle={() => setOpen(open === run.run_id ? null : run.run_id)} canAct={props.canAct} changed={props.changed} />
              ))}
            </tbody>
          </table>
        </div>
      )}
      <p class="faint small facts-list">
        The newest 50. <Link class="link" to="/runs" query={new URLSearchParams({ kind: "job", name: "batuta.webhook" })}>All deliveries</Link>
      </p>
    </section>
  );
}

function DeliveryRow(props: { run: Run; url: string; open: boolean; toggle: () => void; canAct: boolean; changed: () => void }): JSX.Element {
  const { run } = props;
  const message = run.id.split(":").slice(2).join(":");
  const waits = run.state === "waiting" && !run.reason;
  const resend = (): void => {
    resendDelivery(run.run_id, {}).then(() => {
      say(waits ? "It is tried now." : "It is delivered again, with the same id.");
      props.changed();
    }, sayError);
  };
  return (
    <>
      <tr>
        <td>
          <Link class="mono strong link-quiet" to={runPath(run.run_id)}>
            {run.tags.type ?? "?"}
          </Link>
          <div class="faint small mono one-line">{message}</div>
        </td>
        <td data-label="Endpoint" class="mono">
          {props.url}
        </td>
        <td data-label="State">
          <StateChip state={run.state} />
          {run.reason && <div class="faint small">{run.reason.startsWith("gate:") ? "for the breaker or limit of its endpoint" : run.reason}</div>}
        </td>
        <td data-label="Sent" class="n">
          <Ago at={run.created_at} />
        </td>
        <td data-label="Next attempt" class="n">
          {isClosed(run.state) ? <span class="faint">–</span> : <Ago at={run.wake_at} />}
        </td>
        <td class="n">
          <span class="row-gap end">
            <button type="button" class="btn slim" aria-expanded={props.open} onClick={props.toggle}>
              Attempts
            </button>
            {props.canAct && (isClosed(run.state) || waits) && (
              <button type="button" class="btn slim" onClick={resend}>
                {waits ? "Try now" : "Send again"}
              </button>
            )}
          </span>
        </td>
      </tr>
      {props.open && (
        <tr>
          <td colSpan={6}>
            <Attempts run={run} />
          </td>
        </tr>
      )}
    </>
  );
}

function Attempts({ run }: { run: Run }): JSX.Element {
  const [rows, setRows] = useState<Attempt[] | null>(null);
  const [error, setError] = useState<Error | null>(null);
  useEffect(() => {
    attemptsOf(run.run_id).then((found) => setRows(found.attempts), setError);
  }, [run.run_id, run.state, run.wake_at]);
  if (error) return <Trouble error={error} />;
  if (!rows) return <Loading />;
  if (rows.length === 0) return <p class="faint">No attempt has ended.</p>;
  return (
    <ol class="plain-list">
      {rows.map((one) => {
        const failure = attemptFailure(one);
        return (
          <li key={one.number} class="row-gap">
            <span class="dim">{one.number}</span>
            <Chip look={one.lost ? { tone: "stop", label: "lost with its worker" } : failure ? { tone: "fail", label: "failed" } : one.ended_at ? { tone: "done", label: "delivered" } : { tone: "run", label: "under way" }} />
            <Ago at={one.started_at} />
            <Took from={one.started_at} to={one.ended_at} />
            {failure && <span>{failure.message}</span>}
          </li>
        );
      })}
    </ol>
  );
}

function EndpointDialog(props: { endpoint: WebhookEndpoint | null; onClose: () => void; onMade: (secret: string) => void; onDone: () => void }): JSX.Element {
  const known = props.endpoint;
  const [url, setUrl] = useState("");
  const [types, setTypes] = useState(known?.types.join(", ") ?? "");
  const [description, setDescription] = useState(known?.description ?? "");
  const [days, setDays] = useState(known?.disable_after ? String(known.disable_after / 86_400) : "");
  const carryOut = async (reason: string): Promise<void> => {
    const listed = types
      .split(",")
      .map((one) => one.trim())
      .filter(Boolean);
    const after = Number(days) * 86_400;
    const body = { types: listed, description, reason };
    if (known) {
      await changeEndpoint(known.id, { ...body, disable_after: after, ...(url.trim() ? { url: url.trim() } : {}) });
      say("The endpoint is changed.");
    } else props.onMade((await createEndpoint({ ...body, url: url.trim(), ...(after > 0 ? { disable_after: after } : {}) })).secret);
    props.onDone();
  };
  return (
    <ActDialog title={known ? `Change ${known.url}` : "New endpoint"} verb={known ? "Change" : "Add the endpoint"} disabled={!known && !url.trim()} act={carryOut} onClose={props.onClose}>
      <label class="field">
        <span>Address {known && <span class="hint">(empty: it stays)</span>}</span>
        <input class="input" name="url" type="url" placeholder="https://example.com/hooks" value={url} autocomplete="off" onInput={(event) => setUrl(event.currentTarget.value)} />
      </label>
      <label class="field">
        <span>
          Events <span class="hint">(such as order.paid, claim.*; empty: all)</span>
        </span>
        <input class="input" name="types" value={types} autocomplete="off" onInput={(event) => setTypes(event.currentTarget.value)} />
      </label>
      <label class="field">
        <span>Description</span>
        <input class="input" name="description" value={description} maxLength={500} autocomplete="off" onInput={(event) => setDescription(event.currentTarget.value)} />
      </label>
      <label class="field">
        <span>
          Days of failures alone after which it is disabled <span class="hint">(empty: never)</span>
        </span>
        <input class="input" name="days" type="number" min="0" step="any" value={days} onInput={(event) => setDays(event.currentTarget.value)} />
      </label>
    </ActDialog>
  );
}

function SecretDialog({ secret, onClose }: { secret: string; onClose: () => void }): JSX.Element {
  return (
    <Dialog
      title="The secret of the endpoint"
      onClose={onClose}
      footer={
        <button type="button" class="btn go" onClick={onClose}>
          I have copied it
        </button>
      }
    >
      <p>Give it to the receiver, who checks signatures with it. This is shown once. Copy it now.</p>
      <div class="value-box shown">
        <pre class="value" tabIndex={0}>
          {secret}
        </pre>
        <CopyButton text={secret} />
      </div>
    </Dialog>
  );
}
