"""What the shard knows of tasks as bytes, for checkpoints, and back.

All of it is taken at one sequence, since who waits for whom cannot be cut into slices. Taking copies references and no
more, with the lock held; what is taken is not altered, and is encoded while work goes on.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from penstock.delivery.entries import OperationSet
from penstock.delivery.schedules import Schedule
from penstock.delivery.tasks import Held, Place, Tasks, Unique
from penstock.delivery.withdrawn import Withdrawn

_PART: Final = b"\x97"  # MessagePack: an array of seven
_LIST: Final = struct.Struct(">BI")
_ARRAY, _MAP = 0xDD, 0xDF


class TasksPart(msgspec.Struct, array_like=True):
    """All of it in a checkpoint, taken at `sequence`."""

    sequence: int
    held: list[Held]
    where: dict[bytes, Place]
    unique: list[tuple[int, bytes, Unique]]
    schedules: dict[str, Schedule]
    withdrawn: list[Withdrawn] = []
    operations: list[OperationSet] = []


class Taken(NamedTuple):
    """The same, not encoded yet."""

    sequence: int
    held: dict[bytes, Held]
    where: dict[bytes, Place]
    unique: dict[tuple[int, bytes], Unique]
    schedules: dict[str, Schedule]
    withdrawn: dict[bytes, Withdrawn]
    operations: list[OperationSet]


def take_tasks(tasks: Tasks, sequence: int) -> Taken:
    """All of it as it is now; the held tasks are lent, and somebody must take them back."""
    return Taken(
        sequence,
        tasks.lend(),
        dict(tasks.where),
        dict(tasks.unique),
        dict(tasks.schedules.known),
        dict(tasks.withdrawn.known),
        list(tasks.operations.known.values()),
    )


def encode_tasks(taken: Taken) -> bytes:
    """The part of a checkpoint: a `TasksPart`."""
    encoder = msgspec.msgpack.Encoder()

    def encoded(kind: int, count: int, values: Iterable[object]) -> bytes:
        # One by one: other threads have no turn while one value is encoded.
        return _LIST.pack(kind, count) + b"".join([encoder.encode(value) for value in values])

    return b"".join(
        (
            _PART,
            encoder.encode(taken.sequence),
            encoded(_ARRAY, len(taken.held), taken.held.values()),
            encoded(_MAP, len(taken.where), (each for pair in taken.where.items() for each in pair)),
            encoded(_ARRAY, len(taken.unique), ((*key, unique) for key, unique in taken.unique.items())),
            encoder.encode(taken.schedules),
            encoded(_ARRAY, len(taken.withdrawn), taken.withdrawn.values()),
            encoder.encode(taken.operations),
        )
    )


def restore_tasks(tasks: Tasks, data: bytes) -> None:
    """Put a checkpoint back; what it includes is not learnt again from the journal."""
    part = msgspec.msgpack.decode(data, type=TasksPart)
    tasks.applied = tasks.schedules.applied = tasks.operations.applied = part.sequence
    tasks.held = {held.task_id: held for held in part.held}
    tasks.held_bytes = sum(len(held.batch) for held in part.held)
    for held in part.held:
        for parent in held.waits:
            tasks.awaited.setdefault(parent, {})[held.task_id] = None
        if held.doomed or not held.waits:
            tasks.ripe[held.task_id] = None
    for parent, place in part.where.items():
        tasks.await_at(parent, place)
    tasks.unique = {(queue, digest): each for queue, digest, each in part.unique}
    tasks.schedules.restore(part.schedules)
    tasks.operations.restore(part.operations)
    for each in part.withdrawn:
        tasks.withdrawn.add(each)
