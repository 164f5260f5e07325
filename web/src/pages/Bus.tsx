import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { bus, dropSubscription } from "../api/endpoints";
import type { BusPage, BusSubscription } from "../api/types";
import { ActDialog } from "../components/ActDialog";
import { Empty, Loading, Trouble } from "../components/Empty";
import { Chip } from "../components/StateChip";
import { Ago } from "../components/Time";
import type { Look } from "../lib/states";
import { grouped } from "../lib/time";
import { useResource } from "../state/live";
import { Link, runPath, setQuery, usePlace } from "../state/router";
import { may, session } from "../state/session";
import { useStore } from "../state/store";

const iso = (micros: number | null): string | null => (micros === null ? null : new Date(micros / 1000).toISOString());
const named = (job: string): string => new URLSearchParams({ name: job }).toString();

function look(one: BusSubscription): Look {
  if (one.dead_letters > 0) return { tone: "fail", label: `${grouped(one.dead_letters)} failed` };
  return one.waiting + one.running > 0 ? { tone: "run", label: "delivering" } : { tone: "done", label: "caught up" };
}

/** Topics, who gets their messages, and how far each is behind. */
export default function Bus(): JSX.Element {
  const topic = usePlace().query.get("topic") ?? "";
  const query = new URLSearchParams(topic ? { topic } : {});
  const found = useResource(`bus?${query}`, (signal) => bus(query, signal), ["runs", "dead_letters"]);
  const [dropped, setDropped] = useState<BusSubscription | null>(null);
  const data = found.data;
  const isEmpty = data && data.topics.length === 0 && data.subscriptions.length === 0;
  return (
    <>
      <div class="page-head">
        <div>
          <h1>Bus</h1>
          <p>Messages are published once and delivered to every subscription of their topic, in order by key.</p>
        </div>
      </div>
      {found.error && <Trouble error={found.error} retry={found.reload} />}
      {!data && found.loading && <Loading />}
      {isEmpty && (
        <section class="card">
          <Empty icon="bus" title="No topics">
            <p>A topic exists with its first message or subscription.</p>
            <code>await client.publish("orders", {"{"}"id": 17{"}"})</code>
          </Empty>
        </section>
      )}
      {data && (
        <div class="stack">
          {data.subscriptions.length > 0 && <Subscriptions page={data} drop={setDropped} />}
          {data.topics.length > 0 && <Topics page={data} />}
          {data.failed.length > 0 && <Failed page={data} />}
          {data.topic !== "" && <Messages page={data} />}
        </div>
      )}
      {dropped && (
        <ActDialog
          title={`Delete ${dropped.name}`}
          verb="Delete"
          danger
          act={async (reason) => {
            await dropSubscription(dropped.name, reason);
            found.reload();
          }}
          onClose={() => setDropped(null)}
        >
          <p>The subscription is forgotten, with all that it has yet to get. Deliveries that have begun go on.</p>
        </ActDialog>
      )}
    </>
  );
}

