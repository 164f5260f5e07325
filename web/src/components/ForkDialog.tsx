import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { forkRun } from "../api/endpoints";
import type { Json, Run, Step } from "../api/types";
import { stepName } from "../lib/timeline";
import { navigate, runPath } from "../state/router";
import { say } from "../state/toasts";
import { ActDialog } from "./ActDialog";
import { JsonField } from "./SchemaForm";

type How = "again" | "input" | "output" | "args" | "entry";

interface Props {
  run: Run;
  /** Fork at this step; without: at an entry. */
  step: Step | null;
  entry?: number;
  input: Json;
  onClose: () => void;
}

/** A new run with what this one has done so far, and something different from here on. */
export function ForkDialog({ run, step, entry, input, onClose }: Props): JSX.Element {
  const isCall = step !== null && step.seq > 0 && ["activity", "child", "timer"].includes(step.kind);
  const canEditInput = isCall && step.kind !== "timer";
  const [how, setHow] = useState<How>(isCall ? "again" : step?.kind === "start" ? "args" : "entry");
  const [id, setId] = useState(`${run.id}-fork`);
  const [value, setValue] = useState<Json | undefined>(undefined);
  const [at, setAt] = useState(entry ?? step?.entry ?? Math.max(0, run.entries - 1));
  const startingValue = (): Json => (how === "output" ? (step?.output ?? null) : how === "input" ? (step?.input ?? []) : (input ?? []));
  const edited = value === undefined ? startingValue() : value;
  const [isValid, setIsValid] = useState(true);

  const choices: [How, string, boolean][] = [
    ["again", `Run ${step ? stepName(step) : ""} again`, isCall],
    ["input", "Run it again with other arguments", canEditInput],
    ["output", "Give it this result, without running it", isCall && step.kind !== "timer"],
    ["entry", "Keep everything up to an entry", true],
    ["args", "Begin anew with other arguments of the run", true],
  ];
  const act = async (reason: string): Promise<void> => {
    const body: Record<string, unknown> = { id, ...(reason ? { reason } : {}) };
    if (how === "again" && step) body["at"] = step.entry;
    if (how === "entry") body["at"] = at;
    if (how === "input" && step) body["input"] = { [step.seq]: edited };
    if (how === "output" && step) body["output"] = { [step.seq]: edited };
    if (how === "args") body["args"] = edited;
    const made = await forkRun(run.run_id, body);
    say(`Forked ${run.id} as ${made.id}.`, { link: { to: runPath(run.run_id), text: "Back to the run it was made from" } });
    navigate(runPath(made.run_id));
  };
  const needsValue = how === "input" || how === "output" || how === "args";
  return (
    <ActDialog title={`Fork ${run.id}`} verb="Fork" wide disabled={!id.trim() || (needsValue && !isValid)} act={act} onClose={onClose}>
      <p class="dim">A new run begins with what this one has done so far. This one is left as it is.</p>
      <label class="field">
        <span>Id of the new run</span>
        <input class="input" name="fork-id" value={id} autocomplete="off" onInput={(event) => setId(event.currentTarget.value)} />
      </label>
      <fieldset class="fieldset">
        <legend>From here on</legend>
        {choices
          .filter(([, , isPossible]) => isPossible)
          .map(([kind, label]) => (
            <label key={kind} class="check">
              <input
                type="radio"
                name="how"
                checked={how === kind}
                onChange={() => {
                  setHow(kind);
                  setValue(undefined);
                  setIsValid(true);
                }}
              />
              {label}
            </label>
          ))}
      </fieldset>
      {how === "entry" && (
        <label class="field">
          <span>
            Last entry to keep <span class="hint">-1 keeps none; there are entries up to {run.entries - 1}</span>
          </span>
          <input class="input" type="number" min={-1} max={run.entries - 1} value={at} onInput={(event) => setAt(Math.trunc(event.currentTarget.valueAsNumber) || 0)} />
        </label>
      )}
      {needsValue && (
        <JsonField
          key={how}
          label={how === "output" ? "Result" : "Arguments (an array)"}
          value={startingValue()}
          onChange={(next) => {
            setIsValid(next !== undefined);
            setValue(next);
          }}
        />
      )}
    </ActDialog>
  );
}
