import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { overview } from "../api/endpoints";
import type { Overview as Document, WorkflowSummary } from "../api/types";
import { BarChart, count, Legend, LineChart, RunBars, type Series } from "../components/Charts";
import { Empty, Loading, Trouble } from "../components/Empty";
import { StateShape } from "../components/Icon";
import { QueueLimits } from "../components/QueueLimits";
import { Ago } from "../components/Time";
import { WorkerRing } from "../components/WorkerRing";
import { fromQuery, toQuery } from "../lib/filters";
import { isClosed, type Tone } from "../lib/states";
import { compact, duration, grouped, millis, percent } from "../lib/time";
import { useResource } from "../state/live";
import { counts } from "../state/counts";
import { Link, setQuery, usePlace } from "../state/router";
import { useStore } from "../state/store";

const SPANS: [string, string][] = [
  ["15m", "last 15 min"],
  ["1h", "last hour"],
  ["6h", "last 6 hours"],
  ["24h", "last day"],
  ["7d", "last week"],
];

/** Is it healthy, what is stuck, who is working. */
export default function Overview(): JSX.Element {
  const { query } = usePlace();
  const filters = useMemo(() => fromQuery(query), [query]);
  const since = filters.since || "1h";
  const asked = useMemo(() => {
    const found = toQuery({ ...filters, since });
    if (!found.has("kind")) found.set("kind", "any");
    return found;
  }, [filters, since]);
  const found = useResource(asked.toString(), (signal) => overview(asked, signal), ["runs", "queues", "workers", "dead_letters"]);
  const data = found.data;
  return (
    <>
      <div class="page-head">
        <h1>Overview</h1>
        <div class="row-gap">
          <select class="input narrow" aria-label="Time" value={since} onChange={(event) => setQuery(toQuery({ ...filters, since: event.currentTarget.value }))}>
            {SPANS.map(([value, label]) => (
              <option key={value} value={value} selected={value === since}>
                {label}
              </option>
            ))}
          </select>
          <select class="input narrow" aria-label="Workflow" value={filters.name} onChange={(event) => setQuery(toQuery({ ...filters, name: event.currentTarget.value }))}>
            <option value="">all workflows</option>
            {names(data, filters.name).map((name) => (
              <option key={name} value={name} selected={name === filters.name}>
                {name}
              </option>
            ))}
          </select>
        </div>
      </div>
      {found.error && <Trouble error={found.error} retry={found.reload} />}
      {data ? <Loaded data={data} filters={asked} /> : found.loading && <Loading />}
    </>
  );
}

function names(data: Document | null, chosen: string): string[] {
  return [...new Set([...(data?.workflows.map((one) => one.name) ?? []), ...(chosen ? [chosen] : [])])].sort();
}

function Loaded({ data, filters }: { data: Document; filters: URLSearchParams }): JSX.Element {
  const { buckets } = data.chart;
  const times = useMemo(() => buckets.map((one) => millis(one.at) ?? 0), [buckets]);
  const perMinute = 60 / data.chart.seconds;
  const outcome: Series[] = [
    { name: "completed", tone: "done", values: buckets.map((one) => one.completed * perMinute) },
    { name: "failed", tone: "fail", values: buckets.map((one) => one.failed * perMinute) },
  ];
  const latency: Series[] = [
    { name: "p95", tone: "retry", values: buckets.map((one) => one.p95) },
    { name: "p50", tone: "run", values: buckets.map((one) => one.p50) },
  ];
  if (data.total === 0 && !data.workers.length) return <FirstSteps />;
  return (
    <>
      <Answers data={data} filters={filters} />
      <div class="two">
        <section class="card">
          <header>
            <h2>
              Completed and failed, a minute
              {data.total > data.sampled && <span class="small faint"> · of the newest {grouped(data.sampled)} runs</span>}
            </h2>
            <Legend series={outcome} />
          </header>
          <BarChart times={times} series={outcome} height={150} format={count} label="Completed and failed runs a minute" />
        </section>
        <section class="card">
          <header>
            <h2>Start to end</h2>
            <Legend series={latency} />
          </header>
          <LineChart times={times} series={latency} height={150} format={duration} label="How long runs took" />
        </section>
      </div>
      <div class="two">
        <Workflows workflows={data.workflows} sampled={data.sampled} />
        <div class="stack">
          <Queues data={data} />
          <Workers data={data} />
        </div>
      </div>
    </>
  );
}

