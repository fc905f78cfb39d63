// What can be done to a schedule.
import { at, call, post, type Schemas } from "../api";
import { cronWords } from "../cron";
import { ask, notify } from "../parts/dialog";
import { exactJson } from "../parts/payload";
import { Field } from "../parts/ui";

type Schedule = Schemas["Schedule"];

/** What the broker takes back: without what it computes. */
function definition(schedule: Schedule): Record<string, unknown> {
  const { name: _name, next_at: _next, last_at: _last, last_task_id: _task, ...rest } = schedule;
  return rest;
}

export function runNow(schedule: Schedule, reload: () => void): void {
  ask({
    title: `Run ${schedule.name} now?`,
    children: <p>It submits its task once, now. Its next tick stays as it is.</p>,
    command: `penstock schedules run ${schedule.name}`,
    confirm: "Run now",
    run: async () => {
      const { task_id } = await post<{ task_id: string }>(["schedules", schedule.name, "run"]);
      notify(`Submitted as ${task_id}`);
      reload();
    },
  });
}

export function setPaused(schedule: Schedule, reload: () => void): void {
  const action = schedule.is_paused ? "resume" : "pause";
  ask({
    title: `${schedule.is_paused ? "Resume" : "Pause"} ${schedule.name}?`,
    children: <p>{schedule.is_paused ? "It goes on from its next tick." : "It submits nothing until it is resumed."}</p>,
    command: `penstock schedules ${action} ${schedule.name}`,
    confirm: schedule.is_paused ? "Resume" : "Pause",
    run: async () => {
      await call("PUT", at(["schedules", schedule.name]), { ...definition(schedule), is_paused: !schedule.is_paused });
      reload();
    },
  });
}

export function edit(schedule: Schedule, reload: () => void): void {
  let [cron, timezone, text] = [schedule.cron, schedule.timezone, exactJson({ args: schedule.args ?? [], kwargs: schedule.kwargs ?? {} }, "  ")];
  ask({
    title: `Edit ${schedule.name}`,
    children: (
      <>
        {schedule.is_declared ? <p class="notice warning">It is declared in the code of an application, which sets it again when its workers start.</p> : null}
        <Field label="Cron expression" hint="Minute, hour, day of the month, month, day of the week">
          <input value={cron} onInput={(event) => (cron = event.currentTarget.value)} />
        </Field>
        <Field label="Time zone">
          <input value={timezone} onInput={(event) => (timezone = event.currentTarget.value)} />
        </Field>
        <Field label="Arguments">
          <textarea rows={6} onInput={(event) => (text = event.currentTarget.value)}>
            {text}
          </textarea>
        </Field>
      </>
    ),
    command: () => `penstock schedules set ${schedule.name} '${cron}' ${schedule.task_type} --queue ${schedule.queue} --timezone ${timezone}  # ${cronWords(cron) || "as given"}`,
    confirm: "Save",
    done: "Saved",
    run: async () => {
      const given = JSON.parse(text) as Record<string, unknown>;
      await call("PUT", at(["schedules", schedule.name]), { ...definition(schedule), ...given, cron, timezone });
      reload();
    },
  });
}

export function remove(schedule: Schedule, done: () => void): void {
  ask({
    title: `Delete ${schedule.name}?`,
    children: <p>It submits nothing more. What it submitted stays.</p>,
    command: `penstock schedules delete ${schedule.name}`,
    confirm: "Delete",
    danger: true,
    typed: schedule.name,
    run: async () => {
      await call("DELETE", at(["schedules", schedule.name]));
      done();
    },
  });
}
