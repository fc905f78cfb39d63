"""The delivery state as bytes, for checkpoints, and back: queues, producers, tasks, sinks.

A queue with many partitions is taken in slices, so that the shard is never held for long, and so are producers. Each
slice says at which sequence it was taken; replay applies to a partition or a producer only what came after. Indexes and
leases are not part of it: leased messages are remembered as leased and closed as interrupted after a restart.

What the shard knows of tasks is taken at one sequence, since who waits for whom cannot be cut into slices. Taking
copies references and no more, with the lock held; what is taken is not altered, and is encoded while work goes on.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, pairwise
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from penstock.delivery.core import DeliveryState
from penstock.delivery.entries import OperationSet, PauseSet
from penstock.delivery.group import Group
from penstock.delivery.log import Partition, Queue
from penstock.delivery.phases import LEASED
from penstock.delivery.producers import KnownProducer, Producers
from penstock.delivery.progress import Attempts, Progress
from penstock.delivery.ranges import Ranges
from penstock.delivery.sinks import KnownSink, Sinks
from penstock.delivery.tasks import HeldTask, Schedule, TaskPosition, Tasks, UniqueKey, WithdrawnTask
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
    removed: dict[int, bytes] = {}  # by compaction: by place in the slice


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
    pauses: list[PauseSet] = []  # of queues, groups, namespaces and the broker, as they were when it was taken


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
        {index: partition.removed.to_bytes() for index, partition in enumerate(partitions) if partition.removed},
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


def _ints(values: Sequence[int]) -> bytes:
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
    if queue.options.encryption:
        core.encrypted.add(queue.id)
    core.queue_id_next = max(core.queue_id_next, queue.id + 1)


def _restore_slice(queue: Queue, piece: Slice) -> None:
    columns = [np.frombuffer(column, np.int64).tolist() for column in (piece.starts, piece.ends, piece.pushed_at)]
    added: list[Partition] = []
    for name, start, end, pushed_at in zip(piece.names, *columns, strict=True):
        partition = queue.add_partition(name)
        partition.start, partition.end, partition.pushed_at = start, end, pushed_at
        partition.applied = piece.sequence
        partition.lost = piece.lost.get(len(added), [])
        if len(added) in piece.removed:
            partition.removed = Ranges.from_bytes(piece.removed[len(added)])
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


class Endings(msgspec.Struct, array_like=True):
    """How the last deliveries of messages ended that wait or waited for another: of one group and partition, packed.

    `outcomes` has a byte for each of the int64 in `offsets` and `ats`, `errors` an int32: which of the part's texts.
    """

    group: int
    partition: int
    offsets: bytes
    outcomes: bytes
    ats: bytes
    errors: bytes


class EndingsPart(msgspec.Struct, array_like=True):
    """Those of a queue. Each slice of it is taken with the slice of the queue, so that they are of one sequence."""

    texts: list[str]
    rows: list[Endings]


Ended = tuple[int, int, list[tuple[int, int, int, str]]]  # group, partition, (offset, outcome, at, error) of each


def take_endings(queue: Queue, first: int) -> list[Ended]:
    """Of the partitions [first, first + SLICE) as they are now."""
    return [
        (group.id, progress.partition.id, rows)
        for group in queue.groups.values()
        for progress in group.progress[first : first + SLICE]
        if progress.attempts
        and (rows := [(at, each.outcome, each.at, each.error) for at, each in progress.attempts.items()])
    ]


def encode_endings(ended: Iterable[Ended]) -> bytes:
    """The bytes of an `EndingsPart`."""
    texts: dict[str, int] = {}
    rows = []
    for group, partition, items in ended:
        offsets, outcomes, ats, errors = zip(*items, strict=True)
        numbers = np.array([texts.setdefault(error, len(texts)) for error in errors], np.int32).tobytes()
        rows.append(Endings(group, partition, _ints(offsets), bytes(outcomes), _ints(ats), numbers))
    return msgspec.msgpack.encode(EndingsPart(list(texts), rows))


def restore_endings(queue: Queue, data: bytes) -> None:
    """Put them back, to the attempts that the queue's own part has brought."""
    part = msgspec.msgpack.decode(data, type=EndingsPart)
    for row in part.rows:
        group = queue.groups.get(row.group)
        attempts = group.progress[row.partition].attempts if group is not None else None
        columns = (np.frombuffer(row.offsets, np.int64), np.frombuffer(row.ats, np.int64))
        errors = np.frombuffer(row.errors, np.int32).tolist()
        for offset, at, outcome, error in zip(*(c.tolist() for c in columns), row.outcomes, errors, strict=True):
            tried = (attempts or {}).get(offset)
            if tried is not None:
                tried.outcome, tried.at, tried.error = outcome, at, part.texts[error]


def spare_of(part: QueuePart) -> QueuePart:
    """The queue without what its groups have done."""
    return QueuePart(part.head, [msgspec.structs.replace(piece, groups={}) for piece in part.slices])


def encode_part(part: QueuePart | ShardPart | ProducersPart | SinksPart) -> bytes:
    """The bytes of a part of a checkpoint; of tasks see `encode_tasks`."""
    return msgspec.msgpack.encode(part)


def decode_shard(data: bytes) -> ShardPart:
    """The shard's own part, from its bytes."""
    return msgspec.msgpack.decode(data, type=ShardPart, strict=False)


