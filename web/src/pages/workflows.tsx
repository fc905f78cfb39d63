// Workflows: tasks that wait for each other, newest first.
import { count, duration, plural, serverNow } from "../format";
import { useInterval, useLoad, View } from "../parts/load";
import { type Column, Table } from "../parts/table";
import { Badge, Bar, Card, Empty, Page, Time, type Tone } from "../parts/ui";
import { Link, link } from "../router";
import { newestWorkflows, TASKS_MAX, type Workflow } from "../workflows";

export const WORKFLOW_TONES: Record<string, Tone> = { running: "info", completed: "ok", failed: "danger", cancelled: "neutral" };

const COLUMNS: readonly Column<Workflow>[] = [
  { id: "workflow", title: "Workflow", narrow: true, fills: true, cell: (row) => <Link class="name" href={link(["workflows", row.workflow])}>{row.workflow}</Link> },
  { id: "state", title: "State", narrow: true, cell: (row) => <Badge tone={WORKFLOW_TONES[row.status] ?? "neutral"}>{row.status}</Badge> },
  { id: "progress", title: "Progress", cell: (row) => <Bar part={row.counts["completed"] ?? 0} whole={row.tasks.length} label={`${row.counts["completed"] ?? 0} of ${row.tasks.length} tasks`} /> },
  { id: "tasks", title: "Completed", isNumber: true, narrow: true, cell: (row) => `${count(row.counts["completed"] ?? 0)} of ${count(row.tasks.length)}` },
  { id: "dead", title: "Dead", isNumber: true, cell: (row) => (row.counts["dead"] ? count(row.counts["dead"]) : <span class="zero">0</span>) },
  { id: "queues", title: "Queues", cell: (row) => row.queues.join(", ") },
  { id: "submitted", title: "Submitted", isNumber: true, cell: (row) => <Time at={row.submitted_at} /> },
  { id: "took", title: "Took", isNumber: true, cell: (row) => duration((row.finished_at ? Date.parse(row.finished_at) : serverNow()) - Date.parse(row.submitted_at)) },
];

export default function Workflows() {
  const loaded = useLoad("workflows", newestWorkflows);
  useInterval(loaded.reload, 5);
  return (
    <Page title="Workflows">
      <Card class="flush">
        <View of={loaded}>
          {(rows) =>
            rows.length ? (
              <>
                <Table label="Workflows" rows={rows} columns={COLUMNS} rowKey={(row) => row.workflow} href={(row) => link(["workflows", row.workflow])} />
                <div class="table-foot">
                  {plural(rows.length, "workflow")} among the newest {count(TASKS_MAX)} tasks
                </div>
              </>
            ) : (
              <Empty title="No workflows yet" command="convert.options(depends_on=[extract.enqueue()]).enqueue()">
                Tasks that depend on each other are a workflow: its graph, its critical path and what is still to do are shown here.
              </Empty>
            )
          }
        </View>
      </Card>
    </Page>
  );
}
