// Every queue with its live numbers, folded by the part of the name before the first dot; or as it was at a moment.
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { post } from "../api";
import { duration, plural, rate, short } from "../format";
import { AsOf, Cut, usePast } from "../parts/as-of";
import { ask } from "../parts/dialog";
import { Icon } from "../parts/icon";
import { Problem, Skeleton, View } from "../parts/load";
import { SavedViews } from "../parts/views";
import { Spark } from "../parts/spark";
import { type Column, Table, toggled } from "../parts/table";
import { Action, Age, Amount, Badge, Card, Dash, Empty, Page } from "../parts/ui";
import { drainSeconds, problem, type QueueRow, refresh, rows, sortedRows, watchQueues } from "../queues";
import { Link, link, query, setQuery } from "../router";
import type { PastQueue } from "../types";
import { createQueue } from "./queue-actions";

/** A queue, or the head of a fold with the sums of its queues. */
interface Line extends QueueRow {
  fold?: { prefix: string; queues: number; isOpen: boolean; toggle: () => void };
  isInside?: boolean;
}

const total = (row: QueueRow): number => row.ready + row.leased + row.waiting;
const amount = (value: number): preact.JSX.Element => <Amount value={value} text={short(value)} />;

const COLUMNS: readonly Column<Line>[] = [
  { id: "name", title: "Queue", narrow: true, fills: true, sort: (row) => row.name, cell: (row) => <Name row={row} /> },
  { id: "spark", title: "Backlog, 1 min", cell: (row) => <Spark values={row.backlogs} label={`Backlog of the last minute, now ${total(row)}`} /> },
  { id: "ready", title: "Ready", narrow: true, isNumber: true, sort: (row) => row.ready, cell: (row) => amount(row.ready) },
  { id: "leased", title: "Leased", isNumber: true, sort: (row) => row.leased, cell: (row) => amount(row.leased) },
  { id: "waiting", title: "Waiting", isNumber: true, hint: "Delayed, or waiting for their next attempt", sort: (row) => row.waiting, cell: (row) => amount(row.waiting) },
  { id: "dead", title: "Dead", narrow: true, isNumber: true, sort: (row) => row.dead, cell: (row) => (row.dead && !row.fold ? <Link href={link(["dlq"], { queue: row.name })}>{short(row.dead)}</Link> : amount(row.dead)) },
  { id: "pushed", title: "Pushed/s", isNumber: true, sort: (row) => row.pushedPerSecond ?? 0, cell: (row) => <Amount value={row.pushedPerSecond ?? 0} text={rate(row.pushedPerSecond)} /> },
  { id: "acked", title: "Acked/s", isNumber: true, sort: (row) => row.ackedPerSecond ?? 0, cell: (row) => <Amount value={row.ackedPerSecond ?? 0} text={rate(row.ackedPerSecond)} /> },
  { id: "oldest", title: "Oldest", isNumber: true, hint: "Age of the oldest message that is not settled", sort: (row) => (row.oldestAt ? -Date.parse(row.oldestAt) : -Infinity), cell: (row) => <Age at={row.oldestAt} /> },
  { id: "lag", title: "Lag", isNumber: true, hint: "Messages that the slowest group has not settled", sort: (row) => row.lag, cell: (row) => amount(row.lag) },
  { id: "eta", title: "Empty in", isNumber: true, hint: "At the rates of the last five seconds", cell: (row) => emptyIn(row) },
];

function Name({ row }: { row: Line }) {
  if (row.fold) {
    const { prefix, queues, isOpen, toggle } = row.fold;
    return (
      <button class="link" aria-expanded={isOpen} onClick={toggle}>
        <Icon name={isOpen ? "down" : "right"} /> {prefix} <span class="soft">{plural(queues, "queue")}</span>
      </button>
    );
  }
  return (
    <span class={row.isInside ? "indent" : ""}>
      <Link class="name" href={link(["queues", row.name])}>
        {row.name}
      </Link>{" "}
      {row.stats.paused ? <Badge tone="warning">paused</Badge> : null}
    </span>
  );
}

function emptyIn(row: QueueRow) {
  const seconds = drainSeconds(row);
  if (seconds !== null) return duration(seconds * 1000);
  if (row.stats.paused) return <span class="zero">paused</span>;
  return row.ready + row.leased ? <span class="soft">not shrinking</span> : <Dash />;
}

export default function Queues() {
  useEffect(watchQueues, []);
  const filter = query.value.get("q") ?? "";
  const kind = query.value.get("show") ?? "";
  const past = usePast();
  return (
    <Page title="Queues" actions={<Action right="manage" onClick={createQueue}>Create a queue</Action>}>
      <div class="filter-bar">
        <input data-filter type="search" placeholder="Filter by name" aria-label="Filter by name" value={filter} onInput={(event) => setQuery({ q: event.currentTarget.value })} />
        <select aria-label="Show" value={kind} onChange={(event) => setQuery({ show: event.currentTarget.value })}>
          <option value="">Own queues</option>
          <option value="backlog">With a backlog</option>
          <option value="paused">Paused</option>
          <option value="dead">With dead letters</option>
          <option value="all">All, with dead-letter and system queues</option>
        </select>
        <AsOf />
        <SavedViews page="queues" />
      </div>
      {past.at ? <View of={past}>{(data) => <PastQueues queues={data.queues.filter((row) => row.queue.includes(filter))} cut={data} />}</View> : <LiveQueues filter={filter} kind={kind} />}
    </Page>
  );
}

