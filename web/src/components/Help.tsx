import type { JSX } from "preact";
import { isInMenu, PAGES } from "../pages";
import { Dialog } from "./Dialog";

const KEYS: [string[], string][] = [
  [["Ctrl", "K"], "find a run, a page or a command"],
  [["j"], "next row"],
  [["k"], "row before"],
  [["Enter"], "open the chosen row"],
  [["x"], "select the chosen row"],
  [["/"], "filter the list"],
  [["["], "time travel: one entry back"],
  [["]"], "time travel: one entry on"],
  ...PAGES.filter(isInMenu).map<[string[], string]>((page) => [["g", page.key], `go to ${page.title}`]),
  [["t"], "dark or light"],
  [["?"], "these keys"],
];

export function Help({ onClose }: { onClose: () => void }): JSX.Element {
  return (
    <Dialog title="Keys" wide onClose={onClose}>
      <div class="keys">
        {KEYS.map(([keys, what]) => (
          <>
            <span class="row-gap">
              {keys.map((key) => (
                <kbd>{key}</kbd>
              ))}
            </span>
            <span>{what}</span>
          </>
        ))}
      </div>
    </Dialog>
  );
}
