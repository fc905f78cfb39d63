// What is wrong, first; then how much flows, and where.
import { useEffect } from "preact/hooks";
import { get, type Schemas } from "../api";
import { brief, count, duration, plural, rate, serverNow, short } from "../format";
import { Flow } from "../parts/flow";
import { Icon } from "../parts/icon";
import { Skeleton, useInterval, useLoad, View } from "../parts/load";
import { Spark } from "../parts/spark";
import { type Column, Table } from "../parts/table";
import { Age, Amount, Badge, Card, Empty, Page, Stats, type Tone } from "../parts/ui";
import { drainSeconds, type QueueRow, rows, seedTotals, sortedRows, totals, watchQueues } from "../queues";
import { Link, link } from "../router";

interface Problem {
  tone: Tone;
  label: string;
  what: string; // the queue, the worker
  text: string;
  href: string;
}

const OLD_MS = 10 * 60_000;
const IDLE_MS = 30_000;
const PROBLEMS_MAX = 50;
const BUSIEST = 8;

function problems(queues: readonly QueueRow[], health?: Schemas["Health"], workers: readonly Schemas["Worker"][] = []): Problem[] {
  const list: Problem[] = (health?.problems ?? []).map((text) => ({ tone: "danger", label: "Broker", what: "", text, href: link(["broker"]) }));
  for (const queue of queues) list.push(...problemsOf(queue));
  for (const worker of workers) {
    if (worker.status === "dead" || worker.status === "stuck") {
      list.push({ tone: "danger", label: `Worker ${worker.status}`, what: worker.worker_id, text: `on ${worker.host}, last heard ${brief(serverNow() - Date.parse(worker.last_heartbeat_at))} ago`, href: link(["workers", worker.worker_id]) });
    }
  }
  return list.sort((a, b) => Number(a.tone !== "danger") - Number(b.tone !== "danger"));
}

function problemsOf(queue: QueueRow): Problem[] {
  const list: Problem[] = [];
  const add = (tone: Tone, label: string, text: string, href = link(["queues", queue.name])): void => void list.push({ tone, label, what: queue.name, text, href });
  const age = queue.oldestAt ? serverNow() - Date.parse(queue.oldestAt) : 0;
  if (queue.stats.paused) add("warning", "Paused", `${count(queue.ready)} ready, nothing is delivered`);
  else if (queue.ready > 0 && queue.leased === 0 && queue.ackedPerSecond === 0 && age > IDLE_MS) add("danger", "No consumer", `${count(queue.ready)} ready for ${brief(age)}, nobody takes them`);
  else if (age > OLD_MS && queue.ready > 0) add("warning", "Slow", `the oldest message is ${brief(age)} old${eta(queue)}`);
  for (const group of laggards(queue)) add("warning", "Lagging group", `${group.name} is ${count(group.lag)} behind and takes nothing`, link(["queues", queue.name, "groups"]));
  if (queue.dead > 0) add("danger", "Dead letters", `${plural(queue.dead, "message")} failed for good`, link(["dlq"], { queue: queue.name }));
  return list;
}

/** Groups that stand still while others of the queue go on. */
function laggards(queue: QueueRow): Schemas["GroupStats"][] {
  const groups = Object.values(queue.stats.groups);
  const isMoving = groups.some((group) => group.acked > 0);
  return groups.filter((group) => isMoving && groups.length > 1 && group.lag > 0 && group.leased === 0 && group.acked === 0);
}

function eta(queue: QueueRow): string {
  const seconds = drainSeconds(queue);
  return seconds === null ? ", and the backlog is not shrinking" : `, done in about ${duration(seconds * 1000)}`;
}

