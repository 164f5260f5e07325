import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { actOnLimit, changeLimit, forceBreaker, partners } from "../api/endpoints";
import type { Breaker, PartnerLimit } from "../api/types";
import { ActDialog } from "../components/ActDialog";
import { Empty, Loading, Trouble } from "../components/Empty";
import { Chip } from "../components/StateChip";
import { Ago } from "../components/Time";
import type { Look } from "../lib/states";
import { grouped } from "../lib/time";
import { useResource } from "../state/live";
import { Link } from "../state/router";
import { may, session } from "../state/session";
import { useStore } from "../state/store";
import { say } from "../state/toasts";

type Force = "open" | "closed" | "off";

const WORDS: Record<Force, { verb: string; says: string }> = {
  open: { verb: "Hold open", says: "No call reaches the partner until you close it. Runs wait, and use no memory." },
  closed: { verb: "Close", says: "All that waits goes on at once. From then on the breaker works by itself." },
  off: { verb: "Switch off", says: "It lets every call in and counts nothing, until you close it." },
};

function look(breaker: Breaker): Look {
  if (breaker.forced === "off") return { tone: "pause", label: "off" };
  const label = breaker.forced ? `${breaker.state} (forced)` : breaker.state;
  return { tone: breaker.state === "closed" ? "done" : breaker.state === "open" ? "fail" : "retry", label };
}

/** Breakers and limits towards partners. */
export default function Partners(): JSX.Element {
  const who = useStore(session);
  const canAct = may("operator", who);
  const found = useResource("partners", partners, ["runs"]);
  const [forced, setForced] = useState<{ breaker: Breaker; to: Force } | null>(null);
  const [edited, setEdited] = useState<PartnerLimit | null>(null);
  const none = found.data && found.data.breakers.length === 0 && found.data.limits.length === 0;
  return (
    <>
      <div class="page-head">
        <div>
          <h1>Partners</h1>
          <p>Circuit breakers and limits that all workers share. Runs that wait for one cost no attempt; their reason names it.</p>
        </div>
      </div>
      {found.error && <Trouble error={found.error} retry={found.reload} />}
      {!found.data && found.loading && <Loading />}
      {none && (
        <section class="card">
          <Empty icon="partners" title="No breakers and no limits">
            <p>A worker declares them when it first uses them.</p>
            <code>@activity(gates=[breaker("bank"), partner_limit("bank", rate="100/min")])</code>
          </Empty>
        </section>
      )}
      <div class="stack">
        {found.data && found.data.breakers.length > 0 && <BreakerTable breakers={found.data.breakers} canAct={canAct} force={(breaker, to) => setForced({ breaker, to })} />}
        {found.data && found.data.limits.length > 0 && (
          <LimitTable
            limits={found.data.limits}
            canAct={canAct}
            edit={setEdited}
            release={(limit, key) => {
              actOnLimit(limit.name, "release", key === "*" ? {} : { key }).then(() => {
                say(`The pause of ${limit.name} is over.`);
                found.reload();
              }, found.reload);
            }}
          />
        )}
      </div>
      {forced && (
        <ActDialog
          title={`${WORDS[forced.to].verb}: breaker ${forced.breaker.name}`}
          verb={WORDS[forced.to].verb}
          danger={forced.to !== "closed"}
          act={async (reason) => {
            await forceBreaker(forced.breaker.name, { state: forced.to, reason });
            say(`Breaker ${forced.breaker.name}: ${forced.to}.`);
            found.reload();
          }}
          onClose={() => setForced(null)}
        >
          <p>{WORDS[forced.to].says}</p>
        </ActDialog>
      )}
      {edited && <LimitDialog limit={edited} onClose={() => setEdited(null)} onDone={found.reload} />}
    </>
  );
}

