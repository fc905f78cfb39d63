"""The delivery state of a queue as bytes, for checkpoints, and back.

A queue with many partitions is taken in slices, so that the shard is never held for long. Each slice says at which
sequence it was taken; replay applies to a partition only what came after. Indexes and leases are not part of it: leased
messages are remembered as leased and closed as interrupted after a restart.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

import msgspec
import numpy as np

from penstock.delivery.core import DeliveryState
from penstock.delivery.group import Group
from penstock.delivery.log import Partition, Queue
from penstock.delivery.phases import LEASED
from penstock.delivery.progress import Attempts, Progress
from penstock.model import queue_options_decode

SLICE: Final = 2_000  # partitions taken while the shard is held


class ProgressRows(msgspec.Struct, array_like=True):
    """One group's progress over the partitions of a slice, in columns; `odd` holds what few partitions have."""

    bases: bytes
    starts: bytes
    acked: bytes
    dead: bytes
    lengths: bytes
    states: bytes
    odd: dict[int, dict[str, Any]]


class Slice(msgspec.Struct, array_like=True):
    """Some partitions of a queue and every group's progress through them, all at one sequence."""

    sequence: int
    first: int
    names: list[str]
    starts: bytes
    ends: bytes
    pushed_at: bytes
    groups: dict[int, ProgressRows]
    lost: dict[int, list[tuple[int, int]]] = {}  # by place in the slice


class QueueHead(msgspec.Struct, array_like=True):
    """The queue itself and its groups: (id, name, latest, active_at)."""

    id: int
    name: str
    options: bytes
    paused: bool
    created_at: int
    group_id_next: int
    groups: list[tuple[int, str, bool, int]]
    observers: list[int] = []  # those of the groups that only observe


class QueuePart(msgspec.Struct, array_like=True):
    """All of a queue."""

    head: QueueHead
    slices: list[Slice]


class ShardPart(msgspec.Struct, array_like=True):
    """An id that was used once stays used when its queue is gone; and a spare of every queue, without what its groups
    have done: should the queue's own part be damaged, names, options and offsets are still known.
    """

    queue_id_next: int
    spares: list[QueuePart] = []


def take_head(queue: Queue) -> QueueHead:
    """To be taken after the slices: a group made meanwhile is then known, and replay fills in what slices lack."""
    groups = [(group.id, group.name, group.latest, group.active_at) for group in queue.groups.values()]
    observers = [group.id for group in queue.groups.values() if group.observes]
    options = msgspec.json.encode(queue.options)
    return QueueHead(
        queue.id, queue.name, options, queue.paused, queue.created_at, queue.group_id_next, groups, observers
    )


def take_slice(core: DeliveryState, queue: Queue, first: int) -> Slice:
    """The partitions [first, first + SLICE) as they are now."""
    partitions = queue.partitions[first : first + SLICE]
    return Slice(
        core.sequence,
        first,
        [partition.name for partition in partitions],
        _ints([partition.start for partition in partitions]),
        _ints([partition.end for partition in partitions]),
        _ints([partition.pushed_at for partition in partitions]),
        {group.id: _take_rows(group, first) for group in queue.groups.values()},
        {index: partition.lost for index, partition in enumerate(partitions) if partition.lost},
    )


def _take_rows(group: Group, first: int) -> ProgressRows:
    rows = group.progress[first : first + SLICE]
    return ProgressRows(
        _ints([row.base for row in rows]),
        _ints([row.start for row in rows]),
        _ints([row.acked for row in rows]),
        _ints([row.dead for row in rows]),
        _ints([len(row.states) for row in rows]),
        b"".join([row.states for row in rows]),
        {index: odd for index, row in enumerate(rows) if (odd := _take_odd(row))},
    )


def _take_odd(progress: Progress) -> dict[str, Any]:
    odd: dict[str, Any] = {}
    if progress.attempts:
        odd["attempts"] = {offset: (tried.count, tried.first_at) for offset, tried in progress.attempts.items()}
        if lost := {offset: tried.lost for offset, tried in progress.attempts.items() if tried.lost}:
            odd["lost"] = lost
    if progress.dues:
        odd["dues"] = dict(progress.dues)
    if progress.dropped:
        odd["dropped"] = dict(progress.dropped)
    if progress.dead_offsets:
        odd["dead"] = sorted(progress.dead_offsets)
    if progress.sparse:
        odd["sparse"] = dict(progress.sparse)
    return odd


