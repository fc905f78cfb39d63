// Tasks: filter them, act on those that are ticked, or on all that match.
import { signal, useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { call, at, get, may, post, type Schemas } from "../api";
import { duration, plural } from "../format";
import { selectAllMatching } from "../keyboard";
import { subscribe } from "../live";
import { type Filter, FilterBar, parseFilter } from "../parts/filter";
import { useLoad, View } from "../parts/load";
import { exactJson } from "../parts/payload";
import { type Column, Table } from "../parts/table";
import { ask, Badge, Card, Empty, notify, Page, Time, type Tone } from "../parts/ui";
import { Link, link, query, setQuery } from "../router";

export type Task = Schemas["Task"];

const STATES = ["scheduled", "pending", "blocked", "running", "completed", "failed", "dead", "cancelled"] as const;
const FIELDS = ["status", "task_type", "queue", "worker", "workflow", "schedule", "error_contains", "since", "until"] as const;
const FREE = "argument";

export const STATE_TONES: Record<string, Tone> = { completed: "ok", running: "info", failed: "warning", dead: "danger", cancelled: "neutral", pending: "neutral", scheduled: "neutral", blocked: "warning" };

export const TASK_COLUMNS: readonly Column<Task>[] = [
  {
    id: "type",
    title: "Task",
    narrow: true,
    cell: (task) => (
      <Link class="name" href={link(["tasks", task.task_id])}>
        {task.task_type}
      </Link>
    ),
  },
  { id: "status", title: "State", narrow: true, cell: (task) => <Badge tone={STATE_TONES[task.status] ?? "neutral"}>{task.status}</Badge> },
  { id: "arguments", title: "Arguments", cell: (task) => <code dir="auto">{argumentsOf(task)}</code> },
  { id: "queue", title: "Queue", cell: (task) => <Link href={link(["queues", task.queue])}>{task.queue}</Link> },
  { id: "attempt", title: "Attempt", isNumber: true, cell: (task) => `${task.attempt} of ${task.max_attempts}` },
  { id: "submitted", title: "Submitted", cell: (task) => <Time at={task.submitted_at} /> },
  { id: "took", title: "Ran for", isNumber: true, cell: (task) => (task.started_at && task.finished_at ? duration(Date.parse(task.finished_at) - Date.parse(task.started_at)) : "–") },
  { id: "error", title: "Error", cell: (task) => <span title={task.error}>{task.error.split("\n").at(-1)}</span> },
];

export function argumentsOf(task: Task): string {
  const positional = (task.args ?? []).map((value) => exactJson(value));
  const named = Object.entries(task.kwargs ?? {}).map(([name, value]) => `${name}=${exactJson(value)}`);
  return [...positional, ...named].join(", ").slice(0, 140);
}

const PAGE_SIZE = 100;
/** Tasks that changed since the list was loaded: it does not move by itself. */
const changes = signal(0);

export default function Tasks() {
  const text = query.value.get("q") ?? "";
  const filter = parseFilter(text, FIELDS, FREE);
  const selected = useSignal<Set<string>>(new Set());
  const isAllMatching = useSignal(false);
  const more = useSignal<{ tasks: Task[]; cursor: string | null; isLoading: boolean }>({ tasks: [], cursor: null, isLoading: false });
  const loaded = useLoad(`tasks,${text}`, async (abort) => {
    const page = await get<Schemas["TaskPage"]>(["tasks"], { ...filter, limit: PAGE_SIZE }, abort);
    more.value = { tasks: [], cursor: page.cursor, isLoading: false };
    changes.value = 0;
    return page;
  });
  useEffect(() => subscribe({ topics: ["tasks"], interval_ms: 1000 }, (event) => event.event === "task" && (changes.value += 1), loaded.reload), []);
  useEffect(() => {
    selectAllMatching.value = () => (isAllMatching.value = true);
    return () => void (selectAllMatching.value = null);
  }, []);
  const loadMore = (): void => {
    const { cursor, isLoading, tasks } = more.value;
    if (!cursor || isLoading) return;
    more.value = { tasks, cursor, isLoading: true };
    void get<Schemas["TaskPage"]>(["tasks"], { ...filter, limit: PAGE_SIZE, cursor }).then((page) => {
      more.value = { tasks: [...tasks, ...page.tasks], cursor: page.cursor, isLoading: false };
    });
  };
  const clear = (): void => {
    selected.value = new Set();
    isAllMatching.value = false;
    loaded.reload();
  };
  return (
    <Page title="Tasks">
      <div class="filter-bar">
        <FilterBar label="Filter tasks" text={text} fields={Object.fromEntries(FIELDS.map((field) => [field, field === "status" ? STATES : []]))} onChange={(q) => setQuery({ q })} />
        {STATES.slice(3, 7).map((state) => (
          <button key={state} aria-pressed={filter["status"] === state} onClick={() => setQuery({ q: filter["status"] === state ? "" : `status:${state}` })}>
            {state}
          </button>
        ))}
      </div>
      {changes.value ? (
        <p>
          <button onClick={loaded.reload}>{plural(changes.value, "change")} · show</button>
        </p>
      ) : null}
      {selected.value.size || isAllMatching.value ? <Selection filter={filter} ids={[...selected.value]} isAll={isAllMatching.value} setAll={() => (isAllMatching.value = true)} clear={clear} /> : null}
      <Card class="flush">
        <View of={loaded}>
          {(page) => {
            const tasks = [...page.tasks, ...more.value.tasks];
            return tasks.length ? (
              <>
                <Table label="Tasks" rows={tasks} columns={TASK_COLUMNS} rowKey={(task) => task.task_id} href={(task) => link(["tasks", task.task_id])} selected={selected.value} onSelect={(keys) => (selected.value = keys)} onEnd={loadMore} />
                <div class="table-foot">
                  {plural(tasks.length, "task")}
                  {more.value.cursor ? ", more as you scroll" : ""}
                </div>
              </>
            ) : (
              <Empty title={text ? "No task matches" : "No tasks yet"} {...(text ? {} : { command: "penstock enqueue send_mail --queue mail ann@example.com" })}>
                {text ? "Change the filter to see others." : "Tasks appear here when they are submitted."}
              </Empty>
            );
          }}
        </View>
      </Card>
    </Page>
  );
}

interface SelectionProps {
  filter: Filter;
  ids: string[];
  isAll: boolean;
  setAll: () => void;
  clear: () => void;
}

function Selection({ filter, ids, isAll, setAll, clear }: SelectionProps) {
  const what = isAll ? "all tasks that match" : plural(ids.length, "task");
  return (
    <div class="selection" role="status">
      <strong>{isAll ? "All that match are selected" : `${what} selected`}</strong>
      {isAll ? null : <button onClick={setAll}>Select all that match</button>}
      {may("manage") ? (
        <>
          {isAll ? null : <button onClick={() => each("retry", ids, clear)}>Retry</button>}
          <button onClick={() => (isAll ? bulk("cancel", filter, clear) : each("cancel", ids, clear))}>Cancel</button>
          {isAll ? <button onClick={() => bulk("purge", filter, clear)}>Purge</button> : null}
        </>
      ) : null}
      <button class="quiet" onClick={clear}>
        Clear
      </button>
    </div>
  );
}

function each(action: "retry" | "cancel", ids: string[], done: () => void): void {
  ask({
    title: `${action === "retry" ? "Run" : "Cancel"} ${plural(ids.length, "task")}${action === "retry" ? " again" : ""}?`,
    command: () => `penstock tasks ${action} ${ids.join(" ")}`,
    confirm: action === "retry" ? "Retry" : "Cancel them",
    danger: action === "cancel",
    run: async () => {
      const results = await Promise.allSettled(ids.map((id) => (action === "retry" ? post(["tasks", id, "retry"]) : call("DELETE", at(["tasks", id])))));
      const refused = results.filter((result) => result.status === "rejected").length;
      notify(refused ? `${ids.length - refused} done, ${refused} refused: they are not in a state that allows it` : "Done");
      done();
    },
  });
}

function bulk(action: "cancel" | "purge", filter: Filter, done: () => void): void {
  ask({
    title: action === "cancel" ? "Cancel every task that matches?" : "Forget every task that matches?",
    children: (
      <p>
        The filter is <code>{JSON.stringify(filter)}</code>. It runs as an operation that you can watch and stop.
      </p>
    ),
    command: () => `penstock operations begin ${action} ${Object.entries(filter).map(([name, value]) => `--${name.replace(/_/g, "-")} '${value}'`).join(" ")}`,
    confirm: action === "cancel" ? "Cancel them" : "Purge",
    danger: true,
    typed: action,
    run: async () => {
      const { status, ...rest } = filter;
      await post(["operations"], { action, ...rest, ...(status ? { status: status.split(",") } : {}), until: new Date().toISOString() });
      notify("The operation has begun: see Operations");
      done();
    },
  });
}
