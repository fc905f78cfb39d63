"""Tasks of encrypted queues in checkpoints: the messages of those that wait, and what schedules run, are sealed."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Final, TypeVar

import msgspec

from penstock.delivery.snapshot import Taken, TasksPart
from penstock.delivery.tasks import HeldTask, Schedule, WithdrawnTask
from penstock.seals import Seals, is_sealed
from penstock.storage.sealed_frames import erased_batch, schedule_queue

HELD: Final = b"held task "
SCHEDULE: Final = b"schedule "

Task = TypeVar("Task", HeldTask, WithdrawnTask)


def seal_tasks(taken: Taken, seals: Seals, encrypted: AbstractSet[int], queue_of: Callable[[str], int | None]) -> Taken:
    """What a checkpoint stores, with what belongs to encrypted queues sealed."""

    def sealed(task: Task) -> Task:
        if task.queue not in encrypted or is_sealed(task.batch):  # a repair has not opened those of a checkpoint
            return task
        return msgspec.structs.replace(task, batch=seals.seal(task.queue, task.batch, HELD + task.task_id))

    def sealed_schedule(name: str, schedule: Schedule) -> Schedule:
        if is_sealed(schedule.spec):
            return schedule
        queue = queue_of(schedule_queue(schedule.spec))
        if queue is None or queue not in encrypted:
            return schedule
        return msgspec.structs.replace(schedule, spec=seals.seal(queue, schedule.spec, SCHEDULE + name.encode()))

    return taken._replace(
        held={task_id: sealed(task) for task_id, task in taken.held.items()},
        withdrawn={task_id: sealed(task) for task_id, task in taken.withdrawn.items()},
        schedules={name: sealed_schedule(name, schedule) for name, schedule in taken.schedules.items()},
    )


def open_tasks(part: TasksPart, seals: Seals) -> TasksPart:
    """The inverse. A task whose data key was erased has an empty message; such a schedule is gone."""

    def opened(task: Task) -> Task:
        if not is_sealed(task.batch):
            return task
        batch = seals.open(task.batch, HELD + task.task_id)
        return msgspec.structs.replace(task, batch=erased_batch(1) if batch is None else batch)

    schedules: dict[str, Schedule] = {}
    for name, schedule in part.schedules.items():
        spec: bytes | None = schedule.spec
        if is_sealed(schedule.spec):
            spec = seals.open(schedule.spec, SCHEDULE + name.encode())
        if spec is not None:
            schedules[name] = msgspec.structs.replace(schedule, spec=spec)
    return msgspec.structs.replace(
        part,
        held=[opened(task) for task in part.held],
        withdrawn=[opened(task) for task in part.withdrawn],
        schedules=schedules,
    )
