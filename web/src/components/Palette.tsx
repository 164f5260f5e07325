import type { JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { listRuns } from "../api/endpoints";
import type { Run } from "../api/types";
import { rank } from "../lib/search";
import { runLook } from "../lib/states";
import { navigate, runPath } from "../state/router";
import { Icon, type IconName, StateShape } from "./Icon";

export interface PaletteCommand {
  title: string;
  hint?: string;
  icon: IconName;
  act: () => void;
}

interface Item {
  key: string;
  title: string;
  hint: string;
  mark: JSX.Element;
  act: () => void;
}

/** Jump to a run, a page or a command by typing. */
export function Palette({ commands, onClose }: { commands: PaletteCommand[]; onClose: () => void }): JSX.Element {
  const [text, setText] = useState("");
  const [runs, setRuns] = useState<Run[]>([]);
  const [at, setAt] = useState(0);
  const box = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const before = document.activeElement;
    box.current?.showModal();
    return () => {
      if (before instanceof HTMLElement) before.focus();
    };
  }, []);
  useEffect(() => {
    const wanted = text.trim();
    if (!wanted) {
      setRuns([]);
      return undefined;
    }
    const stop = new AbortController();
    const timer = setTimeout(() => {
      const query = new URLSearchParams({ id_prefix: wanted, kind: "any", limit: "8" });
      listRuns(query, stop.signal).then(
        (page) => setRuns(page.runs),
        () => setRuns([]),
      );
    }, 150);
    return () => {
      clearTimeout(timer);
      stop.abort();
    };
  }, [text]);

  const items = useMemo<Item[]>(() => {
    const wanted = text.trim();
    const found = rank(commands, wanted, (one) => one.title).map<Item>((one) => ({
      key: `c ${one.title}`,
      title: one.title,
      hint: one.hint ?? "",
      mark: <Icon name={one.icon} />,
      act: one.act,
    }));
    const jumps = runs.map<Item>((run) => ({
      key: `r ${run.run_id}`,
      title: run.id,
      hint: `${run.workflow}, ${runLook(run.state).label}`,
      mark: (
        <span class={`tone-${runLook(run.state).tone}`}>
          <StateShape {...runLook(run.state)} />
        </span>
      ),
      act: () => navigate(runPath(run.run_id)),
    }));
    const direct: Item[] = wanted
      ? [
          { key: "open", title: `Open run ${wanted}`, hint: "id or run id", mark: <Icon name="runs" />, act: () => navigate(runPath(wanted)) },
          {
            key: "find",
            title: `Find runs that begin with ${wanted}`,
            hint: "filter",
            mark: <Icon name="search" />,
            act: () => navigate("/runs", new URLSearchParams({ id_prefix: wanted })),
          },
        ]
      : [];
    return [...jumps, ...found, ...direct];
  }, [commands, runs, text]);
  const chosen = Math.min(at, items.length - 1);

  const act = (item: Item | undefined): void => {
    if (!item) return;
    onClose();
    item.act();
  };
  const press = (event: KeyboardEvent): void => {
    if (event.key === "ArrowDown" || (event.ctrlKey && event.key === "n")) setAt(Math.min(chosen + 1, items.length - 1));
    else if (event.key === "ArrowUp" || (event.ctrlKey && event.key === "p")) setAt(Math.max(chosen - 1, 0));
    else if (event.key === "Enter") act(items[chosen]);
    else return;
    event.preventDefault();
  };
  return (
    <dialog
      ref={box}
      class="palette"
      aria-label="Command palette"
      onCancel={(event) => {
        event.preventDefault();
        onClose();
      }}
      onMouseDown={(event) => {
        if (event.target === box.current) onClose();
      }}
    >
      <input
        value={text}
        placeholder="Find a run, a page or a command"
        aria-label="Find a run, a page or a command"
        role="combobox"
        aria-expanded="true"
        aria-controls="palette-list"
        aria-activedescendant={items[chosen] ? `palette-${chosen}` : ""}
        autocomplete="off"
        spellcheck={false}
        onInput={(event) => {
          setText(event.currentTarget.value);
          setAt(0);
        }}
        onKeyDown={press}
      />
      <ul id="palette-list" role="listbox" aria-label="Results">
        {items.map((item, index) => (
          <li
            key={item.key}
            id={`palette-${index}`}
            role="option"
            aria-selected={index === chosen}
            ref={(element) => {
              if (index === chosen) element?.scrollIntoView({ block: "nearest" });
            }}
            onMouseMove={() => setAt(index)}
            onClick={() => act(item)}
          >
            {item.mark}
            <span class="clip">{item.title}</span>
            <span class="hint nowrap">{item.hint}</span>
          </li>
        ))}
      </ul>
    </dialog>
  );
}
