// What is wrong, first; then how much flows.
import { useEffect } from "preact/hooks";
import { get, type Schemas } from "../api";
import { count, duration, rate, serverNow, short } from "../format";
import { Chart } from "../parts/chart";
import { useInterval, useLoad, View } from "../parts/load";
import { Badge, Card, Empty, Page, type Tone } from "../parts/ui";
import { drainSeconds, type QueueRow, rows, sortedRows, totals, watchQueues } from "../queues";
import { Link, link } from "../router";

interface Problem {
  tone: Tone;
  label: string;
  text: string;
  href: string;
}

const OLD_MS = 10 * 60_000;

function problems(queues: readonly QueueRow[], health?: Schemas["Health"], workers: readonly Schemas["Worker"][] = []): Problem[] {
  const list: Problem[] = (health?.problems ?? []).map((text) => ({ tone: "danger", label: "Broker", text, href: link(["broker"]) }));
  for (const queue of queues) {
    const href = link(["queues", queue.name]);
    const age = queue.oldestAt ? serverNow() - Date.parse(queue.oldestAt) : 0;
    const isIdle = queue.ready > 0 && queue.leased === 0 && queue.ackedPerSecond === 0;
    if (queue.stats.paused) list.push({ tone: "warning", label: "Paused", text: `${queue.name}: ${count(queue.ready)} ready, nothing is delivered`, href });
    else if (isIdle && age > 30_000) list.push({ tone: "danger", label: "No consumer", text: `${queue.name}: ${count(queue.ready)} ready for ${duration(age)}, nobody takes them`, href });
    else if (age > OLD_MS) list.push({ tone: "warning", label: "Slow", text: `${queue.name}: the oldest message is ${duration(age)} old${eta(queue)}`, href });
    if (queue.dead > 0) list.push({ tone: "danger", label: "Dead letters", text: `${queue.name}: ${count(queue.dead)} messages failed for good`, href: link(["dlq"], { queue: queue.name }) });
  }
  for (const worker of workers) {
    if (worker.status === "dead" || worker.status === "stuck") list.push({ tone: "danger", label: `Worker ${worker.status}`, text: `${worker.worker_id} on ${worker.host}`, href: link(["workers"]) });
  }
  return list.sort((a, b) => Number(a.tone !== "danger") - Number(b.tone !== "danger"));
}

function eta(queue: QueueRow): string {
  const seconds = drainSeconds(queue);
  return seconds === null ? ", and the backlog is not shrinking" : `, done in about ${duration(seconds * 1000)}`;
}

export default function Overview() {
  useEffect(watchQueues, []);
  const health = useLoad("health", (abort) => get<Schemas["Health"]>(["health"], {}, abort));
  const workers = useLoad("workers", (abort) => get<Schemas["Workers"]>(["workers"], {}, abort));
  useInterval(health.reload, 10);
  useInterval(workers.reload, 10);
  const queues = sortedRows.value.filter((queue) => !queue.name.startsWith("penstock.") && !queue.name.endsWith(".dlq"));
  const found = problems(queues, health.data, workers.data?.workers);
  const sum = (pick: (queue: QueueRow) => number): number => queues.reduce((total, queue) => total + pick(queue), 0);
  const samples = totals.value;
  const last = samples.at(-1);
  return (
    <Page title="Overview">
      <dl class="tiles">
        <Tile name="Pushed" value={rate(last?.pushed ?? null)} unit="per second" />
        <Tile name="Acknowledged" value={rate(last?.acked ?? null)} unit="per second" />
        <Tile name="Ready" value={short(sum((queue) => queue.ready))} unit="messages" />
        <Tile name="Leased" value={short(sum((queue) => queue.leased))} unit="messages" />
        <Tile name="Waiting" value={short(sum((queue) => queue.waiting))} unit="messages" />
        <Tile name="Dead letters" value={short(sum((queue) => queue.dead))} unit="messages" />
      </dl>
      <Card title={found.length ? `${found.length === 1 ? "One problem" : `${count(found.length)} problems`}` : "Problems"} class="flush">
        <View of={health} rows={3}>
          {() =>
            rows.value === null ? null : found.length ? (
              <ul class="problems">
                {found.slice(0, 50).map((problem) => (
                  <li key={problem.label + problem.text}>
                    <Badge tone={problem.tone}>{problem.label}</Badge>
                    <Link class="what" href={problem.href}>
                      {problem.text}
                    </Link>
                  </li>
                ))}
              </ul>
            ) : (
              <Empty title={queues.length ? "Nothing is wrong" : "No queues yet"} {...(queues.length ? {} : { command: `penstock push orders '{"id": 1}'` })}>
                {queues.length ? "No queue is paused, old, without a consumer or with dead letters; all workers answer." : "A queue is created by its first message."}
              </Empty>
            )
          }
        </View>
      </Card>
      <div class="columns">
        <Card title="Messages per second">
          <Chart
            label="Messages per second over the last five minutes"
            times={samples.map((sample) => sample.at / 1000)}
            series={[
              { name: "Pushed", color: "accent", values: samples.map((sample) => sample.pushed) },
              { name: "Acknowledged", color: "second", values: samples.map((sample) => sample.acked) },
            ]}
          />
        </Card>
        <Card title="Backlog">
          <Chart label="Messages that are not settled, over the last five minutes" times={samples.map((sample) => sample.at / 1000)} series={[{ name: "Messages not settled", color: "accent", values: samples.map((sample) => sample.backlog) }]} />
        </Card>
      </div>
    </Page>
  );
}

function Tile({ name, value, unit }: { name: string; value: string; unit: string }) {
  return (
    <div class="tile">
      <dt>{name}</dt>
      <dd>
        {value} <small>{unit}</small>
      </dd>
    </div>
  );
}
