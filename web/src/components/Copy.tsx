import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { Icon } from "./Icon";

async function copy(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false; // no permission, or no secure context
  }
}

function useCopied(text: string): [boolean, () => void] {
  const [copied, setCopied] = useState(false);
  const act = (): void => {
    void copy(text).then((done) => {
      setCopied(done);
      if (done) setTimeout(() => setCopied(false), 1_200);
    });
  };
  return [copied, act];
}

/** An id in mono; a click copies it. */
export function CopyId({ text, label }: { text: string; label?: string }): JSX.Element {
  const [copied, act] = useCopied(text);
  return (
    <button type="button" class="copy-id mono clip" title={copied ? "copied" : `copy ${text}`} onClick={act}>
      {copied ? "copied" : (label ?? text)}
    </button>
  );
}

export function CopyButton({ text }: { text: string }): JSX.Element {
  const [copied, act] = useCopied(text);
  return (
    <button type="button" class="icon-btn copy" aria-label={copied ? "copied" : "copy"} title={copied ? "copied" : "copy"} onClick={act}>
      <Icon name="copy" />
    </button>
  );
}
