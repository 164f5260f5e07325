import type { ComponentChildren, JSX } from "preact";
import { useState } from "preact/hooks";
import { Dialog } from "./Dialog";
import { Trouble } from "./Empty";

/** Asks before an act: says what will happen to how many, and takes the reason that goes to the audit log. */
export function ActDialog(props: {
  title: string;
  verb: string;
  danger?: boolean;
  needsReason?: boolean;
  withoutReason?: boolean;
  disabled?: boolean;
  wide?: boolean;
  /** What comes of it is shown elsewhere: do not close. */
  keepOpen?: boolean;
  children?: ComponentChildren;
  act: (reason: string) => Promise<void>;
  onClose: () => void;
}): JSX.Element {
  const [reason, setReason] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<Error | null>(null);
  const isReady = !busy && !props.disabled && (!props.needsReason || reason.trim() !== "");
  const submit = (): void => {
    if (!isReady) return;
    setBusy(true);
    setError(null);
    props.act(reason.trim()).then(() => (props.keepOpen ? setBusy(false) : props.onClose()), (found: unknown) => {
      setBusy(false);
      setError(found instanceof Error ? found : new Error(String(found)));
    });
  };
  return (
    <Dialog
      title={props.title}
      onClose={props.onClose}
      onSubmit={submit}
      wide={props.wide ?? false}
      footer={
        <>
          <button type="button" class="btn" onClick={props.onClose}>
            {props.danger ? "Keep as it is" : "Back"}
          </button>
          <button type="submit" class={`btn go ${props.danger ? "danger" : ""}`} disabled={!isReady}>
            {busy ? "Working…" : props.verb}
          </button>
        </>
      }
    >
      {props.children}
      {!props.withoutReason && (
        <label class="field">
          <span>
            Reason <span class="hint">{props.needsReason ? "(goes to the audit log)" : "(optional, goes to the audit log)"}</span>
          </span>
          <input class="input" name="reason" value={reason} maxLength={500} autocomplete="off" onInput={(event) => setReason(event.currentTarget.value)} />
        </label>
      )}
      {error && <Trouble error={error} />}
    </Dialog>
  );
}