export default function Overview() {
  useEffect(watchQueues, []);
  useEffect(seedTotals, []);
  const health = useLoad("health", (abort) => get<Schemas["Health"]>(["health"], {}, abort));
  const workers = useLoad("workers", (abort) => get<Schemas["Workers"]>(["workers"], {}, abort));
  useInterval(health.reload, 10);
  useInterval(workers.reload, 10);
  const queues = sortedRows.value.filter((queue) => !queue.name.startsWith("penstock.") && !queue.name.endsWith(".dlq"));
  const found = problems(queues, health.data, workers.data?.workers);
  return (
    <Page title="Overview">
      <Totals queues={queues} />
      <Card title={found.length ? (found.length === 1 ? "One problem" : `${count(found.length)} problems`) : "Problems"} class="flush">
        <View of={health} rows={3}>
          {() => (rows.value === null ? <Skeleton rows={3} /> : found.length ? <Problems list={found} /> : <AllWell hasQueues={queues.length > 0} />)}
        </View>
      </Card>
      <Flow of="all queues" samples={totals.value} />
      {queues.length ? (
        <Card title="Busiest queues" actions={<Link href={link(["queues"])}>All {count(queues.length)} queues</Link>} class="flush">
          <Table label="Busiest queues" rows={busiest(queues)} columns={BUSY_COLUMNS} rowKey={(queue) => queue.name} href={(queue) => link(["queues", queue.name])} />
        </Card>
      ) : null}
    </Page>
  );
}

function Totals({ queues }: { queues: readonly QueueRow[] }) {
  const sum = (pick: (queue: QueueRow) => number): number => queues.reduce((total, queue) => total + pick(queue), 0);
  const last = totals.value.at(-1);
  const dead = sum((queue) => queue.dead);
  return (
    <Stats
      items={[
        { name: "Pushed", value: rate(last?.pushed ?? null), unit: "per s" },
        { name: "Acknowledged", value: rate(last?.acked ?? null), unit: "per s" },
        { name: "Ready", value: short(sum((queue) => queue.ready)) },
        { name: "Leased", value: short(sum((queue) => queue.leased)) },
        { name: "Waiting", value: short(sum((queue) => queue.waiting)) },
        { name: "Dead letters", value: short(dead), tone: dead ? "danger" : undefined },
      ]}
    />
  );
}

function Problems({ list }: { list: readonly Problem[] }) {
  return (
    <ul class="problems">
      {list.slice(0, PROBLEMS_MAX).map((problem) => (
        <li key={problem.label + problem.what + problem.text}>
          <span>
            <Badge tone={problem.tone}>{problem.label}</Badge>
          </span>
          <Link href={problem.href}>
            {problem.what ? <strong>{problem.what}: </strong> : null}
            <span class="soft">{problem.text}</span>
          </Link>
          <Icon name="right" />
        </li>
      ))}
      {list.length > PROBLEMS_MAX ? <li>and {count(list.length - PROBLEMS_MAX)} more</li> : null}
    </ul>
  );
}

function AllWell({ hasQueues }: { hasQueues: boolean }) {
  if (hasQueues) return <Empty title="Nothing is wrong">Every queue has a consumer and keeps up, none is paused or has dead letters, and all workers respond.</Empty>;
  return (
    <Empty title="No queues yet" command={`penstock push orders '{"id": 1}'`}>
      A queue is created by its first message.
    </Empty>
  );
}

const activity = (queue: QueueRow): number => (queue.pushedPerSecond ?? 0) + (queue.ackedPerSecond ?? 0);

function busiest(queues: readonly QueueRow[]): readonly QueueRow[] {
  return [...queues].sort((a, b) => activity(b) - activity(a) || b.ready - a.ready).slice(0, BUSIEST);
}

const BUSY_COLUMNS: readonly Column<QueueRow>[] = [
  { id: "queue", title: "Queue", narrow: true, fills: true, cell: (queue) => <Link class="name" href={link(["queues", queue.name])}>{queue.name}</Link> },
  { id: "spark", title: "Backlog, 1 min", cell: (queue) => <Spark values={queue.backlogs} label={`Backlog of the last minute, now ${queue.ready + queue.leased + queue.waiting}`} /> },
  { id: "ready", title: "Ready", isNumber: true, narrow: true, cell: (queue) => <Amount value={queue.ready} text={short(queue.ready)} /> },
  { id: "leased", title: "Leased", isNumber: true, cell: (queue) => <Amount value={queue.leased} text={short(queue.leased)} /> },
  { id: "pushed", title: "Pushed/s", isNumber: true, cell: (queue) => <Amount value={queue.pushedPerSecond ?? 0} text={rate(queue.pushedPerSecond)} /> },
  { id: "acked", title: "Acked/s", isNumber: true, narrow: true, cell: (queue) => <Amount value={queue.ackedPerSecond ?? 0} text={rate(queue.ackedPerSecond)} /> },
  { id: "oldest", title: "Oldest", isNumber: true, cell: (queue) => <Age at={queue.oldestAt} /> },
];
