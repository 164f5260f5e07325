import type { JSX, RefObject } from "preact";
import { useEffect, useState } from "preact/hooks";
import { isUnfiltered, type RunFilters } from "../lib/filters";
import { RUN_STATES, runLook } from "../lib/states";
import { compact } from "../lib/time";
import { StateShape } from "./Icon";

const TIMES: [string, string][] = [
  ["", "any time"],
  ["5m", "last 5 min"],
  ["1h", "last hour"],
  ["24h", "last day"],
  ["7d", "last week"],
  ["30d", "last 30 days"],
];

const KINDS: [string, string][] = [
  ["any", "all kinds"],
  ["workflow", "workflows"],
  ["job", "jobs"],
  ["activity", "activities"],
];

interface Props {
  filters: RunFilters;
  states: Record<string, number> | null;
  onChange: (next: Partial<RunFilters>) => void;
  onClear: () => void;
  search: RefObject<HTMLInputElement | null>;
}

/** Filters of the list of runs. Each of them stands in the address. */
export function RunFilterBar({ filters, states, onChange, onClear, search }: Props): JSX.Element {
  const toggle = (state: string): void => {
    const has = filters.states.includes(state);
    onChange({ states: has ? filters.states.filter((one) => one !== state) : [...filters.states, state] });
  };
  const shown = RUN_STATES.filter((state) => filters.states.includes(state) || (states?.[state] ?? 0) > 0 || state === "running" || state === "failed");
  return (
    <div class="filters">
      <div class="state-filter" role="group" aria-label="State">
        <button type="button" class={`state-btn ${filters.states.length ? "" : "on"}`} aria-pressed={!filters.states.length} onClick={() => onChange({ states: [] })}>
          All
          {states && <span class="n">{compact(Object.values(states).reduce((sum, one) => sum + one, 0))}</span>}
        </button>
        {shown.map((state) => {
          const look = runLook(state);
          const isOn = filters.states.includes(state);
          return (
            <button key={state} type="button" class={`state-btn ${isOn ? "on" : ""}`} aria-pressed={isOn} onClick={() => toggle(state)}>
              <span class={`tone-${look.tone}`}>
                <StateShape {...look} />
              </span>
              {look.label}
              {states && <span class="n">{compact(states[state] ?? 0)}</span>}
            </button>
          );
        })}
      </div>
      <div class="filter-fields">
        <Text label="Id begins with" value={filters.idPrefix} onChange={(idPrefix) => onChange({ idPrefix })} search={search} wide />
        <Text label="Workflow or job" value={filters.name} onChange={(name) => onChange({ name })} />
        <Text label="Queue" value={filters.queue} onChange={(queue) => onChange({ queue })} />
        <Text label="Tag, as key=value" value={filters.tags.join(" ")} onChange={(text) => onChange({ tags: text.split(/\s+/).filter((tag) => /^[^=]+=/.test(tag)) })} />
        <Choice label="Kind" value={filters.kind} options={KINDS} onChange={(kind) => onChange({ kind })} />
        <Choice label="Started" value={filters.since} options={TIMES} onChange={(since) => onChange({ since })} />
        <label class="check small">
          <input type="checkbox" checked={filters.retrying} onChange={(event) => onChange({ retrying: event.currentTarget.checked })} />
          retrying
        </label>
        {!isUnfiltered(filters) && (
          <button type="button" class="btn slim" onClick={onClear}>
            Clear
          </button>
        )}
      </div>
    </div>
  );
}

function Text(props: { label: string; value: string; onChange: (text: string) => void; search?: RefObject<HTMLInputElement | null>; wide?: boolean }): JSX.Element {
  const [text, setText] = useState(props.value);
  useEffect(() => setText(props.value), [props.value]);
  useEffect(() => {
    if (text.trim() === props.value) return undefined;
    const timer = setTimeout(() => props.onChange(text.trim()), 350);
    return () => clearTimeout(timer);
  }, [text]);
  return (
    <input
      class={`input ${props.wide ? "wide" : ""}`}
      {...(props.search ? { ref: props.search } : {})}
      type="search"
      placeholder={props.label}
      aria-label={props.label}
      value={text}
      spellcheck={false}
      autocomplete="off"
      onInput={(event) => setText(event.currentTarget.value)}
      onKeyDown={(event) => {
        if (event.key === "Enter") props.onChange(text.trim());
        if (event.key === "Escape") event.currentTarget.blur();
      }}
    />
  );
}

function Choice(props: { label: string; value: string; options: [string, string][]; onChange: (value: string) => void }): JSX.Element {
  const isKnown = props.options.some(([value]) => value === props.value);
  const options = isKnown ? props.options : [...props.options, [props.value, props.value] as [string, string]];
  return (
    <select class="input" aria-label={props.label} value={props.value} onChange={(event) => props.onChange(event.currentTarget.value)}>
      {options.map(([value, label]) => (
        <option key={value} value={value} selected={value === props.value}>
          {label}
        </option>
      ))}
    </select>
  );
}
