// A workflow as a graph, with the chain of tasks that decided how long it took and what halving a step would save.
import { useEffect, useState } from "preact/hooks";
import { get } from "../api";
import { runTime, type Step, steps } from "../critical-path";
import { count, duration, plural, serverNow } from "../format";
import type { LayoutReply, LayoutRequest } from "../layout.worker";
import { askBulk } from "../parts/bulk";
import { useInterval, useLoad, View } from "../parts/load";
import { type Column, Table } from "../parts/table";
import { TASK_COLUMNS } from "../parts/tasks";
import { Action, Badge, Card, Page, Stats } from "../parts/ui";
import { Link, link, navigate, path } from "../router";
import { layoutWorker } from "../trusted";
import type { Task, Workflow } from "../types";
import { WORKFLOW_TONES } from "./workflows";

const NODES_MAX = 300;
const [WIDTH, HEIGHT] = [172, 44];

export default function WorkflowPage() {
  const [, id = ""] = path.value;
  const loaded = useLoad(`workflow,${id}`, (abort) => get<Workflow>(["workflows", id], {}, abort));
  useInterval(loaded.reload, 3);
  const state = loaded.data?.status;
  const hasFailed = Boolean(loaded.data?.counts["dead"] || loaded.data?.counts["cancelled"]);
  const queue = loaded.data?.queues[0] ?? "";
  return (
    <Page
      title={`Workflow ${id}`}
      badges={state ? <Badge tone={WORKFLOW_TONES[state] ?? "neutral"}>{state}</Badge> : null}
      crumbs={[["Workflows", link(["workflows"])]]}
      actions={
        <>
          {hasFailed ? (
            <Action queue={queue} onClick={() => bulk("retry", id, loaded.reload)}>
              Retry failed
            </Action>
          ) : null}
          {state === "running" ? (
            <Action queue={queue} onClick={() => bulk("cancel", id, loaded.reload)}>
              Cancel
            </Action>
          ) : null}
        </>
      }
    >
      <View of={loaded}>{(workflow) => <Details workflow={workflow} />}</View>
    </Page>
  );
}

function Details({ workflow }: { workflow: Workflow }) {
  const tasks = workflow.tasks ?? [];
  const path = steps(tasks, workflow.critical_path ?? []);
  const isFolded = tasks.length > NODES_MAX;
  const sum = (pick: (step: Step) => number): number => path.reduce((all, step) => all + pick(step), 0);
  const took = (workflow.finished_at ? Date.parse(workflow.finished_at) : serverNow()) - Date.parse(workflow.submitted_at);
  return (
    <>
      <Stats
        items={[
          { name: "Tasks", value: count(workflow.tasks_total) },
          { name: "Completed", value: count(workflow.counts["completed"] ?? 0) },
          { name: "Dead", value: count(workflow.counts["dead"] ?? 0), tone: workflow.counts["dead"] ? "danger" : undefined },
          { name: workflow.finished_at ? "Took" : "Running for", value: duration(took) },
          { name: "Critical path, working", value: duration(sum((step) => step.worked)) },
          { name: "Critical path, waiting", value: duration(sum((step) => step.waited)) },
        ]}
      />
      <Card title="Graph" actions={<span class="soft small">The critical path is drawn in bold</span>}>
        {workflow.is_cut ? <p class="notice warning">Only the first {count(tasks.length)} tasks are shown.</p> : null}
        <Graph tasks={isFolded ? foldedByType(tasks) : tasks} path={isFolded ? [] : (workflow.critical_path ?? [])} isFolded={isFolded} />
      </Card>
      <Card title="Critical path" class="flush">
        <Table label="Critical path" rows={path} columns={STEP_COLUMNS} rowKey={(step) => step.task.task_id} href={(step) => link(["tasks", step.task.task_id])} />
      </Card>
      <Card title="Tasks" class="flush">
        <Table label="Tasks of the workflow" rows={tasks} columns={TASK_COLUMNS} rowKey={(task) => task.task_id} href={(task) => link(["tasks", task.task_id])} />
      </Card>
    </>
  );
}

const STEP_COLUMNS: readonly Column<Step>[] = [
  { id: "task", title: "Step", narrow: true, fills: true, cell: ({ task }) => <Link class="name" href={link(["tasks", task.task_id])}>{task.task_type}</Link> },
  { id: "waited", title: "Waited", isNumber: true, narrow: true, hint: "For a worker, after its parents were done", cell: (step) => duration(step.waited) },
  { id: "worked", title: "Worked", isNumber: true, narrow: true, cell: (step) => duration(step.worked) },
  { id: "saves", title: "Halving it saves", isNumber: true, hint: "Off the whole workflow: less than half where another chain is nearly as long", sort: (step) => step.saves, cell: (step) => duration(step.saves) },
];

