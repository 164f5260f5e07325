import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { Icon } from "./Icon";

/** A modal dialog. The browser keeps the focus inside and closes it on Escape. */
export function Dialog(props: {
  title: string;
  onClose: () => void;
  onSubmit?: () => void;
  children: ComponentChildren;
  footer?: ComponentChildren;
  wide?: boolean;
}): JSX.Element {
  const box = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const dialog = box.current;
    const before = document.activeElement;
    dialog?.showModal();
    return () => {
      dialog?.close();
      if (before instanceof HTMLElement) before.focus();
    };
  }, []);
  const submit = (event: Event): void => {
    event.preventDefault();
    props.onSubmit?.();
  };
  return (
    <dialog
      ref={box}
      class={props.wide ? "wide" : ""}
      aria-label={props.title}
      onCancel={(event) => {
        event.preventDefault();
        props.onClose();
      }}
      onMouseDown={(event) => {
        if (event.target === box.current) props.onClose();
      }}
    >
      <form onSubmit={submit} noValidate>
        <header>
          <h2>{props.title}</h2>
          <button type="button" class="icon-btn" aria-label="Close" onClick={props.onClose}>
            <Icon name="close" />
          </button>
        </header>
        <div class="body">{props.children}</div>
        {props.footer && <footer>{props.footer}</footer>}
      </form>
    </dialog>
  );
}
