import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { applicationAct, applicationPage } from "../api/endpoints";
import type { Json, PageAction, PageGauge, PageGauges, PageTable } from "../api/types";
import { ActDialog } from "../components/ActDialog";
import { Empty, Loading, Trouble } from "../components/Empty";
import { ArgsForm } from "../components/SchemaForm";
import { Chip } from "../components/StateChip";
import { Ago } from "../components/Time";
import { linePath } from "../lib/charts";
import { brief } from "../lib/json";
import { initialArgs } from "../lib/schema";
import { grouped } from "../lib/time";
import { useResource } from "../state/live";
import { Link, runPath } from "../state/router";
import { say } from "../state/toasts";

/** A page of the application that the dashboard is mounted in: actions, gauges and tables. */
export default function Application({ path, title }: { path: string; title: string }): JSX.Element {
  const found = useResource(path, (signal) => applicationPage(path, signal), ["runs"]);
  const [chosen, setChosen] = useState<PageAction | null>(null);
  return (
    <>
      <div class="page-head">
        <h1>{title}</h1>
        <div class="acts">
          {found.data?.actions.map((action) => (
            <button key={action.name} type="button" class={`btn ${action.danger ? "danger" : ""}`} onClick={() => setChosen(action)}>
              {action.title}
            </button>
          ))}
        </div>
      </div>
      {found.error && <Trouble error={found.error} retry={found.reload} />}
      {!found.data && found.loading && <Loading />}
      <div class="stack">
        {found.data?.gauges.map((part) => <GaugeCard key={part.title} part={part} />)}
        {found.data?.tables.map((table) => <TableCard key={table.title} table={table} />)}
      </div>
      {chosen && <ActionDialog path={path} action={chosen} onClose={() => setChosen(null)} onDone={found.reload} />}
    </>
  );
}

function ActionDialog({ path, action, onClose, onDone }: { path: string; action: PageAction; onClose: () => void; onDone: () => void }): JSX.Element {
  const [input, setInput] = useState<Json[] | undefined>(() => initialArgs(action.form));
  const act = async (): Promise<void> => {
    const body = Object.fromEntries(action.form.map((one, place) => [one.name, input?.[place] ?? null]));
    say((await applicationAct(path, action.name, body)).message);
    onDone();
  };
  return (
    <ActDialog title={action.title} verb={action.title} danger={action.danger} withoutReason disabled={input === undefined} act={act} onClose={onClose}>
      {action.about && <p class="dim">{action.about}</p>}
      <ArgsForm parameters={action.form} value={input ?? []} onChange={setInput} />
    </ActDialog>
  );
}

function GaugeCard({ part }: { part: PageGauges }): JSX.Element {
  return (
    <section class="card">
      <header>
        <h2>{part.title}</h2>
        <span class="small faint">{part.note}</span>
      </header>
      {part.gauges.length === 0 ? (
        <Empty icon="page" title="Nothing here yet">
          <p>{part.note}</p>
        </Empty>
      ) : (
        <ul class="gauges">
          {part.gauges.map((gauge) => (
            <GaugeTile key={gauge.name} gauge={gauge} />
          ))}
        </ul>
      )}
    </section>
  );
}

const SPARK = { width: 200, height: 36 };

function GaugeTile({ gauge }: { gauge: PageGauge }): JSX.Element {
  const share = gauge.most > 0 ? Math.max(0, Math.min(1, gauge.value / gauge.most)) : 0;
  const top = Math.max(gauge.most, 1);
  const margin = SPARK.width / gauge.history.length / 2; // each value stands in the middle of its share of the width
  return (
    <li class={`gauge tone-${gauge.tone}`}>
      <div class="gauge-head">
        <b class="mono">{gauge.name}</b>
        {gauge.label && <Chip look={{ tone: gauge.tone, label: gauge.label }} />}
      </div>
      <div class="gauge-value">
        <span class="big">{grouped(gauge.value)}</span> <span class="faint">of {grouped(gauge.most)}</span>
      </div>
      <div class="meter" role="meter" aria-label={gauge.name} aria-valuemin={0} aria-valuemax={gauge.most} aria-valuenow={Math.max(0, Math.min(gauge.value, gauge.most))} aria-valuetext={`${grouped(gauge.value)} of ${grouped(gauge.most)}`}>
        <span class={gauge.tone} style={{ width: `${share * 100}%` }} />
      </div>
      {gauge.history.length > 1 && (
        <svg class="spark" viewBox={`${margin} 0 ${SPARK.width - 2 * margin} ${SPARK.height}`} preserveAspectRatio="none" aria-hidden="true">
          <path d={linePath(gauge.history.map((value) => (value === null ? null : Math.max(0, value))), SPARK.width, SPARK.height, top)} class="chart-stroke" vector-effect="non-scaling-stroke" />
        </svg>
      )}
      {gauge.note && <span class="small faint">{gauge.note}</span>}
    </li>
  );
}

function TableCard({ table }: { table: PageTable }): JSX.Element {
  const isNumber = table.columns.map((_, place) => {
    const told = table.rows.map((row) => row[place]).filter((value) => value !== null);
    return told.length > 0 && told.every((value) => typeof value === "number");
  });
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