interface Answer {
  title: string;
  value: string;
  said: string;
  tone: Tone | "";
  query: string;
  to?: string;
}

function took(seconds: number | null): string {
  return seconds === null ? "–" : duration(seconds);
}

/** The parts that are not zero. */
function some(...parts: [number, string][]): string {
  return parts.flatMap(([number, word]) => (number ? [`${grouped(number)}\u00a0${word.replace(" ", "\u00a0")}`] : [])).join(" · ");
}

/** The six numbers that say whether somebody must act. */
function Answers({ data, filters }: { data: Document; filters: URLSearchParams }): JSX.Element {
  const { states, needs_attention: needs } = data;
  const of = (...names: string[]): number => names.reduce((sum, name) => sum + (states[name] ?? 0), 0);
  const open = Object.entries(states).reduce((sum, [state, number]) => (isClosed(state) ? sum : sum + number), 0);
  const everOpen = useStore(counts).open ?? 0;
  const bad = of("failed", "timed_out");
  const ended = bad + of("completed");
  const base = new URLSearchParams(filters);
  base.delete("kind");
  const where = (extra: string): string => new URLSearchParams([...base, ...new URLSearchParams(extra)]).toString();
  const parked = needs.needs_code + needs.poisoned;
  const oldest = data.queues.map((queue) => millis(queue.oldest)).filter((at) => at !== null);
  const waiting = data.queues.reduce((sum, queue) => sum + queue.ready, 0);
  const answers: Answer[] = [
    {
      title: "Succeeded",
      value: ended ? percent(1 - bad / ended) : "–",
      said: ended ? `${grouped(of("completed"))} completed · ${grouped(bad)} failed` : "nothing has ended yet",
      tone: ended && bad / ended > 0.05 ? "fail" : "",
      query: where("state=failed&state=timed_out"),
    },
    { title: "Start to end, p50", value: took(data.p50), said: data.p95 === null ? "no run has ended yet" : `p95 ${took(data.p95)}`, tone: "", query: where("") },
    { title: "Open", value: compact(open), said: some([of("running"), "running"], [of("waiting"), "waiting"], [of("pending"), "pending"], [everOpen > open ? everOpen : 0, "in all"]) || "nothing is under way", tone: "", query: where("state=running&state=waiting&state=pending") },
    {
      title: "Waiting for a worker",
      value: compact(waiting),
      said: oldest.length ? `the oldest for ${duration(Math.max(0, (millis(data.as_of) ?? 0) - Math.min(...oldest)) / 1000)}` : "nothing waits",
      tone: waiting && !data.workers.some((one) => one.live) ? "fail" : "",
      query: "",
      to: "/queues",
    },
    {
      title: "Retrying",
      value: compact(needs.retrying),
      said: needs.retrying_often ? `${grouped(needs.retrying_often)} more than 5 times` : "none more than 5 times",
      tone: needs.retrying ? "retry" : "",
      query: "retrying=true",
    },
    {
      title: "Needs a person",
      value: compact(parked + needs.dead_letters),
      said: some([needs.dead_letters, needs.dead_letters === 1 ? "dead letter" : "dead letters"], [parked, "parked"], [needs.paused, "paused"]) || "nothing is stuck",
      tone: parked + needs.dead_letters ? "fail" : "",
      query: needs.dead_letters ? "" : "state=needs_code&state=poisoned",
      to: needs.dead_letters ? "/dead-letters" : "/runs",
    },
  ];
  return (
    <div class="kpis">
      {answers.map((one) => (
        <Link key={one.title} class="card kpi" to={one.to ?? "/runs"} query={one.query}>
          <h2>{one.title}</h2>
          <div class={`big ${one.tone ? `tone-${one.tone}` : ""}`}>{one.value}</div>
          <div class="faint small">{one.said}</div>
        </Link>
      ))}
    </div>
  );
}

