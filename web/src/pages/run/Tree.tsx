import type { JSX } from "preact";
import type { Run, RunPageDocument } from "../../api/types";
import { Chip, StateChip } from "../../components/StateChip";
import { Ago, Took } from "../../components/Time";
import { stepLook } from "../../lib/states";
import { grouped } from "../../lib/time";
import { Link, runPath } from "../../state/router";

interface Node {
  id: string;
  /** Its run id; null: it is this run. */
  link: string | null;
  what: string;
  /** What is known of it beside its id. */
  run: Run | null;
  state?: JSX.Element;
}

const SHOWN = 200;

/** Where the run comes from, and what came of it: parent, children, forks and the next run of its chain. */
export function TreeTab({ page }: { page: RunPageDocument }): JSX.Element {
  const { run } = page;
  const origins = before(page);
  const after = [...children(page), ...forks(page)];
  return (
    <section class="card">
      <header>
        <h2>Parent, children and forks</h2>
        <Link class="link small" to="/runs" query={new URLSearchParams({ id_prefix: run.id })}>
          Runs whose ids begin with {run.id}
        </Link>
      </header>
      <ul class="tree">
        {origins.map((node) => (
          <Leaf key={node.id} node={node} depth={0} />
        ))}
        <Leaf node={{ id: run.id, link: null, what: "this run", run }} depth={origins.length ? 1 : 0} />
        {after.slice(0, SHOWN).map((node, index) => (
          <Leaf key={index} node={node} depth={origins.length ? 2 : 1} />
        ))}
      </ul>
      {after.length === 0 && origins.length === 0 && (
        <div class="list-foot">It has no parent and no children, and no run was made from it. Children that its code starts, and forks, appear here.</div>
      )}
      {after.length > SHOWN && (
        <div class="list-foot">
          {grouped(after.length - SHOWN)} more are left out.{" "}
          <Link class="link" to="/runs" query={new URLSearchParams({ parent: run.run_id })}>
            All children
          </Link>
        </div>
      )}
    </section>
  );
}

function before({ run, parent }: RunPageDocument): Node[] {
  const found: Node[] = [];
  if (parent) found.push({ id: parent.id, link: parent.run_id, what: "parent", run: parent });
  else if (run.parent) found.push({ id: run.parent, link: run.parent, what: "parent, which is deleted", run: null });
  if (run.forked_from) {
    const point = run.forked_at === -1 ? "anew, with its input" : `after its entry ${run.forked_at ?? "?"}`;
    found.push({ id: run.forked_from, link: run.forked_from, what: `this run was made from it, ${point}`, run: null });
  }
  return found;
}

/** Those of the timeline in its order; then those that it does not name, such as the jobs of a batch. */
function children({ timeline, children: known }: RunPageDocument): Node[] {
  const byId = new Map(known.map((child) => [child.id, child]));
  const named = timeline.steps.filter((step) => step.kind === "child" || (step.to && step.kind === "activity"));
  const found = named.map<Node>((step) => {
    const child = byId.get(step.to) ?? null;
    byId.delete(step.to);
    return {
      id: step.to || step.name,
      link: child?.run_id ?? (step.to || null),
      what: step.kind === "child" ? `child, step ${step.seq}` : `activity in another queue, step ${step.seq}`,
      run: child,
      state: <Chip look={stepLook(step.state, step.segments.at(-1)?.end === null ? "running" : undefined)} />,
    };
  });
  return [...found, ...[...byId.values()].map<Node>((child) => ({ id: child.id, link: child.run_id, what: "child", run: child }))];
}

function forks({ timeline, forks: made }: RunPageDocument): Node[] {
  const found = made.map<Node>((fork) => ({
    id: fork.id,
    link: fork.run_id,
    what: fork.forked_at === -1 ? "made from this run, anew" : `made from this run after entry ${fork.forked_at ?? "?"}`,
    run: fork,
  }));
  const next = timeline.continued_as;
  return next ? [...found, { id: next, link: next, what: "goes on as this run", run: null }] : found;
}

function Leaf({ node, depth }: { node: Node; depth: number }): JSX.Element {
  const { run } = node;
  return (
    <li class={`tree-node depth-${depth} ${node.link ? "" : "here"}`}>
      <span class="tree-id clip">
        {node.link ? (
          <Link class="link mono" to={runPath(node.link)} title={node.id}>
            {node.id}
          </Link>
        ) : (
          <b class="mono">{node.id}</b>
        )}
      </span>
      <span class="dim small clip tree-what">{node.what}</span>
      <span class="strong clip hide-m">{run?.workflow}</span>
      <span>{run ? <StateChip state={run.state} /> : node.state}</span>
      <span class="n dim hide-m">{run && <Ago at={run.created_at} />}</span>
      <span class="n dim hide-s">{run && <Took from={run.created_at} to={run.closed_at} />}</span>
    </li>
  );
}