function Subscriptions({ page, drop }: { page: BusPage; drop: (one: BusSubscription) => void }): JSX.Element {
  const who = useStore(session);
  return (
    <section class="card scroll-x">
      <header>
        <h2>Subscriptions</h2>
      </header>
      <table class="stacks">
        <thead>
          <tr>
            <th>Name</th>
            <th>Topic</th>
            <th>State</th>
            <th class="n">Waiting</th>
            <th class="n">Running</th>
            <th class="n">Oldest</th>
            <th>
              <span class="unseen">Acts</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {page.subscriptions.map((one) => (
            <tr key={one.name}>
              <td>
                <span class="strong">{one.name}</span>
                <div class="faint small">{[one.via && `through ${one.via}`, one.ordered ? "in order by key" : "in any order"].filter(Boolean).join(", ")}</div>
              </td>
              <td data-label="Topic" class="mono">
                {one.topic}
              </td>
              <td data-label="State">{one.dead_letters > 0 ? <Link to="/dead-letters" query={named(one.job)}><Chip look={look(one)} /></Link> : <Chip look={look(one)} />}</td>
              <td data-label="Waiting" class="n">
                {grouped(one.waiting)}
                {one.behind !== null && <div class="faint small">{grouped(one.behind)} at {one.via}</div>}
              </td>
              <td data-label="Running" class="n">
                <Link class={one.running ? "link" : "link-quiet"} to="/runs" query={`kind=job&${named(one.job)}`}>{grouped(one.running)}</Link>
              </td>
              <td data-label="Oldest" class="n">
                <Ago at={iso(one.oldest_at)} />
              </td>
              <td class="n">
                {may("admin", who) && (
                  <button type="button" class="btn slim danger" onClick={() => drop(one)}>
                    Delete
                  </button>
                )}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

function Topics({ page }: { page: BusPage }): JSX.Element {
  const hasBroker = page.topics.some((one) => one.unsent > 0) || page.subscriptions.some((one) => one.via !== "");
  return (
    <section class="card scroll-x">
      <header>
        <h2>Topics</h2>
      </header>
      <table class="stacks">
        <thead>
          <tr>
            <th>Name</th>
            <th class="n">Messages kept</th>
            {hasBroker && <th class="n">Wait for the broker</th>}
            <th class="n">Last</th>
          </tr>
        </thead>
        <tbody>
          {page.topics.map((one) => (
            <tr key={one.name}>
              <td>
                <button type="button" class="plain mono strong link" aria-pressed={one.name === page.topic} onClick={() => setQuery(new URLSearchParams({ topic: one.name }))}>
                  {one.name}
                </button>
              </td>
              <td data-label="Messages kept" class="n">
                {grouped(one.messages)}
              </td>
              {hasBroker && (
                <td data-label="Wait for the broker" class="n">
                  {grouped(one.unsent)}
                </td>
              )}
              <td data-label="Last" class="n">
                <Ago at={iso(one.last_at)} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

function Failed({ page }: { page: BusPage }): JSX.Element {
  return (
    <section class="card scroll-x">
      <header>
        <h2>Deliveries that failed</h2>
      </header>
      <table class="stacks">
        <thead>
          <tr>
            <th>Delivery</th>
            <th>Error</th>
            <th>Dead letters</th>
            <th class="n">When</th>
          </tr>
        </thead>
        <tbody>
          {page.failed.map((one) => (
            <tr key={one.run_id}>
              <td class="mono">
                <Link class="link" to={runPath(one.run_id)}>{one.id}</Link>
              </td>
              <td data-label="Error">
                {one.error}
                <div class="faint small">{one.message}</div>
              </td>
              <td data-label="Dead letters">
                <Link class="link" to="/dead-letters" query={named(one.name)}>{one.name}</Link>
              </td>
              <td data-label="When" class="n">
                <Ago at={one.at} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

function Messages({ page }: { page: BusPage }): JSX.Element {
  return (
    <section class="card scroll-x">
      <header>
        <h2>
          Last messages of <span class="mono">{page.topic}</span>
        </h2>
      </header>
      {page.messages.length === 0 && <p class="faint">None are kept.</p>}
      {page.messages.length > 0 && (
        <table class="stacks">
          <thead>
            <tr>
              <th>Id</th>
              <th>Key</th>
              <th>Type</th>
              <th>From</th>
              <th>State</th>
              <th class="n">Published</th>
            </tr>
          </thead>
          <tbody>
            {page.messages.map((one) => (
              <tr key={one.number}>
                <td class="mono">{one.id}</td>
                <td data-label="Key" class="mono">
                  {one.key || "–"}
                </td>
                <td data-label="Type" class="mono">
                  {one.type}
                </td>
                <td data-label="From" class="mono dim">
                  {one.source}
                </td>
                <td data-label="State">
                  {one.problem ? <Chip look={{ tone: "fail", label: "cannot be read" }} /> : <Chip look={one.taken ? { tone: "done", label: one.via ? "sent" : "handed out" } : { tone: "wait", label: "waits" }} />}
                </td>
                <td data-label="Published" class="n">
                  <Ago at={one.published_at} />
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </section>
  );
}
