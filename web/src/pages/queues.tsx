// Every queue with its live numbers, folded by the part of the name before the first dot.
import { useSignal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { may, post, type Schemas } from "../api";
import { duration, plural, rate, short } from "../format";
import { Skeleton } from "../parts/load";
import { Spark } from "../parts/spark";
import { type Column, Table } from "../parts/table";
import { ask, Badge, Card, Empty, Field, Page, Time } from "../parts/ui";
import { drainSeconds, type QueueRow, refresh, rows, sortedRows, watchQueues } from "../queues";
import { Link, link, navigate, query, setQuery } from "../router";

const COLUMNS: readonly Column<QueueRow>[] = [
  {
    id: "name",
    title: "Queue",
    narrow: true,
    sort: (row) => row.name,
    cell: (row) => (
      <>
        <Link class="name" href={link(["queues", row.name])}>
          {row.name}
        </Link>{" "}
        {row.stats.paused ? <Badge tone="warning">paused</Badge> : null}
      </>
    ),
  },
  { id: "spark", title: "Backlog", cell: (row) => <Spark values={row.backlogs} label={`Backlog of the last minute, now ${row.ready + row.leased + row.waiting}`} /> },
  { id: "ready", title: "Ready", narrow: true, isNumber: true, sort: (row) => row.ready, cell: (row) => short(row.ready) },
  { id: "leased", title: "Leased", isNumber: true, sort: (row) => row.leased, cell: (row) => short(row.leased) },
  { id: "waiting", title: "Waiting", isNumber: true, hint: "Delayed, or waiting for their next attempt", sort: (row) => row.waiting, cell: (row) => short(row.waiting) },
  {
    id: "dead",
    title: "Dead",
    narrow: true,
    isNumber: true,
    sort: (row) => row.dead,
    cell: (row) => (row.dead ? <Link href={link(["dlq"], { queue: row.name })}>{short(row.dead)}</Link> : "0"),
  },
  { id: "pushed", title: "Pushed/s", isNumber: true, sort: (row) => row.pushedPerSecond ?? 0, cell: (row) => rate(row.pushedPerSecond) },
  { id: "acked", title: "Acked/s", isNumber: true, sort: (row) => row.ackedPerSecond ?? 0, cell: (row) => rate(row.ackedPerSecond) },
  { id: "oldest", title: "Oldest", isNumber: true, sort: (row) => (row.oldestAt ? -Date.parse(row.oldestAt) : -Infinity), cell: (row) => <Time at={row.oldestAt} /> },
  { id: "eta", title: "Empty in", isNumber: true, hint: "At the rates of the last five seconds", cell: (row) => emptyIn(row) },
];

function emptyIn(row: QueueRow): string {
  const seconds = drainSeconds(row);
  if (seconds !== null) return duration(seconds * 1000);
  return row.ready + row.leased + row.waiting ? "not shrinking" : "–";
}

export default function Queues() {
  useEffect(watchQueues, []);
  const selected = useSignal<Set<string>>(new Set());
  const filter = query.value.get("q") ?? "";
  const kind = query.value.get("show") ?? "";
  const shown = sortedRows.value.filter((row) => row.name.includes(filter) && isShown(row, kind));
  return (
    <Page title="Queues" actions={may("manage") || may("push") ? <button onClick={createQueue}>Create a queue</button> : null}>
      <div class="filter-bar">
        <input data-filter type="search" placeholder="Filter by name" aria-label="Filter by name" value={filter} onInput={(event) => setQuery({ q: event.currentTarget.value })} />
        <select aria-label="Show" value={kind} onChange={(event) => setQuery({ show: event.currentTarget.value })}>
          <option value="">All but dead-letter and system queues</option>
          <option value="backlog">With a backlog</option>
          <option value="paused">Paused</option>
          <option value="dead">With dead letters</option>
          <option value="all">All</option>
        </select>
      </div>
      {selected.value.size ? <Selection selected={selected.value} clear={() => (selected.value = new Set())} /> : null}
      <Card class="flush">
        {rows.value === null ? (
          <Skeleton rows={8} />
        ) : shown.length ? (
          <>
            <Table
              label="Queues"
              rows={shown}
              columns={COLUMNS}
              rowKey={(row) => row.name}
              href={(row) => link(["queues", row.name])}
              selected={selected.value}
              onSelect={(keys) => (selected.value = keys)}
            />
            <div class="table-foot">{plural(shown.length, "queue")}</div>
          </>
        ) : (
          <Empty title={filter || kind ? "No queue matches" : "No queues yet"} {...(filter || kind ? {} : { command: `penstock push orders '{"id": 1}'` })}>
            {filter || kind ? "Change the filter to see others." : "A queue is created by its first message."}
          </Empty>
        )}
      </Card>
    </Page>
  );
}

function isShown(row: QueueRow, kind: string): boolean {
  const isOwn = !row.name.endsWith(".dlq") && !row.name.startsWith("penstock.");
  if (kind === "all") return true;
  if (kind === "backlog") return row.ready + row.leased + row.waiting > 0;
  if (kind === "paused") return row.stats.paused;
  if (kind === "dead") return row.dead > 0;
  return isOwn;
}

function Selection({ selected, clear }: { selected: ReadonlySet<string>; clear: () => void }) {
  const names = [...selected];
  const change = (action: "pause" | "resume"): void =>
    ask({
      title: `${action === "pause" ? "Pause" : "Resume"} ${plural(names.length, "queue")}?`,
      children: <p>{action === "pause" ? "Pushes go on; nothing is delivered until you resume." : "Messages are delivered again."}</p>,
      command: () => names.map((name) => `penstock queues ${action} ${name}`).join("\n"),
      confirm: action === "pause" ? "Pause" : "Resume",
      done: `${plural(names.length, "queue")} ${action === "pause" ? "paused" : "resumed"}`,
      run: async () => {
        for (const name of names) await post(["queues", name, action]);
        await refresh();
        clear();
      },
    });
  return (
    <div class="selection" role="status">
      <strong>{plural(names.length, "queue")} selected</strong>
      <button onClick={() => change("pause")}>Pause</button>
      <button onClick={() => change("resume")}>Resume</button>
      <button class="quiet" onClick={clear}>
        Clear
      </button>
    </div>
  );
}

const draft: { name: string; partitions: string; ordering: string; lease_seconds: string; max_attempts: string } = { name: "", partitions: "1", ordering: "none", lease_seconds: "30", max_attempts: "5" };

function createQueue(): void {
  ask({
    title: "Create a queue",
    children: <NewQueueFields />,
    command: () => `penstock queues create ${draft.name || "NAME"} --partitions ${draft.partitions} --ordering ${draft.ordering}`,
    confirm: "Create",
    done: "The queue was created",
    run: async () => {
      const body = {
        name: draft.name,
        partitions: Number(draft.partitions),
        ordering: draft.ordering,
        lease_ms: Number(draft.lease_seconds) * 1000,
        max_attempts: Number(draft.max_attempts),
      };
      await post<Schemas["QueueView"]>(["queues"], body);
      await refresh();
      navigate(link(["queues", draft.name]));
    },
  });
}

function NewQueueFields() {
  const [, redraw] = useState(0);
  const input = (name: keyof typeof draft, mode: "text" | "numeric" = "text") => (
    <input list={undefined} inputMode={mode} required value={draft[name]} onInput={(event) => ((draft[name] = event.currentTarget.value), redraw(Math.random()))} />
  );
  return (
    <>
      <Field label="Name" hint="Letters, digits, dots, dashes. The part before the first dot is its namespace.">
        {input("name")}
      </Field>
      <Field label="Partitions">{input("partitions", "numeric")}</Field>
      <Field label="Ordering">
        <select value={draft.ordering} onChange={(event) => ((draft.ordering = event.currentTarget.value), redraw(Math.random()))}>
          <option value="none">None: any free consumer takes the next message</option>
          <option value="key">By key: one message of a key at a time</option>
          <option value="partition">By partition: one lease at a time</option>
        </select>
      </Field>
      <Field label="Lease, seconds">{input("lease_seconds", "numeric")}</Field>
      <Field label="Attempts before a message is a dead letter">{input("max_attempts", "numeric")}</Field>
    </>
  );
}
