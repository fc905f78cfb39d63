// One worker: its slots, what it runs now, what it ran, and how to quiet or stop it.
import { get, post, type Schemas } from "../api";
import { bytes, count, duration, serverNow } from "../format";
import { ask } from "../parts/dialog";
import { useInterval, useLoad, View } from "../parts/load";
import { type Column, Table } from "../parts/table";
import { TASK_COLUMNS } from "../parts/tasks";
import { Action, Card, Command, Empty, Facts, Page, Stats, Time } from "../parts/ui";
import { link, path } from "../router";
import type { Task } from "../types";
import { type WorkerRow, WorkerState } from "./workers";

const NOW_COLUMNS: readonly Column<Task>[] = [...TASK_COLUMNS.filter((column) => ["type", "arguments", "queue", "attempt"].includes(column.id)), { id: "for", title: "Running for", isNumber: true, narrow: true, cell: (task) => (task.started_at ? duration(serverNow() - Date.parse(task.started_at)) : "–") }];

export default function WorkerPage() {
  const [, id = ""] = path.value;
  const loaded = useLoad("workers", (abort) => get<{ workers: WorkerRow[] }>(["workers"], {}, abort));
  const running = useLoad(`running,${id}`, (abort) => get<Schemas["TaskPage"]>(["tasks"], { worker: id, status: "running", limit: 200 }, abort));
  const recent = useLoad(`recent,${id}`, (abort) => get<Schemas["TaskPage"]>(["tasks"], { worker: id, limit: 50 }, abort));
  useInterval(loaded.reload, 2);
  useInterval(running.reload, 2);
  useInterval(recent.reload, 5);
  const worker = loaded.data?.workers.find((item) => item.worker_id === id);
  return (
    <Page
      title={id}
      badges={worker ? <WorkerState worker={worker} /> : null}
      crumbs={[["Workers", link(["workers"])]]}
      actions={worker ? <Actions worker={worker} reload={loaded.reload} /> : null}
    >
      <View of={loaded}>{() => (worker ? <Details worker={worker} /> : <Empty title="This worker is not there" command="penstock workers list">Workers that stopped are forgotten after a while. What it ran is below.</Empty>)}</View>
      <Card title="Running now" class="flush">
        <View of={running} rows={3}>
          {({ tasks }) => (tasks.length ? <Table label="Running now" rows={tasks} columns={NOW_COLUMNS} rowKey={(task) => task.task_id} href={(task) => link(["tasks", task.task_id])} /> : <Empty title="Nothing runs on it right now" />)}
        </View>
      </Card>
      <Card title="Last tasks" class="flush">
        <View of={recent} rows={6}>
          {({ tasks }) => (tasks.length ? <Table label="Last tasks" rows={tasks} columns={TASK_COLUMNS} rowKey={(task) => task.task_id} href={(task) => link(["tasks", task.task_id])} /> : <Empty title="It has run nothing yet" />)}
        </View>
      </Card>
    </Page>
  );
}

function Actions({ worker, reload }: { worker: WorkerRow; reload: () => void }) {
  const [queue = ""] = worker.queues;
  if (worker.status === "dead") return null;
  return (
    <>
      {worker.requested === "quiet" ? (
        <Action queue={queue} onClick={() => act("resume", worker, reload)}>
          Resume
        </Action>
      ) : (
        <Action queue={queue} onClick={() => act("quiet", worker, reload)}>
          Quiet
        </Action>
      )}
      <Action queue={queue} onClick={() => act("stop", worker, reload)}>
        Stop
      </Action>
    </>
  );
}

function Details({ worker }: { worker: WorkerRow }) {
  return (
    <>
      {worker.requested === "quiet" ? (
        <p class="notice warning inline">
          It takes nothing new and finishes what it has. <Command text={`penstock workers resume ${worker.worker_id}`} />
        </p>
      ) : null}
      <Stats
        items={[
          { name: "Slots in use", value: `${worker.running} of ${worker.concurrency}` },
          { name: "Completed", value: count(worker.completed) },
          { name: "Failed", value: count(worker.failed) },
          { name: "CPU", value: worker.cpu_percent.toFixed(0), unit: "%" },
          { name: "Memory", value: bytes(worker.memory_bytes) },
          { name: "Abandoned", value: count(worker.abandoned), tone: worker.abandoned ? "warning" : undefined },
        ]}
      />
      <Card title="Worker">
        <Facts
          items={[
            ["Host", `${worker.host}, process ${worker.pid}`],
            ["Version", worker.version],
            ["Queues", worker.queues.join(", ")],
            ["Task types", worker.task_types.join(", ") || "any"],
            ["First seen", <Time key="first" at={worker.first_seen_at} />],
            ["Heartbeat", <Time key="heartbeat" at={worker.last_heartbeat_at} />],
          ]}
        />
      </Card>
    </>
  );
}

const WORDS = {
  quiet: { title: "Quiet", text: "It finishes what it runs and takes nothing new, until it is resumed or stopped.", button: "Quiet" },
  resume: { title: "Resume", text: "It takes tasks again.", button: "Resume" },
  stop: { title: "Stop", text: "It finishes what it runs within its grace period, then its process ends. What is not finished runs again elsewhere.", button: "Stop" },
} as const;

function act(action: keyof typeof WORDS, worker: WorkerRow, reload: () => void): void {
  const words = WORDS[action];
  ask({
    title: `${words.title} ${worker.worker_id}?`,
    children: <p>{words.text}</p>,
    command: `penstock workers ${action} ${worker.worker_id}`,
    confirm: words.button,
    danger: action === "stop",
    done: "It is told with its next heartbeat",
    run: async () => {
      await post(["workers", worker.worker_id, action]);
      reload();
    },
  });
}