def decode_queue(data: bytes) -> QueuePart:
    """The part of a queue, from its bytes."""
    return msgspec.msgpack.decode(data, type=QueuePart, strict=False)


class ProducerState(msgspec.Struct, array_like=True):
    """One producer in a checkpoint."""

    id: int
    epoch: int
    seen_at: int
    last: int
    floor: int
    rows: bytes
    beside: list[tuple[int, int, bytes]]  # sequence, queue, answer


class ProducersSlice(msgspec.Struct, array_like=True):
    """Some producers, all at one sequence of the journal."""

    sequence: int
    producers: list[ProducerState]


class ProducersPart(msgspec.Struct, array_like=True):
    """All of them, in slices, so that the shard is never held for long."""

    look_at: int
    slices: list[ProducersSlice]


def take_producers(producers: Producers, ids: Iterable[int], sequence: int) -> ProducersSlice:
    """Some producers as they are now, without those that have been forgotten meanwhile."""
    states = []
    for id in ids:
        known = producers.known.get(id)
        if known is not None:
            beside = [(*position, answer) for position, answer in known.beside.items()]
            rows = bytes(known.rows)
            states.append(ProducerState(id, known.epoch, known.seen_at, known.last, known.floor, rows, beside))
    return ProducersSlice(sequence, states)


def restore_producers(producers: Producers, data: bytes) -> None:
    """Put the producers of a checkpoint back; what a slice includes is not learnt again from the journal."""
    part = msgspec.msgpack.decode(data, type=ProducersPart)
    producers.look_at = part.look_at
    for piece in part.slices:
        for state in piece.producers:
            known = producers.known[state.id] = KnownProducer(state.epoch, state.seen_at)
            known.last, known.floor = state.last, state.floor
            known.rows = bytearray(state.rows)
            known.beside = {(sequence, queue): answer for sequence, queue, answer in state.beside}
            known.beside_bytes = sum(map(len, known.beside.values()))
            known.applied = piece.sequence


_PART: Final = b"\x97"  # MessagePack: an array of seven
_LIST: Final = struct.Struct(">BI")
_ARRAY, _MAP = 0xDD, 0xDF


class TasksPart(msgspec.Struct, array_like=True):
    """All of it in a checkpoint, taken at `sequence`."""

    sequence: int
    held: list[HeldTask]
    where: dict[bytes, TaskPosition]
    unique: list[tuple[int, bytes, UniqueKey]]
    schedules: dict[str, Schedule]
    withdrawn: list[WithdrawnTask] = []
    operations: list[OperationSet] = []


class Taken(NamedTuple):
    """What the shard knows of tasks at one sequence, not encoded yet."""

    sequence: int
    held: dict[bytes, HeldTask]
    where: dict[bytes, TaskPosition]
    unique: dict[tuple[int, bytes], UniqueKey]
    schedules: dict[str, Schedule]
    withdrawn: dict[bytes, WithdrawnTask]
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
            encoded(_MAP, len(taken.where), chain.from_iterable(taken.where.items())),
            encoded(_ARRAY, len(taken.unique), ((*key, unique) for key, unique in taken.unique.items())),
            encoder.encode(taken.schedules),
            encoded(_ARRAY, len(taken.withdrawn), taken.withdrawn.values()),
            encoder.encode(taken.operations),
        )
    )


def restore_tasks(tasks: Tasks, data: bytes, opened: Callable[[TasksPart], TasksPart] = lambda part: part) -> None:
    """Put a checkpoint back; what it includes is not learnt again from the journal. `opened` opens what is sealed."""
    part = opened(msgspec.msgpack.decode(data, type=TasksPart))
    tasks.applied = tasks.schedules.applied = tasks.operations.applied = part.sequence
    tasks.held = {held.task_id: held for held in part.held}
    tasks.held_bytes = sum(len(held.batch) for held in part.held)
    for held in part.held:
        for parent in held.waits:
            tasks.awaited.setdefault(parent, {})[held.task_id] = None
        if held.doomed or not held.waits:
            tasks.ripe[held.task_id] = None
    for parent, position in part.where.items():
        tasks.await_at(parent, position)
    tasks.unique = {(queue, digest): withdrawn for queue, digest, withdrawn in part.unique}
    tasks.schedules.restore(part.schedules)
    tasks.operations.restore(part.operations)
    for withdrawn in part.withdrawn:
        tasks.withdrawn.add(withdrawn)


class SinksPart(msgspec.Struct, array_like=True):
    """All sinks in a checkpoint, taken at `sequence`. `more` has those whose name another queue has used too."""

    sequence: int
    look_at: int
    known: dict[str, KnownSink]
    more: list[tuple[str, KnownSink]] = []


def take_sinks(sinks: Sinks, sequence: int) -> SinksPart:
    """The sinks as they are now."""
    known: dict[str, KnownSink] = {}
    more = [(name, sink) for (_, name), sink in sinks.known.items() if known.setdefault(name, sink) is not sink]
    return SinksPart(sequence, sinks.look_at, known, more)


def restore_sinks(sinks: Sinks, data: bytes) -> None:
    """Put the sinks of a checkpoint back; what it includes is not learnt again from the journal."""
    part = msgspec.msgpack.decode(data, type=SinksPart)
    sinks.applied, sinks.look_at = part.sequence, part.look_at
    sinks.known = {(sink.queue, name): sink for name, sink in [*part.known.items(), *part.more]}
