"""How far a streaming query has read: the offset that Spark keeps in the query's checkpoint, and its arithmetic.

Nothing here reads anything. Spark compares offsets as text: where nothing is new, the very offset that was passed in is
returned. The first offset of a query draws a random name for the query, and every later one carries it on, as it does
the shard's id and the incarnation of every queue: so a checkpoint that belongs to other data is recognised.

An offset contains only partitions with something to read: a new partition or queue appears with its first message, and
is read from its beginning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from penstock.errors import HistoryLost, InvalidField
from penstock.history import OffsetRange, PartitionView, QueueView

CHECKPOINT_HINT: Final = "give this query a checkpointLocation of its own, or name the queues that the checkpoint is of"

Queues = Mapping[str, QueueView]
Place = tuple[str, str]  # queue, partition


class QueueOffset(msgspec.Struct, frozen=True):
    """Of one queue: which one of its name it is, and the next offset of each partition."""

    incarnation: int
    next: dict[str, int]


class StreamOffset(msgspec.Struct, frozen=True):
    """Where a query stands: everything before is done."""

    shard: str
    query: str
    queues: dict[str, QueueOffset]

    def as_dict(self) -> dict[str, Any]:
        """As Spark keeps it."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found

    def places(self) -> dict[Place, int]:
        return {(queue, name): offset for queue, each in self.queues.items() for name, offset in each.next.items()}


class Loss(msgspec.Struct, frozen=True):
    """Messages that a query was to read and cannot any more; `count` None: nobody knows how many."""

    text: str
    count: int | None


def offset_of(given: Mapping[str, Any]) -> StreamOffset:
    """An offset from a checkpoint."""
    try:
        return msgspec.convert(given, StreamOffset)
    except msgspec.ValidationError:
        raise InvalidField(
            "checkpointLocation: the checkpoint is not of a query that observes a queue", hint=CHECKPOINT_HINT
        ) from None


def begin(shard: str, query: str, queues: Queues, positions: Mapping[Place, int]) -> StreamOffset:
    """The first offset of a query."""
    found = {
        name: QueueOffset(
            view.incarnation, {each: positions[name, each] for each in view.partitions if (name, each) in positions}
        )
        for name, view in sorted(queues.items())
    }
    return StreamOffset(shard, query, found)


def losses(start: StreamOffset, queues: Queues) -> tuple[dict[Place, int], list[Loss]]:
    """From where on the query can go on, and what it has lost."""
    positions: dict[Place, int] = {}
    lost: list[Loss] = []
    for queue, known in start.queues.items():
        view = queues.get(queue)
        if view is None or view.incarnation != known.incarnation:
            what = "was deleted" if view is None else "was deleted and made again"
            lost.append(Loss(f"queue {queue!r} {what} since this query read it last", None))
            continue
        for name, offset in known.next.items():
            partition = view.partitions.get(name)
            kept = (0, 0) if partition is None else (partition.start, partition.end)
            if not kept[0] <= offset <= kept[1]:
                lost.append(_loss(queue, name, offset, *kept))
            positions[queue, name] = min(max(offset, kept[0]), kept[1])
    for (queue, name), each in _partitions(queues):
        positions.setdefault((queue, name), each.start)
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
            "checkpointLocation: the checkpoint is of a query over other data, of another directory or broker",
            hint=CHECKPOINT_HINT,
        )
    foreign = sorted(queue for queue in start.queues if not is_meant.get(queue))
    if foreign:
        raise InvalidField(
            f"checkpointLocation: the checkpoint is of a query over queue {foreign[0]!r}, which this one does not read",
            hint=CHECKPOINT_HINT,
        )


def refuse(lost: Sequence[Loss]) -> None:
    """Say what is gone; nothing happens when nothing is."""
    if lost:
        more = f", and {len(lost) - 1} more" if len(lost) > 1 else ""
        raise HistoryLost(
            f"{lost[0].text}{more}",
            hint="set failOnDataLoss=false to skip it and go on, or begin anew with another checkpointLocation",
        )