function LiveQueues({ filter, kind }: { filter: string; kind: string }) {
  const selected = useSignal<Set<string>>(new Set());
  const shown = sortedRows.value.filter((row) => row.name.includes(filter) && isShown(row, kind));
  const isSorted = query.value.has("sort");
  const lines: readonly Line[] = isSorted || filter ? shown : folded(shown);
  return (
    <>
      <Card class="flush">
        {rows.value === null ? (
          problem.value ? <Problem error={problem.value} retry={() => void refresh()} /> : <Skeleton rows={8} />
        ) : shown.length ? (
          <>
            <Table
              label="Queues"
              rows={lines}
              columns={COLUMNS}
              rowKey={(row) => (row.fold ? `${row.fold.prefix}.*` : row.name)}
              href={(row) => (row.fold ? undefined : link(["queues", row.name]))}
              rowClass={(row) => (row.fold ? "group-row" : "")}
              canSelect={(row) => !row.fold}
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
      {selected.value.size ? <Selection selected={selected.value} clear={() => (selected.value = new Set())} /> : null}
    </>
  );
}

const FOLD_MIN = 2;
/** Few queues are all shown; many are folded until somebody opens them. */
const OPEN_MAX = 30;

function folded(queues: readonly QueueRow[]): readonly Line[] {
  const groups = new Map<string, QueueRow[]>();
  for (const row of queues) {
    const [prefix = ""] = row.name.split(".", 1);
    groups.set(prefix, [...(groups.get(prefix) ?? []), row]);
  }
  const changed = new Set((query.value.get("fold") ?? "").split(",").filter(Boolean));
  const lines: Line[] = [];
  for (const [prefix, members] of [...groups].sort(([a], [b]) => a.localeCompare(b))) {
    if (members.length < FOLD_MIN) {
      lines.push(...members);
      continue;
    }
    const isOpen = changed.has(prefix) !== queues.length <= OPEN_MAX;
    const toggle = (): void => setQuery({ fold: [...toggled(changed, prefix)].join() });
    lines.push({ ...sumOf(prefix, members), fold: { prefix, queues: members.length, isOpen, toggle } });
    if (isOpen) lines.push(...members.map((row) => ({ ...row, isInside: true })));
  }
  return lines;
}

function sumOf(prefix: string, members: readonly QueueRow[]): QueueRow {
  const sum = (pick: (row: QueueRow) => number | null): number => members.reduce((all, row) => all + (pick(row) ?? 0), 0);
  const length = Math.max(...members.map((row) => row.backlogs.length));
  const backlogs = Array.from({ length }, (_, index) => sum((row) => row.backlogs[row.backlogs.length - length + index] ?? 0));
  const [first] = members;
  const oldest = members.map((row) => row.oldestAt).filter((at): at is string => at !== null);
  return {
    ...(first as QueueRow),
    name: prefix,
    stats: { ...(first as QueueRow).stats, paused: members.every((row) => row.stats.paused) },
    ready: sum((row) => row.ready),
    leased: sum((row) => row.leased),
    waiting: sum((row) => row.waiting),
    dead: sum((row) => row.dead),
    lag: sum((row) => row.lag),
    oldestAt: oldest.sort()[0] ?? null,
    pushedPerSecond: sum((row) => row.pushedPerSecond),
    ackedPerSecond: sum((row) => row.ackedPerSecond),
    backlogs,
  };
}

function isShown(row: QueueRow, kind: string): boolean {
  if (kind === "all") return true;
  if (kind === "backlog") return total(row) > 0;
  if (kind === "paused") return row.stats.paused;
  if (kind === "dead") return row.dead > 0;
  return !row.name.endsWith(".dlq") && !row.name.startsWith("penstock.");
}

function PastQueues({ queues, cut }: { queues: readonly PastQueue[]; cut: { is_cut: boolean; begins_at: string | null } }) {
  const number = (value: number | null) => (value === null ? <span class="soft">not known</span> : amount(value));
  const columns: readonly Column<PastQueue>[] = [
    { id: "name", title: "Queue", narrow: true, fills: true, sort: (row) => row.queue, cell: (row) => <Link class="name" href={link(["queues", row.queue], { at: query.value.get("at") })}>{row.queue}</Link> },
    { id: "depth", title: "Depth", narrow: true, isNumber: true, hint: "Neither settled nor in flight", sort: (row) => row.depth ?? -1, cell: (row) => number(row.depth) },
    { id: "leased", title: "Leased", narrow: true, isNumber: true, sort: (row) => row.leased ?? -1, cell: (row) => number(row.leased) },
    { id: "lag", title: "Lag", isNumber: true, sort: (row) => row.lag ?? -1, cell: (row) => number(row.lag) },
    { id: "groups", title: "Groups", cell: (row) => row.groups.map((group) => group.group).join(", ") || "–" },
  ];
  return (
    <>
      <Cut past={cut} />
      <Card class="flush">
        {queues.length ? (
          <Table label="Queues at that moment" rows={queues} columns={columns} rowKey={(row) => row.queue} href={(row) => link(["queues", row.queue], { at: query.value.get("at") })} />
        ) : (
          <Empty title="No queue was there">None of the queues that you may see existed at that moment.</Empty>
        )}
      </Card>
    </>
  );
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
      <Action queue={names[0] ?? ""} onClick={() => change("pause")}>
        Pause
      </Action>
      <Action queue={names[0] ?? ""} onClick={() => change("resume")}>
        Resume
      </Action>
      <button class="quiet" onClick={clear}>
        Clear
      </button>
    </div>
  );
}
