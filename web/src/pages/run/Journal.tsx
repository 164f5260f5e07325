import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { Command, Entry, RunDetail } from "../../api/types";
import { ActDialog } from "../../components/ActDialog";
import { Loading, NotBegun, Trouble } from "../../components/Empty";
import { ForkDialog } from "../../components/ForkDialog";
import { JsonValue } from "../../components/JsonValue";
import { FailureText } from "../../components/StepDetail";
import { actOnRun } from "../../api/endpoints";
import { failureKind } from "../../lib/failures";
import { brief } from "../../lib/json";
import { duration, millis } from "../../lib/time";
import { useJournal } from "../../state/journal";
import { useListKeys } from "../../state/keys";
import { may, session } from "../../state/session";
import { useStore } from "../../state/store";
import { say } from "../../state/toasts";
import { VirtualList } from "../../components/VirtualList";

const ROW = 38;

/** Every entry: what came in, and what the code did then. */
export function JournalTab({ run }: { run: RunDetail }): JSX.Element {
  const who = useStore(session);
  const { entries, error, isWhole } = useJournal(run.run_id, run.entries);
  const [shown, setShown] = useState<number | null>(null);
  const [act, setAct] = useState<"fork" | "reset" | null>(null);
  const [at, setAt] = useListKeys(entries.length, (index) => setShown(entries[index]?.ord ?? null));
  useEffect(() => setAct(null), [shown]);
  if (error) return <Trouble error={error} />;
  if (run.entries === 0) return <NotBegun />;
  if (!entries.length) return <Loading />;
  const start = millis(entries[0]?.at) ?? 0;
  const chosen = entries.find((entry) => entry.ord === shown);
  return (
    <div class={`timeline-grid ${chosen ? "" : "alone"}`}>
      <section class="card" aria-label="Journal">
        <div class="j-row j-head">
          <span class="n">Entry</span>
          <span class="n hide-s">After</span>
          <span>What came in</span>
          <span class="hide-m">Then issued</span>
        </div>
        <VirtualList
          count={entries.length}
          rowHeight={ROW}
          focus={at}
          render={(index) => {
            const entry = entries[index] as Entry;
            return (
              <button
                key={entry.ord}
                type="button"
                class={`j-row plain ${index === at || entry.ord === shown ? "on" : ""}`}
                onClick={() => {
                  setAt(index);
                  setShown(entry.ord === shown ? null : entry.ord);
                }}
              >
                <span class="n mono faint">{entry.ord}</span>
                <span class="n dim hide-s">{duration(((millis(entry.at) ?? start) - start) / 1000)}</span>
                <span class="clip">
                  <b class={tone(entry.kind)}>{entry.kind.replaceAll("_", " ")}</b> {entry.body.name} <span class="dim mono">{valueOf(entry)}</span>
                </span>
                <span class="clip dim hide-m">{(entry.body.commands ?? []).map(commandText).join(" · ")}</span>
              </button>
            );
          }}
        />
        {!isWhole && <div class="list-foot">Loading more…</div>}
      </section>
      {chosen && (
        <aside class="card detail" aria-label={`Entry ${chosen.ord}`}>
          <header>
            <h2>
              Entry {chosen.ord} · {chosen.kind.replaceAll("_", " ")} {chosen.body.name}
            </h2>
          </header>
          {chosen.body.error && (
            <div class="section">
              <h3>Error</h3>
              <FailureText failure={chosen.body.error} />
            </div>
          )}
          {chosen.body.value !== undefined && (
            <div class="section">
              <h3>Value</h3>
              <JsonValue value={chosen.body.value} />
            </div>
          )}
          {(chosen.body.commands ?? []).length > 0 && (
            <div class="section">
              <h3>Then issued</h3>
              {(chosen.body.commands ?? []).map((command) => (
                <div key={command.seq} class="stack">
                  <span>
                    <b>
                      {command.seq} {command.kind.replaceAll("_", " ")}
                    </b>{" "}
                    {command.name}
                  </span>
                  {command.error && <FailureText failure={command.error} />}
                  {command.value !== undefined && <JsonValue value={command.value} />}
                </div>
              ))}
            </div>
          )}
          {run.kind === "workflow" && may("operator", who) && (
            <div class="section row-gap">
              <button type="button" class="btn" onClick={() => setAct("fork")}>
                Fork after this…
              </button>
              <button type="button" class="btn danger" onClick={() => setAct("reset")}>
                Reset to here…
              </button>
            </div>
          )}
        </aside>
      )}
      {act === "fork" && chosen && <ForkDialog run={run} step={null} entry={chosen.ord} input={run.input} onClose={() => setAct(null)} />}
      {act === "reset" && chosen && (
        <ActDialog
          title={`Reset ${run.id} to entry ${chosen.ord}`}
          verb="Reset"
          danger
          needsReason
          act={async (reason) => {
            await actOnRun(run.run_id, "reset", { to: chosen.ord, reason });
            say(`${run.id} goes on from after entry ${chosen.ord}.`);
          }}
          onClose={() => setAct(null)}
        >
          <p>It goes on from after this entry, as another run under the same id. If it is open, it is terminated first. What was called before and has its answer keeps it.</p>
        </ActDialog>
      )}
    </div>
  );
}

function tone(kind: string): string {
  if (/failed|refused|timed_out/.test(kind)) return "tone-fail";
  if (/done|fired|accepted/.test(kind)) return "tone-done";
  if (/cancel|terminated/.test(kind)) return "tone-stop";
  return "tone-run";
}

function valueOf(entry: Entry): string {
  if (entry.body.error) return `${failureKind(entry.body.error)}: ${entry.body.error.message}`;
  if (entry.body.value !== undefined) return brief(entry.body.value);
  return entry.body.reason ?? "";
}

function commandText(command: Command): string {
  if (command.error) return `${command.seq} ${command.kind} ${failureKind(command.error)}`;
  return [command.seq, command.kind.replaceAll("_", " "), command.name, command.kind === "activity" ? brief(command.value, 40) : ""].filter(Boolean).join(" ");
}
