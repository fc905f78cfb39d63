// Workers: how busy they are, and whether they still answer.
import { get, type Schemas } from "../api";
import { bytes, count, plural } from "../format";
import { useInterval, useLoad, View } from "../parts/load";
import { type Column, Table } from "../parts/table";
import { Amount, Badge, Bar, Card, Empty, Page, Time, type Tone } from "../parts/ui";
import { Link, link } from "../router";

export type WorkerRow = Schemas["Worker"];
const TONES: Record<string, Tone> = { alive: "ok", quiet: "warning", stopping: "warning", stuck: "danger", dead: "danger" };

/** The state of a worker, with what an operator wants of it. */
export function WorkerState({ worker }: { worker: WorkerRow }) {
  const isPending = worker.requested === "quiet" ? worker.status === "alive" : worker.requested === "stop" && worker.status !== "stopping" && worker.status !== "dead";
  return <Badge tone={isPending ? "warning" : (TONES[worker.status] ?? "neutral")}>{isPending ? `${worker.status}, ${worker.requested === "quiet" ? "quieting" : "asked to stop"}` : worker.status}</Badge>;
}

const COLUMNS: readonly Column<WorkerRow>[] = [
  { id: "worker", title: "Worker", narrow: true, sort: (worker) => worker.worker_id, cell: (worker) => <Link class="name" href={link(["workers", worker.worker_id])}>{worker.worker_id}</Link> },
  { id: "status", title: "State", narrow: true, sort: (worker) => worker.status, cell: (worker) => <WorkerState worker={worker} /> },
  {
    id: "running",
    title: "Running",
    isNumber: true,
    narrow: true,
    sort: (worker) => worker.running / worker.concurrency,
    cell: (worker) => (
      <>
        <Bar part={worker.running} whole={worker.concurrency} label={`${worker.running} of ${worker.concurrency} slots`} /> {worker.running} of {worker.concurrency}
      </>
    ),
  },
  { id: "completed", title: "Completed", isNumber: true, sort: (worker) => worker.completed, cell: (worker) => <Amount value={worker.completed} text={count(worker.completed)} /> },
  { id: "failed", title: "Failed", isNumber: true, sort: (worker) => worker.failed, cell: (worker) => <Amount value={worker.failed} text={count(worker.failed)} /> },
  { id: "cpu", title: "CPU", isNumber: true, sort: (worker) => worker.cpu_percent, cell: (worker) => `${worker.cpu_percent.toFixed(0)} %` },
  { id: "memory", title: "Memory", isNumber: true, sort: (worker) => worker.memory_bytes, cell: (worker) => bytes(worker.memory_bytes) },
  { id: "queues", title: "Queues", fills: true, cell: (worker) => worker.queues.join(", ") },
  { id: "host", title: "Host", cell: (worker) => `${worker.host}:${worker.pid}` },
  { id: "heartbeat", title: "Heartbeat", isNumber: true, cell: (worker) => <Time at={worker.last_heartbeat_at} /> },
  { id: "version", title: "Version", cell: (worker) => worker.version },
];

export default function Workers() {
  const loaded = useLoad("workers", (abort) => get<{ workers: WorkerRow[] }>(["workers"], {}, abort));
  useInterval(loaded.reload, 3);
  return (
    <Page title="Workers">
      <Card class="flush">
        <View of={loaded}>
          {({ workers }) =>
            workers.length ? (
              <>
                <Table label="Workers" rows={workers} columns={COLUMNS} rowKey={(worker) => worker.worker_id} href={(worker) => link(["workers", worker.worker_id])} />
                <div class="table-foot">{plural(workers.length, "worker")}</div>
              </>
            ) : (
              <Empty title="No workers" command="penstock worker myapp:app --concurrency 16">
                A worker is listed here from its first heartbeat on.
              </Empty>
            )
          }
        </View>
      </Card>
    </Page>
  );
}