function Workflows({ workflows, sampled }: { workflows: WorkflowSummary[]; sampled: number }): JSX.Element {
  return (
    <section class="card">
      <header>
        <h2>Workflows and jobs</h2>
        <span class="small faint">last runs; height is duration · of the newest {grouped(sampled)}</span>
      </header>
      {workflows.length === 0 ? (
        <Empty icon="runs" title="No runs in this time">
          <p>Choose a longer time, or start a run.</p>
        </Empty>
      ) : (
        <div class="scroll-x">
          <table>
            <thead>
              <tr>
                <th>Name</th>
                <th>Last runs</th>
                <th class="n">Open</th>
                <th class="n">Succeeded</th>
                <th class="n hide-s">p50</th>
                <th class="n hide-s">p95</th>
              </tr>
            </thead>
            <tbody>
              {workflows.map((one) => {
                const ended = one.completed + one.failed;
                const share = ended ? one.completed / ended : NaN;
                return (
                  <tr key={`${one.kind} ${one.name}`}>
                    <td>
                      <Link to="/runs" query={new URLSearchParams({ name: one.name })} class="strong link-quiet">
                        {one.name}
                      </Link>
                      {one.kind !== "workflow" && <span class="faint small"> {one.kind}</span>}
                    </td>
                    <td>
                      <RunBars runs={one.last} />
                    </td>
                    <td class="n">{grouped(one.open)}</td>
                    <td class={`n ${share < 0.95 ? "tone-fail strong" : ""}`}>{percent(share)}</td>
                    <td class="n hide-s">{took(one.p50)}</td>
                    <td class="n hide-s">{took(one.p95)}</td>
                  </tr>
                );
              })}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}

function Queues({ data }: { data: Document }): JSX.Element {
  const deepest = Math.max(1, ...data.queues.map((queue) => queue.ready));
  return (
    <section class="card">
      <header>
        <h2>
          <Link class="link-quiet" to="/queues">Queues</Link>
        </h2>
        <span class="small faint">ready, and the oldest of them</span>
      </header>
      {data.queues.length === 0 && <div class="list-foot">No queue has anything in it.</div>}
      {data.queues.slice(0, 8).map((queue) => (
        <Link key={queue.name} class="queue-line" to="/queues">
          <div class="clip">
            <b class="mono">{queue.name}</b>
            {queue.paused && (
              <span class="tone-pause small">
                {" "}
                <StateShape tone="pause" /> paused
              </span>
            )}
            <div class="faint small clip">
              <QueueLimits queue={queue} />
            </div>
          </div>
          <div class="meter" aria-hidden="true">
            <span class={queue.workers === 0 && queue.ready > 0 ? "fail" : ""} style={{ width: `${(queue.ready / deepest) * 100}%` }} />
          </div>
          <div class="n">
            <b>{compact(queue.ready)}</b>
            <div class="faint small">
              <Ago at={queue.oldest} none="none waits" />
            </div>
          </div>
        </Link>
      ))}
    </section>
  );
}

function Workers({ data }: { data: Document }): JSX.Element {
  return (
    <section class="card">
      <header>
        <h2>
          <Link class="link-quiet" to="/workers">Workers</Link>
        </h2>
        <span class="small faint">ring: what is left of the lease</span>
      </header>
      {data.workers.length === 0 && (
        <div class="body notice retry">
          No worker is registered: nothing runs. Start one with <code>batuta worker --app MODULE</code>
        </div>
      )}
      {data.workers.slice(0, 8).map((worker) => (
        <div key={worker.worker_id} class="worker-line">
          <WorkerRing worker={worker} />
          <div class="clip">
            <b class="mono">{worker.worker_id}</b>
            <div class="faint small clip">
              {grouped(worker.runs)} {worker.runs === 1 ? "run" : "runs"} · {worker.host} · pid {worker.pid} · {worker.queues.join(", ")}
            </div>
          </div>
        </div>
      ))}
      {data.workers.length > 8 && <div class="list-foot">and {grouped(data.workers.length - 8)} more</div>}
    </section>
  );
}

function FirstSteps(): JSX.Element {
  return (
    <section class="card">
      <Empty icon="overview" title="Nothing has run here yet">
        <p>Start a worker with your workflows; it shows up here within a second:</p>
        <code>batuta worker --app MODULE</code>
        <p>Or look around with sample workflows first:</p>
        <code>batuta dev</code>
      </Empty>
    </section>
  );
}

