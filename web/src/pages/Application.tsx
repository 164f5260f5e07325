import type { JSX } from "preact";
import { applicationPage } from "../api/endpoints";
import type { Json, PageTable } from "../api/types";
import { Empty, Loading, Trouble } from "../components/Empty";
import { Ago } from "../components/Time";
import { brief } from "../lib/json";
import { grouped } from "../lib/time";
import { useResource } from "../state/live";
import { Link, runPath } from "../state/router";

/** A page of the application that the dashboard is mounted in: tables. */
export default function Application({ path, title }: { path: string; title: string }): JSX.Element {
  const found = useResource(path, (signal) => applicationPage(path, signal), ["runs"]);
  return (
    <>
      <div class="page-head">
        <h1>{title}</h1>
      </div>
      {found.error && <Trouble error={found.error} retry={found.reload} />}
      {!found.data && found.loading && <Loading />}
      <div class="stack">{found.data?.tables.map((table) => <TableCard key={table.title} table={table} />)}</div>
    </>
  );
}

function TableCard({ table }: { table: PageTable }): JSX.Element {
  const isNumber = table.columns.map((_, place) => table.rows.length > 0 && table.rows.every((row) => typeof row[place] === "number" || row[place] === null));
  return (
    <section class="card scroll-x">
      <header>
        <h2>{table.title}</h2>
        {table.rows.length > 0 && <span class="small faint">{table.note}</span>}
      </header>
      {table.rows.length === 0 ? (
        <Empty icon="page" title="Nothing here yet">
          <p>{table.note}</p>
        </Empty>
      ) : (
        <table class="stacks">
          <thead>
            <tr>
              {table.columns.map((column, place) => (
                <th key={column} class={isNumber[place] ? "n" : ""}>
                  {column}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {table.rows.map((row, index) => (
              <tr key={index}>
                {table.columns.map((column, place) => (
                  <td key={column} data-label={column} class={isNumber[place] ? "n" : ""}>
                    <Cell value={row[place] ?? null} />
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </section>
  );
}

const TIME = /^\d{4}-\d\d-\d\dT[\d:.]+(Z|[+-]\d\d:\d\d)$/;

function Cell({ value }: { value: Json }): JSX.Element {
  if (value === null) return <span class="faint">–</span>;
  if (typeof value === "number") return <>{grouped(value)}</>;
  if (typeof value === "string") return TIME.test(value) ? <Ago at={value} /> : <>{value}</>;
  if (typeof value === "object" && !Array.isArray(value) && typeof value["run"] === "string") {
    return (
      <Link class="link mono" to={runPath(value["run"])}>
        {value["run"]}
      </Link>
    );
  }
  return <span class="mono">{brief(value)}</span>;
}
