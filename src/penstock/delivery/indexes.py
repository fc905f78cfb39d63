"""Indexes over the delivery state: what stands ready in which lane, what is due when, what expires when.

They follow `DeliveryState.apply` while the shard lives, and are rebuilt from the state after a restart. An index may
be behind the state, naming what is no longer available; it never forgets what is.
"""

from __future__ import annotations

import heapq
from collections import Counter

import numpy as np

from penstock.batch import layout
from penstock.delivery.entries import Int64s, Span
from penstock.delivery.group import BIT, DEFAULT
from penstock.delivery.log import DUE, FOREVER, Extent, Partition, Queue
from penstock.delivery.phases import READY, SETTLED, WAITING
from penstock.delivery.progress import Progress
from penstock.delivery.timers import TimerWheel

WAKE = -1  # a timer with this offset offers its partition again
ONCE = 0  # an expiry at this instant is looked at by the next tick, and not again


class Indexes:
    """See the module's rules."""

    def __init__(self, now: int) -> None:
        self.wheel = TimerWheel(now)
        self.owners: list[Progress | Partition] = []  # who a timer belongs to
        # How many messages timers made ready, or more, by queue and group (None: all).
        self.came_ready: Counter[tuple[int, int | None]] = Counter()
        self.expiries: list[tuple[int, int, int, int]] = []  # heap of (expires_at, queue, partition, offset)

    def arrive(self, queue: Queue, partition: Partition, extent: Extent) -> None:
        """Index new messages for every group."""
        count = extent.end - extent.first
        for group in queue.groups.values():
            group.backlog += count
            if not extent.flags & layout.PRIORITY:
                group.offer(group.progress[partition.id])
        if extent.flags:
            self.index_extent(queue, partition, extent)

    def index_extent(self, queue: Queue, partition: Partition, extent: Extent) -> None:
        """Lanes, delays and expiries of an extent that has columns for them."""
        if extent.flags & layout.PRIORITY:
            self._index_priorities(queue, partition, extent)
        if extent.flags & DUE:
            self.index_delays(queue, partition, extent)
        if extent.flags & layout.TTL:
            self.index_expiry(queue, partition, extent)

    def _index_priorities(self, queue: Queue, partition: Partition, extent: Extent) -> None:
        present = extent.priorities_present()
        for group in queue.groups.values():
            progress = group.progress[partition.id]
            for priority in present:
                # A partition that the queue's delay or window holds back is not offered, and may have some already.
                if not (priority == DEFAULT or progress.offered & BIT[priority] or queue.gated) and progress.cursors:
                    progress.cursors.setdefault(priority, extent.first)
                group.offer(progress, priority)

    def index_delays(self, queue: Queue, partition: Partition, extent: Extent) -> None:
        """Timers for the messages that are not due yet, as far as the horizon reaches."""
        dues = extent.dues()
        assert dues is not None
        later = np.flatnonzero(dues > self.wheel.reached)
        partition.delayed += len(later)
        if queue.horizon < int(dues.max(initial=0)):
            later = later[dues[later] <= queue.horizon]
        if len(later):
            queue.near += len(later)
            self.wheel.add_many(dues[later], self.owner_of(partition), later + extent.first)

    def index_expiry(self, queue: Queue, partition: Partition, extent: Extent) -> None:
        """When the first message of an extent expires; those that have expired already are found by the next tick."""
        if extent.sealed is not None:
            first_at = extent.sealed.expires_first
        else:
            expiries = extent.expiries()
            assert expiries is not None
            first_at = int(expiries[expiries > 0].min(initial=FOREVER))
        if 0 < first_at < FOREVER:
            heapq.heappush(self.expiries, (first_at, queue.id, partition.id, extent.first))

    def expire_one(self, queue: Queue, expires_at: int, offset: int) -> None:
        """The same for one message of a queue with one partition."""
        heapq.heappush(self.expiries, (expires_at, queue.id, 0, offset))

    def index_settled(self, progress: Progress, span: Span, after: int, now: int) -> None:
        ordering = progress.partition.queue.options.ordering
        if after != SETTLED and progress.partition.flags & layout.TTL:
            self.expire_returned(progress, span)
        if after == WAITING:
            self.time_retries(progress, span, now)
        elif ordering == "key" and after == SETTLED:
            self._pass_keys_on(progress, span)
        elif after == READY and ordering != "partition":
            for offset in span.offset_array().tolist():
                progress.group.offer_again(progress, offset, priority_of(progress.partition, offset))
        if ordering == "partition" and not progress.leased:
            progress.group.offer(progress)

    def _pass_keys_on(self, progress: Progress, span: Span) -> None:
        for offset in span.offset_array().tolist():
            following = progress.release_key(offset)
            if following is not None:
                progress.group.offer_again(progress, following)
        progress.group.offer(progress)

    def time_retries(self, progress: Progress, span: Span, now: int) -> None:
        """Timers for what comes back later; what may come back at once need not wait for a tick."""
        owner = self.owner_of(progress)
        at_once = []
        for offset, due in zip(span.offset_array().tolist(), span.due_array().tolist(), strict=True):
            if due > now:
                self.wheel.add(due, owner, offset)
            else:
                at_once.append(offset)
        if at_once:
            self._make_ready(progress, at_once)

    def expire_returned(self, progress: Progress, span: Span) -> None:
        """They may have expired while they were held: let the next tick look at them once."""
        offsets = span.offset_array()
        for extent in progress.partition.extents_from(int(offsets[0])):
            if extent.first > int(offsets[-1]):
                break
            if extent.flags & layout.TTL:
                heapq.heappush(self.expiries, (ONCE, progress.partition.queue.id, progress.partition.id, extent.first))

    def advance(self, now: int) -> bool:
        """Let the timers that are due fire; whether anything came ready."""
        fired = self.wheel.advance(now) if now >> 10 > self.wheel.tick else None
        if not fired:
            return False
        for owner, offsets in fired:
            whose = self.owners[owner]
            if isinstance(whose, Partition):
                self._delays_ended(whose, offsets)
                self.came_ready[whose.queue.id, None] += len(offsets)
            else:
                self.came_ready[whose.partition.queue.id, whose.group.id] += self._retries_due(whose, offsets.tolist())
        return True

    def owner_of(self, whose: Progress | Partition) -> int:
        if whose.timer < 0:
            whose.timer = len(self.owners)
            self.owners.append(whose)
        return whose.timer

    def wake_at(self, instant: int, progress: Progress) -> None:
        """Offer a partition again later: its window closes or its delay ends then."""
        self.wheel.add(instant, self.owner_of(progress), WAKE)

    def _retries_due(self, progress: Progress, offsets: list[int]) -> int:
        """How many messages may have come ready: any number, when what held the partition back is over."""
        count = 0
        if WAKE in offsets:
            progress.group.offer_all(progress)
            count = progress.group.backlog
        dues, reached = progress.dues or {}, self.wheel.reached
        # A message that was snoozed or interrupted twice may have two timers that fire together.
        due = list(dict.fromkeys(offset for offset in offsets if dues.get(offset, reached + 1) <= reached))
        if due:
            self._make_ready(progress, due)
        return count + len(due)

    def _make_ready(self, progress: Progress, offsets: list[int]) -> None:
        progress.become_ready(offsets)
        if progress.partition.queue.options.ordering == "partition":
            progress.group.offer(progress)
            return
        for offset in offsets:
            progress.group.offer_again(progress, offset, priority_of(progress.partition, offset))

    def _delays_ended(self, partition: Partition, offsets: Int64s) -> None:
        queue = partition.queue
        queue.near -= len(offsets)
        partition.delayed -= len(offsets)
        offsets = offsets[offsets >= partition.start]
        for group in queue.groups.values():
            progress = group.progress[partition.id]
            if not partition.flags & layout.PRIORITY:
                self._offer_due(progress, offsets, DEFAULT)
                continue
            priorities = np.array([priority_of(partition, offset) for offset in offsets.tolist()], np.uint8)
            for priority in np.unique(priorities).tolist():
                self._offer_due(progress, offsets[priorities == priority], priority)

    def _offer_due(self, progress: Progress, offsets: Int64s, priority: int) -> None:
        cursor = progress.cursor if priority == DEFAULT else (progress.cursors or {}).get(priority, progress.base)
        passed = offsets < cursor
        if passed.any():
            progress.group.offer_again(progress, offsets[passed], priority)
        if not passed.all():
            progress.group.offer(progress, priority)

    def index_progress(self, progress: Progress) -> None:
        """Offer what a group has not finished of one partition, from the low-water mark on."""
        partition, group = progress.partition, progress.group
        progress.reset_indexes()
        if progress.base < partition.end:
            group.offer(progress)
        if partition.flags & layout.PRIORITY:
            for extent in partition.extents_from(progress.base):
                if extent.flags & layout.PRIORITY:
                    for priority in extent.priorities_present():
                        group.offer(progress, priority)


def priority_of(partition: Partition, offset: int) -> int:
    """The priority of one message."""
    if not partition.flags & layout.PRIORITY or offset < partition.start:
        return DEFAULT
    extent = partition.extent_at(offset)
    priorities = extent.priorities()
    return DEFAULT if priorities is None else int(priorities[offset - extent.first])