function BreakerTable({ breakers, canAct, force }: { breakers: Breaker[]; canAct: boolean; force: (breaker: Breaker, to: Force) => void }): JSX.Element {
  return (
    <section class="card scroll-x">
      <header>
        <h2>Breakers</h2>
        <Link to="/runs" query={new URLSearchParams({ state: "waiting" })} class="link small">
          Waiting runs
        </Link>
      </header>
      <table class="stacks">
        <thead>
          <tr>
            <th>Breaker</th>
            <th>State</th>
            <th>Since</th>
            <th>Probes from</th>
            <th>Opens after</th>
            <th>
              <span class="unseen">Acts</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {breakers.map((one) => (
            <tr key={one.name}>
              <td>
                <b class="mono">{one.name}</b>
                {one.reason && <div class="faint small">{one.reason}</div>}
              </td>
              <td data-label="State">
                <Chip look={look(one)} />
              </td>
              <td data-label="Since">
                <Ago at={one.since} />
              </td>
              <td data-label="Probes from">{one.state === "open" && !one.forced ? <Ago at={one.until} /> : one.state === "half-open" ? `${one.probes} under way` : <span class="faint">–</span>}</td>
              <td data-label="Opens after" class="dim">
                {one.settings.failures !== null && `${one.settings.failures} failures in a row`}
                {one.settings.failure_rate !== null && ` ${Math.round(one.settings.failure_rate * 100)} % of calls`}
              </td>
              <td class="n">
                {canAct && (
                  <span class="row-gap end">
                    {(one.state !== "closed" || one.forced) && (
                      <button type="button" class="btn slim" onClick={() => force(one, "closed")}>
                        Close
                      </button>
                    )}
                    {one.forced !== "open" && (
                      <button type="button" class="btn slim" onClick={() => force(one, "open")}>
                        Hold open
                      </button>
                    )}
                    {one.forced !== "off" && (
                      <button type="button" class="btn slim danger" onClick={() => force(one, "off")}>
                        Off
                      </button>
                    )}
                  </span>
                )}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

const MOST_KEYS = 20;

function LimitTable(props: { limits: PartnerLimit[]; canAct: boolean; edit: (limit: PartnerLimit) => void; release: (limit: PartnerLimit, key: string) => void }): JSX.Element {
  return (
    <section class="card scroll-x">
      <header>
        <h2>Limits</h2>
      </header>
      <table class="stacks">
        <thead>
          <tr>
            <th>Limit</th>
            <th>Allows</th>
            <th>Used, by key</th>
            <th>
              <span class="unseen">Acts</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {props.limits.map((one) => (
            <tr key={one.name}>
              <td>
                <b class="mono">{one.name}</b>
                {one.changed && <div class="faint small">changed{one.reason && `: ${one.reason}`}</div>}
              </td>
              <td data-label="Allows">
                {allowed(one)}
                {one.changed && <div class="faint small">code says {one.declared || "nothing"}</div>}
              </td>
              <td data-label="Used">
                {one.keys.length === 0 && <span class="faint">–</span>}
                {one.keys.slice(0, MOST_KEYS).map((key) => (
                  <div key={key.key} class="row-gap">
                    <span class="mono">{key.key === "*" ? "all" : key.key}</span>
                    <span class="dim">{[...Object.entries(key.used).map(([rate, count]) => `${grouped(count)} of ${rate}`), ...(one.concurrency ? [`${grouped(key.running)} running`] : []), ...(key.balance !== null ? [`balance ${Math.floor(key.balance)}`] : [])].join(", ")}</span>
                    {key.held_until && (
                      <>
                        <Chip look={{ tone: "wait", label: "held by the partner" }} />
                        <Ago at={key.held_until} />
                        {props.canAct && (
                          <button type="button" class="btn slim" onClick={() => props.release(one, key.key)}>
                            Release
                          </button>
                        )}
                      </>
                    )}
                  </div>
                ))}
                {one.keys.length > MOST_KEYS && <div class="faint small">and {grouped(one.keys.length - MOST_KEYS)} more</div>}
              </td>
              <td class="n">
                {props.canAct && (
                  <button type="button" class="btn slim" onClick={() => props.edit(one)}>
                    Change
                  </button>
                )}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

function allowed(limit: PartnerLimit): string {
  return [...limit.rates, ...(limit.concurrency ? [`${limit.concurrency} at once`] : []), ...(limit.capacity ? [`balance ${limit.capacity} + ${limit.refill}`] : [])].join(", ");
}

function LimitDialog({ limit, onClose, onDone }: { limit: PartnerLimit; onClose: () => void; onDone: () => void }): JSX.Element {
  const [rates, setRates] = useState(limit.rates.join(", "));
  const [concurrency, setConcurrency] = useState(String(limit.concurrency ?? ""));
  const isEmpty = rates.trim() === "" && concurrency.trim() === "" && limit.capacity === null;
  const carryOut = async (reason: string): Promise<void> => {
    if (isEmpty) await actOnLimit(limit.name, "reset", { reason });
    else {
      await changeLimit(limit.name, {
        rates: rates
          .split(",")
          .map((one) => one.trim())
          .filter(Boolean),
        concurrency: concurrency.trim() === "" ? null : Number(concurrency),
        capacity: limit.capacity,
        refill: limit.refill,
        reason,
      });
    }
    say(`Limit ${limit.name} is ${isEmpty ? "as code declares it" : "changed"}.`);
    onDone();
  };
  return (
    <ActDialog title={`Change the limit ${limit.name}`} verb={isEmpty ? "Reset" : "Change"} act={carryOut} onClose={onClose}>
      <p>It holds at once in all workers, instead of what code declares. Leave both empty to go back to that.</p>
      <label class="field">
        <span>
          Rates <span class="hint">such as 100/min, 1000/h</span>
        </span>
        <input class="input" name="rates" value={rates} autocomplete="off" onInput={(event) => setRates(event.currentTarget.value)} />
      </label>
      <label class="field">
        <span>
          At once <span class="hint">empty: no limit</span>
        </span>
        <input class="input" name="concurrency" inputMode="numeric" value={concurrency} autocomplete="off" onInput={(event) => setConcurrency(event.currentTarget.value)} />
      </label>
    </ActDialog>
  );
}
