"""Tasks: the state of one while the task index is behind, operations on many, and schedules that submit them."""

from __future__ import annotations

import msgspec

from bench.growth.cost import CONSTANT, LINEAR, Setting, Work, cost
from penstock import operations as ops
from penstock.envelopes import new_task_id, tasks_batch
from penstock.model_tasks import ScheduleSpec, TaskFilter, TaskState, TaskSubmission
from tests.support.operations import purge_tasks, run_operation

BATCH = 100


def _enqueue(setting: Setting, count: int) -> list[str]:
    ids = [new_task_id(setting.clock.now()) for _ in range(count)]
    tasks = [TaskSubmission(task_id=task_id, task_type="t", queue="mail", args=b'["a@b.c"]') for task_id in ids]
    for start in range(0, count, BATCH):
        setting.session.push("mail", tasks_batch(tasks[start : start + BATCH]), None, None)
    return ids


@cost(
    "tasks: the state of one",
    "tasks that the task index has not seen",
    (2_000, 8_000, 32_000),
    (400, 3_200),
    exponent_max=CONSTANT,
)
def status_behind(setting: Setting, tasks: int) -> Work:
    """One that was there before, when many came after it; each in a frame of its own."""
    (old,) = _enqueue(setting, 1)
    run_operation(setting.session, ops.ListTasks(TaskFilter()))
    for _ in range(tasks):
        _enqueue(setting, 1)
    return lambda: run_operation(setting.session, ops.FindTask(old))


@cost(
    "tasks: the state of one, behind batches",
    "tasks that the task index has not seen",
    (10_000, 40_000, 160_000),
    (2_000, 16_000),
    exponent_max=CONSTANT,
)
def status_behind_batches(setting: Setting, tasks: int) -> Work:
    """One that was there before, when many came after it, many in a frame."""
    (old,) = _enqueue(setting, 1)
    run_operation(setting.session, ops.ListTasks(TaskFilter()))
    _enqueue(setting, tasks)
    return lambda: run_operation(setting.session, ops.FindTask(old))


@cost("tasks: purge all", "tasks that wait", (10_000, 40_000, 160_000), (4_000, 16_000), exponent_max=LINEAR, repeats=1)
def purge_waiting(setting: Setting, tasks: int) -> Work:
    """All that wait are cancelled and forgotten."""
    _enqueue(setting, tasks)
    run_operation(setting.session, ops.ListTasks(TaskFilter()))
    return lambda: purge_tasks(setting.session, TaskFilter(states=(TaskState.PENDING,)))


MINUTE = 60.0


def _spec(number: int) -> ScheduleSpec:
    return ScheduleSpec(name=f"s{number}", cron="* * * * *", task_type="report", queue="reports")


def _scheduled(setting: Setting, schedules: int) -> None:
    for number in range(schedules):
        run_operation(setting.session, ops.SetSchedule(_spec(number)))


@cost("schedules: set 20", "schedules", (500, 2_000, 8_000), (100, 800), exponent_max=CONSTANT)
def set_beside(setting: Setting, schedules: int) -> Work:
    """Change some, when there are many."""
    _scheduled(setting, schedules)
    changed = [msgspec.structs.replace(_spec(number), priority=3) for number in range(20)]
    return lambda: [run_operation(setting.session, ops.SetSchedule(spec)) for spec in changed]


@cost("schedules: due at the same minute", "schedules", (500, 1_000, 4_000), (60, 480))
def fire_all(setting: Setting, schedules: int) -> Work:
    """All are due at the minute: how long somebody else waits is the longest hold."""
    _scheduled(setting, schedules)
    setting.clock.advance(MINUTE)

    def work() -> None:
        known = setting.session.shard.core.tasks.schedules
        while known.next_at <= setting.clock.now():
            setting.session.timekeeper.tick()

    return work
