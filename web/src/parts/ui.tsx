// Small building blocks that every page uses.
import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError } from "../api";
import { count, exact, relative } from "../format";
import { Link } from "../router";
import { Problem } from "./load";

export type Tone = "ok" | "warning" | "danger" | "info" | "neutral";

export function Badge({ tone = "neutral", children, title }: { tone?: Tone; children: ComponentChildren; title?: string }) {
  return (
    <span class={`badge ${tone}`} title={title}>
      {children}
    </span>
  );
}

/** Ticks once a second while anything shows a relative time. */
const second = signal(0);
setInterval(() => document.hidden || (second.value += 1), 1000);

/** A time as a distance from now, with the exact one on hover. */
export function Time({ at, empty = "–" }: { at: string | null | undefined; empty?: string }) {
  if (!at) return <span class="soft">{empty}</span>;
  void second.value;
  return (
    <time dateTime={at} title={exact(at)}>
      {relative(at)}
    </time>
  );
}

export function Page({ title, crumbs, actions, children }: { title: ComponentChildren; crumbs?: [string, string][]; actions?: ComponentChildren; children: ComponentChildren }) {
  const text = typeof title === "string" ? title : "";
  useEffect(() => {
    if (text) document.title = `${text} · Penstock`;
  }, [text]);
  return (
    <>
      <header class="page-head">
        <div>
          {crumbs ? (
            <nav class="crumbs" aria-label="Breadcrumb">
              {crumbs.map(([label, href]) => (
                <Link key={href} href={href}>
                  {label}
                </Link>
              ))}
            </nav>
          ) : null}
          <h1>{title}</h1>
        </div>
        {actions ? <div class="actions">{actions}</div> : null}
      </header>
      {children}
    </>
  );
}

export function Card({ title, actions, children, class: name = "" }: { title?: ComponentChildren; actions?: ComponentChildren; children: ComponentChildren; class?: string }) {
  return (
    <section class={`card ${name}`}>
      {title ? (
        <header>
          <h2>{title}</h2>
          {actions}
        </header>
      ) : null}
      {children}
    </section>
  );
}

export function Tabs({ tabs, current, label }: { tabs: { id: string; title: string; href: string; badge?: number }[]; current: string; label: string }) {
  return (
    <nav class="tabs" aria-label={label}>
      {tabs.map((tab) => (
        <Link key={tab.id} href={tab.href} aria-current={tab.id === current ? "page" : undefined}>
          {tab.title}
          {tab.badge ? <span class="tab-count">{count(tab.badge)}</span> : null}
        </Link>
      ))}
    </nav>
  );
}

export function Facts({ items }: { items: [string, ComponentChildren][] }) {
  return (
    <dl class="facts">
      {items.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

/** A command to copy: what the page does can be done in a terminal as well. */
export function Command({ text }: { text: string }) {
  const [isCopied, setCopied] = useState(false);
  const copy = (): void => {
    void navigator.clipboard?.writeText(text).then(() => {
      setCopied(true);
      setTimeout(() => setCopied(false), 1500);
    });
  };
  return (
    <span class="command">
      <code tabIndex={0}>{text}</code>
      <button class="quiet" onClick={copy} aria-label={`Copy: ${text}`}>
        {isCopied ? "Copied" : "Copy"}
      </button>
    </span>
  );
}

export function Empty({ title, children, command }: { title: string; children?: ComponentChildren; command?: string }) {
  return (
    <div class="empty">
      <strong>{title}</strong>
      {children ? <p>{children}</p> : null}
      {command ? <Command text={command} /> : null}
    </div>
  );
}

// Dialogs: one at a time, on the native element, which traps the focus and closes on Escape.

const dialog = signal<(() => ComponentChildren) | null>(null);
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
    <dialog ref={element} onClose={closeDialog} onClick={(event) => event.target === element.current && closeDialog()}>
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
  typed?: string; // what must be typed first
  run: () => Promise<unknown>;
  done?: string;
}

/** Ask before something is changed, run it, and say what happened. */
export function ask(options: ActionDialog): void {
  openDialog(() => <AskForm {...options} />);
}

function AskForm({ title, children, command, confirm, danger, typed, run, done }: ActionDialog) {
  const [error, setError] = useState<ApiError | null>(null);
  const [isBusy, setBusy] = useState(false);
  const [text, setText] = useState("");
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
      setError(problem instanceof ApiError ? problem : new ApiError(0, "fault", String(problem), "", ""));
      setBusy(false);
    }
  };
  return (
    <form onSubmit={submit} onInput={() => redraw((turn) => turn + 1)}>
      <h2>{title}</h2>
      {children}
      {typed ? (
        <label>
          Type <code>{typed}</code> to confirm
          <input value={text} onInput={(event) => setText(event.currentTarget.value)} autocomplete="off" />
        </label>
      ) : null}
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
        <button class={danger ? "danger" : "primary"} disabled={isBusy || (typed !== undefined && text !== typed)}>
          {isBusy ? "Working…" : confirm}
        </button>
      </footer>
    </form>
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

/** A field of a form with its label. */
export function Field({ label, hint, children }: { label: string; hint?: ComponentChildren; children: ComponentChildren }) {
  return (
    <label class="field">
      <span>{label}</span>
      {children}
      {hint ? <small>{hint}</small> : null}
    </label>
  );
}
