// Schedules: when each is due next, and what it submitted last.
import { at, call, get, may, type Schemas } from "../api";
import { useInterval, useLoad, View } from "../parts/load";
import { type Column, Table } from "../parts/table";
import { ask, Badge, Card, Empty, Page, Time } from "../parts/ui";
import { Link, link } from "../router";

type Schedule = Schemas["Schedule"];

function columns(reload: () => void): readonly Column<Schedule>[] {
  return [
    { id: "name", title: "Schedule", narrow: true, sort: (schedule) => schedule.name, cell: (schedule) => <span class="name">{schedule.name}</span> },
    { id: "state", title: "State", cell: (schedule) => (schedule.is_paused ? <Badge tone="warning">paused</Badge> : <Badge tone="ok">on</Badge>) },
    { id: "cron", title: "When", narrow: true, cell: (schedule) => <code title={schedule.timezone}>{schedule.cron}</code> },
    { id: "zone", title: "Time zone", cell: (schedule) => schedule.timezone },
    { id: "task", title: "Task", cell: (schedule) => schedule.task_type },
    { id: "queue", title: "Queue", cell: (schedule) => <Link href={link(["queues", schedule.queue])}>{schedule.queue}</Link> },
    { id: "next", title: "Next", narrow: true, sort: (schedule) => schedule.next_at ?? "", cell: (schedule) => <Time at={schedule.is_paused ? null : schedule.next_at} /> },
    { id: "last", title: "Last", cell: (schedule) => (schedule.last_task_id ? <Link href={link(["tasks", schedule.last_task_id])}><Time at={schedule.last_at} /></Link> : "never") },
    { id: "runs", title: "", cell: (schedule) => <Link href={link(["tasks"], { q: `schedule:${schedule.name}` })}>runs</Link> },
    { id: "pause", title: "", cell: (schedule) => (may("manage", schedule.queue) ? <button onClick={() => setPaused(schedule, reload)}>{schedule.is_paused ? "Resume" : "Pause"}</button> : null) },
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
              <Table label="Schedules" rows={schedules} columns={columns(loaded.reload)} rowKey={(schedule) => schedule.name} />
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

function setPaused(schedule: Schedule, reload: () => void): void {
  const action = schedule.is_paused ? "resume" : "pause";
  const { name, next_at: _next, last_at: _last, last_task_id: _task, ...rest } = schedule;
  ask({
    title: `${schedule.is_paused ? "Resume" : "Pause"} ${name}?`,
    children: <p>{schedule.is_paused ? "It goes on from its next tick." : "It submits nothing until it is resumed."}</p>,
    command: `penstock schedules ${action} ${name}`,
    confirm: schedule.is_paused ? "Resume" : "Pause",
    run: async () => {
      await call("PUT", at(["schedules", name]), { ...rest, is_paused: !schedule.is_paused });
      reload();
    },
  });
}
