"""Making what lost frames had made: queues, partitions and groups that later entries speak of.

Names come from the damaged frames themselves where those can be read, or are made up. A queue or group that is named
again under another id must have been deleted in between, in a frame that is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from penstock.delivery.core import DeliveryState
from penstock.delivery.entries import (
    Answered,
    AttemptsLost,
    Closing,
    Entry,
    GroupDeleted,
    GroupSet,
    Leased,
    OperationSet,
    PartitionsAdded,
    Produced,
    ProducerSet,
    Push,
    QueueDeleted,
    QueueSet,
    Revived,
    ScheduleFired,
    ScheduleSet,
    Settled,
    SinkCommitted,
    TaskFreed,
    TasksNoted,
    TasksPurged,
    Trimmed,
    UniqueTaken,
)
from penstock.delivery.log import Queue
from penstock.errors import PenstockError
from penstock.model import DEFAULT_GROUP, QueueOptions, check_name, queue_options_decode

# These take nothing for granted.
ALONE: Final = (
    Closing, QueueDeleted, Produced, ProducerSet, Answered, SinkCommitted, TasksNoted, TaskFreed, UniqueTaken,
    ScheduleSet, ScheduleFired, TasksPurged, OperationSet,
)  # fmt: skip


class Filling:
    """Prepares a state for entries whose past it does not know."""

    def __init__(self, core: DeliveryState, now: int) -> None:
        self._core = core
        self._now = now  # groups that were never used are forgotten, so what is made here is used now
        self._queues: dict[int, QueueSet] = {}
        self._groups: dict[tuple[int, int], str] = {}
        self._partitions: dict[tuple[int, int], str] = {}
        self._notes: list[tuple[int, str]] = []

    @property
    def notes(self) -> list[str]:
        """What was made, as far as it is still there."""
        return [note for number, note in self._notes if number in self._core.queues]

    def hear(self, entries: Iterable[Entry]) -> None:
        """Remember the names that damaged frames tell."""
        for each in entries:
            if isinstance(each, QueueSet) and _is_sensible(each):
                self._queues[each.queue] = each
            elif isinstance(each, GroupSet):
                self._groups[each.queue, each.group] = each.name
            elif isinstance(each, PartitionsAdded):
                self._partitions |= {(each.queue, each.first + n): name for n, name in enumerate(each.names)}

    def prepare(self, each: Entry) -> None:
        """Make what applying `each` takes for granted."""
        if isinstance(each, ALONE):
            return
        if isinstance(each, QueueSet):
            self._supersede(each.queue, each.name)
            return
        queue = self._core.queues.get(each.queue) or self._make_queue(each.queue)
        self._make_partitions(queue, _partitions_of(each))
        if isinstance(each, GroupSet):
            known = queue.group_ids.get(each.name, each.group)
            if known != each.group:
                self._apply(GroupDeleted(queue.id, known))
        elif isinstance(each, Leased | Settled | Revived | AttemptsLost):
            self._make_group(queue, each.group)

    def complete(self, sealed: Mapping[tuple[int, int], Any]) -> None:
        """What every queue has, and the partitions that segments know of."""
        for queue in self._core.queues.values():
            numbers = [number for queue_id, number in sealed if queue_id == queue.id]
            self._make_partitions(queue, max(numbers, default=-1) + 1)
            if queue.options.partitions != "named":
                self._make_partitions(queue, queue.options.partitions)
            self._make_group(queue, 0)

    def _make_queue(self, number: int) -> Queue:
        told = self._queues.get(number)
        name = told.name if told is not None else f"recovered-{number}"
        options = told.options if told is not None else msgspec.json.encode(QueueOptions())
        self._supersede(number, name)
        self._apply(QueueSet(number, name, options, False, self._now))
        self._make_group(self._core.queues[number], 0)
        known = "name and options are" if told is not None else "its name and options are not known; the name is"
        source = "as the damaged frame has them" if told is not None else "made up, the options are the defaults"
        self._notes.append((number, f"queue {name!r} was made in a lost frame: {known} {source}"))
        return self._core.queues[number]

    def _supersede(self, number: int, name: str) -> None:
        known = self._core.by_name.get(name)
        if known is not None and known.id != number:
            self._apply(QueueDeleted(known.id))

    def _make_partitions(self, queue: Queue, count: int) -> None:
        have = len(queue.partitions)
        if have >= count:
            return
        names = [self._partitions.get((queue.id, number), str(number)) for number in range(have, count)]
        taken = set(queue.by_name)
        names = [name if name not in taken else f"recovered-{have + n}" for n, name in enumerate(names)]
        self._apply(PartitionsAdded(queue.id, have, names))

    def _make_group(self, queue: Queue, number: int) -> None:
        if number in queue.groups:
            return
        name = DEFAULT_GROUP if number == 0 else self._groups.get((queue.id, number), f"recovered-{number}")
        if name in queue.group_ids:
            name = f"recovered-{number}"
        self._apply(GroupSet(queue.id, number, name, self._now, []))
        if number:
            self._notes.append((queue.id, f"group {name!r} of queue {queue.name!r} was made in a lost frame"))

    def _apply(self, each: Entry) -> None:
        self._core.apply([each], self._core.sequence)


def _partitions_of(each: Entry) -> int:
    """How many partitions an entry takes for granted."""
    if isinstance(each, Push):
        return max((number for number, _, _ in each.parts), default=-1) + 1
    if isinstance(each, PartitionsAdded):
        return each.first
    if isinstance(each, GroupSet | Trimmed):
        return max((number for number, _ in each.starts), default=-1) + 1
    if isinstance(each, Leased | Settled | Revived | AttemptsLost):
        return max((span.partition for span in each.spans), default=-1) + 1
    return 0


def _is_sensible(each: QueueSet) -> bool:
    try:
        check_name(each.name)
        queue_options_decode(each.options)
    except (PenstockError, msgspec.MsgspecError):
        return False
    return True
