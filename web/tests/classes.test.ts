/** A class that no style sheet knows is a mistake: two pages had numbers to the left for it. */
import { expect, it } from "vitest";

const styles = Object.values(import.meta.glob<string>("../src/styles/*.css", { query: "?raw", import: "default", eager: true })).join("\n");
const components = Object.values(import.meta.glob<string>("../src/**/*.tsx", { query: "?raw", import: "default", eager: true })).join("\n");

it("every class that a component names is in a style sheet", () => {
  const known = new Set([...styles.matchAll(/\.([a-z][\w-]*)/g)].map((hit) => hit[1]));
  const named = [...components.matchAll(/class="([^"]+)"/g)].flatMap((hit) => (hit[1] ?? "").split(" "));
  expect(named.length).toBeGreaterThan(300);
  expect([...new Set(named)].filter((name) => !known.has(name))).toEqual([]);
});
