// Tasks: filter them, act on those that are ticked, or on all that match.
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { get, type Schemas } from "../api";
import { count, plural, short } from "../format";
import { selectAllMatching } from "../keyboard";
import { subscribe } from "../live";
import { askBulk } from "../parts/bulk";
import { type Filter, FilterBar, parseFilter } from "../parts/filter";
import { usePages, View } from "../parts/load";
import { Table } from "../parts/table";
import { TASK_COLUMNS } from "../parts/tasks";
import { Action, Card, Empty, Page } from "../parts/ui";
import { SavedViews } from "../parts/views";
import { link, query, setQuery } from "../router";

const STATES = ["scheduled", "pending", "blocked", "running", "completed", "failed", "dead", "cancelled"] as const;
const FIELDS = ["status", "task_type", "queue", "worker", "workflow", "schedule", "error_contains", "since", "until"] as const;
const FREE = "argument";
const SUGGESTED = ["task_type", "queue", "worker", "workflow", "schedule", "kwargs"];

/** A line such as `status:dead kwargs.to:"a b"` as the API names it. */
export function taskFilter(text: string): Filter {
  const filter = parseFilter(text, FIELDS, FREE);
  const path = filter[FREE]?.match(/^((?:kwargs|args)\.[\w.]+):"?([^"]*)"?$/);
  return path ? { ...filter, [FREE]: `${path[1]}=${path[2]}` } : filter;
}

/** Values that tasks have in a field; of `kwargs` the names of arguments. */
async function suggestions(field: string, prefix: string): Promise<Schemas["Suggestion"][]> {
  if (!SUGGESTED.includes(field)) return [];
  return (await get<Schemas["Suggestions"]>(["tasks", "suggest"], { field, prefix, limit: 12 })).suggestions;
}

const PAGE_SIZE = 100;

export default function Tasks() {
  const text = query.value.get("q") ?? "";
  const filter = taskFilter(text);
  const selected = useSignal<Set<string>>(new Set());
  const isAllMatching = useSignal(false);
  const arrived = useSignal(0); // tasks that were submitted since the list was loaded: it does not move by itself
  const pages = usePages(`tasks,${text}`, async (cursor, abort) => {
    const page = await get<Schemas["TaskPage"]>(["tasks"], { ...filter, limit: PAGE_SIZE, cursor }, abort);
    if (cursor === null) arrived.value = 0;
    return { rows: page.tasks, cursor: page.cursor };
  });
  const counts = useCounts(filter["queue"], (added) => (arrived.value += added));
  useEffect(() => {
    selectAllMatching.value = () => (isAllMatching.value = true);
    return () => void (selectAllMatching.value = null);
  }, []);
  const clear = (): void => {
    selected.value = new Set();
    isAllMatching.value = false;
  };
  const done = (): void => {
    clear();
    pages.reload();
  };
  return (
    <Page title="Tasks">
      <div class="filter-bar">
        <FilterBar
          label="Filter tasks"
          example={'status:dead task_type:report kwargs.to:"a b"'}
          text={text}
          fields={Object.fromEntries(FIELDS.map((field) => [field, field === "status" ? STATES : []]))}
          suggest={suggestions}
          onChange={(q) => setQuery({ q })}
        />
        <SavedViews page="tasks" />
      </div>
      <div class="filter-bar">
        <span class="segmented" role="group" aria-label="State">
          <button aria-pressed={!filter["status"]} onClick={() => setQuery({ q: withStatus(text, "") })}>
            All
          </button>
          {STATES.map((state) => (
            <button key={state} aria-pressed={filter["status"] === state} onClick={() => setQuery({ q: withStatus(text, filter["status"] === state ? "" : state) })}>
              {state} {counts[state] === undefined ? "" : <span class="soft number">{short(counts[state] ?? 0)}</span>}
            </button>
          ))}
        </span>
      </div>
      <Card class="flush">
        <View of={pages}>
          {(tasks) =>
            tasks.length ? (
              <>
                <Table
                  label="Tasks"
                  rows={tasks}
                  columns={TASK_COLUMNS}
                  rowKey={(task) => task.task_id}
                  href={(task) => link(["tasks", task.task_id])}
                  selected={selected.value}
                  onSelect={(keys) => (selected.value = keys)}
                  onEnd={pages.loadMore}
                  news={{ count: arrived.value, show: pages.reload }}
                />
                <div class="table-foot">
                  {plural(tasks.length, "task")}
                  {pages.hasMore ? ", more as you scroll" : ""}
                </div>
              </>
            ) : (
              <Empty title={text ? "No task matches" : "No tasks yet"} {...(text ? {} : { command: "penstock enqueue send_mail --queue mail ann@example.com" })}>
                {text ? "Change the filter to see others." : "Tasks appear here when they are submitted."}
              </Empty>
            )
          }
        </View>
      </Card>
      {selected.value.size || isAllMatching.value ? <Selection filter={filter} ids={[...selected.value]} isAll={isAllMatching.value} setAll={() => (isAllMatching.value = true)} clear={clear} done={done} /> : null}
    </Page>
  );
}

