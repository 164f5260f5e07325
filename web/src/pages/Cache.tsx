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

function mega(bytes: number): string {
  return `${grouped(Math.round(bytes / 104_857.6) / 10)} MiB`;
}
