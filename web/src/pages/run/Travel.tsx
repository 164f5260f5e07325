import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import type { RunDetail } from "../../api/types";
import { Loading, NotBegun, Trouble } from "../../components/Empty";
import { Icon } from "../../components/Icon";
import { JsonValue } from "../../components/JsonValue";
import { FailureText } from "../../components/StepDetail";
import { Clock } from "../../components/Time";
import { brief } from "../../lib/json";
import { duration, millis } from "../../lib/time";
import { momentAt } from "../../lib/travel";
import { useJournal } from "../../state/journal";
import { useKeys } from "../../state/keys";

/** Step through the journal: what the run knew, and what it waited for, after each entry. */
export function TravelTab({ run }: { run: RunDetail }): JSX.Element {
  const { entries, error } = useJournal(run.run_id, run.entries);
  const [place, setPlace] = useState<number | null>(null);
  const last = entries.length - 1;
  const index = Math.max(0, Math.min(place ?? last, last));
  const ord = entries[index]?.ord ?? 0;
  const moment = useMemo(() => momentAt(entries, ord), [entries, ord]);
  const go = (step: number): void => setPlace(Math.max(0, Math.min(index + step, last)));
  useKeys({ "[": () => go(-1), "]": () => go(1), ArrowLeft: () => go(-1), ArrowRight: () => go(1) });
  if (error) return <Trouble error={error} />;
  if (run.entries === 0) return <NotBegun />;
  if (!moment) return <Loading />;
  const after = ((millis(moment.at) ?? 0) - (millis(entries[0]?.at) ?? 0)) / 1000;
  return (
    <div class="stack">
      <section class="card travel-bar">
        <button type="button" class="icon-btn" aria-label="One entry back" title="back ([)" disabled={index === 0} onClick={() => go(-1)}>
          <Icon name="left" />
        </button>
        <input type="range" class="grow" min={0} max={Math.max(last, 0)} value={index} aria-label="Entry" onInput={(event) => setPlace(event.currentTarget.valueAsNumber)} />
        <button type="button" class="icon-btn" aria-label="One entry on" title="on (])" disabled={index === last} onClick={() => go(1)}>
          <Icon name="right" />
        </button>
        <span class="nowrap">
          entry <b>{moment.ord}</b> of {run.entries - 1}
        </span>
        <span class="dim nowrap hide-s">
          <Clock at={moment.at} />, after {duration(after)}
        </span>
      </section>
      <div class="travel-grid">
        <section class="card">
          <header>
            <h2>Came in: {moment.input.kind.replaceAll("_", " ")} {moment.input.name}</h2>
          </header>
          <div class="body stack">
            {moment.input.error && <FailureText failure={moment.input.error} />}
            {moment.input.value !== undefined && <JsonValue value={moment.input.value} />}
            <h3>Then the code issued</h3>
            {moment.issued.length === 0 && <p class="faint">Nothing: it waits on.</p>}
            <ul class="plain-list">
              {moment.issued.map((command) => (
                <li key={command.seq}>
                  <span class="faint mono">{command.seq}</span> <b>{command.kind.replaceAll("_", " ")}</b> {command.name} <span class="mono dim wrap-any">{command.error ? command.error.message : brief(command.value, 120)}</span>
                </li>
              ))}
            </ul>
          </div>
        </section>
        <section class="card">
          <header>
            <h2>Awaited here</h2>
            <span class="faint small">{moment.awaited.length}</span>
          </header>
          <div class="body stack">
            {moment.ended && <p>The run ended here: {moment.ended.kind}.</p>}
            {!moment.ended && moment.awaited.length === 0 && <p class="faint">No call is open: it waits for a message.</p>}
            {moment.awaited.slice(0, 200).map((call) => (
              <div key={call.seq} class="stack tight">
                <span>
                  <span class="faint mono">{call.seq}</span> <b>{call.kind === "activity" ? call.name : `${call.kind} ${call.name}`}</b> <span class="faint small">since entry {call.entry}</span>
                </span>
                {call.input !== null && <JsonValue value={call.input} />}
              </div>
            ))}
          </div>
        </section>
        <section class="card">
          <header>
            <h2>Known here</h2>
            <span class="faint small">{moment.known.length}</span>
          </header>
          <div class="body stack">
            {moment.known.length === 0 && <p class="faint">Only its input.</p>}
            {moment.known
              .slice(-200)
              .reverse()
              .map((one) => (
                <div key={one.entry} class="stack tight">
                  <span>
                    <span class="faint mono">{one.entry}</span> <b>{one.name || one.kind.replaceAll("_", " ")}</b> <span class="faint small">{one.kind.replaceAll("_", " ")}</span>
                  </span>
                  {one.error && <span class="tone-fail wrap-any">{one.error.message}</span>}
                  {one.value !== undefined && <JsonValue value={one.value} />}
                </div>
              ))}
            {Object.keys(moment.published).length > 0 && (
              <>
                <h3>Published</h3>
                <JsonValue value={moment.published} />
              </>
            )}
          </div>
        </section>
      </div>
    </div>
  );
}
