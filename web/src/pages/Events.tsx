import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { events, type FlowEvent, replayEvent, sendEvent } from "../api/flows";
import type { Json } from "../api/types";
import { ActDialog } from "../components/ActDialog";
import { Empty, Loading, Trouble } from "../components/Empty";
import { Icon } from "../components/Icon";
import { JsonValue } from "../components/JsonValue";
import { JsonField } from "../components/SchemaForm";
import { Ago } from "../components/Time";
import { brief } from "../lib/json";
import { useResource } from "../state/live";
import { Link } from "../state/router";
import { may, session } from "../state/session";
import { useStore } from "../state/store";
import { say } from "../state/toasts";

/** Events, newest first, with the runs that they have begun. */
export default function Events(): JSX.Element {
  const [cursor, setCursor] = useState<string | null>(null);
  const found = useResource(`events ${cursor ?? ""}`, (signal) => events(cursor, signal), ["runs"]);
  const canAct = may("operator", useStore(session));
  const [sending, setSending] = useState(false);
  const [open, setOpen] = useState<string | null>(null);
  const [replayed, setReplayed] = useState<FlowEvent | null>(null);
  const rows = found.data?.events ?? [];
  return (
    <>
      <div class="page-head">
        <div>
          <h1>Events</h1>
          <p>What happened, and the runs of flows that it began.</p>
        </div>
        {canAct && (
          <button type="button" class="btn go" onClick={() => setSending(true)}>
            <Icon name="plus" />
            Send event
          </button>
        )}
      </div>
      {found.error && <Trouble error={found.error} retry={found.reload} />}
      {!found.data && found.loading && <Loading />}
      {found.data && (
        <section class="card scroll-x">
          {rows.length === 0 ? (
            <Empty icon="events" title="No events">
              <p>An event starts each active flow of its type. Send one here, or by POST to /api/events.</p>
            </Empty>
          ) : (
            <table class="stacks">
              <thead>
                <tr>
                  <th>Type</th>
                  <th>Source</th>
                  <th>Payload</th>
                  <th>Runs</th>
                  <th class="n">Came</th>
                  <th>
                    <span class="unseen">Acts</span>
                  </th>
                </tr>
              </thead>
              <tbody>
                {rows.map((event) => (
                  <>
                    <tr key={event.id}>
                      <td>
                        <button type="button" class="plain strong" aria-expanded={open === event.id} onClick={() => setOpen(open === event.id ? null : event.id)}>
                          {event.type}
                        </button>
                      </td>
                      <td data-label="Source">
                        {event.source} {event.external_id && <span class="faint mono small">{event.external_id}</span>}
                      </td>
                      <td data-label="Payload" class="mono small dim">
                        <div class="one-line" title={brief(event.payload, 500)}>
                          {brief(event.payload, 60)}
                        </div>
                      </td>
                      <td data-label="Runs">
                        {event.runs.length === 0 ? (
                          <span class="faint">none</span>
                        ) : (
                          <span class="row-gap">
                            {event.runs.map((id) => (
                              <Link key={id} class="link mono small" to={`/flow-runs/${id}`}>
                                {id.slice(0, 8)}
                              </Link>
                            ))}
                          </span>
                        )}
                      </td>
                      <td data-label="Came" class="n">
                        <Ago at={event.created_at} />
                      </td>
                      <td class="n">
                        {canAct && (
                          <button type="button" class="btn slim" onClick={() => setReplayed(event)}>
                            Replay…
                          </button>
                        )}
                      </td>
                    </tr>
                    {open === event.id && (
                      <tr>
                        <td colSpan={6}>
                          <JsonValue value={event.payload} />
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
      {(cursor || found.data?.cursor) && (
        <div class="row-gap">
          <button type="button" class="btn" disabled={!cursor} onClick={() => setCursor(null)}>
            Newest
          </button>
          <button type="button" class="btn" disabled={!found.data?.cursor} onClick={() => setCursor(found.data?.cursor ?? null)}>
            Older
          </button>
        </div>
      )}
      {sending && <SendDialog onClose={() => setSending(false)} onDone={found.reload} />}
      {replayed && (
        <ActDialog
          title={`Replay ${replayed.type}?`}
          verb="Replay"
          act={async (reason) => {
            await replayEvent(replayed.id, reason);
            found.reload();
          }}
          onClose={() => setReplayed(null)}
        >
          <p>The same payload comes in once more, as a new event. It starts the flows that are active now.</p>
        </ActDialog>
      )}
    </>
  );
}

function SendDialog({ onClose, onDone }: { onClose: () => void; onDone: () => void }): JSX.Element {
  const [type, setType] = useState("");
  const [name, setName] = useState("");
  const [payload, setPayload] = useState<Json | undefined>({});
  return (
    <ActDialog
      title="Send an event"
      verb="Send"
      withoutReason
      disabled={!type.trim() || payload === undefined}
      act={async () => {
        const sent = await sendEvent({ type, payload: payload ?? {}, source: "dashboard", ...(name ? { external_id: name } : {}) });
        say(`${sent.type} came in.`, { tone: "done" });
        onDone();
      }}
      onClose={onClose}
    >
      <label class="field">
        <span>Type</span>
        <input class="input" name="type" value={type} autocomplete="off" onInput={(event) => setType(event.currentTarget.value)} />
      </label>
      <label class="field">
        <span>
          External id <span class="hint">(optional: a second event with it is the first one)</span>
        </span>
        <input class="input" name="external_id" value={name} autocomplete="off" onInput={(event) => setName(event.currentTarget.value)} />
      </label>
      <JsonField label="Payload" hint="a JSON object" value={{}} onChange={setPayload} />
    </ActDialog>
  );
}
