// One task: arguments, result, progress, why it waits, every run with its error, and its neighbours in the workflow.
import { useEffect } from "preact/hooks";
import { at, call, get, post, type Schemas } from "../api";
import { duration, plural, traceText } from "../format";
import { subscribe } from "../live";
import { ask } from "../parts/dialog";
import { useLoad, View } from "../parts/load";
import { exactJson, Payload } from "../parts/payload";
import { Table } from "../parts/table";
import { TASK_COLUMNS, TaskState } from "../parts/tasks";
import { Action, Badge, Card, type Fact, Facts, Page, Time } from "../parts/ui";
import { Link, link, messageLink, path } from "../router";
import type { Task, TaskWhy } from "../types";

const FINAL = ["completed", "dead", "cancelled"];

export default function TaskPage() {
  const [, id = ""] = path.value;
  const loaded = useLoad(`task,${id}`, (abort) => get<Task>(["tasks", id], {}, abort));
  useEffect(() => subscribe({ topics: ["tasks"], task_ids: [id], interval_ms: 500 }, loaded.reload, loaded.reload), [id]);
  const task = loaded.data;
  return (
    <Page
      title={task?.task_type ?? "Task"}
      badges={task ? <TaskState of={task.status} /> : null}
      crumbs={[["Tasks", link(["tasks"])]]}
      actions={
        task ? (
          <>
            {["dead", "cancelled", "failed"].includes(task.status) ? (
              <Action queue={task.queue} onClick={() => act("retry", task, loaded.reload)}>
                Retry
              </Action>
            ) : null}
            {FINAL.includes(task.status) ? null : (
              <Action queue={task.queue} onClick={() => act("cancel", task, loaded.reload)}>
                Cancel
              </Action>
            )}
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
    <div class="split">
      <div>
        {FINAL.includes(task.status) || task.status === "running" ? null : <Why id={task.task_id} state={task.status} />}
        {task.error ? (
          <Card title="Last error">
            <pre class="trace" tabIndex={0}>
              {task.error}
            </pre>
          </Card>
        ) : null}
        {task.progress === null || task.progress === undefined ? null : (
          <Card title="Progress">
            <pre class="trace" tabIndex={0}>
              {exactJson(task.progress, "  ")}
            </pre>
          </Card>
        )}
        <Card title="Arguments">
          <Payload of={{ payload: Object.keys(task.kwargs ?? {}).length ? { args: task.args, kwargs: task.kwargs } : task.args }} />
        </Card>
        {task.status === "completed" ? (
          <Card title="Result">
            <Payload of={{ payload: task.result }} />
          </Card>
        ) : null}
        <Neighbours task={task} />
      </div>
      <div>
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
        <Card title="Task">
          <Facts aside items={facts(task)} />
        </Card>
      </div>
    </div>
  );
}

function Why({ id, state }: { id: string; state: string }) {
  const loaded = useLoad(`why,${id},${state}`, (abort) => get<TaskWhy>(["tasks", id, "why"], {}, abort));
  return (
    <Card title="Why it waits">
      <View of={loaded} rows={2}>
        {(why) => (
          <ul class="timeline">
            {why.reasons.map((reason) => (
              <li key={reason.code + reason.group} class="warning">
                {reason.text} <Badge plain>{reason.code}</Badge>
                {reason.due_at ? (
                  <p class="soft">
                    due <Time at={reason.due_at} />
                  </p>
                ) : null}
              </li>
            ))}
            {why.parents.map((parent) => (
              <li key={parent.task_id} class="neutral">
                waits for <Link href={link(["tasks", parent.task_id])}>{parent.task_type}</Link> <TaskState of={parent.status} />
              </li>
            ))}
          </ul>
        )}
      </View>
    </Card>
  );
}

/** The tasks that it waited for, and those that wait for it. */
function Neighbours({ task }: { task: Task }) {
  const loaded = useLoad(task.workflow ? `neighbours,${task.workflow},${task.status}` : null, (abort) => get<Schemas["TaskPage"]>(["tasks"], { workflow: task.workflow, limit: 200 }, abort));
  const all = loaded.data?.tasks ?? [];
  const parents = all.filter((other) => task.depends_on.includes(other.task_id));
  const children = all.filter((other) => other.depends_on.includes(task.task_id));
  if (!parents.length && !children.length) return null;
  return (
    <>
      {([["Parents", parents], ["Children", children]] as const).map(([title, tasks]) =>
        tasks.length ? (
          <Card key={title} title={title} class="flush">
            <Table label={title} rows={tasks} columns={TASK_COLUMNS.slice(0, 5)} rowKey={(other) => other.task_id} href={(other) => link(["tasks", other.task_id])} />
          </Card>
        ) : null,
      )}
    </>
  );
}

function facts(task: Task): Fact[] {
  const items: Fact[] = [
    ["Id", <code key="id">{task.task_id}</code>],
    ["Queue", <Link key="queue" href={link(["queues", task.queue])}>{task.queue}</Link>],
    ["Attempt", `${task.attempt} of ${task.max_attempts}`],
    ["Submitted", <Time key="submitted" at={task.submitted_at} />],
  ];
  if (task.due_at) items.push(["Due", <Time key="due" at={task.due_at} />]);
  if (task.started_at) items.push(["Started", <Time key="started" at={task.started_at} />]);
  if (task.finished_at) items.push(["Finished", <Time key="finished" at={task.finished_at} />]);
  if (task.worker) items.push(["Worker", <Link key="worker" href={link(["workers", task.worker])}>{task.worker}</Link>]);
  if (task.message_id) items.push(["Message", <Link key="message" href={messageLink(task.message_id)}>{task.message_id}</Link>]);
  if (task.depends_on.length) items.push(["Waits for", plural(task.depends_on.length, "task")]);
  if (task.workflow) items.push(["Workflow", <Link key="workflow" href={link(["workflows", task.workflow])}>{task.workflow.slice(0, 13)}…</Link>]);
  if (task.schedule) items.push(["Schedule", <Link key="schedule" href={link(["schedules", task.schedule])}>{task.schedule}</Link>]);
  if (task.trace) items.push(["Trace", <Link key="trace" href={link(["traces", task.trace])}>{traceText(task.trace)}</Link>]);
  items.push(["Timeout", task.timeout_ms ? duration(task.timeout_ms) : "none"]);
  return items;
}

function RunItem({ run }: { run: Schemas["Run"] }) {
  const tone = run.outcome === "acked" ? "ok" : run.outcome ? "danger" : "";
  const took = run.ended_at ? duration(Date.parse(run.ended_at) - Date.parse(run.started_at)) : "running";
  return (
    <li class={tone}>
      <strong>Attempt {run.attempt}</strong> {run.outcome ? <Badge tone={tone === "ok" ? "ok" : "danger"}>{tone === "ok" ? "completed" : run.outcome}</Badge> : <Badge tone="info">running</Badge>}
      <p class="soft small">
        <Time at={run.started_at} /> · {took} · <Link href={link(["workers", run.worker])}>{run.worker}</Link>
      </p>
      {run.error ? (
        <details>
          <summary class="small">{run.error.trim().split("\n").at(-1)}</summary>
          <pre class="trace" tabIndex={0}>
            {run.error}
          </pre>
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
