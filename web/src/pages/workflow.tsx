// A workflow as a graph, with the chain of tasks that decided how long it took.
import { useEffect, useState } from "preact/hooks";
import { get, type Schemas } from "../api";
import { count, duration, plural } from "../format";
import type { LayoutReply, LayoutRequest } from "../layout.worker";
import { useInterval, useLoad, View } from "../parts/load";
import { Table } from "../parts/table";
import { Card, Empty, Facts, Page } from "../parts/ui";
import { base, link, navigate, path } from "../router";
import { TASK_COLUMNS, type Task } from "./tasks";

const NODES_MAX = 300;
const [WIDTH, HEIGHT] = [180, 46];

export default function WorkflowPage() {
  const [, id = ""] = path.value;
  const loaded = useLoad(`workflow,${id}`, (abort) => everyTask(id, abort));
  useInterval(loaded.reload, 5);
  return (
    <Page title={`Workflow ${id}`} crumbs={[["Tasks", link(["tasks"])]]}>
      <View of={loaded}>
        {(tasks) =>
          tasks.length ? (
            <>
              <Card title="Summary">
                <Summary tasks={tasks} />
              </Card>
              <Card title="Graph">{tasks.length > NODES_MAX ? <p class="soft">{plural(tasks.length, "task")} are too many to draw: the table has them.</p> : <Graph tasks={tasks} />}</Card>
              <Card class="flush">
                <Table label="Tasks of the workflow" rows={tasks} columns={TASK_COLUMNS} rowKey={(task) => task.task_id} href={(task) => link(["tasks", task.task_id])} />
              </Card>
            </>
          ) : (
            <Empty title="No tasks of this workflow are kept" />
          )
        }
      </View>
    </Page>
  );
}

async function everyTask(workflow: string, abort: AbortSignal): Promise<Task[]> {
  const tasks: Task[] = [];
  let cursor: string | null = null;
  do {
    const page: Schemas["TaskPage"] = await get<Schemas["TaskPage"]>(["tasks"], { workflow, limit: 1000, cursor }, abort);
    tasks.push(...page.tasks);
    cursor = page.cursor;
  } while (cursor && tasks.length < 5000);
  return tasks.reverse();
}

const time = (iso: string | null): number => (iso ? Date.parse(iso) : Date.now());

/** The chain of parents that ended last, from the task that ended last back to a root. */
export function criticalPath(tasks: readonly Task[]): Task[] {
  const byId = new Map(tasks.map((task) => [task.task_id, task]));
  const latest = (list: readonly Task[]): Task | undefined => [...list].sort((a, b) => time(b.finished_at) - time(a.finished_at))[0];
  const chain: Task[] = [];
  let task = latest(tasks);
  while (task && !chain.includes(task)) {
    chain.unshift(task);
    task = latest(task.depends_on.map((id) => byId.get(id)).filter((parent): parent is Task => parent !== undefined));
  }
  return chain;
}

function Summary({ tasks }: { tasks: readonly Task[] }) {
  const chain = criticalPath(tasks);
  const work = chain.reduce((sum, task) => sum + (task.started_at ? time(task.finished_at) - time(task.started_at) : 0), 0);
  const began = Math.min(...tasks.map((task) => time(task.submitted_at)));
  const ended = Math.max(...tasks.map((task) => time(task.finished_at)));
  const slowest = [...chain].sort((a, b) => runTime(b) - runTime(a))[0];
  return (
    <Facts
      items={[
        ["Tasks", count(tasks.length)],
        ["Finished", count(tasks.filter((task) => task.finished_at).length)],
        ["Took", duration(ended - began)],
        ["Critical path", `${plural(chain.length, "task")}: ${duration(work)} of work, ${duration(Math.max(0, ended - began - work))} of waiting`],
        ["Slowest on it", slowest ? `${slowest.task_type}, ${duration(runTime(slowest))}; halving it would save ${duration(runTime(slowest) / 2)}` : "–"],
      ]}
    />
  );
}

const runTime = (task: Task): number => (task.started_at ? time(task.finished_at) - time(task.started_at) : 0);

function Graph({ tasks }: { tasks: readonly Task[] }) {
  const [layout, setLayout] = useState<LayoutReply | null>(null);
  const shape = tasks.map((task) => task.task_id + task.depends_on.join()).join();
  useEffect(() => {
    const worker = new Worker(trusted(), { type: "module" });
    worker.onmessage = (event: MessageEvent<LayoutReply>) => setLayout(event.data);
    const known = new Set(tasks.map((task) => task.task_id));
    const request: LayoutRequest = {
      nodes: tasks.map((task) => ({ id: task.task_id, width: WIDTH, height: HEIGHT })),
      edges: tasks.flatMap((task) => task.depends_on.filter((id) => known.has(id)).map((id): [string, string] => [id, task.task_id])),
    };
    worker.postMessage(request);
    return () => worker.terminate();
  }, [shape]);
  if (!layout) return <div class="pending" />;
  const critical = new Set(criticalPath(tasks).map((task) => task.task_id));
  return (
    <div class="graph" tabIndex={0} aria-label="Graph of the workflow; the table below has the same tasks">
      <svg width={layout.width} height={layout.height} role="img" aria-label={`${tasks.length} tasks`}>
        {layout.edges.map((edge) => (
          <path key={edge.from + edge.to} class={critical.has(edge.from) && critical.has(edge.to) ? "critical" : ""} d={`M${edge.points.map((point) => `${point.x},${point.y}`).join("L")}`} />
        ))}
        {tasks.map((task) => {
          const place = layout.nodes[task.task_id];
          if (!place) return null;
          return (
            <g key={task.task_id} class={`${task.status} ${critical.has(task.task_id) ? "critical" : ""}`} transform={`translate(${place.x - WIDTH / 2},${place.y - HEIGHT / 2})`} onClick={() => navigate(link(["tasks", task.task_id]))}>
              <rect width={WIDTH} height={HEIGHT} rx={7} />
              <text x={12} y={19}>
                {task.task_type.slice(0, 24)}
              </text>
              <text x={12} y={36} class="soft">
                {task.status}
                {task.started_at ? ` · ${duration(runTime(task))}` : ""}
              </text>
            </g>
          );
        })}
      </svg>
    </div>
  );
}

/** The address of the worker, as the policy of the page wants it: only our own file. */
function trusted(): string {
  const file = document.querySelector<HTMLMetaElement>('meta[name="penstock-layout"]')?.content ?? "";
  const url = new URL(file, base).href;
  const types = (window as { trustedTypes?: { createPolicy: (name: string, rules: { createScriptURL: (url: string) => string }) => { createScriptURL: (url: string) => string } } }).trustedTypes;
  policy ??= types?.createPolicy("penstock", { createScriptURL: (text) => text }) ?? { createScriptURL: (text) => text };
  return policy.createScriptURL(url);
}

let policy: { createScriptURL: (url: string) => string } | undefined;
