// Pipelines: the runs that the command line reported, newest first.
import { get, type Schemas } from "../api";
import { count, duration, serverNow } from "../format";
import { useInterval, useLoad, View } from "../parts/load";
import { type Column, Table } from "../parts/table";
import { Badge, Card, Dash, Empty, Page, Time, type Tone } from "../parts/ui";
import { Link, link } from "../router";
import type { PipelineRun } from "../types";

export const RUN_TONES: Record<string, Tone> = { running: "info", done: "ok", failed: "danger" };

export function tookText(run: PipelineRun): string {
  return run.started_at ? duration((run.ended_at ? Date.parse(run.ended_at) : serverNow()) - Date.parse(run.started_at)) : "–";
}

const COLUMNS: readonly Column<PipelineRun>[] = [
  { id: "run", title: "Run", narrow: true, cell: (run) => <Link class="name" href={link(["pipelines", run.pipeline, run.run])}>{run.run}</Link> },
  { id: "state", title: "State", narrow: true, cell: (run) => <Badge tone={RUN_TONES[run.status] ?? "neutral"}>{run.status}</Badge> },
  { id: "started", title: "Started", isNumber: true, cell: (run) => <Time at={run.started_at} /> },
  { id: "took", title: "Took", isNumber: true, cell: (run) => tookText(run) },
  { id: "rows", title: "Rows", isNumber: true, cell: (run) => (run.rows === null || run.rows === undefined ? <Dash /> : count(run.rows)) },
  { id: "summary", title: "Summary", fills: true, cell: (run) => <span class="soft">{run.error || run.summary}</span> },
  { id: "report", title: "Report", cell: (run) => (run.has_report ? <Link href={link(["pipelines", run.pipeline, run.run])}>open</Link> : <Dash />) },
];

export default function Pipelines() {
  const loaded = useLoad("pipelines", (abort) => get<Schemas["Pipelines"]>(["pipelines"], {}, abort));
  useInterval(loaded.reload, 5);
  return (
    <Page title="Pipelines">
      <View of={loaded}>
        {({ pipelines }) =>
          pipelines.length ? (
            <>
              {pipelines.map((pipeline) => (
                <Card key={pipeline.name} title={pipeline.name} class="flush">
                  <Table label={`Runs of ${pipeline.name}`} rows={pipeline.runs} columns={COLUMNS} rowKey={(run) => run.run} href={(run) => link(["pipelines", run.pipeline, run.run])} />
                </Card>
              ))}
            </>
          ) : (
            <Card>
              <Empty title="No pipelines have run" command="penstock pipeline run rollup">
                Pipelines over sealed messages run on Spark, started from the command line. Each run is listed here with what it did and its report.
              </Empty>
            </Card>
          )
        }
      </View>
    </Page>
  );
}
