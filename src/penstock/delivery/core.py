"""The delivery state of a shard: queues, partitions, groups, leases, timers; and `apply`, which alone alters it.

Nothing here waits, reads a clock or touches a file. The `decide_*` functions of this package look and answer with
entries; `apply` never refuses. Recovery is `apply` over stored entries followed by `rebuild`, so a rule that lives
anywhere else is forgotten by a restart.

Beside the state there are indexes over it (lanes, timers, leases): they follow `apply` while the shard lives and are
made anew by `rebuild` after a restart.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from penstock.batch import Batch, layout
from penstock.delivery import entries as entry
from penstock.delivery.dedup import DedupWindow
from penstock.delivery.entries import Entry, Int64s, Span
from penstock.delivery.group import BIT, DEFAULT, Group
from penstock.delivery.leases import Lease
from penstock.delivery.log import DUE, FOREVER, Extent, Partition, Queue
from penstock.delivery.phases import AFTER, READY, SETTLED, WAITING
from penstock.delivery.progress import Progress
from penstock.delivery.timers import TimerWheel
from penstock.model import queue_options_decode

DEFAULT_BIT = BIT[DEFAULT]
STALE_MAX = 10_000  # deadlines of leases that are gone, kept before they are swept out
WAKE = -1  # a timer with this offset offers its partition again
ONCE = 0  # an expiry at this instant is looked at by the next tick, and not again


class Delivery:
    """See the module's rules."""

    def __init__(self, now: int) -> None:
        self.queues: dict[int, Queue] = {}
        self.by_name: dict[str, Queue] = {}
        self.queue_id_next = 1
        self.sequence = 0  # of the last frame applied
        self.replaying = False
        self.leases: dict[int, Lease] = {}
        self.deadlines: list[tuple[int, int]] = []  # heap of (deadline, nonce); stale ones are skipped
        self.wheel = TimerWheel(now)
        self.owners: list[Progress | Partition] = []  # who a timer belongs to
        self.look_at = 0  # when to look next for messages that wait too long and for idle groups
        self.came_ready: set[int] = set()  # queues in which timers made something ready
        self.expiries: list[tuple[int, int, int, int]] = []  # heap of (expires_at, queue, partition, offset)
        self._appliers: dict[type, Callable[[Any], None]] = {
            entry.Push: self._push,
            entry.Leased: self._leased,
            entry.Settled: self._settled,
            entry.QueueSet: self._queue_set,
            entry.QueueDeleted: self._queue_deleted,
            entry.PartitionsAdded: self._partitions_added,
            entry.GroupSet: self._group_set,
            entry.GroupDeleted: self._group_deleted,
            entry.Trimmed: self._trimmed,
            entry.Revived: self._revived,
            entry.Closing: lambda closing: None,
        }

    def apply(self, entries: Iterable[Entry], sequence: int) -> None:
        """Let the entries of one frame happen."""
        self.sequence = sequence
        for each in entries:
            self._appliers[type(each)](each)
            queue = self.queues.get(each.queue)
            if queue is not None:
                queue.touched = sequence

    def replay_one(self, queue_id: int, pushed_at: int, number: int, offset: int, batch: bytes, sequence: int) -> None:
        """Replay of a frame that pushes one message without options: `apply` or `learn`, shorter."""
        queue = self.queues.get(queue_id)
        if queue is None:
            return
        queue.partitions[number].learn(Extent(offset, offset + 1, pushed_at, 0, batch, None, sequence))
        if sequence > self.sequence:
            self.sequence = queue.touched = sequence

    def learn(self, pushes: Iterable[entry.Push], sequence: int) -> None:
        """Replay of a frame that a checkpoint includes: only where its messages are is news."""
        for push in pushes:
            queue = self.queues.get(push.queue)
            if queue is not None:
                self._place(queue, push, Batch.parse(push.batch, validate=False), sequence)

    # messages

    def _push(self, push: entry.Push) -> None:
        queue = self.queues.get(push.queue)
        if queue is None:
            return
        batch = push.columns or Batch.parse(push.batch, validate=False)
        self._place(queue, push, batch, self.sequence)
        if batch.flags & layout.DEDUP_KEY:
            queue.dedup = queue.dedup or DedupWindow(queue.options.dedup_seconds)
            queue.dedup.learn(push, batch)

    def _place(self, queue: Queue, push: entry.Push, batch: Batch, sequence: int) -> None:
        """Put the rows of a batch at the end of their partitions."""
        for (number, count, first), rows in zip(push.parts, push.rows_by_part(), strict=True):
            partition = queue.partitions[number]
            extent = Extent(first, first + count, push.pushed_at, batch.flags, batch, rows, sequence)
            if self.replaying:
                partition.learn(extent)
            else:
                partition.append(extent)
                self._arrive(queue, partition, extent)

    def push_one(self, queue: Queue, data: bytes, now: int, sequence: int) -> None:
        """Apply a push of one message without options to a queue with one partition."""
        self.sequence = queue.touched = sequence
        partition = queue.partitions[0]
        end = partition.end
        partition.append(Extent(end, end + 1, now, 0, data, None, sequence))
        for group in queue.groups.values():
            group.backlog += 1
            progress = group.progress[0]
            if not progress.offered & DEFAULT_BIT:
                group.offer(progress)

    def _arrive(self, queue: Queue, partition: Partition, extent: Extent) -> None:
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
                if priority != DEFAULT and not progress.offered & BIT[priority] and progress.cursors is not None:
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

    # deliveries

    def _leased(self, leased: entry.Leased) -> None:
        for progress, span in self._spans(leased.queue, leased.group, leased.spans):
            progress.mark_leased(span)
            if self.replaying and leased.at > progress.group.active_at:
                progress.group.active_at = leased.at  # a group that was in use must not count as idle after a crash

    def hold(self, lease: Lease) -> None:
        """Remember who holds what; called with the `Leased` entry that says so to the journal."""
        self.leases[lease.nonce] = lease
        lease.group.leases[lease.nonce] = lease
        self.hold_until(lease)

    def hold_until(self, lease: Lease) -> None:
        """The lease has a new deadline; an old one in the heap is stale now."""
        heapq.heappush(self.deadlines, (lease.deadline, lease.nonce))
        if len(self.deadlines) > 2 * len(self.leases) + STALE_MAX:
            self.deadlines = [(each.deadline, each.nonce) for each in self.leases.values()]
            heapq.heapify(self.deadlines)

    def let_go(self, lease: Lease, count: int) -> None:
        """`count` deliveries of a lease are settled; with the last one it is forgotten."""
        lease.count -= count
        if lease.count <= 0:
            self.leases.pop(lease.nonce, None)
            lease.group.leases.pop(lease.nonce, None)

    def _settled(self, settled: entry.Settled) -> None:
        spans = self._spans(settled.queue, settled.group, settled.spans)
        if not spans:
            return
        after = AFTER[settled.outcome]
        group = spans[0][0].group
        group.upheavals += not settled.leased_at
        is_indexed = not self.replaying and (after != SETTLED or group.queue.ordered)
        for progress, span in spans:
            group.backlog -= progress.settle(span, settled.outcome, settled.leased_at or settled.at)
            if is_indexed:
                self._index_settled(progress, span, after)

    def _index_settled(self, progress: Progress, span: Span, after: int) -> None:
        ordering = progress.partition.queue.options.ordering
        if after != SETTLED and progress.partition.flags & layout.TTL:
            self._expire_returned(progress, span)
        if after == WAITING:
            self._time(progress, span)
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

    def _time(self, progress: Progress, span: Span) -> None:
        owner = self.owner_of(progress)
        for offset, due in zip(span.offset_array().tolist(), span.due_array().tolist(), strict=True):
            self.wheel.add(due, owner, offset)

    def _revived(self, revived: entry.Revived) -> None:
        for progress, span in self._spans(revived.queue, revived.group, revived.spans):
            progress.revive(span)
            progress.group.backlog += span.count
            if not self.replaying:
                self._time(progress, span)
                if progress.partition.flags & layout.TTL:
                    self._expire_returned(progress, span)

    def _expire_returned(self, progress: Progress, span: Span) -> None:
        """They may have expired while they were held: let the next tick look at them once."""
        offsets = span.offset_array()
        for extent in progress.partition.extents_from(int(offsets[0])):
            if extent.first > int(offsets[-1]):
                break
            if extent.flags & layout.TTL:
                heapq.heappush(self.expiries, (ONCE, progress.partition.queue.id, progress.partition.id, extent.first))

    def _spans(self, queue_id: int, group_id: int, spans: list[Span]) -> list[tuple[Progress, Span]]:
        """The progress each span speaks of, without those that a checkpoint includes already or whose group is gone."""
        queue = self.queues.get(queue_id)
        group = queue.groups.get(group_id) if queue else None
        if queue is None or group is None:
            return []
        found = [(group.progress[span.partition], span) for span in spans]
        if not self.replaying:
            return found
        return [(progress, span) for progress, span in found if self.sequence > progress.partition.applied]

    # time

    def advance(self, now: int) -> bool:
        """Let the timers that are due fire; whether anything came ready."""
        fired = self.wheel.advance(now) if now >> 10 > self.wheel.tick else None
        if not fired:
            return False
        for owner, offsets in fired:
            whose = self.owners[owner]
            self.came_ready.add((whose if isinstance(whose, Partition) else whose.partition).queue.id)
            if isinstance(whose, Partition):
                self._delays_ended(whose, offsets)
            else:
                self._retries_due(whose, offsets.tolist())
        return True

    def owner_of(self, whose: Progress | Partition) -> int:
        if whose.timer < 0:
            whose.timer = len(self.owners)
            self.owners.append(whose)
        return whose.timer

    def wake_at(self, instant: int, progress: Progress) -> None:
        """Offer a partition again later: its window closes or its delay ends then."""
        self.wheel.add(instant, self.owner_of(progress), WAKE)

    def _retries_due(self, progress: Progress, offsets: list[int]) -> None:
        group, ordering = progress.group, progress.partition.queue.options.ordering
        if WAKE in offsets:
            group.offer_all(progress)
        dues, reached = progress.dues or {}, self.wheel.reached
        # A message that was snoozed or interrupted twice may have two timers that fire together.
        due = list(dict.fromkeys(offset for offset in offsets if dues.get(offset, reached + 1) <= reached))
        if due:
            progress.become_ready(due)
        if ordering == "partition":
            group.offer(progress)
            return
        for offset in due:
            group.offer_again(progress, offset, priority_of(progress.partition, offset))

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

    # queues and groups

    def _queue_set(self, change: entry.QueueSet) -> None:
        options = queue_options_decode(change.options)
        queue = self.queues.get(change.queue)
        if queue is None:
            queue = Queue(change.queue, change.name, options, change.at)
            self.queues[queue.id] = self.by_name[queue.name] = queue
            self.queue_id_next = max(self.queue_id_next, queue.id + 1)
        queue.set_options(options)
        if queue.dedup is not None:
            queue.dedup.window = round(options.dedup_seconds * 1_000_000)
        self.look_at = 0
        queue.paused = change.paused
        if not self.replaying:
            for group in queue.groups.values():
                for progress in group.progress:
                    group.offer_all(progress)

    def _queue_deleted(self, deleted: entry.QueueDeleted) -> None:
        queue = self.queues.pop(deleted.queue, None)
        if queue is None:
            return
        self.by_name.pop(queue.name, None)
        for group in queue.groups.values():
            for nonce in group.leases:
                self.leases.pop(nonce, None)
            group.leases.clear()

    def _partitions_added(self, added: entry.PartitionsAdded) -> None:
        queue = self.queues.get(added.queue)
        if queue is None:
            return
        for name in added.names[max(0, len(queue.partitions) - added.first) :]:
            partition = queue.add_partition(name)
            for group in queue.groups.values():
                group.add_partition(partition)

    def _group_set(self, change: entry.GroupSet) -> None:
        queue = self.queues.get(change.queue)
        if queue is None:
            return
        group = queue.groups.get(change.group)
        if group is None:
            group = queue.groups[change.group] = Group(change.group, change.name, queue, latest=change.latest)
            group.active_at = change.at
            self.look_at = 0
            queue.group_id_next = max(queue.group_id_next, change.group + 1)
            for partition in queue.partitions:
                group.backlog += group.add_partition(partition, partition.start).unsettled()
        # Also when a checkpoint knew of it: replay may have made and forgotten an older group of this name since.
        queue.group_ids[change.name] = change.group
        for number, start in change.starts:
            if not self.replaying or self.sequence > queue.partitions[number].applied:
                self._move(group, group.progress[number], start)

    def _move(self, group: Group, progress: Progress, start: int) -> None:
        group.backlog -= progress.unsettled()
        for lease in [lease for lease in group.leases.values() if any(t.progress is progress for t in lease.takes)]:
            # Only this partition moves: the lease keeps what it holds of others.
            lease.takes = [take for take in lease.takes if take.progress is not progress]
            self.let_go(lease, lease.count - sum(take.open for take in lease.takes))
        if progress.offered or not self.replaying:
            group.withdraw(progress)
        progress.reset(start)
        group.backlog += progress.unsettled()
        if not self.replaying:
            self.index_progress(progress)
            for extent in progress.partition.extents_from(start):
                if extent.flags & layout.TTL:
                    self.index_expiry(group.queue, progress.partition, extent)

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

    def _group_deleted(self, deleted: entry.GroupDeleted) -> None:
        queue = self.queues.get(deleted.queue)
        group = queue.groups.pop(deleted.group, None) if queue else None
        if queue is None or group is None:
            return
        queue.group_ids.pop(group.name, None)
        for nonce in group.leases:
            self.leases.pop(nonce, None)

    def _trimmed(self, trimmed: entry.Trimmed) -> None:
        queue = self.queues.get(trimmed.queue)
        if queue is None:
            return
        for number, start in trimmed.starts:
            queue.partitions[number].trim(start)
            for group in queue.groups.values():
                group.progress[number].forget_dead(start)


def priority_of(partition: Partition, offset: int) -> int:
    """The priority of one message."""
    if not partition.flags & layout.PRIORITY or offset < partition.start:
        return DEFAULT
    extent = partition.extent_at(offset)
    priorities = extent.priorities()
    return DEFAULT if priorities is None else int(priorities[offset - extent.first])
