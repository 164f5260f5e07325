/** Dark or light: as the system says, unless the reader chose. */

import { store } from "./store";

export type Theme = "light" | "dark";

const KEY = "batuta-theme";
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
export const theme = store<Theme>(chosen() ?? bySystem());

function chosen(): Theme | null {
  try {
    const found = localStorage.getItem(KEY);
    return found === "light" || found === "dark" ? found : null;
  } catch {
    return null; // storage may be forbidden
  }
}

function bySystem(): Theme {
  return prefersDark.matches ? "dark" : "light";
}

function show(value: Theme): void {
  document.documentElement.dataset["theme"] = value;
}

export function startTheme(): void {
  show(theme.get());
  theme.follow(show);
  prefersDark.addEventListener("change", () => {
    if (chosen() === null) theme.set(bySystem());
  });
}

export function toggleTheme(): void {
  const next = theme.get() === "dark" ? "light" : "dark";
  try {
    localStorage.setItem(KEY, next);
  } catch {
    // it holds for this page then
  }
  theme.set(next);
}