/** Many tasks as one node for each type: with the latest of its ends, and edges between types. */
function foldedByType(tasks: readonly Task[]): Task[] {
  const typeOf = new Map(tasks.map((task) => [task.task_id, task.task_type]));
  const groups = new Map<string, Task[]>();
  for (const task of tasks) groups.set(task.task_type, [...(groups.get(task.task_type) ?? []), task]);
  return [...groups].map(([type, members]) => {
    const parents = new Set(members.flatMap((task) => task.depends_on.map((id) => typeOf.get(id) ?? "")).filter((other) => other && other !== type));
    const worst = (["dead", "running", "blocked", "pending"] as const).find((state) => members.some((task) => task.status === state));
    return { ...(members[0] as Task), task_id: type, task_type: `${type} × ${members.length}`, depends_on: [...parents], status: worst ?? "completed" };
  });
}

function Graph({ tasks, path, isFolded }: { tasks: readonly Task[]; path: readonly string[]; isFolded: boolean }) {
  const [layout, setLayout] = useState<LayoutReply | null>(null);
  const shape = tasks.map((task) => task.task_id + task.depends_on.join()).join();
  useEffect(() => {
    const worker = new Worker(layoutWorker(), { type: "module" });
    worker.onmessage = (event: MessageEvent<LayoutReply>) => setLayout(event.data);
    const known = new Set(tasks.map((task) => task.task_id));
    const request: LayoutRequest = {
      nodes: tasks.map((task) => ({ id: task.task_id, width: WIDTH, height: HEIGHT })),
      edges: tasks.flatMap((task) => task.depends_on.filter((id) => known.has(id)).map((id): [string, string] => [id, task.task_id])),
    };
    worker.postMessage(request);
    return () => worker.terminate();
  }, [shape]);
  if (!layout) return <div class="pending" aria-busy="true" />;
  const critical = new Set(path);
  const open = (task: Task): void => navigate(isFolded ? link(["tasks"], { q: `workflow:${task.workflow} task_type:${task.task_id}` }) : link(["tasks", task.task_id]));
  return (
    <div class="graph" tabIndex={0} role="group" aria-label="Graph of the workflow; the table below has the same tasks">
      <svg width={layout.width} height={layout.height} role="img" aria-label={plural(tasks.length, "task")}>
        {layout.edges.map((edge) => (
          <path key={edge.from + edge.to} class={critical.has(edge.from) && critical.has(edge.to) ? "critical" : ""} d={curve(layout, edge)} />
        ))}
        {tasks.map((task) => {
          const place = layout.nodes[task.task_id];
          if (!place) return null;
          return (
            <g key={task.task_id} class={`${task.status} ${critical.has(task.task_id) ? "critical" : ""}`} transform={`translate(${place.x - WIDTH / 2},${place.y - HEIGHT / 2})`} onClick={() => open(task)}>
              <rect class="box" width={WIDTH} height={HEIGHT} rx={6} />
              <rect class="state" x={8} y={10} width={3} height={HEIGHT - 20} rx={1.5} />
              <text x={20} y={18}>
                {task.task_type.slice(0, 22)}
              </text>
              <text x={20} y={34} class="soft">
                {task.status}
                {task.started_at && !isFolded ? ` · ${duration(runTime(task))}` : ""}
              </text>
            </g>
          );
        })}
      </svg>
    </div>
  );
}

/** From the right side of a task to the left side of the next, past the tasks between them. */
function curve(layout: LayoutReply, { from, to, points }: LayoutReply["edges"][number]): string {
  const [start, end] = [layout.nodes[from], layout.nodes[to]];
  if (!start || !end) return "";
  const stops = [{ x: start.x + WIDTH / 2, y: start.y }, ...points.slice(2, -2), { x: end.x - WIDTH / 2, y: end.y }];
  const bends = stops.slice(1).map((stop, index) => {
    const before = stops[index] as { x: number; y: number };
    const middle = (before.x + stop.x) / 2;
    return `C${middle},${before.y} ${middle},${stop.y} ${stop.x},${stop.y}`;
  });
  return `M${start.x + WIDTH / 2},${start.y}${bends.join("")}`;
}

function bulk(action: "retry" | "cancel", workflow: string, done: () => void): void {
  askBulk({
    parts: ["workflows", workflow, action],
    body: {},
    verb: action === "retry" ? "Retry" : "Cancel",
    noun: "task",
    effect: action === "retry" ? "Every dead or cancelled task of the workflow runs again; what waits for it goes on." : "Every task of the workflow that is not over is cancelled.",
    danger: action === "cancel",
    command: `penstock workflows ${action} ${workflow}`,
    done,
  });
}
