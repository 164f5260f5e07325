import type { JSX } from "preact";
import { useState } from "preact/hooks";
import type { Json, Parameter, Schema } from "../api/types";
import { parseJson, pretty } from "../lib/json";
import { control, initial, resolved } from "../lib/schema";
import { Icon } from "./Icon";

type Change = (value: Json | undefined) => void;

/** A form made from the types of arguments; a JSON field where they are not known. Gives undefined while what stands in it is no value. */
export function ArgsForm({ parameters, value, onChange }: { parameters: readonly Parameter[] | null; value: Json[]; onChange: (value: Json[] | undefined) => void }): JSX.Element {
  const [parts, setParts] = useState<(Json | undefined)[]>(value);
  if (!parameters) return <JsonField label="Arguments" hint="a JSON array" value={value} onChange={(next) => onChange(Array.isArray(next) ? next : undefined)} />;
  const change = (place: number, next: Json | undefined): void => {
    const made = parts.map((before, index) => (index === place ? next : before));
    setParts(made);
    onChange(made.some((one) => one === undefined) ? undefined : (made as Json[]));
  };
  return (
    <>
      {parameters.map((one, place) => (
        <Field key={one.name} schema={one.schema} root={one.schema} label={one.name} optional={!one.required} value={parts[place] ?? null} onChange={(next) => change(place, next)} />
      ))}
    </>
  );
}

function Field(props: { schema: Schema; root: Schema; label: string; value: Json; onChange: Change; optional?: boolean }): JSX.Element {
  const { schema, root, label, value, onChange } = props;
  const { nullable, schema: found } = resolved(schema, root);
  const shown = control(schema, root);
  const hint = schema.description ?? found.description;
  const head = (
    <span>
      {label} {hint && <span class="hint">{hint}</span>}
      {props.optional && <span class="hint"> (optional)</span>}
    </span>
  );
  if (nullable && value === null && shown.kind !== "json") {
    return (
      <div class="field">
        {head}
        <button type="button" class="btn slim" onClick={() => onChange(initial({ ...found, default: undefined as never }, root))}>
          Give a value (it is null)
        </button>
      </div>
    );
  }
  switch (shown.kind) {
    case "text":
      return (
        <label class="field">
          {head}
          <input class="input" name={label} value={typeof value === "string" ? value : ""} onInput={(event) => onChange(event.currentTarget.value)} />
        </label>
      );
    case "number":
      return (
        <label class="field">
          {head}
          <input
            class="input"
            name={label}
            type="number"
            step={shown.whole ? 1 : "any"}
            value={typeof value === "number" ? value : ""}
            onInput={(event) => {
              const typed = event.currentTarget.valueAsNumber;
              onChange(Number.isNaN(typed) || (shown.whole && !Number.isInteger(typed)) ? undefined : typed);
            }}
          />
        </label>
      );
    case "flag":
      return (
        <label class="check">
          <input type="checkbox" name={label} checked={value === true} onChange={(event) => onChange(event.currentTarget.checked)} />
          {label} {hint && <span class="hint">{hint}</span>}
        </label>
      );
    case "choice":
      return (
        <label class="field">
          {head}
          <select class="input" name={label} onChange={(event) => onChange(shown.options[event.currentTarget.selectedIndex] ?? null)}>
            {shown.options.map((option) => (
              <option selected={JSON.stringify(option) === JSON.stringify(value)}>{typeof option === "string" ? option : JSON.stringify(option)}</option>
            ))}
          </select>
        </label>
      );
    case "object":
      return (
        <fieldset class="fieldset">
          <legend>{head}</legend>
          {shown.fields.map((one) => {
            const whole = isObject(value) ? value : {};
            return (
              <Field
                key={one.name}
                schema={one.schema}
                root={root}
                label={one.name}
                optional={!one.required}
                value={whole[one.name] ?? initial(one.schema, root)}
                onChange={(next) => onChange(next === undefined ? undefined : { ...whole, [one.name]: next })}
              />
            );
          })}
        </fieldset>
      );
    case "tuple": {
      const whole = Array.isArray(value) ? value : shown.items.map((one) => initial(one, root));
      return (
        <>
          {shown.items.map((one, index) => (
            <Field
              key={index}
              schema={one}
              root={root}
              label={one.title ?? `argument ${index + 1}`}
              value={whole[index] ?? null}
              onChange={(next) => onChange(next === undefined ? undefined : whole.map((before, place) => (place === index ? next : before)))}
            />
          ))}
        </>
      );
    }
    case "list": {
      const rows = Array.isArray(value) ? value : [];
      return (
        <fieldset class="fieldset">
          <legend>{head}</legend>
          {rows.map((row, index) => (
            <div key={index} class="list-row">
              <Field schema={shown.item} root={root} label={`${index + 1}`} value={row} onChange={(next) => onChange(next === undefined ? undefined : rows.map((before, place) => (place === index ? next : before)))} />
              <button type="button" class="icon-btn" aria-label={`Remove ${label} ${index + 1}`} onClick={() => onChange(rows.filter((_, place) => place !== index))}>
                <Icon name="close" />
              </button>
            </div>
          ))}
          <button type="button" class="btn slim" onClick={() => onChange([...rows, initial(shown.item, root)])}>
            Add
          </button>
        </fieldset>
      );
    }
    default:
      return <JsonField label={label} hint={props.optional ? "JSON, optional" : "JSON"} value={value} onChange={onChange} />;
  }
}

function isObject(value: Json): value is { [key: string]: Json } {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** A value typed as JSON. */
export function JsonField({ label, hint, value, onChange }: { label: string; hint?: string; value: Json; onChange: Change }): JSX.Element {
  const [text, setText] = useState(() => pretty(value));
  const read = parseJson(text);
  const problem = "problem" in read ? read.problem : "";
  return (
    <label class="field">
      <span>
        {label} <span class="hint">{hint ?? "JSON"}</span>
      </span>
      <textarea
        class={`input ${problem ? "bad" : ""}`}
        spellcheck={false}
        value={text}
        aria-invalid={problem !== ""}
        onInput={(event) => {
          const typed = event.currentTarget.value;
          setText(typed);
          const found = parseJson(typed);
          onChange("problem" in found ? undefined : found.value);
        }}
      />
      {problem && <span class="field-error">{problem}</span>}
    </label>
  );
}
