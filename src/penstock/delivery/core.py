"""The delivery state of a shard: queues, partitions, groups, leases, timers; and `apply`, which alone alters it.

Nothing here waits, reads a clock or touches a file. The `decide_*` functions of this package look and answer with
entries; `apply` never refuses. Recovery is `apply` over stored entries followed by `rebuild`, so a rule that lives
anywhere else is forgotten by a restart.

Beside the state there are indexes over it (lanes, timers, leases): they follow `apply` while the shard lives and are
rebuilt by `recovery.rebuild` after a restart. An index may be behind the state, naming what is no longer available; it
never forgets what is.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from penstock.batch import Batch, layout
from penstock.batch.layout import DUE
from penstock.delivery import entries as entry
from penstock.delivery import removal
from penstock.delivery.dedup import DedupWindow
from penstock.delivery.entries import FOREVER, Entry, Int64s, Span
from penstock.delivery.group import BIT, DEFAULT, Group, Lease
from penstock.delivery.log import Extent, Partition, Queue, has_task, is_one_task, priority_of
from penstock.delivery.membership import Rosters
from penstock.delivery.namespaces import Namespaces
from penstock.delivery.pauses import Pauses
from penstock.delivery.phases import AFTER, READY, SETTLED, WAITING
from penstock.delivery.producers import Producers
from penstock.delivery.progress import Progress
from penstock.delivery.sinks import Sinks
from penstock.delivery.tasks import GROUP, Tasks
from penstock.delivery.timers import TimerWheel
from penstock.model import queue_options_decode

DEFAULT_BIT = BIT[DEFAULT]
STALE_MAX = 10_000  # deadlines of leases that are gone, kept before they are swept out
WAKE = -1  # a timer with this offset offers its partition again
WAIT_LOOK_EVERY = 1_000_000  # µs between looks at queues with max_wait_seconds
GROUP_LOOK_EVERY = 60_000_000  # µs between looks for groups that nobody uses
ONCE = 0  # an expiry at this instant is looked at by the next tick, and not again


class DeliveryState:
    """Everything that the entries of a shard say, and the indexes over it."""

    def __init__(self, now: int) -> None:
        self.wheel = TimerWheel(now)
        self.owners: list[Progress | Partition] = []  # who a timer belongs to
        # How many messages timers made ready, or more, by queue and group (None: all).
        self.came_ready: Counter[tuple[int, int | None]] = Counter()
        self.expiries: list[tuple[int, int, int, int]] = []  # heap of (expires_at, queue, partition, offset)
        self.queues: dict[int, Queue] = {}
        self.by_name: dict[str, Queue] = {}
        self.queue_id_next = 1
        self.producers = Producers()
        self.sinks = Sinks()
        self.tasks = Tasks()
        self.encrypted: set[int] = set()  # queues whose content is sealed before it is stored, deleted ones too
        self.namespaces: Namespaces | None = None  # None: none are declared
        self.pauses = Pauses()
        self.sequence, self.has_tasks = 0, False  # the last frame applied; whether a task was pushed since the start
        self.replaying = False
        self.compactions = 0  # entries that removed messages, since the process started
        self.swept = 0  # sequence of the last frame that reached back to what was settled, or to many messages at once
        self.leases: dict[int, Lease] = {}
        self.deadlines: list[tuple[int, int]] = []  # heap of (deadline, nonce); stale ones are skipped
        self.over_at = -1  # leases whose deadline is not after this are over, though they may not have ended yet
        self.rosters = Rosters()
        self.look_at = 0  # when to look next for messages that wait too long and for idle groups
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
            entry.Compacted: lambda compacted: removal.apply_compacted(self, compacted),
            entry.Revived: self._revived,
            entry.Closing: lambda closing: None,
            entry.Produced: lambda produced: self.producers.apply_coalesced(produced, self.sequence),
            entry.ProducerSet: lambda change: self.producers.apply_epoch(change, self.sequence),
            entry.Answered: lambda answered: self.producers.apply_answer(answered, self.sequence),
            entry.SinkCommitted: lambda committed: self.sinks.apply(committed, self.sequence),
            entry.TasksNoted: lambda noted: None,  # for observers of tasks; the state is in what was settled
            entry.AttemptsLost: self._attempts_lost,
            entry.PauseSet: lambda change: self.pauses.apply(self, change),
            entry.OperationSet: lambda change: self.tasks.operations.set(change, self.sequence),
            entry.TasksPurged: self._tasks_purged,
            entry.TaskHeld: self._task_held,
            entry.TaskFreed: self._task_freed,
            entry.UniqueTaken: lambda taken: self.tasks.take_key(taken, self.sequence),
            entry.ScheduleSet: lambda change: self.tasks.schedules.set(change, self.sequence),
            entry.ScheduleFired: lambda fired: self.tasks.schedules.fire(fired, self.sequence),
        }
        self._appliers_alone: dict[type, Callable[[Any], None]] = {}  # of kinds that are or were observed
        self._observers: dict[type, list[Callable[[Any], None]]] = {}

    def apply(self, entries: Iterable[Entry], sequence: int) -> None:
        """Apply the entries of one frame."""
        self.sequence = sequence
        for record in entries:
            self._appliers[type(record)](record)
            queue = self.queues.get(record.queue)
            if queue is not None:
                queue.touched = sequence

    def observe(self, kind: type, note: Callable[[Any], None]) -> None:
        """Call `note` with every entry of a kind just before it is applied. Other kinds cost nothing more."""
        self._set_observers(kind, [*self._observers.get(kind, ()), note])

    def stop_observing(self, kind: type, note: Callable[[Any], None]) -> None:
        """End what `observe` began."""
        self._set_observers(kind, [known for known in self._observers[kind] if known != note])

    def _set_observers(self, kind: type, notes: list[Callable[[Any], None]]) -> None:
        applier = self._appliers_alone.setdefault(kind, self._appliers[kind])
        self._observers[kind] = notes

        def apply(entry: Any) -> None:
            for note in notes:
                note(entry)
            applier(entry)

        self._appliers[kind] = apply if notes else applier

    def replay_one(self, queue_id: int, pushed_at: int, number: int, offset: int, batch: bytes, sequence: int) -> None:
        """Replay of a frame that pushes one message without options: `apply` or `replay_pushes`, shorter."""
        queue = self.queues.get(queue_id)
        if queue is None:
            return
        queue.partitions[number].replay(Extent(offset, offset + 1, pushed_at, 0, batch, None, sequence))
        if sequence > self.sequence:
            self.sequence = queue.touched = sequence

    def replay_pushes(self, pushes: Iterable[entry.Push], sequence: int) -> None:
        """Replay of a frame that a checkpoint includes: all that it adds is where its messages are."""
        for push in pushes:
            queue = self.queues.get(push.queue)
            if queue is not None:
                self._position(queue, push, Batch.parse(push.batch, validate=False), sequence)

    # messages

    def _push(self, push: entry.Push) -> None:
        queue = self.queues.get(push.queue)
        if queue is None:
            return
        batch = push.columns or Batch.parse(push.batch, validate=False)
        self._position(queue, push, batch, self.sequence)
        if len(queue.partitions) > 1:  # with one, the short way does not count either
            queue.pushes += 1
        if batch.flags & layout.DEDUP_KEY:
            queue.dedup = queue.dedup or DedupWindow(queue.options.dedup_seconds)
            queue.dedup.apply(push, batch)
        if push.producer[0]:
            self.producers.apply_push(push, self.sequence)

    def _position(self, queue: Queue, push: entry.Push, batch: Batch, sequence: int) -> None:
        """Put the rows of a batch at the end of their partitions."""
        self.has_tasks = self.has_tasks or has_task(batch)
        for (number, count, first), rows in zip(push.parts, push.rows_by_part(), strict=True):
            partition = queue.partitions[number]
            extent = Extent(first, first + count, push.pushed_at, batch.flags, batch, rows, sequence)
            if self.replaying:
                partition.replay(extent)
            else:
                partition.append(extent)
                self.arrive(queue, partition, extent)
                if queue.namespace is not None:
                    queue.count_bytes(extent.stored_bytes(first, first + count))

    def push_one(self, queue: Queue, data: bytes, flags: int, now: int, sequence: int) -> None:
        """Apply a push of one message to a queue with one partition; its time to live is for `expire_one`."""
        self.sequence = queue.touched = sequence
        self.has_tasks = self.has_tasks or (flags & layout.CONTENT_TYPE != 0 and is_one_task(data, flags))
        partition = queue.partitions[0]
        end = partition.end
        partition.append(Extent(end, end + 1, now, flags, data, None, sequence))
        for group in queue.groups.values():
            group.backlog += 1
            progress = group.progress[0]
            if not progress.offered & DEFAULT_BIT:
                group.offer(progress)

    # deliveries

    def _leased(self, leased: entry.Leased) -> None:
        for progress, span in self._spans(leased.queue, leased.group, leased.spans):
            progress.mark_leased(span)
            if self.replaying and leased.at > progress.group.active_at:
                progress.group.active_at = leased.at  # a group that was in use must not count as idle after a crash

    def add_lease(self, lease: Lease) -> None:
        """Add a lease; called with the `Leased` entry that says so to the journal."""
        self.leases[lease.nonce] = lease
        lease.group.leases[lease.nonce] = lease
        self.set_deadline(lease)

    def set_deadline(self, lease: Lease) -> None:
        """Index the deadline of a lease; an older one in the heap is stale from now on."""
        heapq.heappush(self.deadlines, (lease.deadline, lease.nonce))
        if len(self.deadlines) > 2 * len(self.leases) + STALE_MAX:
            self.deadlines = [(held.deadline, held.nonce) for held in self.leases.values()]
            heapq.heapify(self.deadlines)

    def close_deliveries(self, lease: Lease, count: int) -> None:
        """`count` deliveries of a lease are settled; with the last one it is forgotten."""
        lease.count -= count
        if lease.count <= 0:
            self.leases.pop(lease.nonce, None)
            lease.group.leases.pop(lease.nonce, None)

    def clear_leases(self) -> None:
        """The shard is closed: all leases end. The journal knows what was leased."""
        self.leases.clear()
        for queue in self.queues.values():
            for group in queue.groups.values():
                group.leases.clear()

    def _settled(self, settled: entry.Settled) -> None:
        if settled.queue in self.tasks.positions:
            self.tasks.settle(settled, self.sequence)
        spans = self._spans(settled.queue, settled.group, settled.spans)
        if not spans:
            return
        after = AFTER[settled.outcome]
        group = spans[0][0].group
        group.change_count += not settled.leased_at
        is_indexed = not self.replaying and (after != SETTLED or group.queue.ordered)
        ended: list[Progress] = []
        for progress, span in spans:
            leased = progress.leased
            group.backlog -= progress.settle(span, settled.outcome, settled.leased_at, settled.at, settled.error)
            if not settled.leased_at and progress.leased < leased:
                ended.append(progress)
            group.outcomes[settled.outcome] += span.count
            if is_indexed:
                self.index_settled(progress, span, after, settled.at)
            if group.gate is not None:
                group.gate.settled(progress, span, settled.at)
        if ended:
            self._close_ended(group, set(ended))

    def _close_ended(self, group: Group, where: set[Progress]) -> None:
        """Deliveries ended without their holders: the leases close them, and consumers get their room back."""
        for lease in list(group.leases.values()):
            closed = sum(take.close_ended() for take in lease.takes if take.open and take.progress in where)
            if closed:
                lease.is_whole = False
                self.close_deliveries(lease, closed)

    def _tasks_purged(self, purged: entry.TasksPurged) -> None:
        self.swept = self.sequence
        self.tasks.purge(purged, self.sequence)

    def _revived(self, revived: entry.Revived) -> None:
        self.swept = self.sequence
        for progress, span in self._spans(revived.queue, revived.group, revived.spans):
            progress.group.backlog += progress.revive(span, revived.was)
            if not self.replaying:
                self.time_retries(progress, span, revived.at)
                if progress.partition.flags & layout.TTL:
                    self.expire_returned(progress, span)

    def _attempts_lost(self, lost: entry.AttemptsLost) -> None:
        for progress, span in self._spans(lost.queue, lost.group, lost.spans):
            progress.count_lost(span)

    def _spans(self, queue_id: int, group_id: int, spans: list[Span]) -> list[tuple[Progress, Span]]:
        """The progress of each span, without those that a checkpoint includes already or whose group is gone."""
        queue = self.queues.get(queue_id)
        group = queue.groups.get(group_id) if queue else None
        if queue is None or group is None:
            return []
        pairs = [(group.progress[span.partition], span) for span in spans]
        if not self.replaying:
            return pairs
        return [(progress, span) for progress, span in pairs if self.sequence > progress.partition.applied]

    # queues and groups

    def _queue_set(self, change: entry.QueueSet) -> None:
        options = queue_options_decode(change.options)
        queue = self.queues.get(change.queue)
        if queue is None:
            queue = Queue(change.queue, change.name, options, change.at)
            self.queues[queue.id] = self.by_name[queue.name] = queue
            self.queue_id_next = max(self.queue_id_next, queue.id + 1)
            if self.namespaces is not None:
                self.namespaces.add(queue)
        queue.set_options(options, change.at)
        if options.encryption and queue.id not in self.encrypted:
            self.encrypted.add(queue.id)
            self.tasks.touched = self.sequence  # the next checkpoint stores them sealed
        for group in queue.groups.values():
            group.set_limits(options, change.at)
        if queue.dedup is not None:
            queue.dedup.window = round(options.dedup_seconds * 1_000_000)
        self.look_at = 0
        queue.paused = change.paused
        self.pauses.cover(queue)
        if not self.replaying:
            for group in queue.groups.values():
                for progress in group.progress:
                    group.offer_all(progress)

    def _queue_deleted(self, deleted: entry.QueueDeleted) -> None:
        self.swept = self.sequence
        self.tasks.drop_queue(deleted.queue, self.sequence)
        queue = self.queues.pop(deleted.queue, None)
        if queue is None:
            return
        self.by_name.pop(queue.name, None)
        if queue.namespace is not None:
            queue.namespace.remove(queue)
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
                if group.roster is not None:
                    group.roster.add_partition()

    def _group_set(self, change: entry.GroupSet) -> None:
        queue = self.queues.get(change.queue)
        if queue is None:
            return
        group = queue.groups.get(change.group)
        if group is not None and change.starts:
            self.swept = self.sequence
        if group is None:
            group = queue.groups[change.group] = Group(
                change.group, change.name, queue, latest=change.latest, observes=change.observes
            )
            waits = queue.options.max_wait_seconds is not None
            self.look_at = min(self.look_at, change.at + (WAIT_LOOK_EVERY if waits else GROUP_LOOK_EVERY))
            queue.group_id_next = max(queue.group_id_next, change.group + 1)
            if queue.namespace is not None:
                queue.namespace.group_count += change.group != GROUP
            for partition in queue.partitions:
                group.backlog += group.add_partition(partition, partition.start).unsettled()
        group.active_at = max(group.active_at, change.at)
        # Also when a checkpoint knew of it: replay may have made and forgotten an older group of this name since.
        queue.group_ids[change.name] = change.group
        if change.group == GROUP and change.queue in self.tasks.positions:
            self.tasks.move(change.queue, change.starts, self.sequence)
        for number, start in change.starts:
            if not self.replaying or self.sequence > queue.partitions[number].applied:
                self._move(group, group.progress[number], start)

    def _move(self, group: Group, progress: Progress, start: int) -> None:
        group.backlog -= progress.unsettled()
        for lease in [lease for lease in group.leases.values() if any(t.progress is progress for t in lease.takes)]:
            # Only this partition moves: the lease keeps what it holds of others.
            lease.takes = [take for take in lease.takes if take.progress is not progress]
            lease.is_whole = False
            self.close_deliveries(lease, lease.count - sum(take.open for take in lease.takes))
        if progress.offered or not self.replaying:
            group.withdraw(progress)
        if group.gate is not None:
            group.gate.forget(progress, self.wheel.reached)
        progress.reset(start)
        group.backlog += progress.unsettled()
        if not self.replaying:
            self.index_progress(progress)
            for extent in progress.partition.extents_from(start):
                if extent.flags & layout.TTL:
                    self.index_expiry(group.queue, progress.partition, extent)

    def _group_deleted(self, deleted: entry.GroupDeleted) -> None:
        queue = self.queues.get(deleted.queue)
        group = queue.groups.pop(deleted.group, None) if queue else None
        if queue is None or group is None:
            return
        queue.group_ids.pop(group.name, None)
        if queue.namespace is not None:
            queue.namespace.group_count -= 1
        for nonce in group.leases:
            self.leases.pop(nonce, None)

    def _trimmed(self, trimmed: entry.Trimmed) -> None:
        queue = self.queues.get(trimmed.queue)
        if queue is None:
            return
        for number, start in trimmed.starts:
            if queue.namespace is not None:
                queue.count_bytes(-queue.partitions[number].stored_bytes(start))
            queue.partitions[number].trim(start)
            for group in queue.groups.values():
                group.progress[number].forget_dead(start)

    def _task_held(self, held: entry.TaskHeld) -> None:
        self.tasks.hold(held, self.sequence)
        self._count_held(held.queue, len(held.batch))

    def _task_freed(self, freed: entry.TaskFreed) -> None:
        held = self.tasks.held.get(freed.task_id)
        self.tasks.free(freed, self.sequence)
        if held is not None:
            self._count_held(held.queue, -len(held.batch))

    def _count_held(self, number: int, more: int) -> None:
        queue = self.queues.get(number)
        if queue is not None and queue.namespace is not None:
            queue.count_bytes(more)

    # indexes

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
        """Index the expiry of one message of a queue with one partition."""
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
                progress.group.offer_retry(progress, offset, priority_of(progress.partition, offset))
        if ordering == "partition" and not progress.leased:
            progress.group.offer(progress)

    def _pass_keys_on(self, progress: Progress, span: Span) -> None:
        for offset in span.offset_array().tolist():
            following = progress.release_key(offset)
            if following is not None:
                progress.group.offer_retry(progress, following)
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
        """They may have expired while they were held: the next tick looks at them once."""
        offsets = span.offset_array()
        for extent in progress.partition.extents_from(int(offsets[0])):
            if extent.first > int(offsets[-1]):
                break
            if extent.flags & layout.TTL:
                heapq.heappush(self.expiries, (ONCE, progress.partition.queue.id, progress.partition.id, extent.first))

    def advance(self, now: int) -> bool:
        """Fire the timers that are due; returns whether anything became ready."""
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
            progress.group.offer_retry(progress, offset, priority_of(progress.partition, offset))

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
            progress.group.offer_retry(progress, offsets[passed], priority)
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
