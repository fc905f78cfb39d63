// Workflows: tasks that wait for each other, newest first.
import { get, mayAnywhere, type Schemas } from "../api";
import { count, duration, plural, serverNow } from "../format";
import { MayReadNothing, type RowPage, usePages, View } from "../parts/load";
import { type Column, Table } from "../parts/table";
import { Amount, Badge, Bar, Card, Empty, Page, Time, type Tone } from "../parts/ui";
import { Link, link } from "../router";
import type { Workflow } from "../types";

export const WORKFLOW_TONES: Record<string, Tone> = { running: "info", completed: "ok", failed: "danger", cancelled: "neutral" };
const PAGE_SIZE = 100;

const number = (row: Workflow, state: string): number => row.counts[state] ?? 0;

const COLUMNS: readonly Column<Workflow>[] = [
  { id: "workflow", title: "Workflow", narrow: true, fills: true, cell: (row) => <Link class="name" href={link(["workflows", row.workflow])}>{row.workflow}</Link> },
  { id: "state", title: "State", narrow: true, cell: (row) => <Badge tone={WORKFLOW_TONES[row.status] ?? "neutral"}>{row.status}</Badge> },
  { id: "progress", title: "Progress", cell: (row) => <Bar part={number(row, "completed")} whole={row.tasks_total} label={`${number(row, "completed")} of ${row.tasks_total} tasks`} /> },
  { id: "tasks", title: "Completed", isNumber: true, narrow: true, cell: (row) => `${count(number(row, "completed"))} of ${count(row.tasks_total)}` },
  { id: "dead", title: "Dead", isNumber: true, cell: (row) => <Amount value={number(row, "dead")} text={count(number(row, "dead"))} /> },
  { id: "queues", title: "Queues", cell: (row) => row.queues.join(", ") },
  { id: "submitted", title: "Submitted", isNumber: true, cell: (row) => <Time at={row.submitted_at} /> },
  { id: "took", title: "Took", isNumber: true, cell: (row) => duration((row.finished_at ? Date.parse(row.finished_at) : serverNow()) - Date.parse(row.submitted_at)) },
];

async function load(cursor: string | null, abort?: AbortSignal): Promise<RowPage<Workflow>> {
  const page = await get<Schemas["WorkflowPage"]>(["workflows"], { limit: PAGE_SIZE, cursor }, abort);
  return { rows: page.workflows, cursor: page.cursor };
}

export default function Workflows() {
  const pages = usePages("workflows", load, 5);
  return (
    <Page title="Workflows">
      <Card class="flush">
        <View of={pages}>
          {(rows) =>
            rows.length || pages.hasMore ? (
              <>
                <Table label="Workflows" rows={rows} columns={COLUMNS} rowKey={(row) => row.workflow} href={(row) => link(["workflows", row.workflow])} onEnd={pages.loadMore} />
                <div class="table-foot">
                  {plural(rows.length, "workflow")}
                  {pages.hasMore ? ", more as you scroll" : ""}
                </div>
              </>
            ) : !mayAnywhere("read") ? (
              <MayReadNothing />
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
