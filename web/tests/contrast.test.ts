/** WCAG AA: text on its ground has a contrast of 4.5, what can be filled in an outline of 3. */

import { expect, it } from "vitest";
import css from "../src/styles/tokens.css?raw";

function tokens(theme: "light" | "dark"): Record<string, string> {
  const [light = "", dark = ""] = css.split('[data-theme="dark"]');
  const read = (part: string): [string, string][] => [...part.matchAll(/--([\w-]+):\s*(#[0-9a-f]{6})/g)].map((hit) => [hit[1] ?? "", hit[2] ?? ""]);
  return Object.fromEntries([...read(light), ...(theme === "dark" ? read(dark) : [])]);
}

function luminance(colour: string): number {
  const [r = 0, g = 0, b = 0] = [1, 3, 5].map((place) => {
    const value = parseInt(colour.slice(place, place + 2), 16) / 255;
    return value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function contrast(one: string, other: string): number {
  const [high = 0, low = 0] = [luminance(one), luminance(other)].sort((a, b) => b - a);
  return (high + 0.05) / (low + 0.05);
}

const TONES = ["done", "run", "wait", "retry", "fail", "pause", "park", "stop"];
const PAIRS: [string, string][] = [
  ...["text", "text-2", "text-3"].flatMap((text) => ["bg", "surface", "surface-2", "accent-soft"].map((ground): [string, string] => [text, ground])),
  ...TONES.flatMap((tone): [string, string][] => [[tone, `${tone}-soft`], [tone, "surface"], [tone, "accent-soft"], ["text", `${tone}-soft`]]),
  ["accent", "surface"],
  ["accent", "accent-soft"],
  ["on-accent", "accent"],
  ["surface", "fail"],
];

for (const theme of ["light", "dark"] as const) {
  it.each(PAIRS)(`${theme}: %s can be read on %s`, (text, ground) => {
    const found = tokens(theme);
    expect(contrast(found[text] ?? "", found[ground] ?? "")).toBeGreaterThanOrEqual(4.5);
  });
  it(`${theme}: fields have an outline`, () => {
    const found = tokens(theme);
    expect(contrast(found["control"] ?? "", found["surface"] ?? "")).toBeGreaterThanOrEqual(3);
  });
}
