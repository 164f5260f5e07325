import type { JSX } from "preact";
import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
import { listRuns, runsPage, runStates, type States } from "../api/endpoints";
import type { Run } from "../api/types";
import { BulkBar } from "../components/BulkBar";
import { Empty, Loading, Trouble } from "../components/Empty";
import { Icon } from "../components/Icon";
import { RunFilterBar } from "../components/RunFilterBar";
import { RUN_ROW, RunRow } from "../components/RunRow";
import { StartDialog } from "../components/StartDialog";
import { VirtualList } from "../components/VirtualList";
import { fromQuery, inWords, isUnfiltered, NO_FILTERS, type RunFilters, toQuery } from "../lib/filters";
import { grouped, numberOf } from "../lib/time";
import { type RunPages, mergePage, newest, rowsOf } from "../lib/pages";
import { useKeys, useListKeys } from "../state/keys";
import { useChanges } from "../state/live";
import { navigate, runPath, setQuery, usePlace } from "../state/router";
import { may, noteError, session } from "../state/session";
import { useStore } from "../state/store";

const PAGE = 100;

/** Runs, newest first, with filters in the address. */
export default function Runs(): JSX.Element {
  const { query } = usePlace();
  const who = useStore(session);
  const filters = useMemo(() => fromQuery(query), [query]);
  const wanted = toQuery(filters).toString();
  const list = useRunList(wanted);
  const [selected, setSelected] = useState<ReadonlySet<string>>(new Set());
  const [allMatching, setAllMatching] = useState(false);
  const [starting, setStarting] = useState(false);
  const search = useRef<HTMLInputElement>(null);
  useEffect(() => {
    setSelected(new Set());
    setAllMatching(false);
  }, [wanted]);

  const rows = list.rows;
  const change = (next: Partial<RunFilters>): void => setQuery(toQuery({ ...filters, ...next }));
  const toggle = useCallback((runId: string): void => {
    setAllMatching(false);
    setSelected((before) => {
      const next = new Set(before);
      if (!next.delete(runId)) next.add(runId);
      return next;
    });
  }, []);
  const open = (index: number): void => {
    const run = rows[index];
    if (run) navigate(runPath(run.run_id));
  };
  const [at, setAt] = useListKeys(rows.length, open, { x: (index) => rows[index] && toggle(rows[index].run_id) });
  useKeys({
    "/": (event) => {
      event.preventDefault();
      search.current?.focus();
    },
  });
  const chosen = rows.filter((run) => selected.has(run.run_id));
  const allShown = rows.length > 0 && chosen.length === rows.length;
  const canAct = may("operator", who);

  return (
    <>
      <div class="page-head">
        <div>
          <h1>Runs</h1>
          <p>
            {list.total === null ? "\u00a0" : `${grouped(list.total)} ${inWords(filters, list.total)}`}
          </p>
        </div>
        {canAct && (
          <button type="button" class="btn go" onClick={() => setStarting(true)}>
            <Icon name="plus" />
            Start a run
          </button>
        )}
      </div>
      <RunFilterBar filters={filters} states={list.states} onChange={change} onClear={() => setQuery(toQuery(NO_FILTERS))} search={search} />
      {list.error && <Trouble error={list.error} retry={list.reload} />}
      <section class="card run-list" aria-label="Runs">
        <div class="run-row run-head">
          <span class="cell-check">
            <input
              type="checkbox"
              aria-label="Select all that are shown"
              checked={allShown}
              disabled={!rows.length}
              onChange={() => {
                setAllMatching(false);
                setSelected(allShown ? new Set() : new Set(rows.map((run) => run.run_id)));
              }}
            />
          </span>
          <span>State</span>
          <span>Id</span>
          <span class="hide-m">Workflow</span>
          <span class="hide-m">Queue</span>
          <span class="hide-l">Tags</span>
          <span class="n">Started</span>
          <span class="n hide-s">Took</span>
        </div>
        {list.fresh > 0 && (
          <button type="button" class="fresh" onClick={list.showFresh}>
            {list.fresh >= PAGE ? `${PAGE} or more` : list.fresh} new: show
          </button>
        )}
        {list.loading && !rows.length && <Loading />}
        {!list.loading && !rows.length && !list.error && <NoRuns filters={filters} onStart={() => setStarting(true)} onClear={() => setQuery(toQuery(NO_FILTERS))} />}
        <VirtualList
          count={rows.length}
          rowHeight={RUN_ROW}
          focus={at}
          onRange={list.onRange}
          render={(index) => {
            const run = rows[index];
            if (!run) return <div key={index} />;
            return (
              <RunRow
                key={run.run_id}
                run={run}
                isOn={index === at}
                isSelected={allMatching || selected.has(run.run_id)}
                onSelect={() => {
                  setAt(index);
                  toggle(run.run_id);
                }}
              />
            );
          }}
        />
        {rows.length > 0 && <div class="list-foot">{list.hasMore ? "Loading more…" : `That is all: ${numberOf(rows.length, "run")}.`}</div>}
      </section>
      {(selected.size > 0 || allMatching) && canAct && (
        <BulkBar
          runs={chosen}
          filters={filters}
          total={list.total}
          allMatching={allMatching}
          onAllMatching={() => setAllMatching(true)}
          onClear={() => {
            setSelected(new Set());
            setAllMatching(false);
          }}
          onDone={list.reload}
        />
      )}
      {starting && <StartDialog onClose={() => setStarting(false)} />}
    </>
  );
}

