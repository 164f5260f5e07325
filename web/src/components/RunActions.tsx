import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { actOnRun, deleteRun } from "../api/endpoints";
import type { CodeSchema, RunDetail, Timeline } from "../api/types";
import { isClosed } from "../lib/states";
import { navigate } from "../state/router";
import { may, session } from "../state/session";
import { useStore } from "../state/store";
import { say } from "../state/toasts";
import { ActDialog } from "./ActDialog";
import { ForkDialog } from "./ForkDialog";
import { Menu, type MenuItem } from "./Menu";
import { MessageDialog, type MessageKind } from "./MessageDialog";

const ACTS: Record<string, { label: string; says: string; danger?: boolean; needsReason?: boolean; done: string }> = {
  pause: { label: "Pause", says: "It stops at the next step and stays so until somebody resumes it.", done: "is asked to pause" },
  resume: { label: "Resume", says: "It goes on where it stopped.", done: "goes on" },
  retry: { label: "Retry", says: "It begins again from what failed, as a new run under the same id. What was done is kept.", done: "is tried again" },
  hurry: { label: "Try now", says: "What has failed and waits for its next attempt is tried now.", done: "is tried now" },
  cancel: { label: "Cancel", says: "Its code is told to stop, and may clean up.", danger: true, done: "is asked to cancel" },
  terminate: { label: "Terminate", says: "It ends at once. Its code does not run any more, not even to clean up.", danger: true, needsReason: true, done: "was terminated" },
};

interface Props {
  run: RunDetail;
  timeline: Timeline;
  takes: CodeSchema | null;
  onDone: () => void;
  onReveal: (reason: string) => void;
}

/** What an operator can do to a run. */
export function RunActions({ run, timeline, takes, onDone, onReveal }: Props): JSX.Element | null {
  const who = useStore(session);
  const [shown, setShown] = useState<string | null>(null);
  if (!may("operator", who)) return null;
  const isOver = isClosed(run.state);
  const canRetry = ["failed", "timed_out", "cancelled", "terminated"].includes(run.state);
  const waitsToRetry = !isOver && run.state !== "paused" && timeline.steps.some((step) => step.state === "open" && step.segments.at(-1)?.kind === "backoff");
  const close = (): void => setShown(null);
  const button = (verb: string, isDanger = false): JSX.Element => (
    <button type="button" class={`btn ${isDanger ? "danger" : ""}`} onClick={() => setShown(verb)}>
      {ACTS[verb]?.label ?? verb}
    </button>
  );
  const more: MenuItem[] = [];
  if (!isOver && run.kind === "workflow") {
    more.push({ label: "Update…", act: () => setShown("update") }, { label: "Query…", act: () => setShown("query") });
  }
  more.push({ label: "Reveal what is redacted…", act: () => setShown("reveal") });
  if (!isOver) more.push({ label: "Terminate…", danger: true, act: () => setShown("terminate") });
  if (isOver && may("admin", who)) more.push({ label: "Delete…", danger: true, act: () => setShown("delete") });
  const act = shown ? ACTS[shown] : undefined;
  return (
    <div class="acts">
      {!isOver && run.kind === "workflow" && (
        <button type="button" class="btn" onClick={() => setShown("signal")}>
          Signal…
        </button>
      )}
      {!isOver && (run.state === "paused" ? button("resume") : button("pause"))}
      {canRetry && button("retry")}
      {waitsToRetry && button("hurry")}
      {run.kind === "workflow" && (
        <button type="button" class="btn" onClick={() => setShown("fork")}>
          Fork…
        </button>
      )}
      {!isOver && button("cancel", true)}
      <Menu label="More" items={more} />
      {act && shown && (
        <ActDialog
          title={`${act.label} ${run.id}`}
          verb={act.label}
          danger={act.danger ?? false}
          needsReason={act.needsReason ?? false}
          act={async (reason) => {
            await actOnRun(run.run_id, shown === "hurry" ? "retry" : shown, reason ? { reason } : {});
            say(`${run.id} ${act.done}.`);
            onDone();
          }}
          onClose={close}
        >
          <p>{act.says}</p>
        </ActDialog>
      )}
      {(shown === "signal" || shown === "update" || shown === "query") && (
        <MessageDialog run={run} kind={shown satisfies MessageKind} takes={takes} seen={seenNames(timeline, shown)} onClose={close} />
      )}
      {shown === "fork" && <ForkDialog run={run} step={null} input={run.input} onClose={close} />}
      {shown === "reveal" && (
        <ActDialog
          title="Reveal what is redacted"
          verb="Reveal"
          needsReason
          act={(reason) => {
            onReveal(reason);
            return Promise.resolve();
          }}
          onClose={close}
        >
          <p>Input, results and errors are shown whole until you leave this page. The audit log says that you did, and why.</p>
        </ActDialog>
      )}
      {shown === "delete" && (
        <ActDialog
          title={`Delete ${run.id}`}
          verb="Delete"
          danger
          needsReason
          act={async (reason) => {
            await deleteRun(run.run_id, reason);
            say(`Deleted ${run.id}.`);
            navigate("/runs");
          }}
          onClose={close}
        >
          <p>The run, its journal and its attempts are removed for good.</p>
        </ActDialog>
      )}
    </div>
  );
}

function seenNames(timeline: Timeline, kind: string): string[] {
  return [...new Set(timeline.steps.filter((step) => step.kind === kind && step.name).map((step) => step.name))].slice(0, 20);
}
