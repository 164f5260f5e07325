import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { decide } from "../api/flows";
import { Dialog } from "./Dialog";
import { Trouble } from "./Empty";
import { say } from "../state/toasts";

/** Approve or reject what a run waits for, with a comment. */
export function DecideButtons({ run, step, stepRun, onDone }: { run: string; step: string; stepRun: string; onDone: () => void }): JSX.Element {
  const [asked, setAsked] = useState<boolean | null>(null);
  const [comment, setComment] = useState("");
  const [error, setError] = useState<Error | null>(null);
  const submit = (): void => {
    if (asked === null) return;
    decide(run, step, stepRun, asked, comment).then(({ pending }) => {
      const said = asked ? "It is approved" : "It is rejected";
      say(pending ? `${said}: a worker will take it up.` : `${said}.`, { tone: "done" });
      setAsked(null);
      onDone();
    }, setError);
  };
  const verb = asked ? "Approve" : "Reject";
  return (
    <>
      <button type="button" class="btn slim" onClick={() => setAsked(true)}>
        Approve
      </button>
      <button type="button" class="btn slim" onClick={() => setAsked(false)}>
        Reject
      </button>
      {asked !== null && (
        <Dialog
          title={`${verb} ${step}?`}
          onClose={() => setAsked(null)}
          onSubmit={submit}
          footer={
            <>
              <button type="button" class="btn" onClick={() => setAsked(null)}>
                Back
              </button>
              <button type="submit" class={`btn go ${asked ? "" : "danger"}`}>
                {verb}
              </button>
            </>
          }
        >
          <label class="field">
            <span>
              Comment <span class="hint">(optional, the flow can use it)</span>
            </span>
            <input class="input" name="comment" value={comment} maxLength={500} autocomplete="off" onInput={(event) => setComment(event.currentTarget.value)} />
          </label>
          {error && <Trouble error={error} />}
        </Dialog>
      )}
    </>
  );
}
