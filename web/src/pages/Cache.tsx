import { Fragment, type JSX } from "preact";
import { useEffect } from "preact/hooks";
import { cacheNow } from "../api/endpoints";
import type { CacheDocument } from "../api/types";
import { Empty, Loading, Trouble } from "../components/Empty";
import { Chip } from "../components/StateChip";
import { grouped, percent } from "../lib/time";
import { useResource } from "../state/live";

const EVERY = 5_000;
const KEPT = 80;
const ENOUGH = 1_000;
const LOW = 0.7;

/** What the Redis of the application says of itself. */
export default function Cache(): JSX.Element {
  const found = useResource("cache", cacheNow);
  const reload = found.reload;
  useEffect(() => {
    const timer = setInterval(() => document.visibilityState === "visible" && reload(), EVERY);
    return () => clearInterval(timer);
  }, [reload]);
  return (
    <>
      <div class="page-head">
        <div>
          <h1>Cache</h1>
          <p>Without it everything goes on, only slower: values are loaded, limits and idempotency ask the store.</p>
        </div>
      </div>
      {found.error && <Trouble error={found.error} retry={reload} />}
      {!found.data && found.loading && <Loading />}
      {found.data && <section class="card">{found.data.configured ? <Facts cache={found.data} /> : <NotKnown />}</section>}
      {found.data && found.data.entities.length > 0 && <Entities cache={found.data} />}
    </>
  );
}

function NotKnown(): JSX.Element {
  return (
    <Empty icon="cache" title="No cache is known to this server">
      <p>Start the server with the address of the Redis or Valkey that the application uses.</p>
      <code>BATUTA_REDIS_URL=redis://localhost:6379/0 batuta server</code>
    </Empty>
  );
}

function Facts({ cache }: { cache: CacheDocument }): JSX.Element {
  const info = cache.info;
  const looks = info ? info.hits + info.misses : 0;
  const full = info && info.memory_max > 0 ? info.memory_used / info.memory_max : null;
  const rows: [string, JSX.Element | string][] = [
    ["Address", <span class="mono">{cache.where}</span>],
    ["State", <Chip look={cache.up ? { tone: "done", label: "answers" } : { tone: "fail", label: "does not answer" }} />],
  ];
  if (cache.error) rows.push(["Error", cache.error]);
  if (info) {
    rows.push(
      ["Time to answer", `${(cache.seconds * 1000).toFixed(1)} ms`],
      ["Keys", grouped(info.keys)],
      ["Hits of all looks", looks === 0 ? "no looks yet" : `${percent(info.hits / looks)} of ${grouped(looks)} since it began`],
      [
        "Memory",
        <span class="row-gap">
          {full === null ? `${mega(info.memory_used)}, no limit` : `${mega(info.memory_used)} of ${mega(info.memory_max)} (${percent(full)})`}
          {full !== null && full * 100 > KEPT && <Chip look={{ tone: "retry", label: "nearly full" }} />}
        </span>,
      ],
      ["Dropped for lack of memory", grouped(info.evicted)],
    );
  }
  return (
    <dl class="facts-list">
      {rows.map(([name, value]) => (
        <Fragment key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </Fragment>
      ))}
    </dl>
  );
}

/** Looks of all processes that use the cache. */
function Entities({ cache }: { cache: CacheDocument }): JSX.Element {
  return (
    <section class="card scroll-x after">
      <header>
        <h2>Hits by entity</h2>
      </header>
      <table class="stacks">
        <thead>
          <tr>
            <th>Entity</th>
            <th class="n">Hits</th>
            <th class="n">Looks</th>
            <th class="n">Known to be absent</th>
            <th class="n">Mean</th>
            <th class="n">Failed</th>
          </tr>
        </thead>
        <tbody>
          {cache.entities.map((one) => {
            const looks = one.hits + one.absent + one.misses;
            const share = looks === 0 ? null : (one.hits + one.absent) / looks;
            return (
              <tr key={one.entity}>
                <td class="mono strong">{one.entity}</td>
                <td data-label="Hits" class="n">
                  <span class="row-gap end">
                    {share === null ? "–" : percent(share)}
                    {share !== null && looks >= ENOUGH && share < LOW && <Chip look={{ tone: "retry", label: "low" }} />}
                  </span>
                </td>
                <td data-label="Looks" class="n">
                  {grouped(looks)}
                </td>
                <td data-label="Known to be absent" class="n">
                  {grouped(one.absent)}
                </td>
                <td data-label="Mean" class="n">
                  {looks === 0 ? "–" : `${((one.seconds / looks) * 1000).toFixed(2)} ms`}
                </td>
                <td data-label="Failed" class="n">
                  {grouped(one.failed)}
                </td>
              </tr>
            );
          })}
        </tbody>
      </table>
      <p class="faint small facts-list">Of the processes that use the cache now, since each of them began. What is known to be absent counts as a hit.</p>
    </section>
  );
}

function mega(bytes: number): string {
  return `${grouped(Math.round(bytes / 104_857.6) / 10)} MiB`;
}
