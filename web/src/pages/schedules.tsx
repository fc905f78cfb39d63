// Schedules: when each is due next, and what it submitted last.
import { get, type Schemas } from "../api";
import { cronWords } from "../cron";
import { useInterval, useLoad, View } from "../parts/load";
import { type Column, Table } from "../parts/table";
import { Action, Badge, Card, Empty, Page, Time } from "../parts/ui";
import { Link, link } from "../router";
import { runNow, setPaused } from "./schedule-actions";

type Schedule = Schemas["Schedule"];

function columns(reload: () => void): readonly Column<Schedule>[] {
  return [
    { id: "name", title: "Schedule", narrow: true, sort: (schedule) => schedule.name, cell: (schedule) => <Link class="name" href={link(["schedules", schedule.name])}>{schedule.name}</Link> },
    { id: "state", title: "State", cell: (schedule) => (schedule.is_paused ? <Badge tone="warning">paused</Badge> : <Badge tone="ok">on</Badge>) },
    { id: "cron", title: "When", narrow: true, cell: (schedule) => <span title={`${schedule.cron} ${schedule.timezone}`}>{cronWords(schedule.cron) || <code>{schedule.cron}</code>}</span> },
    { id: "zone", title: "Time zone", cell: (schedule) => schedule.timezone },
    { id: "task", title: "Task", cell: (schedule) => schedule.task_type },
    { id: "queue", title: "Queue", fills: true, cell: (schedule) => <Link href={link(["queues", schedule.queue])}>{schedule.queue}</Link> },
    { id: "next", title: "Next", narrow: true, isNumber: true, sort: (schedule) => schedule.next_at ?? "", cell: (schedule) => <Time at={schedule.is_paused ? null : schedule.next_at} /> },
    { id: "last", title: "Last", isNumber: true, cell: (schedule) => (schedule.last_task_id ? <Link href={link(["tasks", schedule.last_task_id])}><Time at={schedule.last_at} /></Link> : <span class="zero">never</span>) },
    {
      id: "act",
      title: "",
      cell: (schedule) => (
        <span class="row">
          <Action class="in-row" queue={schedule.queue} onClick={() => runNow(schedule, reload)}>
            Run now
          </Action>
          <Action class="in-row" queue={schedule.queue} onClick={() => setPaused(schedule, reload)}>
            {schedule.is_paused ? "Resume" : "Pause"}
          </Action>
        </span>
      ),
    },
  ];
}

export default function Schedules() {
  const loaded = useLoad("schedules", (abort) => get<Schemas["Schedules"]>(["schedules"], {}, abort));
  useInterval(loaded.reload, 5);
  return (
    <Page title="Schedules">
      <Card class="flush">
        <View of={loaded}>
          {({ schedules }) =>
            schedules.length ? (
              <Table label="Schedules" rows={schedules} columns={columns(loaded.reload)} rowKey={(schedule) => schedule.name} href={(schedule) => link(["schedules", schedule.name])} />
            ) : (
              <Empty title="No schedules" command="penstock schedules set nightly '0 3 * * *' make_report --queue reports">
                A schedule submits a task whenever its cron expression says so.
              </Empty>
            )
          }
        </View>
      </Card>
    </Page>
  );
}
