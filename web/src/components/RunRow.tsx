import type { JSX } from "preact";
import { memo } from "preact/compat";
import type { Run } from "../api/types";
import { numberOf } from "../lib/time";
import { Link, runPath } from "../state/router";
import { StateChip } from "./StateChip";
import { Ago, Took } from "./Time";

export const RUN_ROW = 39;

interface Props {
  run: Run;
  isOn: boolean;
  isSelected: boolean;
  onSelect: () => void;
}

/** A run in a list. The whole row opens it. */
function Row({ run, isOn, isSelected, onSelect }: Props): JSX.Element {
  const tags = Object.entries(run.tags);
  return (
    <div class={`run-row ${isOn ? "on" : ""} ${isSelected ? "selected" : ""}`}>
      <span class="cell-check">
        <input type="checkbox" aria-label={`Select ${run.id}`} checked={isSelected} onChange={onSelect} />
      </span>
      <span>
        <StateChip state={run.state} />
      </span>
      <span class="clip">
        <Link class="run-link mono" to={runPath(run.run_id)} title={run.id}>
          {run.id}
        </Link>
        {run.deaths > 0 && (
          <span class="tries" title={`${numberOf(run.deaths, "worker")} died running it`}>
            {run.deaths} died
          </span>
        )}
      </span>
      <span class="clip strong hide-m" title={run.workflow}>
        {run.workflow}
        {run.kind === "job" && <span class="faint"> job</span>}
      </span>
      <span class="clip mono dim hide-m">{run.queue}</span>
      <span class="row-tags hide-l" title={tags.map(([key, value]) => `${key}=${value}`).join("\n")}>
        {tags.slice(0, 3).map(([key, value]) => (
          <span key={key} class="tag">
            {key}={value}
          </span>
        ))}
        {tags.length > 3 && <span class="faint small"> +{tags.length - 3}</span>}
      </span>
      <span class="n dim">
        <Ago at={run.created_at} />
      </span>
      <span class="n dim hide-s">
        <Took from={run.created_at} to={run.closed_at} />
      </span>
    </div>
  );
}

export const RunRow = memo(Row, (a: Props, b: Props) => a.run === b.run && a.isOn === b.isOn && a.isSelected === b.isSelected);
