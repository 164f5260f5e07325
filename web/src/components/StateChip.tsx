import type { JSX } from "preact";
import { type Look, runLook } from "../lib/states";
import { StateShape } from "./Icon";

export function Chip({ look, title }: { look: Look; title?: string }): JSX.Element {
  return (
    <span class={`chip ${look.tone}`} {...(title ? { title } : {})}>
      <StateShape {...look} />
      {look.label}
    </span>
  );
}

export function StateChip({ state }: { state: string }): JSX.Element {
  return <Chip look={runLook(state)} />;
}
