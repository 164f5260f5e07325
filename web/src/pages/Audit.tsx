import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { audit, verifyAudit } from "../api/endpoints";
import type { AuditRow, Json } from "../api/types";
import { Empty, Loading, Trouble } from "../components/Empty";
import { JsonValue } from "../components/JsonValue";
import { Ago } from "../components/Time";
import { changes } from "../lib/json";
import { numberOf } from "../lib/time";
import { useListKeys } from "../state/keys";
import { useResource } from "../state/live";
import { Link, runPath, setQuery, usePlace } from "../state/router";
import { sayError } from "../state/toasts";

const FILTERS: [string, string][] = [
  ["actor", "Who"],
  ["verb", "What, such as cancel"],
  ["target", "Id or name"],
  ["since", "Since, such as 24h"],
];

/** Who did what to what, when and why. */
export default function Audit(): JSX.Element {
  const { query } = usePlace();
  const wanted = new URLSearchParams([...query]);
  wanted.set("limit", "100");
  const found = useResource(wanted.toString(), (signal) => audit(wanted, signal), ["runs", "queues", "schedules", "dead_letters"]);
  const [more, setMore] = useState<{ rows: AuditRow[]; cursor: string | null } | null>(null);
  const [open, setOpen] = useState<number | null>(null);
  const [verdict, setVerdict] = useState<{ rows: number; problem: string; head: string } | null>(null);
  useEffect(() => setMore(null), [wanted.toString()]);
  const rows = [...(found.data?.rows ?? []), ...(more?.rows ?? [])];
  const cursor = more ? more.cursor : (found.data?.cursor ?? null);
  const [at] = useListKeys(rows.length, (index) => setOpen(rows[index]?.number ?? null));
  const set = (name: string, value: string): void => {
    const next = new URLSearchParams(query);
    if (value) next.set(name, value);
    else next.delete(name);
    setQuery(next);
  };
  const loadMore = (): void => {
    const next = new URLSearchParams(wanted);
    next.set("cursor", cursor ?? "");
    audit(next).then((page) => setMore((before) => ({ rows: [...(before?.rows ?? []), ...page.rows], cursor: page.cursor })), sayError);
  };
  return (
    <>
      <div class="page-head">
        <div>
          <h1>Audit</h1>
          <p>Every act of an operator, chained by hashes: a row that was changed afterwards is found.</p>
        </div>
        <button type="button" class="btn" onClick={() => void verifyAudit().then(setVerdict, sayError)}>
          Verify the log
        </button>
      </div>
      {verdict && (
        <div class={`notice ${verdict.problem ? "fail" : "done"}`} role="status">
          {verdict.problem || `${numberOf(verdict.rows, "row is as it was", "rows are as they were")} written. Head ${verdict.head}`}
        </div>
      )}
      <div class="filter-fields">
        {FILTERS.map(([name, label]) => (
          <input key={name} class="input" type="search" placeholder={label} aria-label={label} value={query.get(name) ?? ""} onChange={(event) => set(name, event.currentTarget.value.trim())} />
        ))}
      </div>
      {found.error && <Trouble error={found.error} retry={found.reload} />}
      {!found.data && found.loading && <Loading />}
      {found.data && (
        <section class="card scroll-x">
          {rows.length === 0 ? (
            <Empty icon="audit" title={query.size ? "Nothing matches" : "No acts yet"}>
              <p>Cancels, pauses, retries, limits, reveals and the like are written here, with who did it and why.</p>
            </Empty>
          ) : (
            <table class="stacks">
              <thead>
                <tr>
                  <th class="slim">No.</th>
                  <th>When</th>
                  <th>Who</th>
                  <th>What</th>
                  <th>To what</th>
                  <th>Why, and what changed</th>
                </tr>
              </thead>
              <tbody>
                {rows.map((row, index) => (
                  <>
                    <tr key={row.number} class={`clickable ${index === at ? "on" : ""}`} onClick={() => setOpen(open === row.number ? null : row.number)}>
                      <td class="slim mono faint nowrap">
                        <button type="button" class="plain" aria-expanded={open === row.number}>
                          {row.number}
                        </button>
                      </td>
                      <td data-label="When">
                        <Ago at={row.at} />
                      </td>
                      <td data-label="Who" class="wrap-any">
                        {row.actor}
                      </td>
                      <td data-label="What" class="strong">
                        {row.verb}
                      </td>
                      <td data-label="To what" class="wrap-any">
                        {row.run_id ? (
                          <Link class="link mono" to={runPath(row.run_id)}>
                            {row.target || row.run_id}
                          </Link>
                        ) : (
                          <span class="mono">{row.target}</span>
                        )}
                      </td>
                      <td data-label="Why" class="wrap-any dim">
                        <div>
                          {row.reason}
                          <div class="faint small">{said(row)}</div>
                        </div>
                      </td>
                    </tr>
                    {open === row.number && (
                      <tr>
                        <td colSpan={6}>
                          <div class="data-grid">
                            {(["before", "after", "detail"] as const).map((part) =>
                              row[part] === null ? null : (
                                <div key={part}>
                                  <h3>{part}</h3>
                                  <JsonValue value={row[part]} />
                                </div>
                              ),
                            )}
                            <div>
                              <h3>hash</h3>
                              <span class="mono small wrap-any">{row.hash}</span>
                            </div>
                          </div>
                        </td>
                      </tr>
                    )}
                  </>
                ))}
              </tbody>
            </table>
          )}
          {cursor && (
            <div class="list-foot">
              <button type="button" class="btn" onClick={loadMore}>
                Show more
              </button>
            </div>
          )}
        </section>
      )}
    </>
  );
}

/** What was changed, and how it was asked for, without the reason. */
function said(row: AuditRow): string {
  return changes(withoutReason(row.before), withoutReason(row.after ?? row.detail));
}

function withoutReason(value: Json): Json {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return value;
  const { reason: _, ...rest } = value; // it stands above
  return rest;
}
