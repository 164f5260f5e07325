import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { actOnSchedule, createSchedule, deleteSchedule, nextTimes, schedules } from "../api/endpoints";
import type { Json, Schedule } from "../api/types";
import { ActDialog } from "../components/ActDialog";
import { Empty, Loading, Trouble } from "../components/Empty";
import { Icon } from "../components/Icon";
import { JsonValue } from "../components/JsonValue";
import { Menu } from "../components/Menu";
import { JsonField } from "../components/SchemaForm";
import { Chip } from "../components/StateChip";
import { Ago } from "../components/Time";
import { exact, millis, numberOf, relative } from "../lib/time";
import { useNow } from "../state/clock";
import { useListKeys } from "../state/keys";
import { useResource } from "../state/live";
import { Link, runPath } from "../state/router";
import { may, session } from "../state/session";
import { useStore } from "../state/store";
import { say } from "../state/toasts";

type Act = "pause" | "resume" | "trigger" | "backfill" | "delete";

const SAYS: Record<Act, string> = {
  pause: "No slot begins a run until it is resumed. Runs that it has begun go on.",
  resume: "Its slots begin runs again.",
  trigger: "A run begins now, beside its slots.",
  backfill: "A run begins for each slot between two times that have passed.",
  delete: "It is removed. Runs that it has begun go on.",
};

/** Schedules: when they are due next, pause, trigger and backfill. */
export default function Schedules(): JSX.Element {
  const who = useStore(session);
  const canAct = may("operator", who);
  const found = useResource("schedules", (signal) => schedules({ limit: 500 }, signal), ["schedules"]);
  const [open, setOpen] = useState<string | null>(null);
  const [act, setAct] = useState<{ schedule: Schedule; verb: Act } | null>(null);
  const [making, setMaking] = useState(false);
  const rows = found.data?.schedules ?? [];
  const toggle = (id: string | undefined): void => setOpen(id === undefined || id === open ? null : id);
  const [at] = useListKeys(rows.length, (index) => toggle(rows[index]?.id));
  return (
    <>
      <div class="page-head">
        <div>
          <h1>Schedules</h1>
          <p>What begins by itself, and when.</p>
        </div>
        {canAct && (
          <button type="button" class="btn go" onClick={() => setMaking(true)}>
            <Icon name="plus" />
            New schedule
          </button>
        )}
      </div>
      {found.error && <Trouble error={found.error} retry={found.reload} />}
      {!found.data && found.loading && <Loading />}
      {found.data && (
        <section class="card scroll-x">
          {rows.length === 0 ? (
            <Empty icon="schedules" title="No schedules">
              <p>A schedule begins a workflow or a job at times that a cron expression or an interval gives. Make one here, or:</p>
              <code>batuta schedules create nightly WORKFLOW --cron "0 2 * * *"</code>
            </Empty>
          ) : (
            <table class="stacks">
              <thead>
                <tr>
                  <th>Schedule</th>
                  <th>When</th>
                  <th>Starts</th>
                  <th class="n">Next</th>
                  <th class="n">Last</th>
                  <th>
                    <span class="unseen">Acts</span>
                  </th>
                </tr>
              </thead>
              <tbody>
                {rows.map((schedule, index) => (
                  <>
                    <tr key={schedule.id} class={index === at ? "on" : ""}>
                      <td>
                        <button type="button" class="plain strong" aria-expanded={open === schedule.id} onClick={() => toggle(schedule.id)}>
                          {schedule.id}
                        </button>{" "}
                        {schedule.paused && <Chip look={{ tone: "pause", label: "paused" }} title={schedule.reason} />}
                      </td>
                      <td data-label="When" class="mono small">
                        {schedule.when}
                      </td>
                      <td data-label="Starts">
                        <Link class="link-quiet" to="/runs" query={new URLSearchParams({ name: schedule.workflow })}>
                          {schedule.workflow}
                        </Link>
                        {schedule.kind === "job" && <span class="faint"> job</span>}
                      </td>
                      <td data-label="Next" class="n">
                        <Ago at={schedule.next_at} none={schedule.paused ? "paused" : "no more"} />
                      </td>
                      <td data-label="Last" class="n">
                        {schedule.last_id ? (
                          <Link class="link" to={runPath(schedule.last_id)}>
                            <Ago at={schedule.last_at} />
                          </Link>
                        ) : (
                          <span class="faint">never</span>
                        )}
                        {schedule.running && <span class="tone-run small"> runs</span>}
                      </td>
                      <td class="n">
                        {canAct && (
                          <span class="row-gap end">
                            <button type="button" class="btn slim" onClick={() => setAct({ schedule, verb: "trigger" })}>
                              Trigger
                            </button>
                            <button type="button" class="btn slim" onClick={() => setAct({ schedule, verb: schedule.paused ? "resume" : "pause" })}>
                              {schedule.paused ? "Resume" : "Pause"}
                            </button>
                            <Menu
                              label="More"
                              items={[
                                { label: "Backfill…", act: () => setAct({ schedule, verb: "backfill" }) },
                                { label: "Delete…", danger: true, act: () => setAct({ schedule, verb: "delete" }) },
                              ]}
                            />
                          </span>
                        )}
                      </td>
                    </tr>
                    {open === schedule.id && (
                      <tr>
                        <td colSpan={6}>
                          <Details schedule={schedule} />
                        </td>
                      </tr>
                    )}
                  </>
                ))}
              </tbody>
            </table>
          )}
        </section>
      )}
      {act && <ScheduleDialog {...act} onClose={() => setAct(null)} onDone={found.reload} />}
      {making && <NewSchedule onClose={() => setMaking(false)} onDone={found.reload} />}
    </>
  );
}

