// Workers: how busy they are, and whether they still answer.
import { get, type Schemas } from "../api";
import { bytes, count, plural } from "../format";
import { useInterval, useLoad, View } from "../parts/load";
import { type Column, Table } from "../parts/table";
import { Badge, Card, Empty, Page, Time, type Tone } from "../parts/ui";
import { Link, link } from "../router";

type Worker = Schemas["Worker"];
const TONES: Record<Worker["status"], Tone> = { alive: "ok", stopping: "warning", stuck: "danger", dead: "danger" };

const COLUMNS: readonly Column<Worker>[] = [
  { id: "worker", title: "Worker", narrow: true, sort: (worker) => worker.worker_id, cell: (worker) => <Link class="name" href={link(["tasks"], { q: `worker:${worker.worker_id}` })}>{worker.worker_id}</Link> },
  { id: "status", title: "State", narrow: true, sort: (worker) => worker.status, cell: (worker) => <Badge tone={TONES[worker.status]}>{worker.status}</Badge> },
  { id: "host", title: "Host", cell: (worker) => `${worker.host}:${worker.pid}` },
  { id: "queues", title: "Queues", cell: (worker) => worker.queues.join(", ") },
  {
    id: "running",
    title: "Running",
    isNumber: true,
    narrow: true,
    sort: (worker) => worker.running / worker.concurrency,
    cell: (worker) => (
      <>
        <span class="bar" role="img" aria-label={`${worker.running} of ${worker.concurrency} slots`}>
          <i style={{ width: `${Math.min(100, (100 * worker.running) / worker.concurrency)}%` }} />
        </span>{" "}
        {worker.running} of {worker.concurrency}
      </>
    ),
  },
  { id: "completed", title: "Completed", isNumber: true, sort: (worker) => worker.completed, cell: (worker) => count(worker.completed) },
  { id: "failed", title: "Failed", isNumber: true, sort: (worker) => worker.failed, cell: (worker) => count(worker.failed) },
  { id: "cpu", title: "CPU", isNumber: true, sort: (worker) => worker.cpu_percent, cell: (worker) => `${worker.cpu_percent.toFixed(0)} %` },
  { id: "memory", title: "Memory", isNumber: true, sort: (worker) => worker.memory_bytes, cell: (worker) => bytes(worker.memory_bytes) },
  { id: "heartbeat", title: "Heartbeat", cell: (worker) => <Time at={worker.last_heartbeat_at} /> },
  { id: "version", title: "Version", cell: (worker) => worker.version },
];

export default function Workers() {
  const loaded = useLoad("workers", (abort) => get<Schemas["Workers"]>(["workers"], {}, abort));
  useInterval(loaded.reload, 3);
  return (
    <Page title="Workers">
      <Card class="flush">
        <View of={loaded}>
          {({ workers }) =>
            workers.length ? (
              <>
                <Table label="Workers" rows={workers} columns={COLUMNS} rowKey={(worker) => worker.worker_id} />
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
