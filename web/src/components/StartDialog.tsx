import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { codeSchema, enqueueJob, startRun, workflows } from "../api/endpoints";
import type { CodeSchema, Json, WorkflowInfo } from "../api/types";
import { givenArgs, initialArgs } from "../lib/schema";
import { navigate, runPath } from "../state/router";
import { say } from "../state/toasts";
import { ActDialog } from "./ActDialog";
import { Trouble } from "./Empty";
import { ArgsForm } from "./SchemaForm";

/** Start a workflow or a job that a live worker can run: a form made from the types of its arguments, where they are known. */
export function StartDialog({ onClose }: { onClose: () => void }): JSX.Element {
  const [known, setKnown] = useState<WorkflowInfo[] | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const [chosen, setChosen] = useState(0);
  const [id, setId] = useState("");
  const [takes, setTakes] = useState<CodeSchema | null>(null);
  const [input, setInput] = useState<Json[] | undefined>([]);
  const wanted = useRef<WorkflowInfo | null>(null);
  const parameters = takes?.input ?? null;
  useEffect(() => {
    workflows().then(
      (found) => {
        const able = found.workflows.filter((one) => one.kind !== "activity");
        setKnown(able);
        choose(0, able);
      },
      (found: Error) => setError(found),
    );
  }, []);
  const choose = (index: number, able = known): void => {
    setChosen(index);
    setTakes(null);
    setInput([]);
    const one = able?.[index];
    wanted.current = one ?? null;
    if (!one) return;
    codeSchema(one).then(
      (found) => {
        if (wanted.current !== one) return; // another was chosen meanwhile
        setTakes(found);
        setInput(initialArgs(found.input ?? []));
      },
      () => undefined, // no worker has published it: the form takes JSON
    );
  };
  const target = known?.[chosen];
  const act = async (): Promise<void> => {
    if (!target || input === undefined) return;
    const body = { name: target.name, input: givenArgs(parameters ?? [], input), ...(id ? { id } : {}) };
    const made = await (target.kind === "job" ? enqueueJob(body) : startRun(body));
    say(made.is_new ? `Started ${made.id}.` : `${made.id} was there already.`);
    navigate(runPath(made.run_id));
  };
  return (
    <ActDialog title="Start a run" verb="Start" withoutReason disabled={!target || input === undefined} act={act} onClose={onClose}>
      {error && <Trouble error={error} />}
      {known?.length === 0 && <div class="notice">No live worker can run anything. Start one: <code>batuta worker --app MODULE</code></div>}
      <label class="field">
        <span>Workflow or job</span>
        <select class="input" name="workflow" onChange={(event) => choose(event.currentTarget.selectedIndex)}>
          {known?.map((one, index) => (
            <option key={`${one.kind} ${one.name} ${one.version}`} selected={index === chosen}>
              {one.name}
              {one.version ? ` (${one.version})` : ""}
              {one.kind === "job" ? " · job" : ""}
            </option>
          ))}
        </select>
      </label>
      {takes?.about && <p class="dim">{takes.about}</p>}
      {target && <ArgsForm key={`${chosen} ${takes ? "typed" : "free"}`} parameters={parameters} value={input ?? []} onChange={setInput} />}
      <label class="field">
        <span>
          Id <span class="hint">(optional; the same id is started once)</span>
        </span>
        <input class="input" name="id" value={id} autocomplete="off" onInput={(event) => setId(event.currentTarget.value)} />
      </label>
    </ActDialog>
  );
}
