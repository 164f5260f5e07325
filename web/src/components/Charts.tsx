import type { ComponentChildren, JSX } from "preact";
import { useState } from "preact/hooks";
import type { WorkflowSummary } from "../api/types";
import { dotsPath, linePath, niceTop } from "../lib/charts";
import { runLook, type Tone } from "../lib/states";
import { clock, duration, grouped } from "../lib/time";
import { Link, runPath } from "../state/router";

export interface Series {
  name: string;
  tone: Tone;
  values: (number | null)[];
}

const WIDTH = 900;

interface ChartProps {
  times: number[];
  series: Series[];
  height: number;
  format: (value: number) => string;
  label: string;
}

/** Lines over time, with a dot for each value. */
export function LineChart(props: ChartProps): JSX.Element {
  const { series, height } = props;
  const top = niceTop(Math.max(0, ...series.flatMap((one) => one.values.map((value) => value ?? 0))));
  return (
    <Frame {...props} top={top}>
      {series.map((one) => (
        <g key={one.name} class={`tone-${one.tone}`}>
          <path d={linePath(one.values, WIDTH, height, top)} class="chart-stroke" vector-effect="non-scaling-stroke" />
          <path d={dotsPath(one.values, WIDTH, height, top)} class="chart-dots" vector-effect="non-scaling-stroke" />
        </g>
      ))}
    </Frame>
  );
}

/** Bars over time, one series on top of the other. */
export function BarChart(props: ChartProps): JSX.Element {
  const { times, series, height } = props;
  const sums = times.map((_, index) => series.reduce((sum, one) => sum + (one.values[index] ?? 0), 0));
  const top = niceTop(Math.max(0, ...sums));
  const step = WIDTH / Math.max(times.length, 1);
  return (
    <Frame {...props} top={top}>
      {times.map((_, index) => {
        let base = 0;
        return series.map((one) => {
          const value = one.values[index] ?? 0;
          const size = (value / top) * (height - 2);
          base += size;
          return value > 0 ? (
            <rect key={`${index} ${one.name}`} class={`tone-${one.tone}`} fill="currentColor" x={index * step + step * 0.14} width={step * 0.72} y={height - 1 - base} height={Math.max(size, 1.5)} />
          ) : null;
        });
      })}
    </Frame>
  );
}

/** Scale, grid, times, and the numbers of the moment under the pointer. */
function Frame(props: ChartProps & { top: number; children: ComponentChildren }): JSX.Element {
  const { times, series, height, top } = props;
  const [at, setAt] = useState<number | null>(null);
  const last = Math.max(times.length - 1, 1);
  const time = at === null ? undefined : times[at];
  return (
    <div class="chart">
      <div class="chart-scale" aria-hidden="true">
        <span>{props.format(top)}</span>
        <span>{props.format(top / 2)}</span>
        <span>{props.format(0)}</span>
      </div>
      <div
        class="chart-plot"
        onPointerMove={(event) => {
          const rect = event.currentTarget.getBoundingClientRect();
          setAt(Math.max(0, Math.min(last, Math.floor(((event.clientX - rect.left) / rect.width) * times.length))));
        }}
        onPointerLeave={() => setAt(null)}
      >
        <svg viewBox={`0 0 ${WIDTH} ${height}`} width="100%" height={height} preserveAspectRatio="none" role="img" aria-label={props.label}>
          {[0, 0.5, 1].map((share) => (
            <line key={share} x1={0} x2={WIDTH} y1={1 + share * (height - 2)} y2={1 + share * (height - 2)} class="grid-line" vector-effect="non-scaling-stroke" />
          ))}
          {props.children}
        </svg>
        {at !== null && time !== undefined && (
          <>
            <span class="chart-line" style={{ left: `${((at + 0.5) / times.length) * 100}%` }} />
            <div class={`chart-tip ${at > last / 2 ? "left" : ""}`} style={{ left: `${((at + 0.5) / times.length) * 100}%` }}>
              <span class="faint">{clock(time).slice(0, 8)}</span>
              {series.map((one) => (
                <span key={one.name} class={`tone-${one.tone}`}>
                  {one.name} {one.values[at] === null || one.values[at] === undefined ? "–" : props.format(one.values[at])}
                </span>
              ))}
            </div>
          </>
        )}
        <div class="chart-times faint" aria-hidden="true">
          {[0, 0.5, 1].map((share) => {
            const moment = times[Math.round(share * (times.length - 1))];
            return <span key={share}>{moment === undefined ? "" : clock(moment).slice(0, 5)}</span>;
          })}
        </div>
      </div>
    </div>
  );
}

export function Legend({ series }: { series: Series[] }): JSX.Element {
  return (
    <span class="chart-legend small faint">
      {series.map((one) => (
        <span key={one.name}>
          <i class={`swatch tone-${one.tone}`} />
          {one.name}
        </span>
      ))}
    </span>
  );
}

/** The last runs of a workflow: height is duration, colour and cap are the outcome. Each opens its run. */
export function RunBars({ runs }: { runs: WorkflowSummary["last"] }): JSX.Element {
  const longest = Math.max(0.001, ...runs.map((run) => run.seconds ?? 0));
  return (
    <span class="run-bars">
      {[...runs].reverse().map((run) => {
        const look = runLook(run.state);
        const share = run.seconds === null ? 0.5 : Math.sqrt(run.seconds / longest);
        const said = `${run.id}: ${look.label}${run.seconds === null ? "" : `, ${duration(run.seconds)}`}`;
        return (
          <Link key={run.run_id} to={runPath(run.run_id)} class={`bar ${look.tone}`} title={said} aria-label={said} tabIndex={-1}>
            <i style={{ height: `${Math.round(18 + share * 82)}%` }} />
          </Link>
        );
      })}
    </span>
  );
}

/** What is left of something, as a ring. */
export function Ring({ share, tone, label }: { share: number; tone: Tone; label: string }): JSX.Element {
  const length = 2 * Math.PI * 10;
  return (
    <svg class={`ring tone-${tone}`} viewBox="0 0 26 26" role="img" aria-label={label}>
      <title>{label}</title>
      <circle class="ground" cx="13" cy="13" r="10" />
      <circle class="left" cx="13" cy="13" r="10" stroke-dasharray={`${Math.max(0, Math.min(1, share)) * length} ${length}`} transform="rotate(-90 13 13)" />
    </svg>
  );
}

export function count(value: number): string {
  return value < 10 && value % 1 ? value.toFixed(1) : grouped(value);
}
