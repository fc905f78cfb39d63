"""Whether what is sent again is what was stored: pushes of a producer, and tasks with a known id.

Producers and task ids are chosen by clients. A push with the sequence of another push, or a task with the id of a task
of another type, is refused: it would be dropped as a duplicate, and its sender would take the other's result for its
own. Only what can be looked at is compared. Messages that have left memory, or that retention has removed, count as the
same: nobody can tell any more, and a client that sends again does so within seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.batch import Batch, layout
from penstock.delivery.log import Queue, ask_each
from penstock.errors import StateError
from penstock.model import ContentType, MessageId

if TYPE_CHECKING:
    from penstock.requests import Producer


COMPARED_MAX: Final = 1_000  # of one push: this happens with the lock held


def check_same(queue: Queue, producer: Producer, places: Sequence[tuple[int, int]], payloads: Sequence[bytes]) -> None:
    """Refuse a push whose messages are not those at `places`, which are (partition, offset) and in the same order."""
    if len(places) != len(payloads) or any(
        _is_other(queue, partition, offset, payload)
        for (partition, offset), payload in zip(places[:COMPARED_MAX], payloads, strict=False)
    ):
        raise used_otherwise(producer)


def used_otherwise(producer: Producer) -> StateError:
    """The refusal of a push that has the sequence of another one."""
    return StateError(
        f"producer {producer[0]:016x} has used sequence {producer[2]} for a push of other messages",
        hint="give every push of a producer a new number, and each program a producer of its own",
    )


def _is_other(queue: Queue, number: int, offset: int, payload: bytes) -> bool:
    if number >= len(queue.partitions):
        return False
    partition = queue.partitions[number]
    if not partition.start <= offset < partition.end or not partition.extents:
        return False
    extent = partition.extent_at(offset)
    batch = extent.batch if extent.first <= offset < extent.end else None
    return batch is not None and bytes(batch.payload(extent.row_of(offset))) != bytes(payload)


class _Typed(msgspec.Struct):
    task_id: str
    task_type: str


_decoder: Final = msgspec.json.Decoder(_Typed)


def check_types(queue: Queue, batch: Batch, duplicates: Mapping[int, MessageId]) -> None:
    """Refuse a push if one of its tasks has the id of a task of another type. May raise `ColumnNotLoaded`."""
    if not duplicates or not batch.flags & layout.CONTENT_TYPE:
        return
    ask_each(partial(_check_row, queue, batch), islice(duplicates.items(), COMPARED_MAX))


def _check_row(queue: Queue, batch: Batch, duplicate: tuple[int, MessageId]) -> None:
    row, id = duplicate
    task = _typed(batch, row)
    if task is None:
        return
    if not id.partition:  # the same batch has it, in an earlier row
        known = _typed(batch, id.offset)
    else:
        partition = queue.by_name.get(id.partition)
        known = None if partition is None else _stored(queue, partition.id, id.offset)
    _compare(task, known)


def check_type(queue: Queue, partition: int, offset: int, task_id: str, task_type: str) -> None:
    """Refuse a task if the message at this place is a task of another type. May raise `ColumnNotLoaded`."""
    _compare(_Typed(task_id, task_type), _stored(queue, partition, offset))


def check_type_of(stored: bytes, task_id: str, task_type: str) -> None:
    """Refuse a task if one that is held, or was, is of another type: `stored` is the batch of its message."""
    _compare(_Typed(task_id, task_type), _typed(Batch(stored), 0))


def _compare(task: _Typed, known: _Typed | None) -> None:
    if known is not None and known.task_type != task.task_type:
        raise StateError(
            f"task_id: {task.task_id} is that of a task of type {known.task_type!r}, not {task.task_type!r}",
            hint="give each task an id of its own",
        )


def _stored(queue: Queue, number: int, offset: int) -> _Typed | None:
    partition = queue.partitions[number]
    if not partition.extents or not partition.start <= offset < partition.end:
        return None
    extent = partition.extent_at(offset)
    if not extent.first <= offset < extent.end or not extent.is_task(offset):
        return None
    return _typed(*extent.message(offset))


def _typed(batch: Batch, row: int) -> _Typed | None:
    """What a message says that it is; None for one that is no task."""
    if batch.content_type_of(row) != ContentType.TASK:
        return None
    try:
        return _decoder.decode(batch.payload(row))
    except msgspec.MsgspecError:
        return None