function Details({ schedule }: { schedule: Schedule }): JSX.Element {
  const found = useResource(`next ${schedule.id} ${schedule.next_at}`, (signal) => (schedule.next ? Promise.resolve({ next: schedule.next }) : nextTimes(schedule.id, signal)));
  const now = useNow();
  return (
    <div class="data-grid">
      <div>
        <h3>Next times</h3>
        {found.error && <Trouble error={found.error} />}
        <ol class="plain-list">
          {found.data?.next.map((time) => {
            const at = millis(time) ?? 0;
            return (
              <li key={time}>
                {exact(at)} <span class="faint">{relative(at, now)}</span>
              </li>
            );
          })}
        </ol>
      </div>
      <div>
        <h3>Arguments</h3>
        <JsonValue value={schedule.arguments} />
        <p class="faint small">
          when one still runs: {schedule.overlap} · queue {schedule.queue}
          {schedule.reason && ` · ${schedule.reason}`}
        </p>
      </div>
    </div>
  );
}

function ScheduleDialog({ schedule, verb, onClose, onDone }: { schedule: Schedule; verb: Act; onClose: () => void; onDone: () => void }): JSX.Element {
  const [since, setSince] = useState("24h");
  const [until, setUntil] = useState("");
  const title = verb.charAt(0).toUpperCase() + verb.slice(1);
  const carryOut = async (reason: string): Promise<void> => {
    const because = reason ? { reason } : {};
    if (verb === "delete") {
      await deleteSchedule(schedule.id, reason);
      say(`Deleted the schedule ${schedule.id}.`);
    } else if (verb === "backfill") {
      const done = await actOnSchedule(schedule.id, "backfill", { since, ...(until ? { until } : {}), ...because });
      const begun = Array.isArray(done["begun"]) ? done["begun"].length : 0;
      say(`Began ${numberOf(begun, "run")} of ${schedule.id}.`);
    } else {
      const done = await actOnSchedule(schedule.id, verb, verb === "trigger" ? {} : because);
      const run = typeof done["run_id"] === "string" ? done["run_id"] : null;
      say(`${title}: ${schedule.id}.`, run ? { link: { to: runPath(run), text: "Open the run" } } : {});
    }
    onDone();
  };
  return (
    <ActDialog title={`${title} ${schedule.id}`} verb={title} danger={verb === "delete"} withoutReason={verb === "trigger"} act={carryOut} onClose={onClose}>
      <p>{SAYS[verb]}</p>
      {verb === "backfill" && (
        <>
          <label class="field">
            <span>
              Since <span class="hint">a time, or how long ago: 24h</span>
            </span>
            <input class="input" value={since} onInput={(event) => setSince(event.currentTarget.value)} />
          </label>
          <label class="field">
            <span>
              Until <span class="hint">(empty: now)</span>
            </span>
            <input class="input" value={until} onInput={(event) => setUntil(event.currentTarget.value)} />
          </label>
        </>
      )}
    </ActDialog>
  );
}

function NewSchedule({ onClose, onDone }: { onClose: () => void; onDone: () => void }): JSX.Element {
  const [id, setId] = useState("");
  const [name, setName] = useState("");
  const [isJob, setIsJob] = useState(false);
  const [kind, setKind] = useState<"cron" | "every">("cron");
  const [cron, setCron] = useState("0 2 * * *");
  const [zone, setZone] = useState("UTC");
  const [every, setEvery] = useState("3600");
  const [input, setInput] = useState<Json | undefined>([]);
  const carryOut = async (reason: string): Promise<void> => {
    await createSchedule({
      id,
      name: isJob ? `job:${name}` : name,
      input,
      ...(kind === "cron" ? { cron, zone } : { every: Number(every) }),
      ...(reason ? { reason } : {}),
    });
    say(`Made the schedule ${id}.`);
    onDone();
  };
  return (
    <ActDialog title="New schedule" verb="Make it" disabled={!id.trim() || !name.trim() || input === undefined} act={carryOut} onClose={onClose}>
      <label class="field">
        <span>Name of the schedule</span>
        <input class="input" value={id} onInput={(event) => setId(event.currentTarget.value)} />
      </label>
      <label class="field">
        <span>Workflow or job that it starts</span>
        <input class="input" value={name} onInput={(event) => setName(event.currentTarget.value)} />
      </label>
      <label class="check">
        <input type="checkbox" checked={isJob} onChange={(event) => setIsJob(event.currentTarget.checked)} />
        it is a job
      </label>
      <div class="row-gap">
        <label class="check">
          <input type="radio" name="kind" checked={kind === "cron"} onChange={() => setKind("cron")} />
          cron
        </label>
        <label class="check">
          <input type="radio" name="kind" checked={kind === "every"} onChange={() => setKind("every")} />
          every so many seconds
        </label>
      </div>
      {kind === "cron" ? (
        <>
          <label class="field">
            <span>Cron</span>
            <input class="input mono" value={cron} onInput={(event) => setCron(event.currentTarget.value)} />
          </label>
          <label class="field">
            <span>Time zone</span>
            <input class="input" value={zone} onInput={(event) => setZone(event.currentTarget.value)} />
          </label>
        </>
      ) : (
        <label class="field">
          <span>Seconds</span>
          <input class="input" type="number" min="1" value={every} onInput={(event) => setEvery(event.currentTarget.value)} />
        </label>
      )}
      <JsonField label="Arguments (an array)" value={[]} onChange={setInput} />
    </ActDialog>
  );
}
