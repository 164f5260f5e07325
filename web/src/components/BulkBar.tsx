import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { actOnRun, bulk, countBulk } from "../api/endpoints";
import type { Run } from "../api/types";
import { inWords, isUnfiltered, type RunFilters } from "../lib/filters";
import { grouped } from "../lib/time";
import { say } from "../state/toasts";
import { ActDialog } from "./ActDialog";
import { Trouble } from "./Empty";
import { OperationDialog } from "./OperationDialog";

const ACTS: { verb: string; label: string; says: string; danger?: boolean }[] = [
  { verb: "pause", label: "Pause", says: "They stop at the next step and stay so until somebody resumes them." },
  { verb: "resume", label: "Resume", says: "Those that are paused go on." },
  { verb: "retry", label: "Retry", says: "Those that failed begin again, as new runs under the same ids. What was done is kept." },
  { verb: "cancel", label: "Cancel", says: "Their code is told to stop, and may clean up.", danger: true },
  { verb: "terminate", label: "Terminate", says: "They end at once. Their code does not run any more, not even to clean up.", danger: true },
];

interface Props {
  runs: Run[];
  filters: RunFilters;
  total: number | null;
  allMatching: boolean;
  onAllMatching: () => void;
  onClear: () => void;
  onDone: () => void;
}

/** Acts on the runs that are selected, or on all that match the filters. */
export function BulkBar(props: Props): JSX.Element {
  const { runs, filters, total, allMatching } = props;
  const [verb, setVerb] = useState<string | null>(null);
  const [operation, setOperation] = useState<string | null>(null);
  const count = allMatching ? total : runs.length;
  const act = ACTS.find((one) => one.verb === verb);
  return (
    <div class="bulk-bar" role="region" aria-label="Selected runs">
      <span>
        <b>{count === null ? "All" : grouped(count)}</b> selected
      </span>
      {!allMatching && total !== null && total > runs.length && (
        <button type="button" class="btn slim" onClick={props.onAllMatching}>
          Select all {grouped(total)} matching
        </button>
      )}
      <span class="grow" />
      {ACTS.map((one) => (
        <button key={one.verb} type="button" class={`btn slim ${one.danger ? "danger" : ""}`} onClick={() => setVerb(one.verb)}>
          {one.label}
        </button>
      ))}
      <button type="button" class="btn slim" onClick={props.onClear}>
        Clear
      </button>
      {act && (
        <BulkDialog
          act={act}
          runs={runs}
          filters={filters}
          allMatching={allMatching}
          onStarted={setOperation}
          onClose={() => setVerb(null)}
          onDone={() => {
            props.onClear();
            props.onDone();
          }}
        />
      )}
      {operation && (
        <OperationDialog
          id={operation}
          onClose={() => {
            setOperation(null);
            props.onClear();
            props.onDone();
          }}
        />
      )}
    </div>
  );
}

function BulkDialog(props: {
  act: (typeof ACTS)[number];
  runs: Run[];
  filters: RunFilters;
  allMatching: boolean;
  onStarted: (operation: string) => void;
  onClose: () => void;
  onDone: () => void;
}): JSX.Element {
  const { act, runs, filters, allMatching } = props;
  const [matched, setMatched] = useState<number | null>(allMatching ? null : runs.length);
  const [error, setError] = useState<Error | null>(null);
  const request = { verb: act.verb, filter: bulkFilter(filters), ...(isUnfiltered(filters) ? { everything: true } : {}) };
  useEffect(() => {
    if (!allMatching) return;
    countBulk(request).then(
      (found) => setMatched(found.matched),
      (found: Error) => setError(found),
    );
  }, []);
  const carryOut = async (reason: string): Promise<void> => {
    if (allMatching) {
      const made = await bulk({ ...request, reason, expected: matched });
      props.onStarted(made.id);
      return;
    }
    const refused: string[] = [];
    for (const run of runs) {
      await actOnRun(run.run_id, act.verb, { reason }).catch((found: Error) => refused.push(found.message));
    }
    const done = runs.length - refused.length;
    say(`${act.label}: ${grouped(done)} of ${grouped(runs.length)}.${refused[0] ? ` Refused: ${refused[0]}` : ""}`, { tone: refused.length ? "retry" : "done" });
    props.onDone();
  };
  const said = matched === null ? "…" : grouped(matched);
  return (
    <ActDialog
      title={`${act.label} ${said} ${matched === 1 ? "run" : "runs"}`}
      verb={`${act.label} ${said}`}
      danger={act.danger ?? false}
      needsReason
      disabled={matched === null || matched === 0}
      act={carryOut}
      onClose={props.onClose}
    >
      <p>
        This will {act.label.toLowerCase()} <b>{said}</b> {allMatching ? inWords(filters) : "selected runs"}. {act.says}
      </p>
      {error && <Trouble error={error} />}
    </ActDialog>
  );
}

/** The filters as the bulk routes take them. */
export function bulkFilter(filters: RunFilters): Record<string, unknown> {
  const tags = Object.fromEntries(filters.tags.map((tag) => [tag.slice(0, tag.indexOf("=")), tag.slice(tag.indexOf("=") + 1)]));
  const found: Record<string, unknown> = {
    kind: filters.kind,
    state: filters.states.length ? filters.states : undefined,
    name: filters.name,
    queue: filters.queue,
    id_prefix: filters.idPrefix,
    key: filters.key,
    tags: filters.tags.length ? tags : undefined,
    parent: filters.parent || undefined,
    since: filters.since,
    until: filters.until,
    retrying: filters.retrying || undefined,
    tries: filters.tries || undefined,
  };
  return Object.fromEntries(Object.entries(found).filter(([, value]) => value !== undefined && value !== ""));
}