/** How many tasks there are of each state, live: numbers, never a flood of tasks. */
function useCounts(queue: string | undefined, onAdded: (added: number) => void): Record<string, number> {
  type Row = Record<string, number | string> & { queue: string };
  const rows = useSignal<ReadonlyMap<string, Row>>(new Map());
  const sum = (all: ReadonlyMap<string, Row>): Record<string, number> => {
    const list = [...all.values()].filter((row) => !queue || row.queue === queue);
    return Object.fromEntries(STATES.map((state) => [state, list.reduce((total, row) => total + Number(row[state] ?? 0), 0)]));
  };
  const whole = (all: ReadonlyMap<string, Row>): number => Object.values(sum(all)).reduce((total, value) => total + value, 0);
  useEffect(() => {
    const take = (counts: Row[]): void => {
      const next = new Map([...rows.value, ...counts.map((row): [string, Row] => [row.queue, row])]);
      const added = whole(next) - whole(rows.value);
      if (rows.value.size && added > 0) onAdded(added);
      rows.value = next;
    };
    const poll = (): void => void get<{ counts: Row[] }>(["tasks", "counts"]).then((reply) => take(reply.counts), () => undefined);
    poll();
    return subscribe({ topics: ["task_counts"], interval_ms: 1000 }, (event) => event.event === "task_counts" && take(event["counts"] as Row[]), poll);
  }, [queue]);
  return rows.value.size ? sum(rows.value) : {};
}

function withStatus(text: string, status: string): string {
  const rest = text.replace(/(^|\s)status:\S*/g, "").trim();
  return [status ? `status:${status}` : "", rest].filter(Boolean).join(" ");
}

interface SelectionProps {
  filter: Filter;
  ids: string[];
  isAll: boolean;
  setAll: () => void;
  clear: () => void;
  done: () => void;
}

function Selection({ filter, ids, isAll, setAll, clear, done }: SelectionProps) {
  const body = isAll ? requestBody(filter) : { task_ids: ids };
  const queue = isAll ? (filter["queue"] ?? "") : "";
  return (
    <div class="selection" role="status">
      <strong>{isAll ? "All that match are selected" : `${count(ids.length)} selected`}</strong>
      {isAll ? null : <button onClick={setAll}>Select all that match</button>}
      {(["retry", "cancel", "purge"] as const).map((action) => (
        <Action key={action} queue={queue} onClick={() => bulk(action, body, done)}>
          {VERBS[action].verb}
        </Action>
      ))}
      <button class="quiet" onClick={clear}>
        Clear
      </button>
    </div>
  );
}

function requestBody(filter: Filter): Record<string, unknown> {
  const { status, ...rest } = filter;
  return { ...rest, ...(status ? { status: status.split(",") } : {}) };
}

const VERBS = {
  retry: { verb: "Retry", effect: "Each runs again, with all its attempts. Those that are neither dead nor cancelled are left alone." },
  cancel: { verb: "Cancel", effect: "They will not run. What a worker still reports of them is refused." },
  purge: { verb: "Purge", effect: "Their records and results are forgotten. Only tasks that are over are purged." },
} as const;

function bulk(action: keyof typeof VERBS, body: Record<string, unknown>, done: () => void): void {
  askBulk({
    parts: ["tasks", action],
    body,
    ...VERBS[action],
    noun: "task",
    danger: action !== "retry",
    command: commandOf(action, body),
    done,
  });
}

/** The flags of the command line that differ from the fields of the API. */
const FLAGS: Record<string, string> = { task_type: "type", error_contains: "error" };

/** The same in a terminal; ticked tasks cannot be purged there by their ids. */
function commandOf(action: keyof typeof VERBS, { task_ids, ...filter }: Record<string, unknown>): string {
  if (Array.isArray(task_ids)) return action === "purge" ? "" : `penstock tasks ${action} ${task_ids.join(" ")}`;
  const flags = Object.entries(filter).flatMap(([name, value]) => [value].flat().map((item) => ` --${FLAGS[name] ?? name} '${String(item)}'`));
  return `penstock operations begin ${action}${flags.join("")}`;
}
