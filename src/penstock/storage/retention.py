"""Retention: how far the start of each partition of a queue may move.

Pure: the rules look at extents and answer with offsets. Limits are those of the whole queue, and what was pushed first
goes first. Age and bytes work in whole extents, the count is exact. Three rules precede the limits: the start never
passes the floor, the lowest offset that a group still needs, unless the queue drops unread messages; it never passes
what is archived where the queue waits for that; and `retention_messages_min` messages stay whatever their age.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping

from penstock import limits
from penstock.model import QueueOptions
from penstock.storage.extents import Extent


def new_starts(
    options: QueueOptions,
    extents: Mapping[int, Iterable[Extent]],
    floors: Mapping[int, int],
    now: int,
    *,
    archived: Mapping[int, int] | None = None,
    tail_messages: int = 0,
    tail_bytes: int = 0,
) -> dict[int, int]:
    """The new start of each partition whose start may move; it may be the present one.

    `extents` are the sealed extents kept now, by partition and in order. The tail is what the queue holds beside them,
    in the journal: it counts towards the limits and never goes itself. A partition without a floor stays as it is, and
    so does one that is not `archived` at all in a queue that keeps its messages until they are. Unless a limit counts
    them, only extents that may go are looked at.
    """
    kept = _Kept(options, extents, now, tail_messages, tail_bytes)
    starts: dict[int, int] = {}
    held: set[int] = set()  # partitions where something stays, and so all that follows it
    for extent in _oldest_first(extents):
        if extent.partition in held:
            continue
        excess = kept.excess(extent)
        if not excess:
            break  # all others are newer, and there are no more of them than before
        end = extent.first_offset + excess
        if not options.retention_drops_unread:
            end = min(end, floors.get(extent.partition, 0))
        if options.retention_until_archived:
            end = min(end, (archived or {}).get(extent.partition, 0))
        count = end - extent.first_offset
        if count > 0:
            starts[extent.partition] = end
            kept.drop(extent, count)
        if count < extent.count:
            held.add(extent.partition)
    return starts


class _Kept:
    """What would be left of the queue, as extents are given up one by one."""

    def __init__(
        self,
        options: QueueOptions,
        extents: Mapping[int, Iterable[Extent]],
        now: int,
        tail_messages: int,
        tail_bytes: int,
    ) -> None:
        self._options = options
        self._messages, self._bytes = limits.instant_us_max, 0
        if counts_messages(options):
            kept = [(extent.count, extent.bytes) for run in extents.values() for extent in run]
            self._messages = tail_messages + sum(count for count, _ in kept)
            self._bytes = tail_bytes + sum(size for _, size in kept)
        seconds = options.retention_seconds
        self._oldest_at = None if seconds is None else now - round(seconds * 1_000_000)

    def excess(self, extent: Extent) -> int:
        """How many messages at the head of `extent` are over a limit."""
        over = 0
        if self._oldest_at is not None and extent.pushed_last_at <= self._oldest_at:
            over = extent.count
        if self._options.retention_bytes is not None and self._bytes > self._options.retention_bytes:
            over = extent.count
        if self._options.retention_messages is not None:
            over = max(over, self._messages - self._options.retention_messages)
        return max(0, min(over, extent.count, self._messages - self._options.retention_messages_min))

    def drop(self, extent: Extent, count: int) -> None:
        self._messages -= count
        self._bytes -= extent.bytes * count // extent.count


def counts_messages(options: QueueOptions) -> bool:
    """Whether it matters how many messages there are, or how large."""
    limits_of_size = options.retention_messages, options.retention_bytes
    return options.retention_messages_min > 0 or any(limit is not None for limit in limits_of_size)


def _oldest_first(extents: Mapping[int, Iterable[Extent]]) -> Iterator[Extent]:
    """All extents by the time of their last push, those of one partition in order of offset."""
    return (extent for _, _, extent in heapq.merge(*map(_timed, extents.values()), key=lambda timed: timed[:2]))


def _timed(run: Iterable[Extent]) -> Iterator[tuple[int, int, Extent]]:
    latest = 0
    for extent in run:
        # A clock set back between two runs of the process must not let a later extent overtake.
        latest = max(latest, extent.pushed_last_at)
        yield latest, extent.partition, extent
