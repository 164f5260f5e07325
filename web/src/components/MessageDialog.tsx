import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { actOnRun } from "../api/endpoints";
import type { CodeSchema, Json, MessageInfo, Run } from "../api/types";
import { givenArgs, initialArgs } from "../lib/schema";
import { say } from "../state/toasts";
import { ActDialog } from "./ActDialog";
import { Dialog } from "./Dialog";
import { JsonValue } from "./JsonValue";
import { ArgsForm, JsonField } from "./SchemaForm";

export type MessageKind = "signal" | "update" | "query";

const LISTS = { signal: "signals", update: "updates", query: "queries" } as const;
const SAYS = {
  signal: "The run receives it once, in the order of sending. Nothing is answered.",
  update: "The run takes it or refuses it, and answers.",
  query: "Asks the code of the run; nothing changes.",
};

interface Props {
  run: Run;
  kind: MessageKind;
  takes: CodeSchema | null;
  /** Names that the timeline has. */
  seen: string[];
  onClose: () => void;
}

/** Sends a message to a run: a form made from its type, where a worker published it; JSON where none did. */
export function MessageDialog({ run, kind, takes, seen, onClose }: Props): JSX.Element {
  const known: MessageInfo[] = takes?.[LISTS[kind]] ?? [];
  const names = [...new Set([...known.map((one) => one.name), ...seen])];
  const typesOf = (name: string): MessageInfo["args"] => known.find((one) => one.name === name)?.args ?? null;
  const [name, setName] = useState(names[0] ?? "");
  const [args, setArgs] = useState<Json[] | undefined>(() => initialArgs(typesOf(name) ?? []));
  const [answer, setAnswer] = useState<{ value: Json } | null>(null);
  const parameters = typesOf(name);
  const choose = (next: string): void => {
    setName(next);
    setArgs(initialArgs(typesOf(next) ?? []));
  };
  const act = async (): Promise<void> => {
    const given = givenArgs(parameters ?? [], args ?? []);
    const done = await actOnRun(run.run_id, kind, kind === "signal" ? { name, value: given[0] ?? null } : { name, args: given });
    if (kind === "signal") say(`Sent the signal ${name} to ${run.id}.`);
    else if ("answer" in done) setAnswer({ value: done["answer"] ?? null });
    else say(`${run.id} has the update ${name} and has not answered yet.`, { tone: "run" });
  };
  if (answer) {
    return (
      <Dialog
        title={`Answer to ${name}`}
        onClose={onClose}
        footer={
          <button type="button" class="btn go" onClick={onClose}>
            Close
          </button>
        }
      >
        <JsonValue value={answer.value} />
      </Dialog>
    );
  }
  const verb = { signal: "Send the signal", update: "Send the update", query: "Ask" }[kind];
  return (
    <ActDialog title={`${kind.charAt(0).toUpperCase()}${kind.slice(1)} ${run.id}`} verb={verb} withoutReason disabled={!name.trim() || args === undefined} act={act} onClose={onClose} keepOpen={kind !== "signal"}>
      <p class="dim">{SAYS[kind]}</p>
      <label class="field">
        <span>Name</span>
        <input class="input" name="message-name" list="message-names" value={name} autocomplete="off" onInput={(event) => choose(event.currentTarget.value)} />
        <datalist id="message-names">
          {names.map((one) => (
            <option key={one} value={one} />
          ))}
        </datalist>
      </label>
      {kind === "signal" && !parameters ? (
        <JsonField key={name} label="Value" value={null} onChange={(next) => setArgs(next === undefined ? undefined : [next])} />
      ) : (
        <ArgsForm key={name} parameters={parameters} value={args ?? []} onChange={setArgs} />
      )}
      {parameters?.length === 0 && <p class="faint">It takes no arguments.</p>}
    </ActDialog>
  );
}
