"""How far a streaming query has read: the offset that Spark keeps in the query's checkpoint, and its arithmetic.

Nothing here reads anything. Spark compares offsets as text: where nothing is new, the very offset that was passed in is
returned. The first offset of a query draws a random name for the query, and every later one carries it on, as it does
the shard's id and the incarnation of every queue: so a checkpoint that belongs to other data is recognised.

An offset contains only partitions with something to read: a new partition or queue appears with its first message, and
is read from its beginning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from penstock.errors import HistoryLost, InvalidField
from penstock.history import OffsetRange, PartitionView, QueueView

CHECKPOINT_HINT: Final = "give this query its own checkpointLocation, or read the queues of the checkpoint"

T = TypeVar("T")
Queues = Mapping[str, QueueView]
PartitionKey = tuple[str, str]  # queue, partition


class QueueOffset(msgspec.Struct, frozen=True):
    """Of one queue: which one of its name it is, and the next offset of each partition."""

    incarnation: int
    next: dict[str, int]


class StreamOffset(msgspec.Struct, frozen=True):
    """The position of a query: everything before it is done."""

    shard: str
    query: str
    queues: dict[str, QueueOffset]

    def as_dict(self) -> dict[str, Any]:
        """As Spark keeps it."""
        offset: dict[str, Any] = msgspec.to_builtins(self)
        return offset

    def positions(self) -> dict[PartitionKey, int]:
        return {(queue, name): offset for queue, known in self.queues.items() for name, offset in known.next.items()}


class Loss(msgspec.Struct, frozen=True):
    """Messages that a query was to read and that are gone; `count` is None when it is unknown."""

    text: str
    count: int | None


def offset_of(offset: Mapping[str, Any]) -> StreamOffset:
    """An offset from a checkpoint."""
    return parsed(offset, StreamOffset, "observes a queue")


def parsed(offset: Mapping[str, Any], kind: type[T], does: str) -> T:
    """An offset of a query that does something, from a checkpoint; `InvalidField` when it is of another one."""
    try:
        return msgspec.convert(offset, kind)
    except msgspec.ValidationError:
        raise InvalidField(
            f"checkpointLocation: the checkpoint does not belong to a query that {does}", hint=CHECKPOINT_HINT
        ) from None


def begin(shard: str, query: str, queues: Queues, positions: Mapping[PartitionKey, int]) -> StreamOffset:
    """The first offset of a query."""
    offsets = {
        name: QueueOffset(
            view.incarnation, {part: positions[name, part] for part in view.partitions if (name, part) in positions}
        )
        for name, view in sorted(queues.items())
    }
    return StreamOffset(shard, query, offsets)


def losses(start: StreamOffset, queues: Queues) -> tuple[dict[PartitionKey, int], list[Loss]]:
    """From where on the query can go on, and what it has lost."""
    positions: dict[PartitionKey, int] = {}
    lost: list[Loss] = []
    for queue, known in start.queues.items():
        view = queues.get(queue)
        if view is None or view.incarnation != known.incarnation:
            what = "was deleted" if view is None else "was deleted and created again"
            lost.append(Loss(f"queue {queue!r} {what} since this query last read it", None))
            continue
        for name, offset in known.next.items():
            partition = view.partitions.get(name)
            kept = (0, 0) if partition is None else (partition.start, partition.end)
            if not kept[0] <= offset <= kept[1]:
                lost.append(_loss(queue, name, offset, *kept))
            positions[queue, name] = min(max(offset, kept[0]), kept[1])
    for (queue, name), partition in _partitions(queues):
        positions.setdefault((queue, name), partition.start)
    return positions, lost


def _loss(queue: str, name: str, offset: int, start: int, end: int) -> Loss:
    where = f"queue {queue!r}, partition {name!r}"
    if offset < start:
        return Loss(f"{where}: offsets {offset} to {start - 1} were removed by retention", start - offset)
    return Loss(f"{where}: the query has read up to offset {offset}, and the log ends at {end}", None)


def check(start: StreamOffset, shard: str, is_meant: Mapping[str, bool]) -> None:
    """Refuse the checkpoint of another query: of other data, or of queues that this one does not read."""
    if start.shard != shard:
        raise InvalidField(
            "checkpointLocation: the checkpoint belongs to a query over another directory or broker",
            hint=CHECKPOINT_HINT,
        )
    foreign = sorted(queue for queue in start.queues if not is_meant.get(queue))
    if foreign:
        raise InvalidField(
            f"checkpointLocation: the checkpoint belongs to a query over queue {foreign[0]!r}, not read here",
            hint=CHECKPOINT_HINT,
        )


def refuse(lost: Sequence[Loss]) -> None:
    """Raise `HistoryLost` if anything was lost."""
    if lost:
        more = f", and {len(lost) - 1} more" if len(lost) > 1 else ""
        raise HistoryLost(
            f"{lost[0].text}{more}",
            hint="set failOnDataLoss=false to skip it and continue, or start over with another checkpointLocation",
        )


def advance(
    start: StreamOffset, positions: Mapping[PartitionKey, int], queues: Queues, count_max: int | None
) -> StreamOffset:
    """The next offset: at most `count_max` messages on from these positions. The start itself when nothing is new."""
    backlog = {key: end - positions[key] for key, end in ends(queues).items() if end > positions[key]}
    if not backlog:
        return start
    taken = shared(backlog, count_max, sum(positions.values()))
    offsets: dict[str, QueueOffset] = {}
    for name in sorted({*start.queues, *(queue for queue, _ in backlog)}):
        view = queues.get(name)
        if view is None:
            continue  # deleted: there is nothing left to come
        known = start.queues.get(name)
        kept = known.next if known is not None and known.incarnation == view.incarnation else {}
        moved = {part: positions[name, part] + count for (queue, part), count in taken.items() if queue == name}
        stays = {part: positions[name, part] for part in kept}
        offsets[name] = QueueOffset(view.incarnation, {**stays, **moved})
    return StreamOffset(start.shard, start.query, offsets)


def shared(backlog: Mapping[PartitionKey, int], count_max: int | None, turn: int) -> dict[PartitionKey, int]:
    """As many messages of each as make `count_max` together: all the same number, or as many as there are.

    What is left over goes to one each, beginning with another at every `turn`.
    """
    if count_max is None or sum(backlog.values()) <= count_max:
        return dict(backlog)
    taken = dict.fromkeys(backlog, 0)
    left, hungry = count_max, sorted(backlog, key=lambda key: (backlog[key], key))
    for index, key in enumerate(hungry):
        taken[key] = min(backlog[key], left // (len(hungry) - index))
        left -= taken[key]
    for step in range(len(hungry)):
        key = hungry[(turn + step) % len(hungry)]
        if left and taken[key] < backlog[key]:
            taken[key] += 1
            left -= 1
    return {key: count for key, count in taken.items() if count}


def requested(start: StreamOffset, end: StreamOffset, queues: Queues) -> Iterator[OffsetRange]:
    """The ranges between two offsets; what is new since the first one is read from its beginning."""
    for queue, known in end.queues.items():
        before = start.queues.get(queue)
        is_same = before is not None and before.incarnation == known.incarnation
        view = queues.get(queue)
        for name, offset in known.next.items():
            partition = view.partitions.get(name) if view is not None else None
            beginning = partition.start if partition is not None else 0
            first = before.next.get(name, beginning) if before is not None and is_same else beginning
            if first < offset:
                yield OffsetRange(queue, name, first, offset)


def missing(ranges: Sequence[OffsetRange], end: StreamOffset, queues: Queues) -> list[Loss]:
    """What of these ranges does not exist: removed, or never written as far as this log knows."""
    lost: list[Loss] = []
    for item in ranges:
        view = queues.get(item.queue)
        if view is None or view.incarnation != end.queues[item.queue].incarnation:
            lost.append(Loss(f"queue {item.queue!r} was deleted since this query planned to read it", None))
            continue
        partition = view.partitions.get(item.partition)
        start, stop = (0, 0) if partition is None else (partition.start, partition.end)
        if item.first < start:
            lost.append(_loss(item.queue, item.partition, item.first, min(start, item.end), stop))
        if item.end > stop:
            lost.append(_loss(item.queue, item.partition, item.end, start, stop))
    return lost


def ends(queues: Queues) -> dict[PartitionKey, int]:
    """The end of each partition."""
    return {key: partition.end for key, partition in _partitions(queues)}


def capped(queues: Queues, targets: Mapping[PartitionKey, int]) -> dict[str, QueueView]:
    """The queues as if nothing had come after the targets."""
    queues_capped: dict[str, QueueView] = {}
    for queue, view in queues.items():
        parts = {
            name: PartitionView(
                name, partition.id, min(partition.start, targets[queue, name]), min(partition.end, targets[queue, name])
            )
            for name, partition in view.partitions.items()
            if (queue, name) in targets
        }
        if parts or any(key[0] == queue for key in targets):
            queues_capped[queue] = QueueView(view.name, view.incarnation, view.options, parts, view.groups)
    return queues_capped


def _partitions(queues: Queues) -> Iterable[tuple[PartitionKey, PartitionView]]:
    for queue, view in sorted(queues.items()):
        for name, partition in view.partitions.items():
            yield (queue, name), partition
