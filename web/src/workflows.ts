// Workflows, put together from the tasks that have one.
import { get, type Schemas } from "./api";
import type { Task } from "./types";

export interface Workflow {
  workflow: string;
  submitted_at: string;
  finished_at: string | null;
  status: "running" | "completed" | "failed" | "cancelled";
  counts: Record<string, number>;
  queues: string[];
  tasks: Task[]; // the first that was submitted first
}

export const TASKS_MAX = 1000;

/** The workflows among the newest tasks, newest first. */
export async function newestWorkflows(abort: AbortSignal): Promise<Workflow[]> {
  const { tasks } = await get<Schemas["TaskPage"]>(["tasks"], { limit: TASKS_MAX }, abort);
  const groups = new Map<string, Task[]>();
  for (const task of tasks) if (task.workflow) groups.set(task.workflow, [...(groups.get(task.workflow) ?? []), task]);
  return [...groups].map(([name, members]) => workflowOf(name, members));
}

export async function oneWorkflow(name: string, abort: AbortSignal): Promise<Workflow> {
  const { tasks } = await get<Schemas["TaskPage"]>(["tasks"], { workflow: name, limit: TASKS_MAX }, abort);
  return workflowOf(name, tasks);
}

function workflowOf(workflow: string, newestFirst: readonly Task[]): Workflow {
  const tasks = [...newestFirst].reverse();
  const counts: Record<string, number> = {};
  for (const task of tasks) counts[task.status] = (counts[task.status] ?? 0) + 1;
  const isOver = tasks.every((task) => task.finished_at);
  const status = !isOver ? "running" : counts["dead"] ? "failed" : counts["cancelled"] ? "cancelled" : "completed";
  const ends = tasks.map((task) => task.finished_at ?? "").sort();
  return { workflow, submitted_at: tasks[0]?.submitted_at ?? "", finished_at: isOver ? (ends.at(-1) ?? null) : null, status, counts, queues: [...new Set(tasks.map((task) => task.queue))], tasks };
}
