// A trace: the messages and tasks of one request on one axis of time.
import { get, mayAnywhere } from "../api";
import { duration, local, plural } from "../format";
import { MayReadNothing, useLoad, View } from "../parts/load";
import { type Column, Table } from "../parts/table";
import { TaskState } from "../parts/tasks";
import { Badge, Card, Empty, Page, Stats } from "../parts/ui";
import { Link, link, messageLink, path } from "../router";
import type { Trace, TraceStep } from "../types";

interface Span {
  from: number;
  to: number;
}

const hrefOf = (step: TraceStep): string => (step.task_id ? link(["tasks", step.task_id]) : messageLink(step.id));

function columns(span: Span): readonly Column<TraceStep>[] {
  return [
    { id: "what", title: "What", narrow: true, cell: (step) => <Link class="name" href={hrefOf(step)}>{step.task_type || step.id}</Link> },
    { id: "queue", title: "Queue", cell: (step) => <Link href={link(["queues", step.queue])}>{step.queue}</Link> },
    { id: "state", title: "State", cell: (step) => <State step={step} /> },
    { id: "lane", title: "Time", narrow: true, fills: true, cell: (step) => <Lane step={step} span={span} /> },
    { id: "wait", title: "Waited", isNumber: true, cell: (step) => duration(step.wait_ms) },
    { id: "run", title: "Ran", isNumber: true, narrow: true, cell: (step) => duration(step.run_ms) },
    { id: "attempts", title: "Attempts", isNumber: true, cell: (step) => new Set(step.runs.map((run) => run.attempt)).size },
  ];
}

/** The state of a task; of a message how its last delivery ended. */
function State({ step }: { step: TraceStep }) {
  const outcome = step.status || step.runs.at(-1)?.outcome || "pushed";
  return outcome === "acked" ? <Badge tone="ok">acked</Badge> : <TaskState of={outcome} />;
}

/** When it waited (grey) and when it ran, by outcome. */
function Lane({ step, span }: { step: TraceStep; span: Span }) {
  const whole = Math.max(1, span.to - span.from);
  const place = (from: number, to: number) => ({ left: `min(${(100 * (from - span.from)) / whole}%, 100% - 2px)`, width: `${(100 * Math.max(0, to - from)) / whole}%` });
  const pushed = Date.parse(step.pushed_at);
  const first = step.runs[0] ? Date.parse(step.runs[0].started_at) : span.to;
  return (
    <div class="lane" role="img" aria-label={`pushed at ${local(step.pushed_at)}, ${plural(step.runs.length, "run")}`}>
      <i class="wait" style={place(pushed, first)} />
      {step.runs.map((run, index) => {
        const from = Date.parse(run.started_at);
        return <i key={index} class={run.outcome === "acked" || run.outcome === "completed" ? "ok" : run.outcome ? "danger" : ""} style={place(from, run.ended_at ? Date.parse(run.ended_at) : span.to)} title={`${run.consumer}: ${run.outcome || "running"} ${run.error}`} />;
      })}
    </div>
  );
}

export default function TracePage() {
  const [, id = ""] = path.value;
  const loaded = useLoad(`trace,${id}`, (abort) => get<Trace>(["traces", id], {}, abort));
  return (
    <Page title={id} crumbs={[["Traces", link(["traces"])]]} actions={<button onClick={loaded.reload}>Reload</button>}>
      <View of={loaded}>
        {(trace) =>
          trace.steps.length ? (
            <>
              <Found trace={trace} />
              <Looked trace={trace} />
            </>
          ) : (
            <>
              <Card>
                {mayAnywhere("read") ? null : <MayReadNothing />}
                <Empty title="Nothing of this trace was found" command={`penstock trace --trace ${id}`}>Only the newest messages of each queue are looked at.</Empty>
              </Card>
              <Looked trace={trace} />
            </>
          )
        }
      </View>
    </Page>
  );
}

function Found({ trace }: { trace: Trace }) {
  const from = Date.parse(trace.began_at ?? trace.steps[0]?.pushed_at ?? "");
  const ends = trace.steps.flatMap((step) => step.runs.map((run) => (run.ended_at ? Date.parse(run.ended_at) : Date.now())));
  const to = Math.max(from + 1, trace.ended_at ? Date.parse(trace.ended_at) : from, ...ends);
  const total = (pick: (step: TraceStep) => number): number => trace.steps.reduce((sum, step) => sum + pick(step), 0);
  return (
    <>
      <Stats
        items={[
          { name: "Steps", value: String(trace.steps.length) },
          { name: "Duration", value: duration(to - from) },
          { name: "Waited", value: duration(total((step) => step.wait_ms)) },
          { name: "Ran", value: duration(total((step) => step.run_ms)) },
        ]}
      />
      {trace.is_cut ? <p class="notice warning">There is more than is shown.</p> : null}
      <Card class="flush" title={`Started ${local(from)}`}>
        <Table label="Steps" rows={trace.steps} columns={columns({ from, to })} rowKey={(step) => step.id} href={hrefOf} />
      </Card>
    </>
  );
}

function Looked({ trace }: { trace: Trace }) {
  const cut = trace.queues.filter((queue) => !queue.is_complete);
  if (!cut.length) return null;
  return <p class="soft small">Looked at the newest messages only of {cut.map((queue) => `${queue.queue} (${queue.looked_back_to ? `back to ${local(queue.looked_back_to)}` : plural(queue.examined, "message")})`).join(", ")}.</p>;
}
