import type { JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { actOnFlow, changeFlow, checkFlow, createFlow, type Fault, flow, flowSchema, type FlowStep, type Rehearsal, rehearse, type Workflow } from "../api/flows";
import type { Json } from "../api/types";
import { Loading, Trouble } from "../components/Empty";
import { FlowGraph } from "../components/FlowGraph";
import { JsonValue } from "../components/JsonValue";
import { Chip } from "../components/StateChip";
import { complete, type Completion, type JsonSchema, type Proposal } from "../lib/complete";
import { lineOf, linesOf, pathOf, TEMPLATES, withStep } from "../lib/flow";
import { flowLook } from "../lib/flowStates";
import { numberOf } from "../lib/time";
import { useResource } from "../state/live";
import { askBeforeLeaving, Link, navigate } from "../state/router";
import { may, session } from "../state/session";
import { useStore } from "../state/store";
import { say, sayError } from "../state/toasts";
import { VersionLink } from "./Flows";

const FIRST = { name: "new flow", trigger_type: "invoice_overdue", steps: [TEMPLATES.condition, TEMPLATES.action, TEMPLATES.end] };
/** What takes a field from a draft that its text has no longer. */
const GONE = { description: null, trigger_type: "", trigger: null };
const PAUSE = 350;

/** One version of a flow: its document and its graph, checks, a dry run, publication. */
export default function Flow({ id }: { id: string }): JSX.Element {
  const isNew = id === "new";
  const found = useResource(isNew ? null : `flow ${id}`, (signal) => flow(id, signal));
  if (isNew) return <Editor key="new" workflow={null} reload={() => undefined} versions={null} />;
  if (found.error) return <Trouble error={found.error} retry={found.reload} />;
  if (!found.data) return <Loading />;
  const { workflow, versions } = found.data;
  const links = (
    <span class="row-gap">
      {versions.map((one) => (
        <VersionLink key={one.id} one={one} current={workflow.id} />
      ))}
      {found.data.runs.length > 0 && <span class="faint small">last runs</span>}
      {found.data.runs.map((run) => (
        <Link key={run.id} class="link-quiet" to={`/flow-runs/${run.id}`}>
          <Chip look={flowLook(run.status)} />
        </Link>
      ))}
    </span>
  );
  return <Editor key={`${workflow.id} ${workflow.published_at}`} workflow={workflow} reload={found.reload} versions={links} />;
}

function documentOf(workflow: Workflow | null): string {
  if (!workflow) return JSON.stringify(FIRST, null, 2);
  const { name, description, trigger_type, trigger, steps } = workflow;
  return JSON.stringify({ name, ...(description ? { description } : {}), trigger_type, ...(trigger ? { trigger } : {}), steps }, null, 2);
}

function Editor({ workflow, reload, versions }: { workflow: Workflow | null; reload: () => void; versions: JSX.Element | null }): JSX.Element {
  const canAct = may("operator", useStore(session));
  const isFixed = workflow?.published_at !== null && workflow !== null;
  const [text, setText] = useState(() => documentOf(workflow));
  const kept = useRef(text);
  const shown = useRef(text);
  shown.current = text;
  useEffect(() => askBeforeLeaving(() => shown.current !== kept.current), []);
  const [checked, setChecked] = useState<{ text: string; faults: Fault[] } | null>(null);
  const [steps, setSteps] = useState<FlowStep[]>(workflow?.steps ?? []);
  const [busy, setBusy] = useState(false);
  const [rehearsed, setRehearsed] = useState<{ text: string; found: Rehearsal } | null>(null);
  useEffect(() => {
    if (isFixed) return undefined;
    const timer = setTimeout(() => {
      checkFlow(text).then((answer) => {
        setChecked({ text, faults: answer.faults });
        const document = answer.document as { steps?: FlowStep[] } | null;
        if (Array.isArray(document?.steps)) setSteps(document.steps);
      }, sayError);
    }, PAUSE);
    return () => clearTimeout(timer);
  }, [text, isFixed]);
  const faults = checked?.faults ?? [];
  const isSound = isFixed || (checked?.text === text && faults.length === 0);
  const during = (work: Promise<unknown>): void => {
    setBusy(true);
    work.catch(sayError).finally(() => setBusy(false));
  };
  const save = async (): Promise<Workflow> => {
    const document = JSON.parse(text) as Record<string, Json>;
    const made = await (workflow ? changeFlow(workflow.id, { ...GONE, ...document }) : createFlow(document));
    kept.current = text;
    return made;
  };
  const publish = async (): Promise<void> => {
    const draft = await save();
    try {
      const made = await actOnFlow(draft.id, "publish");
      saved(made, `Version ${made.version} is published.`);
    } catch (error) {
      if (!workflow) navigate(`/flows/${draft.id}`); // once more is not to make another draft
      throw error;
    }
  };
  const saved = (made: Workflow, words: string): void => {
    say(words, { tone: "done" });
    if (made.id === workflow?.id) reload();
    else navigate(`/flows/${made.id}`);
  };
  const act = (verb: "versions" | "activate" | "deactivate", words: string): void => {
    if (workflow) during(actOnFlow(workflow.id, verb).then((made) => saved(made, words)));
  };
  return (
    <>
      <div class="page-head">
        <div>
          <h1>{workflow ? `${workflow.name} v${workflow.version}` : "New flow"}</h1>
          <p>{versions ?? "A JSON document: what happens, step by step, after an event."}</p>
        </div>
        {canAct && (
          <span class="row-gap">
            {!isFixed && (
              <>
                <button type="button" class="btn" disabled={!isSound || busy} onClick={() => during(save().then((made) => saved(made, "The draft is saved.")))}>
                  Save draft
                </button>
                <button type="button" class="btn go" disabled={!isSound || busy} onClick={() => during(publish())}>
                  Publish
                </button>
              </>
            )}
            {isFixed && workflow && (
              <>
                <button type="button" class="btn" disabled={busy} onClick={() => (workflow.is_active ? act("deactivate", "Events no longer start it.") : act("activate", "Events start it from now on."))}>
                  {workflow.is_active ? "Deactivate" : "Activate"}
                </button>
                <button type="button" class="btn go" disabled={busy} onClick={() => act("versions", "A new draft was made.")}>
                  New version
                </button>
              </>
            )}
          </span>
        )}
      </div>
      <div class="flow-sides">
        <section class="card">
          <header>
            <h2>Document</h2>
            {!isFixed && (
              <label class="flow-add small">
                Add step
                <select
                  class="input"
                  value=""
                  onChange={(event) => {
                    const type = event.currentTarget.value;
                    event.currentTarget.value = "";
                    try {
                      setText(withStep(text, type));
                    } catch {
                      say("The document is no JSON yet: mend it first.", { tone: "fail" });
                    }
                  }}
                >
                  <option value="">…</option>
                  {Object.keys(TEMPLATES).map((type) => (
                    <option key={type}>{type}</option>
                  ))}
                </select>
              </label>
            )}
          </header>
          <TextEditor text={text} faults={faults} fixed={isFixed} onChange={setText} />
        </section>
        <div class="flow-side">
          <section class="card">
            <header>
              <h2>Graph</h2>
              <span class={isSound ? "tone-done small" : "tone-fail small"} role="status">
                {isFixed ? "published: it never changes" : !checked || checked.text !== text ? "checking…" : faults.length ? numberOf(faults.length, "fault") : "sound"}
              </span>
            </header>
            <div class="body">
              <FlowGraph steps={steps} {...(rehearsed?.text === text ? { taken: pathOf(rehearsed.found.steps) } : {})} />
            </div>
          </section>
          <DryRun text={text} ready={isSound} found={rehearsed?.found ?? null} onFound={(found) => setRehearsed({ text, found })} />
        </div>
      </div>
    </>
  );
}

interface Offer extends Completion {
  chosen: number;
  left: number;
  top: number;
}

const LINE = 20;
const PADDING = 10;

/** Where, in its editor, the line below an offset of a text field begins: its font has letters of one width. */
function placeOf(field: HTMLTextAreaElement, at: number): { left: number; top: number } {
  const lines = field.value.slice(0, at).split("\n");
  const context = document.createElement("canvas").getContext("2d");
  if (context) context.font = getComputedStyle(field).font;
  const letter = context?.measureText("m").width ?? 8;
  const left = field.offsetLeft + PADDING + (lines[lines.length - 1]?.length ?? 0) * letter - field.scrollLeft;
  return { left: Math.max(field.offsetLeft, Math.min(left, field.offsetLeft + field.clientWidth - 200)), top: field.offsetTop + PADDING + lines.length * LINE - field.scrollTop };
}

/** A text field with line numbers; lines with faults are marked, and say why. */
function TextEditor({ text, faults, fixed, onChange }: { text: string; faults: Fault[]; fixed: boolean; onChange: (text: string) => void }): JSX.Element {
  const gutter = useRef<HTMLDivElement>(null);
  const area = useRef<HTMLTextAreaElement>(null);
  const [schema, setSchema] = useState<JsonSchema | null>(null);
  const [offered, setOffered] = useState<Offer | null>(null);
  useEffect(() => {
    if (!fixed) flowSchema().then((answer) => setSchema(answer.schema), sayError);
  }, [fixed]);
  const offer = (): void => {
    const field = area.current;
    const found = field && schema && field.selectionStart === field.selectionEnd ? complete(field.value, field.selectionStart, schema) : null;
    setOffered(field && found ? { ...found, chosen: 0, ...placeOf(field, found.from) } : null);
  };
  const take = (one: Proposal): void => {
    const field = area.current;
    if (!field || !offered) return;
    field.setRangeText(one.insert, offered.from, offered.to, "end");
    const opened = /(""|\{\}|\[\])$/.test(one.insert) && one.insert.length > 2;
    if (opened) field.selectionStart = field.selectionEnd = field.selectionEnd - 1;
    setOffered(null);
    field.focus();
    onChange(field.value);
  };
  const choose = (event: KeyboardEvent): boolean => {
    if (!offered) return false;
    const many = offered.proposals.length;
    const one = offered.proposals[offered.chosen];
    if (event.key === "ArrowDown" || event.key === "ArrowUp") setOffered({ ...offered, chosen: (offered.chosen + (event.key === "ArrowDown" ? 1 : many - 1)) % many });
    else if (event.key === "Escape") setOffered(null);
    else if ((event.key === "Enter" || event.key === "Tab") && one) take(one);
    else return false;
    event.preventDefault();
    return true;
  };
  const goTo = (line: number): void => {
    const field = area.current;
    if (!field) return;
    const begin = field.value.split("\n").slice(0, line).join("\n").length + (line ? 1 : 0);
    const end = field.value.indexOf("\n", begin);
    field.focus();
    field.setSelectionRange(begin, end < 0 ? field.value.length : end);
    field.scrollTop = Math.max(0, (line - 3) * LINE);
  };
  const count = text.split("\n").length;
  const marked = useMemo(() => {
    const lines = linesOf(text);
    const found = new Map<number, Fault[]>();
    for (const fault of faults) {
      const line = lineOf(fault.path, fault.message, lines);
      found.set(line, [...(found.get(line) ?? []), fault]);
    }
    return found;
  }, [text, faults]);
  return (
    <>
      <div class="flow-editor">
        <div class="flow-gutter mono" ref={gutter} aria-hidden="true">
          {Array.from({ length: count }, (_, line) => (
            <div key={line} class={marked.has(line) ? "bad" : ""} title={marked.get(line)?.map((one) => one.message).join("\n") ?? ""}>
              {line + 1}
            </div>
          ))}
        </div>
        <textarea
          class="mono"
          aria-label="Document of the flow"
          spellcheck={false}
          wrap="off"
          readOnly={fixed}
          value={text}
          ref={area}
          aria-autocomplete="list"
          aria-controls="flow-proposals"
          onInput={(event) => {
            onChange(event.currentTarget.value);
            if ((event as InputEvent).inputType === "insertText" && /["A-Za-z]/.test((event as InputEvent).data ?? "")) offer();
            else setOffered(null);
          }}
          onBlur={() => setOffered(null)}
          onClick={() => setOffered(null)}
          onScroll={(event) => {
            setOffered(null);
            if (gutter.current) gutter.current.scrollTop = event.currentTarget.scrollTop;
          }}
          onKeyDown={(event) => {
            if (fixed || choose(event)) return;
            if (event.key === " " && event.ctrlKey) {
              event.preventDefault();
              offer();
            }
            if (event.key !== "Enter") return;
            const field = event.currentTarget;
            const before = field.value.slice(0, field.selectionStart);
            const indent = /(^|\n)( *)[^\n]*$/.exec(before)?.[2] ?? "";
            if (!indent) return;
            event.preventDefault();
            field.setRangeText(`\n${indent}`, field.selectionStart, field.selectionEnd, "end");
            onChange(field.value);
          }}
        />
        {offered && (
          <ul class="flow-proposals mono" id="flow-proposals" role="listbox" aria-label="Proposals" style={{ left: `${offered.left}px`, top: `${offered.top}px` }}>
            {offered.proposals.map((one, place) => (
              <li
                key={one.label}
                role="option"
                aria-selected={place === offered.chosen}
                title={one.about}
                onMouseDown={(event) => {
                  event.preventDefault();
                  take(one);
                }}
              >
                {one.label} <span class="faint">{one.about}</span>
              </li>
            ))}
          </ul>
        )}
      </div>
      {!fixed && <p class="faint small flow-help">Ctrl+Space proposes what may stand at the cursor.</p>}
      {faults.length > 0 && (
        <ul class="flow-faults" aria-label="Faults">
          {[...marked].sort(([one], [other]) => one - other).flatMap(([line, found]) =>
            found.map((one) => (
              <li key={`${one.path} ${one.message}`}>
                <button type="button" class="plain" onClick={() => goTo(line)}>
                  Line {line + 1}
                </button>{" "}
                <code>{one.path}</code> {one.message}
                {one.hint && <span class="faint"> ({one.hint})</span>}
              </li>
            )),
          )}
        </ul>
      )}
    </>
  );
}

/** The flow on a sample event: nothing is called, kept or waited for. */
function DryRun({ text, ready, found, onFound }: { text: string; ready: boolean; found: Rehearsal | null; onFound: (found: Rehearsal) => void }): JSX.Element {
  const [sample, setSample] = useState('{\n  "amount": 2500\n}');
  const [error, setError] = useState<Error | null>(null);
  const run = (): void => {
    setError(null);
    let payload: Json;
    try {
      payload = JSON.parse(sample) as Json;
    } catch {
      setError(new Error("the payload of the sample event is no JSON"));
      return;
    }
    rehearse(text, payload).then(onFound, setError);
  };
  return (
    <section class="card">
      <header>
        <h2>Dry run</h2>
        <button type="button" class="btn slim" disabled={!ready} onClick={run}>
          Dry run
        </button>
      </header>
      <div class="body">
        <label class="field">
          <span>
            Payload of a sample event <span class="hint">JSON; nothing is called, kept or waited for</span>
          </span>
          <textarea class="input mono" rows={4} spellcheck={false} value={sample} onInput={(event) => setSample(event.currentTarget.value)} />
        </label>
        {error && <Trouble error={error} />}
        {found && (
          <div class="flow-rehearsal">
            <p>
              <Chip look={flowLook(found.status)} /> {found.error}
            </p>
            {found.steps.map((step, place) => (
              <details key={place}>
                <summary>
                  <Chip look={flowLook(step.status)} /> <b>{step.key}</b> <span class="faint">{step.type}</span>
                </summary>
                <div class="faint small">Input</div>
                <JsonValue value={step.input ?? (step.request as Json)} />
                <div class="faint small">Output</div>
                <JsonValue value={step.error ?? step.output} />
              </details>
            ))}
          </div>
        )}
      </div>
    </section>
  );
}
