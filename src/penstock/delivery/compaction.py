"""Compaction to the latest message of each key: what a push must have, and what may be removed.

A tombstone is JSON null with a key. It is marked when it is pushed, so that it is found later without looking at
payloads. Only queues that are compacted have marked ones: elsewhere null is a value like any other.

What is removed is decided with the state of the moment: never what a group has not settled, unless the queue drops
unread messages, and never what a consumer holds. A tombstone goes only if everything of its partition before it that
may go has gone: `Bounds` only ever shrink while a partition is worked through from its first offset to its last.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from penstock.delivery.admin import queue_named
from penstock.delivery.core import DeliveryState
from penstock.delivery.entries import FOREVER, Compacted, Entry, Int64s
from penstock.delivery.log import Queue
from penstock.delivery.phases import LEASED
from penstock.delivery.ranges import Ranges
from penstock.delivery.upkeep import archived_of, floors_of
from penstock.errors import InvalidField


def check_compacted(core: DeliveryState, name: str) -> Queue:
    """The queue of this name, which must be one that is compacted."""
    queue = queue_named(core, name)
    if queue.options.compaction == "none":
        hint = "set compaction='latest' to keep only the latest message of each key"
        raise InvalidField(f"queue: {name!r} keeps all of its messages", hint=hint)
    return queue


@dataclass(slots=True)
class Bounds:
    """How far one partition may be compacted now."""

    end: int = FOREVER  # nothing from here on is removed
    tombstones_end: int = FOREVER  # no tombstone from here on is
    held: Int64s = field(default_factory=lambda: np.empty(0, np.int64))  # by consumers; ascending

    def shrink(self, core: DeliveryState, queue: Queue, number: int) -> None:
        """Learn what has changed since."""
        if queue.options.compaction_drops_unread:
            held = {offset for group in queue.groups.values() for offset in group.progress[number].offsets_in(LEASED)}
            self.held = np.union1d(self.held, np.array(sorted(held), np.int64))
        else:
            self.end = min(self.end, floors_of(core, queue, [number])[number])
        if queue.options.retention_until_archived:
            self.end = min(self.end, archived_of(queue, [number]).get(number, 0))
        first_held = int(self.held[0]) if len(self.held) else FOREVER
        self.tombstones_end = min(self.tombstones_end, self.end, first_held)


def decide_compacted(
    queue: Queue, number: int, superseded: Ranges, tombstones: Int64s, bounds: Bounds, now: int
) -> list[Entry]:
    """Remove what is superseded, and tombstones, as far as the bounds allow."""
    partition = queue.partitions[number]
    removed = superseded.within(partition.start, min(bounds.end, partition.sealed_end)).without(bounds.held)
    old = tombstones[(tombstones >= partition.start) & (tombstones < bounds.tombstones_end)]
    removed |= Ranges.of_offsets(old)
    return [Compacted(queue.id, number, now, removed.to_bytes())] if removed else []
