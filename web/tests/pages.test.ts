import { describe, expect, it } from "vitest";
import { isInMenu, PAGES } from "../src/pages";

const MENU = PAGES.filter(isInMenu);

describe("Pages of the menu", () => {
  it("each have a key of one letter, and no two have the same", () => {
    expect(MENU.map((page) => page.key).filter((key) => !/^[a-z]$/.test(key))).toEqual([]);
    expect(new Set(MENU.map((page) => page.key)).size).toBe(MENU.length);
  });
  it("each have an address, a title and an icon of their own", () => {
    for (const part of ["path", "title", "icon"] as const) expect(new Set(MENU.map((page) => page[part])).size).toBe(MENU.length);
  });
});
