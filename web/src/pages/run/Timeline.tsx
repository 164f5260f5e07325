import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { RunDetail, Timeline } from "../../api/types";
import { Empty } from "../../components/Empty";
import { ForkDialog } from "../../components/ForkDialog";
import { StepDetail } from "../../components/StepDetail";
import { TimelineView } from "../../components/TimelineView";
import { useKeys } from "../../state/keys";
import { setQuery } from "../../state/router";
import { may, session } from "../../state/session";
import { useStore } from "../../state/store";

/** The timeline, with the chosen step beside it. */
export function TimelineTab({ run, timeline, now, query }: { run: RunDetail; timeline: Timeline; now: number; query: URLSearchParams }): JSX.Element {
  const who = useStore(session);
  const given = query.get("step");
  const [forking, setForking] = useState(false);
  const [preferred] = useState(() => firstTrouble(timeline));
  const chosen = given === null ? preferred : Number(given);
  const choose = (index: number): void => setQuery(new URLSearchParams({ step: String(index) }));
  useKeys({ Escape: () => choose(-1) });
  useEffect(() => setForking(false), [chosen]);
  if (timeline.sealed) {
    return (
      <Empty icon="keys" title="Its journal cannot be read here">
        <p>{timeline.sealed}</p>
      </Empty>
    );
  }
  const step = timeline.steps[chosen];
  return (
    <div class={`timeline-grid ${step ? "" : "alone"}`}>
      <TimelineView timeline={timeline} now={now} chosen={chosen} onChoose={choose} />
      {step && (
        <StepDetail
          key={chosen}
          step={step}
          onClose={() => choose(-1)}
          {...(run.kind === "workflow" && may("operator", who) && !step.kept ? { onFork: () => setForking(true) } : {})}
        />
      )}
      {forking && step && <ForkDialog run={run} step={step} input={run.input} onClose={() => setForking(false)} />}
    </div>
  );
}

/** On wide screens the page opens with the step that an operator would look at. */
function firstTrouble(timeline: Timeline): number {
  if (!matchMedia("(min-width: 1100px)").matches) return -1;
  const { steps } = timeline;
  const failed = steps.findLastIndex((step) => step.state === "failed" && step.kind !== "end");
  if (failed >= 0) return failed;
  const retrying = steps.findIndex((step) => step.state === "open" && step.tries > 1);
  if (retrying >= 0) return retrying;
  const open = steps.findIndex((step) => step.state === "open");
  if (open >= 0) return open;
  return Math.max(0, steps.findLastIndex((step) => step.tries > 1));
}
