import type { JSX } from "preact";
import type { Json, RunDetail } from "../../api/types";
import { JsonValue } from "../../components/JsonValue";
import { isClosed } from "../../lib/states";

/** What the run was given, what it published, and what it ended with. */
export function DataTab({ run }: { run: RunDetail }): JSX.Element {
  const published = Object.entries(run.published ?? {});
  return (
    <div class="data-grid">
      <Part title="Input" value={run.input} />
      <section class="card">
        <header>
          <h2>{run.error === undefined ? "Result" : "Error"}</h2>
        </header>
        <div class="body stack">
          {run.error !== undefined && <div class="notice fail">{run.error}</div>}
          {run.traceback && (
            <pre class="value trace" tabIndex={0}>
              {run.traceback}
            </pre>
          )}
          {run.result !== undefined && <JsonValue value={run.result} />}
          {run.error === undefined && run.result === undefined && <p class="faint">{isClosed(run.state) ? "It has none." : "It has not ended."}</p>}
        </div>
      </section>
      <section class="card">
        <header>
          <h2>Published</h2>
        </header>
        <div class="body stack">
          {published.length === 0 && <p class="faint">Nothing. Workflow code publishes values with publish(name, value).</p>}
          {published.map(([name, value]) => (
            <div key={name}>
              <h3>{name}</h3>
              <JsonValue value={value} />
            </div>
          ))}
        </div>
      </section>
      <Part title="Memo" value={run.memo} />
    </div>
  );
}

function Part({ title, value }: { title: string; value: Json }): JSX.Element {
  return (
    <section class="card">
      <header>
        <h2>{title}</h2>
      </header>
      <div class="body">{value === null || value === undefined ? <p class="faint">None.</p> : <JsonValue value={value} />}</div>
    </section>
  );
}