function NoRuns({ filters, onStart, onClear }: { filters: RunFilters; onStart: () => void; onClear: () => void }): JSX.Element {
  if (!isUnfiltered(filters)) {
    return (
      <Empty icon="search" title={`No ${inWords(filters)}`}>
        <p>Nothing matches these filters. Widen the time, or drop a filter.</p>
        <button type="button" class="btn" onClick={onClear}>
          Drop all filters
        </button>
      </Empty>
    );
  }
  return (
    <Empty icon="runs" title="No runs yet">
      <p>Start one here, from your code with client.start(…), or from a terminal:</p>
      <code>batuta runs start WORKFLOW --input '["order-1"]'</code>
      <button type="button" class="btn go" onClick={onStart}>
        Start a run
      </button>
    </Empty>
  );
}

interface List {
  rows: Run[];
  states: Record<string, number> | null;
  total: number | null;
  loading: boolean;
  error: Error | null;
  hasMore: boolean;
  fresh: number;
  showFresh: () => void;
  reload: () => void;
  onRange: (first: number, last: number) => void;
}

/** How many of them have one of the chosen states. */
function matching(states: States, wanted: string): number {
  const chosen = new URLSearchParams(wanted).getAll("state");
  return (chosen.length ? chosen : Object.keys(states)).reduce((sum, state) => sum + (states[state] ?? 0), 0);
}

const NOTHING: RunPages = { pages: [], fresh: [] };

/** Pages of runs by cursor. What is shown is brought up to date in place; new runs wait until they are asked for. */
function useRunList(wanted: string): List {
  const [held, setHeld] = useState<RunPages>(NOTHING);
  const [states, setStates] = useState<States | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const [loading, setLoading] = useState(true);
  const busy = useRef(false);
  /** When the list may be brought up to date again. */
  const rest = useRef<{ until: number; timer?: ReturnType<typeof setTimeout> }>({ until: 0 });
  useEffect(() => () => clearTimeout(rest.current.timer), []);
  const latest = useRef({ wanted, held, range: [0, 0] as [number, number] });
  latest.current.wanted = wanted;
  latest.current.held = held;

  const ask = useCallback(async (cursor: string | null) => {
    const mine = latest.current.wanted;
    const query = new URLSearchParams(mine);
    if (!query.has("kind")) query.set("kind", "any");
    query.set("limit", String(PAGE));
    if (cursor) query.set("cursor", cursor);
    try {
      const counted = cursor ? null : await runsPage(query);
      const page = counted ?? (await listRuns(query));
      if (mine !== latest.current.wanted) return null;
      setError(null);
      if (counted) void note(query, counted.states, mine);
      return page;
    } catch (found) {
      noteError(found);
      if (mine === latest.current.wanted) setError(found instanceof Error ? found : new Error(String(found)));
      return null;
    }
  }, []);

  const note = async (query: URLSearchParams, found: States | null, mine: string): Promise<void> => {
    const rest = new URLSearchParams(query);
    for (const name of ["state", "limit"]) rest.delete(name);
    const counted = found ?? (await runStates(rest).catch(() => null))?.states;
    if (!counted || mine !== latest.current.wanted) return;
    setStates(counted);
  };

  const load = useCallback(async () => {
    busy.current = true;
    setLoading(true);
    const page = await ask(null);
    if (page) setHeld({ pages: [{ cursor: null, runs: page.runs, next: page.cursor }], fresh: [] });
    setLoading(false);
    busy.current = false;
  }, [ask]);

  useEffect(() => {
    setHeld(NOTHING);
    setStates(null);
    void load();
  }, [wanted, load]);

  const more = useCallback(async () => {
    const last = latest.current.held.pages.at(-1);
    if (busy.current || !last?.next) return;
    busy.current = true;
    const page = await ask(last.next);
    if (page) setHeld((before) => ({ ...before, pages: [...before.pages, { cursor: last.next, runs: page.runs, next: page.cursor }] }));
    busy.current = false;
  }, [ask]);

  const onRange = useCallback(
    (first: number, last: number) => {
      latest.current.range = [first, last];
      if (last >= rowsOf(latest.current.held).length - 20) void more();
    },
    [more],
  );

  const refresh = useCallback(async () => {
    if (document.hidden) return;
    const began = performance.now();
    if (busy.current || began < rest.current.until) {
      clearTimeout(rest.current.timer); // later, once
      rest.current.timer = setTimeout(() => void refresh(), Math.max(200, rest.current.until - began));
      return;
    }
    busy.current = true;
    const { held: shown, range } = latest.current;
    const first = await ask(null);
    if (first) setHeld((before) => mergePage(before, 0, first.runs, first.cursor));
    const seen = Math.floor(range[0] / PAGE);
    const page = shown.pages[seen];
    if (seen > 0 && page) {
      const found = await ask(page.cursor);
      if (found) setHeld((before) => mergePage(before, seen, found.runs, found.cursor));
    }
    busy.current = false;
    rest.current.until = performance.now() + Math.max(500, 5 * (performance.now() - began)); // what takes long is asked for seldom
  }, [ask]);
  useChanges(["runs"], () => void refresh());

  const rows = useMemo(() => rowsOf(held), [held]);
  return {
    rows,
    states,
    total: states && matching(states, wanted),
    loading,
    error,
    hasMore: held.pages.at(-1)?.next != null,
    fresh: held.fresh.length,
    showFresh: () => setHeld((before) => newest(before)),
    reload: () => void load(),
    onRange,
  };
}
