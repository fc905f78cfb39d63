"""Tasks: the state of one while the task index is behind, and operations on many."""

from __future__ import annotations

from bench.growth.cost import CONSTANT, LINEAR, Cost, Setting, Work
from penstock import operations as ops
from penstock.envelopes import new_task_id, tasks_batch
from penstock.model_tasks import TaskFilter, TaskState, TaskSubmission
from tests.support.operations import purge_tasks, run_operation

BATCH = 100


def _enqueue(setting: Setting, count: int) -> list[str]:
    ids = [new_task_id(setting.clock.now()) for _ in range(count)]
    tasks = [TaskSubmission(task_id=task_id, task_type="t", queue="mail", args=b'["a@b.c"]') for task_id in ids]
    for start in range(0, count, BATCH):
        setting.session.push("mail", tasks_batch(tasks[start : start + BATCH]), None, None)
    return ids


def status_behind(setting: Setting, tasks: int) -> Work:
    """One that was there before, when many came after it; each in a frame of its own."""
    (old,) = _enqueue(setting, 1)
    run_operation(setting.session, ops.ListTasks(TaskFilter()))
    for _ in range(tasks):
        _enqueue(setting, 1)
    return lambda: run_operation(setting.session, ops.FindTask(old))


def status_behind_batches(setting: Setting, tasks: int) -> Work:
    """The same when they came many at a time."""
    (old,) = _enqueue(setting, 1)
    run_operation(setting.session, ops.ListTasks(TaskFilter()))
    _enqueue(setting, tasks)
    return lambda: run_operation(setting.session, ops.FindTask(old))


def purge_waiting(setting: Setting, tasks: int) -> Work:
    """All that wait are cancelled and forgotten."""
    _enqueue(setting, tasks)
    run_operation(setting.session, ops.ListTasks(TaskFilter()))
    return lambda: purge_tasks(setting.session, TaskFilter(states=(TaskState.PENDING,)))


COSTS = [
    Cost(
        "tasks: the state of one",
        "tasks that the task index has not seen",
        status_behind,
        sizes=(2_000, 8_000, 32_000),
        steps_at=(400, 3_200),
        exponent_max=CONSTANT,
    ),
    Cost(
        "tasks: the state of one, behind batches",
        "tasks that the task index has not seen",
        status_behind_batches,
        sizes=(10_000, 40_000, 160_000),
        steps_at=(2_000, 16_000),
        exponent_max=CONSTANT,
    ),
    Cost(
        "tasks: purge all",
        "tasks that wait",
        purge_waiting,
        sizes=(10_000, 40_000, 160_000),
        steps_at=(4_000, 16_000),
        exponent_max=LINEAR,
        repeats=1,
    ),
]
