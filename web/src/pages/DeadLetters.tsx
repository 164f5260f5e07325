import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { discard, letter as oneLetter, letterGroups, letters, reprocess } from "../api/endpoints";
import type { Letter, LetterGroup, Operation } from "../api/types";
import { ActDialog } from "../components/ActDialog";
import { Empty, Loading, Trouble } from "../components/Empty";
import { Icon } from "../components/Icon";
import { OperationDialog } from "../components/OperationDialog";
import { Chip } from "../components/StateChip";
import { Ago } from "../components/Time";
import { grouped, numberOf } from "../lib/time";
import { useListKeys } from "../state/keys";
import { useResource } from "../state/live";
import { Link, runPath, setQuery, usePlace } from "../state/router";
import { may, session } from "../state/session";
import { useStore } from "../state/store";

const CAUSES: Record<string, string> = {
  exhausted: "ran out of attempts",
  refused: "must not be tried again",
  timed_out: "timed out",
  interrupted: "its workers died",
  raised: "raised",
  workflow_error: "its workflow failed",
  compensation_failed: "a compensation failed",
  undelivered: "a message could not be delivered",
};

const FILTERS = ["name", "queue", "error", "activity", "since"] as const;

interface Act {
  verb: "reprocess" | "discard";
  count: number;
  body: Record<string, unknown>;
  what: string;
}

/** What was given up, grouped by error; each group can be reprocessed or discarded as a whole. */
export default function DeadLetters(): JSX.Element {
  const { query } = usePlace();
  const who = useStore(session);
  const state = query.get("state") ?? "open";
  const asked = new URLSearchParams([...query].filter(([name]) => name !== "group"));
  asked.set("limit", "100");
  const found = useResource(asked.toString(), (signal) => letterGroups(asked, signal), ["dead_letters", "runs"]);
  const [act, setAct] = useState<Act | null>(null);
  const [operation, setOperation] = useState<Operation | null>(null);
  const open = query.get("group");
  const groups = found.data?.groups ?? [];
  const total = groups.reduce((sum, group) => sum + group.count, 0);
  const set = (name: string, value: string): void => {
    const next = new URLSearchParams(query);
    if (value) next.set(name, value);
    else next.delete(name);
    setQuery(next);
  };
  const [at] = useListKeys(groups.length, (index) => set("group", groups[index]?.fingerprint === open ? "" : (groups[index]?.fingerprint ?? "")));
  const filter = Object.fromEntries([...query].filter(([name]) => (FILTERS as readonly string[]).includes(name)));
  const canAct = may("operator", who) && state === "open";
  const isFiltered = Object.keys(filter).length > 0;

  return (
    <>
      <div class="page-head">
        <div>
          <h1>Dead letters</h1>
          <p>{found.data ? summary(total, groups.length, state, found.data.cursor !== null) : "\u00a0"}</p>
        </div>
        {canAct && total > 0 && (
          <button
            type="button"
            class="btn go"
            onClick={() => setAct({ verb: "reprocess", count: total, body: isFiltered ? { filter } : { everything: true }, what: isFiltered ? "all that match the filters" : "all dead letters" })}
          >
            Reprocess all {grouped(total)}
          </button>
        )}
      </div>
      <div class="filter-fields">
        <select class="input" aria-label="State" value={state} onChange={(event) => set("state", event.currentTarget.value === "open" ? "" : event.currentTarget.value)}>
          {["open", "reprocessed", "discarded", "any"].map((one) => (
            <option key={one} value={one} selected={one === state}>
              {one}
            </option>
          ))}
        </select>
        {FILTERS.map((name) => (
          <input
            key={name}
            class="input"
            type="search"
            placeholder={{ name: "Workflow or job", queue: "Queue", error: "Error class", activity: "Activity", since: "Since, such as 2h" }[name]}
            aria-label={name}
            value={query.get(name) ?? ""}
            onChange={(event) => set(name, event.currentTarget.value.trim())}
          />
        ))}
      </div>
      {found.error && <Trouble error={found.error} retry={found.reload} />}
      {!found.data && found.loading && <Loading />}
      {found.data && groups.length === 0 && (
        <section class="card">
          <Empty icon="dead" title={state === "open" && !isFiltered ? "No dead letters" : "No dead letter matches"}>
            <p>
              {state === "open" && !isFiltered
                ? "A job or workflow that is given up for good, after its last attempt, waits here for a person. Nothing does now."
                : "Choose another state, or drop a filter."}
            </p>
          </Empty>
        </section>
      )}
      <div class="stack">
        {groups.map((group, index) => (
          <Group
            key={group.fingerprint}
            group={group}
            isOpen={group.fingerprint === open}
            isOn={index === at}
            query={asked}
            onOpen={() => set("group", group.fingerprint === open ? "" : group.fingerprint)}
            {...(canAct ? { onAct: setAct } : {})}
            filter={filter}
          />
        ))}
      </div>
      {act && (
        <LetterDialog
          act={act}
          onClose={() => setAct(null)}
          onStarted={(made) => {
            setOperation(made);
            found.reload();
          }}
        />
      )}
      {operation && (
        <OperationDialog
          id={operation.id}
          first={operation}
          onClose={() => {
            setOperation(null);
            found.reload();
          }}
        />
      )}
    </>
  );
}

