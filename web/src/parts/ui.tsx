// Small building blocks that every page uses.
import { type ReadonlySignal, computed, signal, useComputed } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { may } from "../api";
import { count, exact, relative } from "../format";
import { connection } from "../live";
import { Link, query } from "../router";

export type Tone = "ok" | "warning" | "danger" | "info" | "neutral";

export function Badge({ tone = "neutral", children, title, plain }: { tone?: Tone; children: ComponentChildren; title?: string; plain?: boolean }) {
  return (
    <span class={`badge ${tone} ${plain ? "plain" : ""}`} title={title}>
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
  return <Moment at={at} text={relative} />;
}

/** How long ago something was, without "ago": for a column that is headed by what it measures. */
export function Age({ at }: { at: string | null | undefined }) {
  if (!at) return <Dash />;
  return <Moment at={at} text={(iso) => relative(iso).replace(/ ago$/, "")} />;
}

function Moment({ at, text }: { at: string; text: (iso: string) => string }) {
  // A signal as text: the browser writes only when the words change.
  const words: ReadonlySignal<string> = useMemo(() => computed(() => (void second.value, text(at))), [at]);
  return (
    <time dateTime={at} title={exact(at)}>
      {words}
    </time>
  );
}

/** There is nothing to say. */
export function Dash() {
  return <span class="zero">–</span>;
}

/** A count in a table: zero steps back, so that the others stand out. */
export function Amount({ value, text }: { value: number; text: string }) {
  return value ? <>{text}</> : <span class="zero">{text}</span>;
}

interface PageProps {
  title: string;
  badges?: ComponentChildren; // beside the title
  crumbs?: [string, string][];
  actions?: ComponentChildren;
  children: ComponentChildren;
}

export function Page({ title, badges, crumbs, actions, children }: PageProps) {
  useEffect(() => {
    document.title = `${title} · Penstock`;
  }, [title]);
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
          <div class="title">
            <h1>{title}</h1>
            {badges}
          </div>
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

export interface StatItem {
  name: string;
  value: string;
  unit?: string;
  tone?: Tone | undefined;
}

/** The few numbers that matter most, in one line. */
export function Stats({ items }: { items: readonly StatItem[] }) {
  return (
    <dl class="stats">
      {items.map(({ name, value, unit, tone }) => (
        <div key={name} class={`stat ${tone ?? ""}`}>
          <dt>{name}</dt>
          <dd>
            {value}
            {unit ? <small> {unit}</small> : null}
          </dd>
        </div>
      ))}
    </dl>
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

export type Fact = [name: string, value: ComponentChildren];

/** Names with values: in columns, or `aside` as a list of properties. */
export function Facts({ items, aside, wide }: { items: readonly Fact[]; aside?: boolean; wide?: boolean }) {
  return (
    <dl class={aside ? "properties" : wide ? "facts wide" : "facts"}>
      {items.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

export const copy = (text: string): Promise<void> => navigator.clipboard?.writeText(text) ?? Promise.resolve();

/** A command to copy: what the page does can be done in a terminal as well. */
export function Command({ text }: { text: string }) {
  const [isCopied, setCopied] = useState(false);
  const onClick = (): void => {
    void copy(text).then(() => {
      setCopied(true);
      setTimeout(() => setCopied(false), 1500);
    });
  };
  return (
    <span class="command">
      <code tabIndex={0}>{text}</code>
      <button type="button" class="quiet" onClick={onClick} aria-label={`Copy: ${text}`}>
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

/** Whether anything can be changed now: not while the broker is away, nor while the page shows the past. */
export const canAct = computed(() => connection.value !== "offline" && !query.value.get("at"));

interface ActionProps {
  right?: string; // without which the button is not offered
  queue?: string;
  class?: string;
  children: ComponentChildren;
  onClick: () => void;
}

/** A button that changes something. */
export function Action({ right = "manage", queue = "", class: name, children, onClick }: ActionProps) {
  const title = useComputed(() => (canAct.value ? "" : connection.value === "offline" ? "The broker cannot be reached" : "The page shows the past"));
  if (!may(right, queue)) return null;
  return (
    <button type="button" class={name} disabled={!canAct.value} title={title.value || undefined} onClick={onClick}>
      {children}
    </button>
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

export function Bar({ part, whole, label, tone = "", isLong }: { part: number; whole: number; label: string; tone?: string; isLong?: boolean }) {
  return (
    <span class={`bar ${tone} ${isLong ? "long" : ""}`} role="img" aria-label={label}>
      <i style={{ width: `${whole ? Math.min(100, (100 * part) / whole) : 0}%` }} />
    </span>
  );
}
