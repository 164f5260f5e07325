import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import type { Json } from "../api/types";
import { pretty, tokens } from "../lib/json";
import { CopyButton } from "./Copy";

const SHOWN = 20_000;

/** A payload, as text. Nothing in it is ever made into elements, links or styles. */
export function JsonValue({ value }: { value: Json | undefined }): JSX.Element {
  const text = useMemo(() => pretty(value ?? null), [value]);
  const [whole, setWhole] = useState(false);
  const shown = whole || text.length <= SHOWN ? text : text.slice(0, SHOWN);
  return (
    <div class="value-box">
      <pre class="value" tabIndex={0}>
        {shown.length > SHOWN ? shown : tokens(shown).map((part) => (part.kind ? <span class={`j-${part.kind}`}>{part.text}</span> : part.text))}
      </pre>
      {shown.length < text.length && (
        <button type="button" class="btn slim" onClick={() => setWhole(true)}>
          Show all {Math.round(text.length / 1024)} KB
        </button>
      )}
      <CopyButton text={text} />
    </div>
  );
}