def _ints(values: list[int]) -> bytes:
    return np.array(values, np.int64).tobytes()


def restore(core: DeliveryState, part: QueuePart) -> None:
    """Put a queue back. Extents are not part of it: segments and the journal bring them."""
    head = part.head
    queue = Queue(head.id, head.name, queue_options_decode(head.options), head.created_at)
    queue.paused = head.paused
    queue.group_id_next = head.group_id_next
    for number, name, latest, active_at in head.groups:
        observes = number in head.observers
        group = queue.groups[number] = Group(number, name, queue, latest=latest, observes=observes)
        group.active_at = active_at
        queue.group_ids[name] = number
    for piece in part.slices:
        _restore_slice(queue, piece)
    core.queues[queue.id] = core.by_name[queue.name] = queue
    core.queue_id_next = max(core.queue_id_next, queue.id + 1)


def _restore_slice(queue: Queue, piece: Slice) -> None:
    columns = [np.frombuffer(column, np.int64).tolist() for column in (piece.starts, piece.ends, piece.pushed_at)]
    added: list[Partition] = []
    for name, start, end, pushed_at in zip(piece.names, *columns, strict=True):
        partition = queue.add_partition(name)
        partition.start, partition.end, partition.pushed_at = start, end, pushed_at
        partition.applied = piece.sequence
        partition.lost = piece.lost.get(len(added), [])
        added.append(partition)
    for number, group in queue.groups.items():
        rows = piece.groups.get(number)
        for partition in added:
            group.add_partition(partition, partition.start)
        if rows is not None:
            _restore_rows(group.progress[piece.first :], rows)


def _restore_rows(progresses: list[Progress], rows: ProgressRows) -> None:
    columns = [np.frombuffer(c, np.int64).tolist() for c in (rows.bases, rows.starts, rows.acked, rows.dead)]
    cuts = [0, *np.cumsum(np.frombuffer(rows.lengths, np.int64)).tolist()]
    for progress, base, start, acked, dead, (low, high) in zip(progresses, *columns, pairwise(cuts), strict=True):
        progress.base, progress.start, progress.acked, progress.dead = base, start, acked, dead
        progress.states = bytearray(rows.states[low:high])
        progress.dropped = None
        progress.leased = progress.states.count(LEASED)
    for index, odd in rows.odd.items():
        _restore_odd(progresses[index], odd)


def _restore_odd(progress: Progress, odd: dict[str, Any]) -> None:
    if "attempts" in odd:
        progress.attempts = {offset: Attempts(*tried) for offset, tried in odd["attempts"].items()}
        for offset, lost in odd.get("lost", {}).items():
            progress.attempts[offset].lost = lost
    progress.dues = odd.get("dues")
    progress.waiting = len(progress.dues or ())
    progress.dropped = odd.get("dropped")
    progress.dead_offsets = set(odd["dead"]) if "dead" in odd else None
    progress.sparse = odd.get("sparse")
    progress.leased += sum(state == LEASED for state in (progress.sparse or {}).values())


def spare_of(part: QueuePart) -> QueuePart:
    """The queue without what its groups have done."""
    return QueuePart(part.head, [msgspec.structs.replace(piece, groups={}) for piece in part.slices])


def encode_shard(queue_id_next: int, spares: list[QueuePart]) -> bytes:
    """The bytes of the shard's own part."""
    return msgspec.msgpack.encode(ShardPart(queue_id_next, spares))


def decode_shard(data: bytes) -> ShardPart:
    """The inverse of `encode_shard`."""
    return msgspec.msgpack.decode(data, type=ShardPart, strict=False)


def encode_queue(part: QueuePart) -> bytes:
    """The bytes of a queue's part."""
    return msgspec.msgpack.encode(part)


def decode_queue(data: bytes) -> QueuePart:
    """The inverse of `encode_queue`."""
    return msgspec.msgpack.decode(data, type=QueuePart, strict=False)
