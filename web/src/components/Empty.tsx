import type { ComponentChildren, JSX } from "preact";
import { ApiError } from "../api/http";
import { Icon, type IconName } from "./Icon";

/** Nothing to show: why, and what to do next. */
export function Empty({ icon, title, children }: { icon: IconName; title: string; children?: ComponentChildren }): JSX.Element {
  return (
    <div class="empty">
      <Icon name={icon} />
      <strong>{title}</strong>
      {children}
    </div>
  );
}

/** For a run without a journal. */
export function NotBegun(): JSX.Element {
  return (
    <Empty icon="runs" title="Its journal is empty">
      <p>No worker has taken it yet. Its first turn will appear here.</p>
    </Empty>
  );
}

/** A request failed: what the server said. */
export function Trouble({ error, retry }: { error: Error; retry?: () => void }): JSX.Element {
  const problem = error instanceof ApiError ? error.problem : null;
  return (
    <div class="notice fail" role="alert">
      <div class="row-gap">
        <span class="grow">
          <b>{problem?.title ?? "Something went wrong"}.</b> {error.message}
          {problem?.trace_id && <span class="faint"> Trace {problem.trace_id}.</span>}
        </span>
        {retry && (
          <button type="button" class="btn slim" onClick={retry}>
            Try again
          </button>
        )}
      </div>
    </div>
  );
}

export function Loading(): JSX.Element {
  return (
    <div class="loading" role="status">
      Loading…
    </div>
  );
}
