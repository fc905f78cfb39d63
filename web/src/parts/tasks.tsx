// What several pages show of tasks: their state, how long they ran, the end of their error, and a table of them.
import { duration } from "../format";
import { Link, link } from "../router";
import type { Task } from "../types";
import { exactJson } from "./payload";
import type { Column } from "./table";
import { Badge, Dash, Time, type Tone } from "./ui";

const STATE_TONES: Record<string, Tone> = { completed: "ok", running: "info", failed: "warning", dead: "danger", cancelled: "neutral", pending: "neutral", scheduled: "neutral", blocked: "warning" };

export function TaskState({ of }: { of: string }) {
  return <Badge tone={STATE_TONES[of] ?? "neutral"}>{of}</Badge>;
}

interface Ran {
  started_at: string | null;
  finished_at: string | null;
}

export function Took({ of: { started_at, finished_at } }: { of: Ran }) {
  return started_at && finished_at ? <>{duration(Date.parse(finished_at) - Date.parse(started_at))}</> : <Dash />;
}

/** The last line of a traceback says what went wrong. */
export function LastLine({ of }: { of: string }) {
  return (
    <span class="soft" title={of}>
      {of.trim().split("\n").at(-1)}
    </span>
  );
}

export const TASK_COLUMNS: readonly Column<Task>[] = [
  {
    id: "type",
    title: "Task",
    narrow: true,
    cell: (task) => (
      <Link class="name" href={link(["tasks", task.task_id])}>
        {task.task_type}
      </Link>
    ),
  },
  { id: "status", title: "State", narrow: true, cell: (task) => <TaskState of={task.status} /> },
  { id: "arguments", title: "Arguments", cell: (task) => <code dir="auto">{argumentsOf(task)}</code> },
  { id: "queue", title: "Queue", cell: (task) => <Link href={link(["queues", task.queue])}>{task.queue}</Link> },
  { id: "attempt", title: "Attempt", isNumber: true, cell: (task) => `${task.attempt} of ${task.max_attempts}` },
  { id: "submitted", title: "Submitted", isNumber: true, cell: (task) => <Time at={task.submitted_at} /> },
  { id: "took", title: "Ran for", isNumber: true, cell: (task) => <Took of={task} /> },
  { id: "error", title: "Error", fills: true, cell: (task) => <LastLine of={task.error} /> },
];

function argumentsOf(task: Task): string {
  const positional = (task.args ?? []).map((value) => exactJson(value));
  const named = Object.entries(task.kwargs ?? {}).map(([name, value]) => `${name}=${exactJson(value)}`);
  return [...positional, ...named].join(", ").slice(0, 140);
}
