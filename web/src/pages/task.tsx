// One task: arguments, result, progress, every run with its error, and its neighbours in the workflow.
import { useEffect } from "preact/hooks";
import { at, call, get, may, post, type Schemas } from "../api";
import { duration } from "../format";
import { subscribe } from "../live";
import { useLoad, View } from "../parts/load";
import { exactJson, Payload } from "../parts/payload";
import { ask, Badge, Card, Facts, Page, Time } from "../parts/ui";
import { Link, link, messageLink, path } from "../router";
import { STATE_TONES, type Task } from "./tasks";

export default function TaskPage() {
  const [, id = ""] = path.value;
  const loaded = useLoad(`task,${id}`, (abort) => get<Task>(["tasks", id], {}, abort));
  useEffect(() => subscribe({ topics: ["tasks"], task_ids: [id], interval_ms: 500 }, loaded.reload, loaded.reload), [id]);
  const task = loaded.data;
  return (
    <Page
      title={task?.task_type ?? "Task"}
      crumbs={[["Tasks", link(["tasks"])]]}
      actions={
        task && may("manage", task.queue) ? (
          <>
            {["dead", "cancelled", "failed"].includes(task.status) ? <button onClick={() => act("retry", task, loaded.reload)}>Retry</button> : null}
            {["completed", "dead", "cancelled"].includes(task.status) ? null : <button onClick={() => act("cancel", task, loaded.reload)}>Cancel</button>}
          </>
        ) : null
      }
    >
      <View of={loaded}>{(data) => <Details task={data} />}</View>
    </Page>
  );
}

function Details({ task }: { task: Task }) {
  return (
    <>
      <div class="columns">
        <Card title="Task">
          <Facts items={facts(task)} />
        </Card>
        <Card title="Runs">
          {task.runs?.length ? (
            <ul class="timeline">
              {task.runs.map((run) => (
                <RunItem key={`${run.attempt}${run.started_at}`} run={run} />
              ))}
            </ul>
          ) : (
            <p class="soft">It has not run yet.</p>
          )}
        </Card>
      </div>
      {task.error ? (
        <Card title="Last error">
          <pre class="trace">{task.error}</pre>
        </Card>
      ) : null}
      <div class="columns">
        <Card title="Arguments">
          <Payload of={{ payload: Object.keys(task.kwargs ?? {}).length ? { args: task.args, kwargs: task.kwargs } : task.args }} />
        </Card>
        {task.status === "completed" ? (
          <Card title="Result">
            <Payload of={{ payload: task.result }} />
          </Card>
        ) : null}
        {task.progress === null || task.progress === undefined ? null : (
          <Card title="Progress">
            <pre class="trace">{exactJson(task.progress, "  ")}</pre>
          </Card>
        )}
      </div>
    </>
  );
}

function facts(task: Task): [string, preact.ComponentChildren][] {
  return [
    ["State", <Badge key="state" tone={STATE_TONES[task.status] ?? "neutral"}>{task.status}</Badge>],
    ["Id", <code key="id">{task.task_id}</code>],
    ["Queue", <Link key="queue" href={link(["queues", task.queue])}>{task.queue}</Link>],
    ["Attempt", `${task.attempt} of ${task.max_attempts}`],
    ["Submitted", <Time key="submitted" at={task.submitted_at} />],
    ["Due", <Time key="due" at={task.due_at} />],
    ["Started", <Time key="started" at={task.started_at} />],
    ["Finished", <Time key="finished" at={task.finished_at} />],
    ["Worker", task.worker || "–"],
    ["Message", task.message_id ? <Link key="message" href={messageLink(task.message_id)}>{task.message_id}</Link> : "–"],
    ["Waits for", task.depends_on.length ? task.depends_on.map((id) => <Link key={id} href={link(["tasks", id])}>{id.slice(0, 13)}… </Link>) : "–"],
    ["Workflow", task.workflow ? <Link key="workflow" href={link(["workflows", task.workflow])}>{task.workflow}</Link> : "–"],
    ["Schedule", task.schedule ? <Link key="schedule" href={link(["schedules"])}>{task.schedule}</Link> : "–"],
    ["Timeout", task.timeout_ms ? duration(task.timeout_ms) : "none"],
  ];
}

function RunItem({ run }: { run: Schemas["Run"] }) {
  const tone = run.outcome === "completed" ? "ok" : run.outcome ? "danger" : "";
  const took = run.ended_at ? duration(Date.parse(run.ended_at) - Date.parse(run.started_at)) : "running";
  return (
    <li class={tone}>
      <strong>Attempt {run.attempt}</strong> {run.outcome ? <Badge tone={tone === "ok" ? "ok" : "danger"}>{run.outcome}</Badge> : <Badge tone="info">running</Badge>}
      <p class="soft">
        <Time at={run.started_at} /> · {took} · {run.worker}
      </p>
      {run.error ? (
        <details>
          <summary>{run.error.trim().split("\n").at(-1)}</summary>
          <pre class="trace">{run.error}</pre>
        </details>
      ) : null}
    </li>
  );
}

function act(action: "retry" | "cancel", task: Task, reload: () => void): void {
  ask({
    title: action === "retry" ? "Run this task again?" : "Cancel this task?",
    children: <p>{action === "retry" ? "It gets all its attempts again." : "What a worker still reports of it is refused."}</p>,
    command: `penstock tasks ${action} ${task.task_id}`,
    confirm: action === "retry" ? "Retry" : "Cancel the task",
    danger: action === "cancel",
    run: async () => {
      await (action === "retry" ? post(["tasks", task.task_id, "retry"]) : call("DELETE", at(["tasks", task.task_id])));
      reload();
    },
  });
}
