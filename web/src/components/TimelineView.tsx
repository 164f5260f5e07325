import type { JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Step, Timeline } from "../api/types";
import { brief } from "../lib/json";
import { segmentLabel, stepLook } from "../lib/states";
import { duration, exact, millis, numberOf } from "../lib/time";
import { type Bar, bars, compressed, failedAttempts, idleSpans, isMostlyIdle, isPoint, linear, type Scale, stepName, ticks, zoomed } from "../lib/timeline";
import { useListKeys } from "../state/keys";
import { Chip, StateChip } from "./StateChip";
import { VirtualList } from "./VirtualList";

const ROW = 38;

interface Props {
  timeline: Timeline;
  now: number;
  /** The place of the chosen step among all steps; -1: none. */
  chosen: number;
  onChoose: (index: number) => void;
}

/** Every step of a run on one scale of time. */
export function TimelineView({ timeline, now, chosen, onChoose }: Props): JSX.Element {
  const start = millis(timeline.segments[0]?.start) ?? millis(timeline.created_at) ?? now;
  const end = Math.max(millis(timeline.closed_at) ?? now, start + 1);
  const idle = useMemo(() => idleSpans(timeline.segments, end), [timeline, end]);
  const couldCompress = isMostlyIdle(idle, start, end);
  const [wantsWaits, setWantsWaits] = useState<boolean | null>(null);
  const [zoom, setZoom] = useState<{ from: number; to: number } | null>(null);
  const [find, setFind] = useState("");
  const [onlyTrouble, setOnlyTrouble] = useState(false);
  const isCompressed = wantsWaits === null ? couldCompress : !wantsWaits;

  const scale = useMemo(() => {
    const whole = isCompressed ? compressed(start, end, idle) : linear(start, end);
    return zoom ? zoomed(whole, zoom.from, zoom.to) : whole;
  }, [start, end, idle, isCompressed, zoom]);
  const rows = useMemo(() => shownSteps(timeline.steps, find, onlyTrouble), [timeline.steps, find, onlyTrouble]);
  const hasTrouble = useMemo(() => timeline.steps.some(isTrouble), [timeline.steps]);
  const [at, setAt] = useListKeys(rows.length, (index) => onChoose(rows[index] ?? -1));
  useEffect(() => {
    const index = rows[at];
    if (at >= 0 && index !== undefined) onChoose(index);
  }, [at]);
  const kinds = Object.keys(timeline.seconds);

  return (
    <section class="card timeline" aria-label="Timeline">
      {(timeline.steps.length > 12 || couldCompress || zoom || hasTrouble) && (
        <div class="timeline-tools">
          {timeline.steps.length > 12 && (
            <input class="input" type="search" placeholder={`Find among ${numberOf(timeline.steps.length, "step")}`} aria-label="Find a step" value={find} onInput={(event) => setFind(event.currentTarget.value)} />
          )}
          {hasTrouble && (
            <label class="check small">
              <input type="checkbox" checked={onlyTrouble} onChange={(event) => setOnlyTrouble(event.currentTarget.checked)} />
              only what failed or retried
            </label>
          )}
          {couldCompress && (
            <label class="check small">
              <input type="checkbox" checked={isCompressed} onChange={(event) => setWantsWaits(!event.currentTarget.checked)} />
              shorten long waits
            </label>
          )}
          {zoom && (
            <button type="button" class="btn slim" onClick={() => setZoom(null)}>
              Whole run
            </button>
          )}
        </div>
      )}
      <Axis scale={scale} origin={start} onZoom={(from, to) => setZoom({ from, to })} />
      <div class="t-row t-run">
        <div class="t-name">
          <b>run</b>
          <span class="faint small">{duration((end - start) / 1000)}</span>
        </div>
        <Track bars={bars(timeline.segments, scale, now)} scale={scale} />
        <div class="t-state hide-s">
          <StateChip state={timeline.state} />
        </div>
      </div>
      {rows.length === 0 && <div class="list-foot">{timeline.steps.length ? "No step matches." : "It has not begun: no worker has taken it yet."}</div>}
      <VirtualList
        count={rows.length}
        rowHeight={ROW}
        focus={at}
        role="list"
        label="Steps"
        render={(place) => {
          const index = rows[place] ?? 0;
          const step = timeline.steps[index];
          if (!step) return <div key={index} />;
          return (
            <StepRow
              key={index}
              step={step}
              scale={scale}
              now={now}
              isOn={index === chosen}
              onChoose={() => {
                setAt(place);
                onChoose(index);
              }}
            />
          );
        }}
      />
      <div class="legend small faint" aria-hidden="true">
        {legend(kinds, timeline.steps).map((kind) => (
          <span key={kind}>
            <i class={`seg ${kind}`} />
            {segmentLabel(kind)}
            {timeline.seconds[kind] !== undefined && <span>{duration(timeline.seconds[kind] ?? 0)}</span>}
          </span>
        ))}
      </div>
    </section>
  );
}

function isTrouble(step: Step): boolean {
  return step.tries > 1 || step.error !== null || step.state === "failed" || step.segments.at(-1)?.kind === "backoff";
}

/** The places of the steps to show. */
function shownSteps(steps: readonly Step[], find: string, onlyTrouble: boolean): number[] {
  const wanted = find.trim().toLowerCase();
  const found: number[] = [];
  for (const [index, step] of steps.entries()) {
    if (onlyTrouble && !isTrouble(step)) continue;
    if (wanted && !`${step.seq} ${stepName(step)} ${step.to}`.toLowerCase().includes(wanted)) continue;
    found.push(index);
  }
  return found;
}

