"""Tasks of encrypted queues in checkpoints.

The messages of those that wait, what schedules run, and the hashes of unique keys are sealed: anybody can try keys on
hashes. Those of a queue are sealed as one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from typing import Final, TypeVar

import msgspec

from penstock.delivery.entries import OperationSet
from penstock.delivery.snapshot import Taken, TasksPart
from penstock.delivery.tasks import HeldTask, Schedule, UniqueKey, WithdrawnTask
from penstock.seals import Seals, is_sealed
from penstock.storage.sealed_frames import blank_operation, erased_batch, schedule_queue

HELD: Final = b"held task "
SCHEDULE: Final = b"schedule "
OPERATION: Final = b"operation "
UNIQUE: Final = b"unique keys "
UNIQUE_OF: Final = b"unique key of "

Task = TypeVar("Task", HeldTask, WithdrawnTask)
Keys = dict[tuple[int, bytes], UniqueKey]

_operation: Final = msgspec.msgpack.Decoder(OperationSet)
_keys: Final = msgspec.msgpack.Decoder(list[tuple[bytes, UniqueKey]])


def seal_tasks(taken: Taken, seals: Seals, encrypted: AbstractSet[int], queue_of: Callable[[str], int | None]) -> Taken:
    """What a checkpoint stores, with what belongs to encrypted queues sealed."""

    def sealed(task: Task) -> Task:
        if task.queue not in encrypted or is_sealed(task.batch):  # a repair has not opened those of a checkpoint
            return task
        unique = task.unique and seals.seal(task.queue, task.unique, UNIQUE_OF + task.task_id)
        batch = seals.seal(task.queue, task.batch, HELD + task.task_id)
        return msgspec.structs.replace(task, batch=batch, unique=unique)

    def sealed_schedule(name: str, schedule: Schedule) -> Schedule:
        if is_sealed(schedule.spec):
            return schedule
        queue = queue_of(schedule_queue(schedule.spec))
        if queue is None or queue not in encrypted:
            return schedule
        return msgspec.structs.replace(schedule, spec=seals.seal(queue, schedule.spec, SCHEDULE + name.encode()))

    def sealed_operation(operation: OperationSet) -> OperationSet:
        if operation.queue not in encrypted or is_sealed(operation.filter):
            return operation
        blob = seals.seal(operation.queue, msgspec.msgpack.encode(operation), _about_operation(operation))
        return msgspec.structs.replace(blank_operation(operation), filter=blob)

    return taken._replace(
        unique=_sealed_keys(taken.unique, seals, encrypted),
        held={task_id: sealed(task) for task_id, task in taken.held.items()},
        withdrawn={task_id: sealed(task) for task_id, task in taken.withdrawn.items()},
        schedules={name: sealed_schedule(name, schedule) for name, schedule in taken.schedules.items()},
        operations=list(map(sealed_operation, taken.operations)),
    )


def open_tasks(part: TasksPart, seals: Seals) -> TasksPart:
    """The inverse. A task whose data key was erased has an empty message; such a schedule or operation is gone."""

    def opened(task: Task) -> Task:
        if not is_sealed(task.batch):
            return task
        batch = seals.open(task.batch, HELD + task.task_id)
        unique = (task.unique and seals.open(task.unique, UNIQUE_OF + task.task_id)) or b""
        return msgspec.structs.replace(task, batch=erased_batch(1) if batch is None else batch, unique=unique)

    def opened_operations() -> Iterator[OperationSet]:
        for operation in part.operations:
            if not is_sealed(operation.filter):
                yield operation
            elif (data := seals.open(operation.filter, _about_operation(operation))) is not None:
                yield _operation.decode(data)

    schedules: dict[str, Schedule] = {}
    for name, schedule in part.schedules.items():
        spec: bytes | None = schedule.spec
        if is_sealed(schedule.spec):
            spec = seals.open(schedule.spec, SCHEDULE + name.encode())
        if spec is not None:
            schedules[name] = msgspec.structs.replace(schedule, spec=spec)
    return msgspec.structs.replace(
        part,
        unique=list(_opened_keys(part.unique, seals)),
        held=[opened(task) for task in part.held],
        withdrawn=[opened(task) for task in part.withdrawn],
        schedules=schedules,
        operations=list(opened_operations()),
    )


def _sealed_keys(unique: Keys, seals: Seals, encrypted: AbstractSet[int]) -> Keys:
    stored: Keys = {}
    by_queue: dict[int, list[tuple[bytes, UniqueKey]]] = defaultdict(list)
    for (queue, digest), key in unique.items():
        if queue in encrypted and not is_sealed(digest):
            by_queue[queue].append((digest, key))
        else:
            stored[queue, digest] = key
    for queue, keys in by_queue.items():
        blob = seals.seal(queue, msgspec.msgpack.encode(keys), _about(queue))
        stored[queue, blob] = UniqueKey(b"", 0, 0, 0)
    return stored


def _opened_keys(unique: list[tuple[int, bytes, UniqueKey]], seals: Seals) -> Iterator[tuple[int, bytes, UniqueKey]]:
    for queue, digest, key in unique:
        if not is_sealed(digest):
            yield queue, digest, key
            continue
        data = seals.open(digest, _about(queue))
        for opened in [] if data is None else _keys.decode(data):
            yield queue, *opened


def _about_operation(operation: OperationSet) -> bytes:
    return OPERATION + operation.operation_id.encode()


def _about(queue: int) -> bytes:
    return UNIQUE + str(queue).encode()
