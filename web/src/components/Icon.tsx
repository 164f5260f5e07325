import type { JSX } from "preact";
import type { Shape, Tone } from "../lib/states";

const line = { fill: "none", stroke: "currentColor", "stroke-width": 2, "stroke-linecap": "round", "stroke-linejoin": "round" } as const;

const SHAPES: Record<Shape, JSX.Element> = {
  done: <path d="M2.5 6.5 5 9l4.5-6" {...line} />,
  run: <circle cx="6" cy="6" r="3.2" fill="currentColor" />,
  wait: <circle cx="6" cy="6" r="3.6" {...line} stroke-width={1.8} />,
  queue: <path d="M2 3h8M2 6h8M2 9h4.5" {...line} stroke-width={1.8} />,
  fail: <path d="M3 3l6 6M9 3l-6 6" {...line} />,
  retry: <path d="M9.5 4.5A4 4 0 1 0 10 7M10 2v3H7" {...line} stroke-width={1.7} />,
  pause: <path d="M4 3v6M8 3v6" {...line} stroke-width={2.2} />,
  park: <path d="M6 2v5M6 9.6v.1" {...line} stroke-width={2.2} />,
  stop: <rect x="3" y="3" width="6" height="6" rx="1" fill="currentColor" />,
};

/** The shape of a state: it says the same as the colour. */
export function StateShape({ tone, shape = tone }: { tone: Tone; shape?: Shape }): JSX.Element {
  return (
    <svg viewBox="0 0 12 12" width="12" height="12" aria-hidden="true">
      {SHAPES[shape]}
    </svg>
  );
}

export function Brand(): JSX.Element {
  return (
    <svg viewBox="0 0 24 24" aria-hidden="true">
      <path d="M4 20 19 5" stroke="currentColor" stroke-width="2.4" stroke-linecap="round" />
      <circle cx="5.2" cy="18.8" r="3.2" fill="currentColor" />
      <path d="M12 5c3-2.5 7-1.5 8 1.5" fill="none" stroke="currentColor" stroke-width="1.6" stroke-linecap="round" opacity=".55" />
    </svg>
  );
}

const PATHS = {
  overview: "M2.5 13.5v-5M6.2 13.5v-8M9.8 13.5v-4M13.5 13.5v-11",
  runs: "M2.5 4h5M5 8h6.5M8 12h5.5",
  dead: "M2.5 4.5h11v8h-11zM2.5 5l5.5 4 5.5-4",
  flows: "M3 2.5h4v3H3zM9 10.5h4v3H9zM5 5.5v6.5h4M9 2.5h4v3H9zM7 4h2",
  events: "M9 1.5 3.5 9H8l-1 5.5L12.5 7H8z",
  approvals: "M2.5 3h11v10h-11zM5 8l2.2 2.2L11.2 6",
  queues: "M2.5 3.5h11M2.5 6.5h11M2.5 9.5h11M2.5 12.5h6",
  schedules: "M8 2.5a5.5 5.5 0 1 1 0 11 5.5 5.5 0 0 1 0-11M8 5v3.2l2.2 1.4",
  workers: "M5.5 5.5h5v5h-5zM3 3h10v10H3zM6 1.5V3M10 1.5V3M6 13v1.5M10 13v1.5M1.5 6H3M1.5 10H3M13 6h1.5M13 10h1.5",
  partners: "M2.5 8h3M10.5 8h3M5.5 5.5v5h2.2a2.5 2.5 0 0 0 0-5zM10.5 5.5v5",
  bus: "M2 4h12M2 8h12M2 12h12M5 4v4M11 8v4",
  webhooks: "M5.2 10.8a2.4 2.4 0 1 1-1.6-4M6.3 4.6a2.4 2.4 0 1 1 4 1.5L12 9M6 11h4.2M8 5l-2.4 4.2M10.6 8.6a2.4 2.4 0 1 1-.3 4.5",
  cache: "M3 4.5c0-1.1 2.2-2 5-2s5 .9 5 2-2.2 2-5 2-5-.9-5-2M3 4.5v7c0 1.1 2.2 2 5 2s5-.9 5-2v-7M3 8c0 1.1 2.2 2 5 2s5-.9 5-2",
  quotas: "M2.5 11a5.5 5.5 0 0 1 11 0M8 11l2.6-3.4",
  retention: "M3 4.5h10M4.5 4.5v8.5h7V4.5M6.5 2.5h3M6.8 7v3.5M9.2 7v3.5",
  audit: "M4 2.5h6l2.5 2.5v8.5H4zM6.5 8h4M6.5 10.5h4",
  keys: "M10.5 2.5a3 3 0 1 1-2.6 4.5L3 12v1.5h2.5V12H7v-1.5h1.2l.9-1M11 5.2v.1",
  search: "M7 2.5a4.5 4.5 0 1 1 0 9 4.5 4.5 0 0 1 0-9M10.3 10.3l3.2 3.2",
  sun: "M8 5a3 3 0 1 1 0 6 3 3 0 0 1 0-6M8 1.5v1.3M8 13.2v1.3M1.5 8h1.3M13.2 8h1.3M3.4 3.4l.9.9M11.7 11.7l.9.9M12.6 3.4l-.9.9M4.3 11.7l-.9.9",
  moon: "M13 9.5A5.5 5.5 0 0 1 6.5 3a5.5 5.5 0 1 0 6.5 6.5",
  menu: "M2.5 4.5h11M2.5 8h11M2.5 11.5h11",
  copy: "M5.5 5.5h8v8h-8zM10.5 5.5v-3h-8v8h3",
  close: "M4 4l8 8M12 4l-8 8",
  out: "M6.5 2.5h-4v11h4M9.5 5l3 3-3 3M12.5 8h-7",
  help: "M6 6a2 2 0 1 1 2.9 1.8c-.6.3-.9.7-.9 1.4M8 11.6v.1",
  left: "M10 3.5 5.5 8l4.5 4.5",
  right: "M6 3.5 10.5 8 6 12.5",
  fork: "M4.5 2.5v11M4.5 8c4 0 6.5-1 6.5-5.5M4.5 13.5h.1",
  plus: "M8 3v10M3 8h10",
  more: "M3.5 8h.1M8 8h.1M12.5 8h.1",
  page: "M3 3h10v10H3zM3 6.2h10",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { name: IconName }): JSX.Element {
  return (
    <svg viewBox="0 0 16 16" width="16" height="16" aria-hidden="true">
      <path d={PATHS[name]} {...line} stroke-width={1.5} />
    </svg>
  );
}