def advance(start: StreamOffset, positions: Mapping[Place, int], queues: Queues, count_max: int | None) -> StreamOffset:
    """The next offset: at most `count_max` messages on from these positions. The start itself when nothing is new."""
    backlog = {place: each.end - positions[place] for place, each in _partitions(queues) if each.end > positions[place]}
    if not backlog:
        return start
    taken = shared(backlog, count_max, sum(positions.values()))
    found: dict[str, QueueOffset] = {}
    for name in sorted({*start.queues, *(queue for queue, _ in backlog)}):
        view = queues.get(name)
        if view is None:
            continue  # deleted: there is nothing left to come
        known = start.queues.get(name)
        kept = known.next if known is not None and known.incarnation == view.incarnation else {}
        moved = {part: positions[name, part] + count for (queue, part), count in taken.items() if queue == name}
        stays = {part: positions[name, part] for part in kept}
        found[name] = QueueOffset(view.incarnation, {**stays, **moved})
    return StreamOffset(start.shard, start.query, found)


def shared(backlog: Mapping[Place, int], count_max: int | None, turn: int) -> dict[Place, int]:
    """As many messages of each as make `count_max` together: all the same number, or as many as there are.

    What is left over goes to one each, beginning with another at every `turn`.
    """
    if count_max is None or sum(backlog.values()) <= count_max:
        return dict(backlog)
    taken = dict.fromkeys(backlog, 0)
    left, hungry = count_max, sorted(backlog, key=lambda place: (backlog[place], place))
    for index, place in enumerate(hungry):
        taken[place] = min(backlog[place], left // (len(hungry) - index))
        left -= taken[place]
    for step in range(len(hungry)):
        place = hungry[(turn + step) % len(hungry)]
        if left and taken[place] < backlog[place]:
            taken[place] += 1
            left -= 1
    return {place: count for place, count in taken.items() if count}


def wanted(start: StreamOffset, end: StreamOffset, queues: Queues) -> Iterator[OffsetRange]:
    """What lies between two offsets; what is new since the first one is wanted from its beginning."""
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


def missing(wanted: Sequence[OffsetRange], end: StreamOffset, queues: Queues) -> list[Loss]:
    """What of it is not there: removed, or never written as far as this log knows."""
    lost: list[Loss] = []
    for each in wanted:
        view = queues.get(each.queue)
        if view is None or view.incarnation != end.queues[each.queue].incarnation:
            lost.append(Loss(f"queue {each.queue!r} was deleted since this query planned to read it", None))
            continue
        partition = view.partitions.get(each.partition)
        start, stop = (0, 0) if partition is None else (partition.start, partition.end)
        if each.first < start:
            lost.append(_loss(each.queue, each.partition, each.first, min(start, each.end), stop))
        if each.end > stop:
            lost.append(_loss(each.queue, each.partition, each.end, start, stop))
    return lost


def ends(queues: Queues) -> dict[Place, int]:
    """Where each partition ends."""
    return {place: each.end for place, each in _partitions(queues)}


def capped(queues: Queues, targets: Mapping[Place, int]) -> dict[str, QueueView]:
    """The queues as if nothing had come after the targets."""
    found: dict[str, QueueView] = {}
    for queue, view in queues.items():
        parts = {
            name: PartitionView(
                name, each.id, min(each.start, targets[queue, name]), min(each.end, targets[queue, name])
            )
            for name, each in view.partitions.items()
            if (queue, name) in targets
        }
        if parts or any(place[0] == queue for place in targets):
            found[queue] = QueueView(view.name, view.incarnation, view.options, parts, view.groups)
    return found


def _partitions(queues: Queues) -> Iterable[tuple[Place, PartitionView]]:
    for queue, view in sorted(queues.items()):
        for name, each in view.partitions.items():
            yield (queue, name), each
