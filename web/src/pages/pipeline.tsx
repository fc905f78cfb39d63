// One run of a pipeline, with its report in a frame that can run nothing and reach nothing.
import { get } from "../api";
import { count } from "../format";
import { useInterval, useLoad, View } from "../parts/load";
import { Report } from "../parts/report";
import { Badge, Card, Empty, Facts, Page, Time } from "../parts/ui";
import { Link, link, path } from "../router";
import type { PipelineRun } from "../types";
import { RUN_TONES, tookText } from "./pipelines";

export default function PipelineRunPage() {
  const [, name = "", run = ""] = path.value;
  const parts = ["pipelines", name, "runs", run];
  const loaded = useLoad(parts.join(), (abort) => get<PipelineRun>(parts, {}, abort));
  useInterval(loaded.reload, loaded.data?.status === "running" ? 3 : 60);
  return (
    <Page
      title={run}
      badges={loaded.data ? <Badge tone={RUN_TONES[loaded.data.status] ?? "neutral"}>{loaded.data.status}</Badge> : null}
      crumbs={[
        ["Pipelines", link(["pipelines"])],
        [name, link(["pipelines"])],
      ]}
    >
      <View of={loaded}>
        {(data) => (
          <>
            {data.error ? (
              <Card title="Error">
                <pre class="trace" tabIndex={0}>
                  {data.error}
                </pre>
              </Card>
            ) : null}
            <Card title="Run">
              <Facts
                items={[
                  ["Started", <Time key="started" at={data.started_at} />],
                  ["Took", tookText(data)],
                  ["Rows", data.rows === null || data.rows === undefined ? "–" : count(data.rows)],
                  ["Queues", data.queues.length ? data.queues.map((queue) => <Link key={queue} href={link(["queues", queue])}>{queue} </Link>) : "–"],
                  ["Summary", data.summary || "–"],
                ]}
              />
            </Card>
            <Card title="Report">{data.has_report ? <Report parts={[...parts, "report"]} title={`Report of ${run}`} /> : <Empty title="No report">This run wrote none, or it was too large to be kept.</Empty>}</Card>
          </>
        )}
      </View>
    </Page>
  );
}
