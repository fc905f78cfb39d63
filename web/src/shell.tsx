// What surrounds every page: navigation, the state of the connection, the palette and the keyboard.
import { signal } from "@preact/signals";
import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";
import { ApiError, me, signOut, tabSecret } from "./api";
import { duration } from "./format";
import { helpText, listenToKeys } from "./keyboard";
import { connection, isPaused } from "./live";
import { Problem, Skeleton } from "./parts/load";
import { Palette, openPalette } from "./parts/palette";
import { DialogHost, Empty, ToastHost, openDialog } from "./parts/ui";
import { updatedAt } from "./queues";
import { Link, link, path } from "./router";
import { isDark, toggleTheme } from "./theme";

type PageModule = { default: ComponentType };

export interface Section {
  id: string;
  title: string;
  key: string; // after "g"
  load: () => Promise<PageModule>;
}

export const SECTIONS: readonly Section[] = [
  { id: "", title: "Overview", key: "o", load: () => import("./pages/overview") },
  { id: "queues", title: "Queues", key: "q", load: () => import("./pages/queues") },
  { id: "dlq", title: "Dead letters", key: "d", load: () => import("./pages/dlq") },
  { id: "tasks", title: "Tasks", key: "t", load: () => import("./pages/tasks") },
  { id: "workers", title: "Workers", key: "w", load: () => import("./pages/workers") },
  { id: "schedules", title: "Schedules", key: "s", load: () => import("./pages/schedules") },
  { id: "history", title: "History", key: "h", load: () => import("./pages/history") },
  { id: "query", title: "Query", key: "u", load: () => import("./pages/query") },
  { id: "operations", title: "Operations", key: "p", load: () => import("./pages/operations") },
  { id: "audit", title: "Audit", key: "a", load: () => import("./pages/audit") },
  { id: "broker", title: "Broker", key: "b", load: () => import("./pages/broker") },
];

/** Pages with a part of the address behind their name. */
const DETAILS: Record<string, () => Promise<PageModule>> = {
  queues: () => import("./pages/queue"),
  messages: () => import("./pages/message"),
  tasks: () => import("./pages/task"),
  workflows: () => import("./pages/workflow"),
};

function choose(parts: readonly string[]): (() => Promise<PageModule>) | undefined {
  const [name = "", ...rest] = parts;
  if (rest.length && DETAILS[name]) return DETAILS[name];
  return SECTIONS.find((section) => section.id === name)?.load;
}

const loaded = new Map<() => Promise<PageModule>, ComponentType>();

export function App() {
  useEffect(() => listenToKeys(), []);
  if (me.value === undefined) return <div class="pending" aria-busy="true" />;
  if (me.value === null) return <Lazy load={signInPage} />;
  return (
    <div class="shell">
      <a class="skip" href="#main">
        Skip to the page
      </a>
      <Sidebar />
      <Banner />
      <main id="main" tabIndex={-1}>
        <CurrentPage />
      </main>
      <DialogHost />
      <Palette />
      <ToastHost />
    </div>
  );
}

const signInPage = (): Promise<PageModule> => import("./pages/sign-in");

function CurrentPage() {
  const load = choose(path.value);
  if (!load) return <Empty title="There is no such page">The address may be mistyped, or of a newer version.</Empty>;
  return <Lazy load={load} key={path.value.slice(0, 2).join("/")} />;
}

/** A page whose script is fetched when it is shown for the first time. */
function Lazy({ load }: { load: () => Promise<PageModule> }) {
  const [, redraw] = useState(0);
  const [error, setError] = useState<ApiError | null>(null);
  useEffect(() => {
    if (loaded.has(load)) return;
    load().then(
      (module) => {
        loaded.set(load, module.default);
        redraw((turn) => turn + 1);
      },
      () => setError(new ApiError(0, "unreachable", "This part of the dashboard could not be loaded.", "Reload the page: the broker may have been upgraded.", "")),
    );
  }, [load]);
  if (error) return <Problem error={error} />;
  const PageComponent = loaded.get(load);
  return PageComponent ? <PageComponent /> : <Skeleton rows={6} />;
}

const isMenuOpen = signal(false);

function Sidebar() {
  const here = path.value[0] === "messages" ? "queues" : path.value[0] === "workflows" ? "tasks" : (path.value[0] ?? "");
  return (
    <aside class="sidebar" data-open={isMenuOpen.value ? "yes" : "no"}>
      <div class="brand">
        <Link href={link([])}>
          <img src="icon.svg" alt="" width="22" height="22" /> Penstock
        </Link>
        <button class="quiet menu" aria-expanded={isMenuOpen.value} onClick={() => (isMenuOpen.value = !isMenuOpen.value)}>
          Menu
        </button>
      </div>
      <button class="search" onClick={openPalette}>
        Search <kbd>Ctrl K</kbd>
      </button>
      <nav aria-label="Pages" onClick={() => (isMenuOpen.value = false)}>
        {SECTIONS.map((section) => (
          <Link key={section.id} href={link([section.id].filter(Boolean))} aria-current={section.id === here ? "page" : undefined}>
            {section.title}
          </Link>
        ))}
      </nav>
      <div class="sidebar-foot">
        <LiveState />
        <div class="row">
          <button class="quiet" onClick={toggleTheme} aria-label={isDark.value ? "Use the light theme" : "Use the dark theme"}>
            {isDark.value ? "Light" : "Dark"}
          </button>
          <button class="quiet" onClick={() => openDialog(helpText)}>
            Keys
          </button>
          {tabSecret() ? null : (
            <a class="quiet" href="../docs">
              API
            </a>
          )}
        </div>
        <div class="row who">
          <span title={(me.value?.grants ?? []).join("\n")}>{me.value?.name}</span>
          <button class="quiet" onClick={() => void signOut()}>
            Sign out
          </button>
        </div>
      </div>
    </aside>
  );
}

const now = signal(Date.now());
setInterval(() => document.hidden || (now.value = Date.now()), 1000);

function LiveState() {
  const state = isPaused.value ? "paused" : connection.value;
  const age = updatedAt.value ? now.value - updatedAt.value : 0;
  const text = { live: "Live", connecting: "Connecting", polling: "Every 5 s", offline: "Offline", paused: "Paused" }[state];
  return (
    <button class={`live ${state}`} onClick={() => (isPaused.value = !isPaused.value)} title="Pause or resume live updates (.)" aria-pressed={isPaused.value}>
      <i aria-hidden="true" /> {text}
      {age > 3000 && updatedAt.value ? <span class="soft"> · data {duration(age)} old</span> : null}
    </button>
  );
}

function Banner() {
  if (connection.value !== "offline") return null;
  return (
    <div class="banner" role="alert">
      The broker cannot be reached. What you see is the last state; actions are off until it is back.
    </div>
  );
}
