// Dialogs: one at a time, on the native element, which traps the focus and closes on Escape; and short notes.
import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError } from "../api";
import { Problem } from "./load";
import { canAct, Command } from "./ui";

const dialog = signal<(() => ComponentChildren) | null>(null);
/** Of more than this many, the count is typed before they are changed. */
export const TYPED_ABOVE = 1000;

export const openDialog = (content: () => ComponentChildren): void => void (dialog.value = content);
export const closeDialog = (): void => void (dialog.value = null);

export function DialogHost() {
  const element = useRef<HTMLDialogElement>(null);
  const content = dialog.value;
  useEffect(() => {
    if (content && !element.current?.open) element.current?.showModal();
    if (!content) element.current?.close();
  }, [content]);
  return (
    <dialog ref={element} aria-labelledby="dialog-title" onClose={closeDialog} onClick={(event) => event.target === element.current && closeDialog()}>
      {content ? <div class="dialog">{content()}</div> : null}
    </dialog>
  );
}

interface ActionDialog {
  title: string;
  children?: ComponentChildren;
  command?: string | (() => string); // what does the same in a terminal
  confirm: string; // the button
  danger?: boolean;
  typed?: string | (() => string | undefined); // what must be typed first
  run: () => Promise<unknown>;
  done?: string;
}

/** Ask before something is changed, run it, and say what happened. */
export function ask(options: ActionDialog): void {
  openDialog(() => <AskForm {...options} />);
}

export const asError = (problem: unknown): ApiError => (problem instanceof ApiError ? problem : new ApiError(0, "invalid", problem instanceof Error ? problem.message : String(problem), "", ""));

function AskForm({ title, children, command, confirm, danger, typed, run, done }: ActionDialog) {
  const [error, setError] = useState<ApiError | null>(null);
  const [isBusy, setBusy] = useState(false);
  const [text, setText] = useState("");
  const expected = typeof typed === "function" ? typed() : typed;
  const [, redraw] = useState(0); // the command below shows what is typed into the fields
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      await run();
      closeDialog();
      if (done) notify(done);
    } catch (problem) {
      setError(asError(problem));
      setBusy(false);
    }
  };
  return (
    <form onSubmit={submit} onInput={() => redraw((turn) => turn + 1)}>
      <h2 id="dialog-title">{title}</h2>
      {children}
      {expected ? <Typed text={expected} value={text} onInput={setText} /> : null}
      {error ? <Problem error={error} /> : null}
      {command ? (
        <p class="soft small">
          In a terminal: <Command text={typeof command === "string" ? command : command()} />
        </p>
      ) : null}
      <footer>
        <button type="button" onClick={closeDialog}>
          Cancel
        </button>
        <button class={danger ? "danger" : "primary"} disabled={isBusy || !canAct.value || (expected !== undefined && text !== expected)}>
          {isBusy ? "Working…" : confirm}
        </button>
      </footer>
    </form>
  );
}

/** What must be typed before something that cannot be undone. */
export function Typed({ text, value, onInput }: { text: string; value: string; onInput: (value: string) => void }) {
  return (
    <label class="field">
      <span>
        Type <code>{text}</code> to confirm
      </span>
      <input value={value} onInput={(event) => onInput(event.currentTarget.value)} autocomplete="off" />
    </label>
  );
}

const toast = signal("");
let toastTimer = 0;

export function notify(text: string): void {
  toast.value = text;
  clearTimeout(toastTimer);
  toastTimer = window.setTimeout(() => (toast.value = ""), 4000);
}

export function ToastHost() {
  return (
    <div class="toast" role="status" aria-live="polite" data-shown={toast.value ? "yes" : "no"}>
      {toast.value}
    </div>
  );
}
