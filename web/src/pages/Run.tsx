import type { JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { runPage } from "../api/endpoints";
import { ApiError } from "../api/http";
import type { RunDetail, RunPageDocument } from "../api/types";
import { CopyId } from "../components/Copy";
import { Empty, Loading, Trouble } from "../components/Empty";
import { RunActions } from "../components/RunActions";
import { StateChip } from "../components/StateChip";
import { Ago, Took } from "../components/Time";
import { narrate } from "../lib/narrate";
import { isClosed, runLook } from "../lib/states";
import { grouped, millis } from "../lib/time";
import { useNow } from "../state/clock";
import { useChanges, useResource, useRunChanges } from "../state/live";
import { href, Link, navigate, runPath, setQuery, usePlace } from "../state/router";
import { CompareTab } from "./run/Compare";
import { DataTab } from "./run/Data";
import { JournalTab } from "./run/Journal";
import { TimelineTab } from "./run/Timeline";
import { TravelTab } from "./run/Travel";
import { TreeTab } from "./run/Tree";

/** Long timelines are large: they are asked for less often. */
function pauseFor(page: RunPageDocument): number {
  return page.timeline.steps.length > 1_000 ? 3_000 : 700;
}

/** One run. It opens on its timeline. */
export default function Run({ id }: { id: string }): JSX.Element {
  const { query } = usePlace();
  const [reveal, setReveal] = useState("");
  useEffect(() => setReveal(""), [id]);
  const page = useResource(`${id} ${reveal}`, (signal) => runPage(id, signal, reveal ? { reveal: true, reason: reveal } : undefined), [], pauseFor);
  const runId = page.data?.run.run_id ?? null;
  useRunChanges(runId, page.reload);
  useChanges(["run"], () => {
    // The stream is (again) connected: what happened before that was not told.
    if (page.data && !isClosed(page.data.run.state)) page.reload();
  });
  useEffect(() => {
    if (page.data) document.title = `${page.data.run.id} · Batuta`;
  }, [page.data]);

  if (page.error && !page.data) {
    const isUnknown = page.error instanceof ApiError && page.error.problem.status === 404;
    if (!isUnknown) return <Trouble error={page.error} retry={page.reload} />;
    return (
      <Empty icon="search" title={`No run ${id}`}>
        <p>There is no run with this id here. It may have been deleted, or be in another namespace.</p>
        <Link class="btn" to="/runs" query={new URLSearchParams({ id_prefix: id })}>
          Find runs whose id begins so
        </Link>
      </Empty>
    );
  }
  if (!page.data) return <Loading />;
  return <Loaded page={page.data} query={query} error={page.error} reload={page.reload} onReveal={setReveal} />;
}

function Loaded({ page, query, error, reload, onReveal }: { page: RunPageDocument; query: URLSearchParams; error: Error | null; reload: () => void; onReveal: (reason: string) => void }): JSX.Element {
  const { run, timeline } = page;
  const isOpen = !isClosed(run.state);
  const skew = useMemo(() => Date.now() - (millis(timeline.as_of) ?? Date.now()), [timeline.as_of]);
  const now = useNow(isOpen) - skew;
  const tab = query.get("tab") ?? "timeline";
  const relatives = page.children.length + page.forks.length + (page.parent ? 1 : 0);
  const tabs: [string, string, number?][] = [
    ["timeline", "Timeline"],
    ["journal", "Journal", run.entries],
    ["tree", "Tree", ...(relatives ? [relatives] : [])] as [string, string, number?],
    ["travel", "Time travel"],
    ["compare", "Compare"],
    ["data", "Input and result"],
  ];
  const strip = useRef<HTMLElement>(null);
  useEffect(() => {
    const on = strip.current?.querySelector<HTMLElement>(".on"); // on a narrow screen it may be out of sight
    if (strip.current && on) strip.current.scrollLeft = on.offsetLeft - (strip.current.clientWidth - on.offsetWidth) / 2;
  }, [tab]);
  const said = useMemo(() => narrate(run, timeline, now, page.takes), [run, timeline, page.takes, Math.floor(now / 1000)]);
  const tone = noticeTone(run);
  return (
    <>
      <div class="run-top">
        <div class="grow">
          <div class="dim small">
            <Link to="/runs" class="link">
              Runs
            </Link>{" "}
            /{" "}
            <Link to="/runs" query={new URLSearchParams({ name: run.workflow })} class="link">
              {run.workflow}
            </Link>
          </div>
          <h1 class="run-title">
            <CopyId text={run.id} /> <StateChip state={run.state} />
          </h1>
          <Facts run={run} />
        </div>
        <RunActions run={run} timeline={timeline} takes={page.takes} onDone={reload} onReveal={onReveal} />
      </div>
      {error && <Trouble error={error} retry={reload} />}
      {said.length > 0 && (
        <div class={`notice told ${tone}`} role="status">
          {said.join(" ")}
        </div>
      )}
      <nav class="tabs" ref={strip} aria-label="Parts of the run">
        {tabs.map(([name, label, count]) => (
          <a
            key={name}
            href={href(runPath(run.run_id), name === "timeline" ? "" : `tab=${name}`)}
            class={tab === name ? "on" : ""}
            {...(tab === name ? { "aria-current": "page" as const } : {})}
            onClick={(event) => {
              if (event.ctrlKey || event.metaKey || event.shiftKey) return;
              event.preventDefault();
              navigate(location.pathname.slice(href("").length), name === "timeline" ? "" : `tab=${name}`);
            }}
          >
            {label} {count !== undefined && <span class="faint">{grouped(count)}</span>}
          </a>
        ))}
      </nav>
      {tab === "journal" ? (
        <JournalTab run={run} />
      ) : tab === "tree" ? (
        <TreeTab page={page} />
      ) : tab === "travel" ? (
        <TravelTab run={run} />
      ) : tab === "compare" ? (
        <CompareTab run={run} other={query.get("with") ?? run.forked_from ?? ""} onOther={(other) => setQuery(new URLSearchParams({ tab: "compare", with: other }))} />
      ) : tab === "data" ? (
        <DataTab run={run} />
      ) : (
        <TimelineTab run={run} timeline={timeline} now={now} query={query} />
      )}
    </>
  );
}

function noticeTone(run: RunDetail): string {
  const { tone } = runLook(run.state);
  return tone === "fail" || tone === "park" || tone === "pause" ? tone : tone === "done" ? "done" : "";
}

function Facts({ run }: { run: RunDetail }): JSX.Element {
  return (
    <div class="facts">
      <span>
        <b>{run.workflow}</b> {run.version && `v${run.version}`} {run.kind !== "workflow" && run.kind}
      </span>
      <span>
        started <Ago at={run.created_at} />
      </span>
      <span>
        {run.closed_at ? "took" : "for"} <Took from={run.created_at} to={run.closed_at} />
      </span>
      {run.worker && (
        <span>
          owner <b class="mono">{run.worker}</b>
        </span>
      )}
      <span>
        queue{" "}
        <Link to="/runs" query={new URLSearchParams({ queue: run.queue })} class="link mono">
          {run.queue}
        </Link>
      </span>
      {run.key && (
        <span>
          key <b class="mono">{run.key}</b>
        </span>
      )}
      {run.priority !== 0 && <span>priority {run.priority}</span>}
      {run.deaths > 0 && <span class="tone-park strong">{run.deaths} deaths</span>}
      {run.wake_at && (
        <span>
          due <Ago at={run.wake_at} />
        </span>
      )}
      {run.deadline && (
        <span>
          times out <Ago at={run.deadline} />
        </span>
      )}
      {run.tags["flow.workflow_id"] && (
        <Link to={`/flow-runs/${run.id}`} class="link">
          steps of the flow
        </Link>
      )}
      <span>
        run id <CopyId text={run.run_id} label={run.run_id.slice(0, 8)} />
      </span>
      <span class="tags">
        {Object.entries(run.tags).map(([key, value]) => (
          <Link key={key} to="/runs" query={new URLSearchParams({ tag: `${key}=${value}` })} class="tag" title={`${key}=${value}`}>
            {key}={value}
          </Link>
        ))}
      </span>
    </div>
  );
}