/** "7 open, of 2 errors": runs whose error, place and message are alike are one group. */
function summary(count: number, groups: number, state: string, more: boolean): string {
  if (!count) return "Runs that were given up, grouped by error.";
  return `${grouped(count)}${more ? "+" : ""}${state === "any" ? "" : ` ${state}`}, of ${groups === 1 ? "one error" : `${grouped(groups)}${more ? "+" : ""} errors`}`;
}

function Group(props: {
  group: LetterGroup;
  isOpen: boolean;
  isOn: boolean;
  query: URLSearchParams;
  filter: Record<string, string>;
  onOpen: () => void;
  onAct?: (act: Act) => void;
}): JSX.Element {
  const { group, onAct } = props;
  const { example } = group;
  const what = `${grouped(group.count)} with ${example.error} in ${example.activity || example.name}`;
  const body = { filter: { ...props.filter, fingerprint: group.fingerprint } };
  return (
    <section class={`card letter-group ${props.isOn ? "on" : ""}`} aria-label={example.error}>
      <div class="letter-head">
        <button type="button" class="plain grow letter-open" aria-expanded={props.isOpen} onClick={props.onOpen}>
          <span class="letter-count tone-fail">{grouped(group.count)}</span>
          <span class="stack tight grow">
            <span class="row-gap">
              <b>{example.error || "error"}</b>
              <span class="dim">
                in <b class="mono">{example.activity || example.name}</b>
                {example.activity && example.kind === "workflow" && <> of {example.name}</>}
              </span>
              <Chip look={{ tone: "fail", label: CAUSES[example.reason] ?? example.reason }} />
            </span>
            <span class="dim clip mono small">{example.message}</span>
            <span class="faint small">
              last <Ago at={group.last_at} />, first <Ago at={group.first_at} /> · queue {example.queue} · {numberOf(example.attempts, "attempt")}
            </span>
          </span>
        </button>
        {onAct && (
          <span class="row-gap">
            <button type="button" class="btn" onClick={() => onAct({ verb: "reprocess", count: group.count, body, what })}>
              Reprocess…
            </button>
            <button type="button" class="btn danger" onClick={() => onAct({ verb: "discard", count: group.count, body, what })}>
              Discard…
            </button>
          </span>
        )}
      </div>
      {props.isOpen && <Letters fingerprint={group.fingerprint} query={props.query} {...(onAct ? { onAct } : {})} />}
    </section>
  );
}

function Letters({ fingerprint, query, onAct }: { fingerprint: string; query: URLSearchParams; onAct?: (act: Act) => void }): JSX.Element {
  const asked = new URLSearchParams(query);
  asked.set("fingerprint", fingerprint);
  asked.set("limit", "50");
  const found = useResource(asked.toString(), (signal) => letters(asked, signal), ["dead_letters"]);
  const [shown, setShown] = useState<string | null>(null);
  if (found.error) return <Trouble error={found.error} />;
  if (!found.data) return <Loading />;
  return (
    <div class="scroll-x">
      <table class="stacks">
        <thead>
          <tr>
            <th>Run</th>
            <th>Message</th>
            <th class="n">Given up</th>
            <th>
              <span class="unseen">Acts</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {found.data.dead_letters.map((one) => (
            <LetterRows key={one.run_id} letter={one} isOpen={shown === one.run_id} onOpen={() => setShown(shown === one.run_id ? null : one.run_id)} {...(onAct ? { onAct } : {})} />
          ))}
        </tbody>
      </table>
      {found.data.cursor && <div class="list-foot">The newest 50 are shown.</div>}
    </div>
  );
}

