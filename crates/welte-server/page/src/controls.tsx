import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { showToast } from "./announce";
import { Icon, type IconName } from "./icons";

interface IconButtonProps {
  icon: IconName;
  label: string;
  onClick: () => void;
  disabled?: boolean;
  pressed?: boolean;
  text?: string;
  class?: string;
}

/** A button with an icon. The label is its accessible name and its tooltip; `text` is shown beside the icon. */
export function IconButton({ icon, label, onClick, disabled, pressed, text, class: kind }: IconButtonProps) {
  return (
    <button
      type="button"
      class={`icon-button ${kind ?? ""}`}
      aria-label={label}
      title={label}
      aria-pressed={pressed}
      disabled={disabled}
      onClick={onClick}
    >
      <Icon name={icon} />
      {text && <span>{text}</span>}
    </button>
  );
}

/**
 * Moves the focus into what the page shows after the changes made so far: Preact renders them in a microtask that is already
 * queued. In the next frame the focus could be taken from somebody who has gone on.
 */
export function afterRender(focus: () => void): void {
  queueMicrotask(focus);
}

async function copy(text: string): Promise<void> {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  // Pages served over plain HTTP from another machine have no clipboard API.
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  if (!copied) throw new Error("the browser refused");
}

export function CopyButton({ text, label }: { text: () => string; label: string }) {
  const [done, setDone] = useState(false);
  useEffect(() => {
    if (!done) return;
    const timer = setTimeout(() => setDone(false), 1500);
    return () => clearTimeout(timer);
  }, [done]);
  const run = () =>
    copy(text()).then(
      () => setDone(true),
      (error: unknown) => showToast(`Nothing was copied: ${String(error)}`),
    );
  return <IconButton icon={done ? "check" : "copy"} label={done ? "Copied" : label} onClick={run} />;
}

interface DialogProps {
  title: string;
  onClose: () => void;
  children: ComponentChildren;
}

/** A modal dialog. The browser keeps the focus inside, closes it on Escape, and gives the focus back. */
export function Dialog({ title, onClose, children }: DialogProps) {
  const ref = useRef<HTMLDialogElement>(null);
  // Before the page is painted, so that the next key goes to the dialog.
  useLayoutEffect(() => {
    ref.current?.showModal();
  }, []);
  const onClick = (event: MouseEvent) => {
    // A click on the backdrop hits the dialog itself.
    if (event.target === ref.current) ref.current?.close();
  };
  return (
    <dialog ref={ref} aria-labelledby="dialog-title" onClose={onClose} onClick={onClick}>
      <div class="dialog-body">
        <header>
          <h2 id="dialog-title">{title}</h2>
          <IconButton icon="close" label="Close" onClick={() => ref.current?.close()} />
        </header>
        {children}
      </div>
    </dialog>
  );
}

/** Saves a text as a file. */
export function download(name: string, text: string, type: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}
