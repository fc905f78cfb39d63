// One schedule: in plain words, its next ticks in both time zones, and its runs.
import { get, type Schemas } from "../api";
import { cronWords } from "../cron";
import { dayTime } from "../format";
import { useInterval, useLoad, View } from "../parts/load";
import { Payload } from "../parts/payload";
import { type Column, Table } from "../parts/table";
import { LastLine, TaskState, Took } from "../parts/tasks";
import { Action, Badge, Card, Empty, Facts, Page, Time } from "../parts/ui";
import { Link, link, navigate, path } from "../router";
import type { Tick, Ticks } from "../types";
import { edit, remove, runNow, setPaused } from "./schedule-actions";

type Schedule = Schemas["Schedule"];
type Run = Ticks["runs"][number];

const RUN_COLUMNS: readonly Column<Run>[] = [
  { id: "at", title: "When", narrow: true, cell: (run) => <Link class="name" href={link(["tasks", run.task_id])}><Time at={run.at} /></Link> },
  { id: "state", title: "State", narrow: true, cell: (run) => <TaskState of={run.status} /> },
  { id: "trigger", title: "By", cell: (run) => (run.trigger === "manual" ? "hand" : "tick") },
  { id: "took", title: "Ran for", isNumber: true, cell: (run) => <Took of={run} /> },
  { id: "error", title: "Error", fills: true, cell: (run) => <LastLine of={run.error} /> },
];

export default function SchedulePage() {
  const [, name = ""] = path.value;
  const loaded = useLoad(`schedule,${name}`, (abort) => get<Schedule>(["schedules", name], {}, abort));
  const ticks = useLoad(`ticks,${name}`, (abort) => get<Ticks>(["schedules", name, "ticks"], { count: 5, runs: 50 }, abort));
  useInterval(loaded.reload, 5);
  useInterval(ticks.reload, 5);
  const schedule = loaded.data;
  const reload = (): void => {
    loaded.reload();
    ticks.reload();
  };
  return (
    <Page
      title={name}
      badges={schedule?.is_paused ? <Badge tone="warning">paused</Badge> : null}
      crumbs={[["Schedules", link(["schedules"])]]}
      actions={
        schedule ? (
          <>
            <Action queue={schedule.queue} class="primary" onClick={() => runNow(schedule, reload)}>
              Run now
            </Action>
            <Action queue={schedule.queue} onClick={() => setPaused(schedule, reload)}>
              {schedule.is_paused ? "Resume" : "Pause"}
            </Action>
            <Action queue={schedule.queue} onClick={() => edit(schedule, reload)}>
              Edit
            </Action>
            <Action queue={schedule.queue} onClick={() => remove(schedule, () => navigate(link(["schedules"])))}>
              Delete
            </Action>
          </>
        ) : null
      }
    >
      <View of={loaded}>
        {(data) => (
          <div class="split">
            <div>
              <Card title="Runs" class="flush">
                <View of={ticks} rows={5}>
                  {({ runs }) =>
                    runs.length ? (
                      <Table label="Runs" rows={runs} columns={RUN_COLUMNS} rowKey={(run) => run.task_id} href={(run) => link(["tasks", run.task_id])} />
                    ) : (
                      <Empty title="It has not run yet" command={`penstock schedules run ${name}`}>
                        The tasks that it submits are listed here.
                      </Empty>
                    )
                  }
                </View>
              </Card>
              <Card title="Arguments">
                <Payload of={{ payload: { args: data.args ?? [], kwargs: data.kwargs ?? {} } }} />
              </Card>
            </div>
            <div>
              <Card title={data.is_paused ? "Next ticks, if it were not paused" : "Next ticks"} class="flush">
                <View of={ticks} rows={5}>
                  {({ next }) => <NextTicks ticks={next} zone={data.timezone} />}
                </View>
              </Card>
              <Card title="Schedule">
                <Facts
                  aside
                  items={[
                    ["When", cronWords(data.cron) || "–"],
                    ["Cron", <code key="cron">{data.cron}</code>],
                    ["Time zone", data.timezone],
                    ["Task", data.task_type],
                    ["Queue", <Link key="queue" href={link(["queues", data.queue])}>{data.queue}</Link>],
                    ["Missed ticks", data.missed === "skip" ? "skipped" : "caught up"],
                    ["Declared in code", data.is_declared ? "yes" : "no"],
                  ]}
                />
              </Card>
            </div>
          </div>
        )}
      </View>
    </Page>
  );
}

/** Each tick in the zone of the schedule and in that of the browser. */
function NextTicks({ ticks, zone }: { ticks: readonly Tick[]; zone: string }) {
  const here = Intl.DateTimeFormat().resolvedOptions().timeZone;
  if (!ticks.length) return <p class="soft">It will not run again.</p>;
  return (
    <table aria-label="Next ticks">
      <thead>
        <tr>
          <th scope="col">{zone}</th>
          <th scope="col" class="number">
            {here}, here
          </th>
        </tr>
      </thead>
      <tbody>
        {ticks.map((tick) => (
          <tr key={tick.at}>
            <td class="wrap">
              {dayTime(tick.local.slice(0, 19))}{" "}
              <span class="soft">
                <Time at={tick.at} />
              </span>
            </td>
            <td class="number">{dayTime(tick.at)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
