import "../styles/flows.css";
import type { JSX } from "preact";
import type { FlowStep } from "../api/flows";
import { graphOf, isTaken, type Taken } from "../lib/flow";
import { stepLook } from "../lib/flowStates";
import { numberOf } from "../lib/time";
import { StateShape } from "./Icon";

const [WIDE, HIGH, GAP, INDENT] = [190, 40, 26, 34];

/** Steps from top to bottom, and which follows which. `taken`: the path of a run, which stands out. */
export function FlowGraph({ steps, taken }: { steps: readonly FlowStep[]; taken?: Taken }): JSX.Element {
  const { nodes, edges } = graphOf(steps);
  const place = new Map(nodes.map((node) => [node.key, node]));
  const deepest = Math.max(0, ...nodes.map((node) => node.depth));
  const width = WIDE + deepest * INDENT + 110;
  const height = Math.max(1, nodes.length) * (HIGH + GAP);
  const x = (depth: number): number => depth * INDENT + 4;
  const y = (row: number): number => row * (HIGH + GAP) + 4;
  return (
    <svg class="flow-graph" viewBox={`0 0 ${width} ${height}`} style={{ maxWidth: `${width}px` }} role="img" aria-label={`Graph of ${numberOf(nodes.length, "step")}`}>
      {edges.map((edge) => {
        const [from, to] = [place.get(edge.from), place.get(edge.to)];
        if (!from || !to) return null;
        const label = edge.labels.filter((one) => one.trim()).join(", ");
        const next = to.row === from.row + 1;
        const right = x(Math.max(from.depth, to.depth)) + WIDE;
        const out = Math.min(90, 16 + Math.abs(to.row - from.row) * 9);
        const path = next
          ? `M${x(from.depth) + 30} ${y(from.row) + HIGH}L${x(to.depth) + 30} ${y(to.row)}`
          : `M${x(from.depth) + WIDE} ${y(from.row) + HIGH / 2}C${right + out} ${y(from.row) + HIGH / 2} ${right + out} ${y(to.row) + HIGH / 2} ${x(to.depth) + WIDE} ${y(to.row) + HIGH / 2}`;
        return (
          <g key={`${edge.from} ${edge.to}`} class={`flow-edge ${taken && isTaken(edge, taken) ? "taken" : ""}`}>
            <path d={path} />
            {label && (
              <text x={next ? x(from.depth) + 38 : x(from.depth) + WIDE + 6} y={next ? y(from.row) + HIGH + 17 : y(from.row) + HIGH / 2 - 5}>
                {label}
              </text>
            )}
          </g>
        );
      })}
      {nodes.map((node) => {
        const look = taken ? stepLook(taken.states[node.key] ?? "") : null;
        return (
          <g key={node.key} class={`flow-node ${look?.tone ?? (taken ? "off" : "")}`} transform={`translate(${x(node.depth)} ${y(node.row)})`} data-key={node.key} data-state={taken?.states[node.key] ?? ""}>
            <rect width={WIDE} height={HIGH} rx="6" />
            <text x="10" y="17" class="flow-key">
              {short(node.key)}
            </text>
            <text x="10" y="32">
              {look ? `${node.type} · ${look.label}` : node.type}
            </text>
            {look && (
              <g transform={`translate(${WIDE - 20} 8)`}>
                <StateShape tone={look.tone} />
              </g>
            )}
          </g>
        );
      })}
    </svg>
  );
}

function short(text: string): string {
  return text.length > 24 ? `${text.slice(0, 23)}…` : text;
}
