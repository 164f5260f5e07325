import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { operation } from "../api/endpoints";
import type { Operation } from "../api/types";
import { grouped } from "../lib/time";
import { Dialog } from "./Dialog";
import { Trouble } from "./Empty";
import { Chip } from "./StateChip";

const PAUSE = 500;

/** Follows work on many until it has ended. It goes on in the server when this is closed. */
export function OperationDialog({ id, first, onClose }: { id: string; first?: Operation; onClose: () => void }): JSX.Element {
  const [found, setFound] = useState<Operation | null>(first ?? null);
  const [error, setError] = useState<Error | null>(null);
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout>;
    let isOver = false;
    const ask = (): void => {
      operation(id).then(
        (next) => {
          if (isOver) return;
          setError(null);
          setFound(next);
          if (!isEnd(next)) timer = setTimeout(ask, PAUSE);
        },
        (problem: Error) => {
          if (isOver) return;
          setError(problem);
          timer = setTimeout(ask, PAUSE * 4);
        },
      );
    };
    if (first?.state !== "done") ask();
    return () => {
      isOver = true;
      clearTimeout(timer);
    };
  }, [id]);
  const refused = Object.entries(found?.refused ?? {});
  const share = found && found.matched > 0 ? Math.min(1, (found.done + refused.reduce((sum, [, n]) => sum + n, 0)) / found.matched) : 0;
  const isOver = found !== null && isEnd(found);
  const look = found?.state === "failed" ? "fail" : found?.state === "done" ? "done" : "run";
  return (
    <Dialog
      title={`${found ? capital(found.verb) : "Working"}: ${found ? `${grouped(found.done)} of ${grouped(found.matched)}` : "…"}`}
      onClose={onClose}
      footer={
        <button type="button" class={`btn ${isOver ? "go" : ""}`} onClick={onClose}>
          {isOver ? "Close" : "Close; it goes on"}
        </button>
      }
    >
      <div class="row-gap" role="status">
        <Chip look={{ tone: look, label: found?.state ?? "running" }} />
        <span class="dim">{found ? `${grouped(found.done)} done` : ""}</span>
      </div>
      <div class="meter" role="progressbar" aria-label="Progress" aria-valuemin={0} aria-valuemax={100} aria-valuenow={Math.round(share * 100)}>
        <span class={look} style={{ width: `${isOver && found?.state === "done" ? 100 : share * 100}%` }} />
      </div>
      {refused.map(([name, count]) => (
        <div key={name} class="notice retry">
          {grouped(count)} refused: {name}
        </div>
      ))}
      {found?.problem && (
        <div class={`notice ${isOver ? "fail" : "retry"}`}>
          <b>{found.problem.title}.</b> {found.problem.detail}
        </div>
      )}
      {error && <Trouble error={error} />}
    </Dialog>
  );
}

/** One that was interrupted goes on in another server. */
function isEnd(one: Operation): boolean {
  return one.state === "done" || one.state === "failed";
}

function capital(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
