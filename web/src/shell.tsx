// What surrounds every page: navigation, the state of the connection, the palette and the keyboard.
import { computed, signal } from "@preact/signals";
import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";
import { ApiError, broker, me, signOut, tabSecret } from "./api";
import { brief, local, short } from "./format";
import { helpText, listenToKeys } from "./keyboard";
import { connection, isPaused } from "./live";
import { Icon } from "./parts/icon";
import { Problem, Skeleton } from "./parts/load";
import { Palette, openPalette } from "./parts/palette";
import { DialogHost, ToastHost, openDialog } from "./parts/dialog";
import { Empty } from "./parts/ui";
import { sortedRows, updatedAt, watchQueues } from "./queues";
import { Link, link, path, query, setQuery } from "./router";
import { GROUPS, type PageModule, routeOf } from "./routes";
import { isDark, toggleTheme } from "./theme";

/** The section that a page without one of its own belongs to. */
const PARENTS: Record<string, string> = { messages: "queues" };

const loaded = new Map<() => Promise<PageModule>, ComponentType>();

export function App() {
  useEffect(() => listenToKeys(), []);
  if (me.value === undefined) return <div class="pending" aria-busy="true" />;
  if (me.value === null) return <Lazy load={signInPage} />;
  return <Shell />;
}

function Shell() {
  useEffect(watchQueues, []); // for the numbers beside the pages, and so that pages open with data
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
  const load = routeOf(path.value)?.load;
  if (!load) return <Empty title="There is no such page" command="penstock dashboard">The address may be mistyped, or of a newer version. The navigation leads to every page.</Empty>;
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
  const here = PARENTS[path.value[0] ?? ""] ?? path.value[0] ?? "";
  return (
    <aside class="sidebar" data-open={isMenuOpen.value ? "yes" : "no"}>
      <div class="brand">
        <Link href={link([])}>
          <img src="icon.svg" alt="" width="20" height="20" /> Penstock
        </Link>
        <Environment />
        <button class="quiet menu" aria-expanded={isMenuOpen.value} onClick={() => (isMenuOpen.value = !isMenuOpen.value)}>
          Menu
        </button>
      </div>
      <button class="search" onClick={openPalette}>
        <span>
          <Icon name="search" /> Search
        </span>
        <kbd>Ctrl K</kbd>
      </button>
      <nav aria-label="Pages" onClick={() => (isMenuOpen.value = false)}>
        {GROUPS.map((group, index) => (
          <>
            {index ? <hr aria-hidden="true" /> : null}
            {group.map((section) => (
              <Link key={section.id} href={link([section.id].filter(Boolean))} aria-current={section.id === here ? "page" : undefined}>
                <Icon name={section.icon} />
                {section.title}
                {section.id === "dlq" ? <DeadCount /> : null}
              </Link>
            ))}
          </>
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

/** Which broker this is, so that nobody purges the wrong one. */
function Environment() {
  return broker.environment ? <span class={`environment ${broker.color}`}>{broker.environment}</span> : null;
}

const dead = computed(() => sortedRows.value.reduce((sum, queue) => sum + queue.dead, 0));

function DeadCount() {
  return dead.value ? (
    <span class="nav-count danger">
      {short(dead.value)}
      <span class="unseen"> dead letters</span>
    </span>
  ) : null;
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
      {age > 3000 && state !== "live" && updatedAt.value ? <span class="soft"> data {brief(age)} old</span> : null}
    </button>
  );
}

function Banner() {
  const at = query.value.get("at");
  if (connection.value === "offline") {
    return (
      <div class="banner" role="alert">
        The broker cannot be reached. What you see is the last state; actions are off until it is back.
      </div>
    );
  }
  if (at) {
    return (
      <div class="banner info" role="status">
        <span>As it was at {local(at)}. Actions are off.</span>
        <button onClick={() => setQuery({ at: "" })}>Back to now</button>
      </div>
    );
  }
  return broker.isReadOnly ? <div class="banner warning">This dashboard is read-only: it changes nothing, whoever is signed in.</div> : null;
}