function LetterRows({ letter, isOpen, onOpen, onAct }: { letter: Letter; isOpen: boolean; onOpen: () => void; onAct?: (act: Act) => void }): JSX.Element {
  return (
    <>
      <tr>
        <td>
          <Link class="link mono" to={runPath(letter.run_id)}>
            {letter.id}
          </Link>
        </td>
        <td data-label="Message" class="wrap-any small">
          {letter.message}
          {letter.note && <div class="faint">{letter.note}</div>}
        </td>
        <td data-label="Given up" class="n">
          <Ago at={letter.at} />
        </td>
        <td class="n nowrap">
          <button type="button" class="btn slim" aria-expanded={isOpen} onClick={onOpen}>
            Traceback
          </button>{" "}
          {onAct && letter.state === "open" && (
            <button type="button" class="btn slim" onClick={() => onAct({ verb: "reprocess", count: 1, body: { ids: [letter.run_id] }, what: letter.id })}>
              Reprocess
            </button>
          )}
          {letter.successor && (
            <Link class="link" to={runPath(letter.successor)}>
              went on here
            </Link>
          )}
        </td>
      </tr>
      {isOpen && (
        <tr>
          <td colSpan={4}>
            <Traceback id={letter.run_id} />
          </td>
        </tr>
      )}
    </>
  );
}

function Traceback({ id }: { id: string }): JSX.Element {
  const found = useResource(id, (signal) => oneLetter(id, signal));
  if (found.error) return <Trouble error={found.error} />;
  if (!found.data) return <Loading />;
  return (
    <pre class="value trace" tabIndex={0}>
      {found.data.traceback || "No traceback was kept."}
    </pre>
  );
}

function LetterDialog({ act, onClose, onStarted }: { act: Act; onClose: () => void; onStarted: (made: Operation) => void }): JSX.Element {
  const [mode, setMode] = useState<"failed_step" | "start">("failed_step");
  const [rate, setRate] = useState("");
  const isReprocess = act.verb === "reprocess";
  const noun = act.count === 1 ? "dead letter" : "dead letters";
  const carryOut = async (reason: string): Promise<void> => {
    const body = { ...act.body, ...(reason ? { reason } : {}), wait: 0 };
    onStarted(isReprocess ? await reprocess({ ...body, mode, ...(Number(rate) > 0 ? { rate: Number(rate) } : {}) }) : await discard(body));
  };
  return (
    <ActDialog
      title={`${isReprocess ? "Reprocess" : "Discard"} ${grouped(act.count)} ${noun}`}
      verb={`${isReprocess ? "Reprocess" : "Discard"} ${grouped(act.count)}`}
      danger={!isReprocess}
      needsReason={!isReprocess}
      act={carryOut}
      onClose={onClose}
    >
      <p>
        <Icon name="dead" /> {act.what}
      </p>
      {isReprocess ? (
        <>
          <fieldset class="fieldset">
            <legend>How</legend>
            <label class="check">
              <input type="radio" name="mode" checked={mode === "failed_step"} onChange={() => setMode("failed_step")} />
              Keep what was done, and try what failed again
            </label>
            <label class="check">
              <input type="radio" name="mode" checked={mode === "start"} onChange={() => setMode("start")} />
              Begin at the start
            </label>
          </fieldset>
          <label class="field">
            <span>
              At most so many a second <span class="hint">(empty: as fast as it goes)</span>
            </span>
            <input class="input" type="number" min="0" step="any" value={rate} onInput={(event) => setRate(event.currentTarget.value)} />
          </label>
        </>
      ) : (
        <p>They are closed without doing anything. The runs stay as they are, failed.</p>
      )}
    </ActDialog>
  );
}