function legend(kinds: readonly string[], steps: readonly Step[]): string[] {
  const found = new Set<string>(kinds);
  for (const step of steps.slice(0, 500)) {
    for (const one of step.segments) found.add(one.kind);
    if (step.attempts.some((one) => one.error !== null)) found.add("failed");
  }
  const order = ["running", "failed", "lost", "backoff", "queued", "child", "asleep", "outside", "waiting", "delayed", "paused", "parked"];
  return order.filter((kind) => found.has(kind));
}

function StepRow({ step, scale, now, isOn, onChoose }: { step: Step; scale: Scale; now: number; isOn: boolean; onChoose: () => void }): JSX.Element {
  const doing = step.segments.at(-1);
  const look = stepLook(step.state, doing?.end === null ? doing.kind : undefined);
  const name = stepName(step);
  return (
    <div class={`t-row ${isOn ? "on" : ""} ${step.kept ? "kept" : ""}`} role="listitem">
      <button type="button" class="t-name plain" onClick={onChoose} aria-pressed={isOn} title={name}>
        <span class="faint mono">{step.seq || "·"}</span>
        <span class="strong clip">{name}</span>
        {step.tries > 1 && (
          <span class="tries" title={numberOf(step.tries, "attempt")}>
            ×{step.tries}
          </span>
        )}
      </button>
      <div class="t-hit" onClick={onChoose}>
        {step.kept && !step.segments.length ? (
          <div class="track" />
        ) : isPoint(step) ? (
          <Mark step={step} scale={scale} />
        ) : (
          <Track bars={bars(step.segments, scale, now, step.attempts.length ? failedAttempts(step) : undefined)} scale={scale} />
        )}
      </div>
      <div class="t-state hide-s">{step.kept ? <span class="faint small">kept</span> : <Chip look={look} />}</div>
    </div>
  );
}

function Track({ bars: shown, scale }: { bars: Bar[]; scale: Scale }): JSX.Element {
  return (
    <div class="track">
      {scale.breaks.map((one) =>
        one.to > 0 && one.from < 1 ? (
          <span key={one.from} class="break" style={{ left: `${((one.from + one.to) / 2) * 100}%` }} title={`${duration(one.seconds)} are drawn short`} />
        ) : null,
      )}
      {shown.map((bar, index) => (
        <i
          key={index}
          class={`seg ${bar.kind} ${bar.open ? "open" : ""}`}
          style={{ left: `${bar.left * 100}%`, width: `${bar.width * 100}%` }}
          title={`${segmentLabel(bar.kind)}${bar.attempt ? `, attempt ${bar.attempt}` : ""}`}
        />
      ))}
    </div>
  );
}

/** A step that takes no time. */
function Mark({ step, scale }: { step: Step; scale: Scale }): JSX.Element {
  const at = millis(step.began_at) ?? scale.start;
  const place = scale.place(at);
  if (place < 0 || place > 1.0001) return <div class="track" />;
  const left = `${Math.min(1, place) * 100}%`;
  const said = step.error ? step.error.message : step.kind === "start" ? "" : brief(step.kind === "end" ? step.output : step.input, 60);
  return (
    <div class="track">
      <i class={`mark ${step.error ? "fail" : step.kind}`} style={{ left }} title={`${stepName(step)}, ${exact(at)}`} />
      {said && said !== "null" && (
        <span class={`mark-text mono ${place > 0.6 ? "before" : ""}`} style={place > 0.6 ? { right: `${(1 - Math.min(1, place)) * 100}%` } : { left }}>
          {said}
        </span>
      )}
    </div>
  );
}

/** The scale. Dragging over it zooms. */
function Axis({ scale, origin, onZoom }: { scale: Scale; origin: number; onZoom: (from: number, to: number) => void }): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  const [drag, setDrag] = useState<{ from: number; to: number } | null>(null);
  const place = (event: PointerEvent): number => {
    const rect = box.current?.getBoundingClientRect();
    return rect ? Math.min(1, Math.max(0, (event.clientX - rect.left) / rect.width)) : 0;
  };
  const narrow = (box.current?.clientWidth ?? 600) < 320;
  const marks = ticks(scale, origin, narrow ? 4 : 7);
  return (
    <div class="t-row axis">
      <div class="t-name faint small">step</div>
      <div
        ref={box}
        class="ticks"
        title="drag to zoom"
        onPointerDown={(event) => {
          event.currentTarget.setPointerCapture(event.pointerId);
          const at = place(event);
          setDrag({ from: at, to: at });
        }}
        onPointerMove={(event) => drag && setDrag({ ...drag, to: place(event) })}
        onPointerUp={() => {
          if (drag && Math.abs(drag.to - drag.from) > 0.01) {
            onZoom(scale.time(Math.min(drag.from, drag.to)), scale.time(Math.max(drag.from, drag.to)));
          }
          setDrag(null);
        }}
      >
        {marks.map((tick, index) => (
          <span key={index} class={tick.place < 0.02 ? "first" : tick.place > 0.97 ? "last" : ""} style={{ left: `${tick.place * 100}%` }}>
            {tick.label}
          </span>
        ))}
        {drag && <i class="brush" style={{ left: `${Math.min(drag.from, drag.to) * 100}%`, width: `${Math.abs(drag.to - drag.from) * 100}%` }} />}
      </div>
      <div class="hide-s" />
    </div>
  );
}
