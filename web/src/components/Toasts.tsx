import type { JSX } from "preact";
import { Link } from "../state/router";
import { useStore } from "../state/store";
import { dismiss, toasts } from "../state/toasts";
import { StateShape } from "./Icon";

export function Toasts(): JSX.Element {
  const shown = useStore(toasts);
  return (
    <div class="toasts" role="status" aria-live="polite">
      {shown.map((one) => (
        <div key={one.id} class={`toast ${one.tone}`}>
          <span class={`tone-${one.tone}`}>
            <StateShape tone={one.tone} />
          </span>
          <span class="grow">
            {one.text}{" "}
            {one.link && (
              <Link class="link" to={one.link.to}>
                {one.link.text}
              </Link>
            )}
          </span>
          <button type="button" class="plain faint" aria-label="Dismiss" onClick={() => dismiss(one.id)}>
            ×
          </button>
        </div>
      ))}
    </div>
  );
}
