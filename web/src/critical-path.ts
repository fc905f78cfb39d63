// The critical path of a workflow in waits and work, and what would make the workflow shorter.
import type { Task } from "./types";

export interface Step {
  task: Task;
  waited: number; // milliseconds between what it waited for and its start
  worked: number;
  saves: number; // off the whole, if it took half as long
}

const instant = (iso: string | null | undefined): number => (iso ? Date.parse(iso) : Date.now());
export const runTime = (task: Task): number => (task.started_at ? Math.max(0, instant(task.finished_at) - instant(task.started_at)) : 0);

/** The steps of the path, whose ids the broker names. A step saves less than half of itself where another chain is nearly as long. */
export function steps(tasks: readonly Task[], path: readonly string[]): Step[] {
  const whole = lastEnd(tasks);
  const byId = new Map(tasks.map((task) => [task.task_id, task]));
  const chain = path.map((id) => byId.get(id)).filter((task): task is Task => task !== undefined);
  return chain.map((task, index) => {
    const before = index ? instant(chain[index - 1]?.finished_at) : instant(task.submitted_at);
    const worked = runTime(task);
    return { task, waited: Math.max(0, task.started_at ? instant(task.started_at) - before : 0), worked, saves: Math.max(0, whole - lastEnd(tasks, task.task_id)) };
  });
}

/** When the last task ends, if each begins as long after its parents as it did, and `halved` takes half as long. */
function lastEnd(tasks: readonly Task[], halved = ""): number {
  const byId = new Map(tasks.map((task) => [task.task_id, task]));
  const ends = new Map<string, number>();
  const parentsOf = (task: Task): Task[] => task.depends_on.map((id) => byId.get(id)).filter((parent): parent is Task => parent !== undefined);
  const endOf = (task: Task): number => {
    const known = ends.get(task.task_id);
    if (known !== undefined) return known;
    ends.set(task.task_id, instant(task.finished_at)); // a circle ends here
    const parents = parentsOf(task);
    const actual = parents.length ? Math.max(...parents.map((parent) => instant(parent.finished_at))) : instant(task.submitted_at);
    const ready = parents.length ? Math.max(...parents.map(endOf)) : actual;
    const gap = task.started_at ? Math.max(0, instant(task.started_at) - actual) : 0;
    const end = ready + gap + runTime(task) * (task.task_id === halved ? 0.5 : 1);
    ends.set(task.task_id, end);
    return end;
  };
  return Math.max(...tasks.map(endOf));
}
