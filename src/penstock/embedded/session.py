"""A session: what a handle needs of the system, answered by a shard in this process.

Every method answers with a result and a ticket; the handle waits for the ticket before it tells the result. A broker's
client answers the same methods over the wire.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock import limits
from penstock.batch import Batch, encode_one
from penstock.clock import Clock, SystemClock
from penstock.delivery import admin
from penstock.delivery.entries import ProducerSet
from penstock.delivery.group import Group
from penstock.delivery.producers import decide_producer
from penstock.embedded.tasks import TaskMethods
from penstock.errors import LeaseLost, QueueExists
from penstock.forks import refuse_in_forks
from penstock.model import (
    DEFAULT_GROUP,
    Durability,
    Freed,
    Message,
    MessageId,
    PartitionLag,
    Position,
    QueueOptions,
    QueueStats,
    Reason,
    Receipt,
    check_durability,
    check_mode,
    check_name,
    check_path,
    check_seconds,
    queue_options,
)
from penstock.replies import LeaseReply, Member, Membership, PushReply, SinkState
from penstock.requests import LeaseRequest, LetterFilter, Operation, PartitionChoice, Producer, Settling, SinkCommit
from penstock.shard import browse, dead_letters, members, sink_commit, transactions
from penstock.shard.engine import Ticket
from penstock.shard.opening import close_on_disk, open_in_memory, open_on_disk
from penstock.shard.shard import Shard
from penstock.shard.stored_files import StoredFiles
from penstock.shard.tasks.service import Desk
from penstock.shard.upkeep import Sleeper, Storekeeper, Timekeeper
from penstock.shard.waiters import Waiter
from penstock.storage.disk import Disk, RealDisk
from penstock.storage.staging import Staging

Watch = tuple[Waiter, Group]  # a lease that waits


class Pipeline:
    """Settles that are not waited for one by one: the last of them confirms them all."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._ticket: Ticket = 0

    def settle(self, receipts: Sequence[Receipt], how: Settling) -> None:
        with suppress(LeaseLost):
            self._ticket = self._session.settle(receipts, how)

    def confirm(self) -> None:
        self._session.confirm(self._ticket)


class Session(TaskMethods):
    """One open shard and its background roles. `path` None keeps everything in memory."""

    def __init__(
        self,
        path: Path | str | None,
        *,
        durability: Durability = "fsync",
        sync_seconds: float = 0.05,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        disk: Disk | None = None,
        background: bool = True,
        journal_file_bytes: int | None = None,
        journal_file_seconds: float | None = None,
        task_retention_seconds: float = limits.task_retention_seconds,
        data_mode: str | None = None,
    ) -> None:
        check_path(path)
        check_durability(durability)
        sync_us = round(check_seconds(sync_seconds, "sync_seconds") * 1_000_000)
        file_us_max = None
        if journal_file_seconds is not None:
            file_us_max = round(check_seconds(journal_file_seconds, "journal_file_seconds") * 1_000_000)
        check_seconds(task_retention_seconds, "task_retention_seconds")
        mode = check_mode(data_mode)
        self.clock = clock = clock or SystemClock()
        rng = rng or random.SystemRandom()
        self._disk: Disk | None = None
        self._keeper: Storekeeper | None = None
        if path is None and disk is None:
            self.shard: Shard = open_in_memory(clock, rng)
        else:
            self._disk = disk or RealDisk(path or ".", mode=mode)
            self.shard, self._keeper = open_on_disk(
                self._disk, clock, rng, durability=durability, journal_file_bytes=journal_file_bytes
            )
            self._keeper.file_us_max = file_us_max
        self.files = StoredFiles(self.shard, self._disk)
        self.staging = Staging(self._disk)
        # What is called most often goes straight to the shard.
        self.confirm = self.shard.confirm
        self.push_one = self.shard.push_one
        self.lease = self.shard.lease
        self.loaded = self.shard.loaded
        self.settle = self.shard.settle
        self.settle_lease = self.shard.settle_lease
        self.extend = self.shard.extend
        self.shard.sync_us = sync_us
        self.timekeeper = Timekeeper(self.shard)
        self.desk = Desk(self.shard, self._disk, task_retention_seconds, background=background)
        self.timekeeper.roles.append(self.desk.tick)
        if self._keeper is not None:
            self._keeper.before_removal = self.desk.before_removal
            self._keeper.identify_tasks = self.desk.identify
        if self.shard.store is not None:
            self.shard.store.keep_tasks(clock, task_retention_seconds)
        self._closing = threading.Lock()
        refuse_in_forks(self)
        if background:
            self._start()
        else:
            self.shard.prefetcher = None  # no threads means none

    def _start(self) -> None:
        self.timekeeper.start()
        if self._keeper is not None:
            self._keeper.start()
        self.desk.start()

    def sleepers(self) -> list[Sleeper]:
        """The threads of the background roles; none when it was opened without."""
        keeper = None if self._keeper is None else self._keeper.sleeper
        found = [self.timekeeper.sleeper, keeper, self.desk.clerk, self.desk.operations.sleeper]
        return [sleeper for sleeper in found if sleeper is not None and sleeper.was_started]

    def close(self) -> None:
        """Stop cleanly; a second call does nothing."""
        with self._closing:
            if self.shard.is_closed:
                return
            self.timekeeper.stop()
            try:
                if self._keeper is not None and self._disk is not None:
                    self._keeper.stop()
                    self.desk.close()
                    close_on_disk(self.shard, self._keeper, self._disk)
                else:
                    self.desk.close()
                    self.shard.is_closed = True
                    self.shard.commit.close()
            finally:  # whoever waits is told, however it went
                with self.shard.lock:
                    self.shard.waiters.wake_all()
                    self.shard.core.forget_leases()
                self.desk.wake_all()

    # messages

    def push_bytes(self, queue: str, payload: bytes) -> tuple[MessageId, Ticket]:
        return self.push_one(queue, encode_one(payload))

    def push(
        self, queue: str, batch: Batch, partition: PartitionChoice, durability: Durability | None
    ) -> tuple[PushReply, Ticket]:
        check_durability(durability)
        return self.shard.push(queue, batch, partition, durability)

    def needs_files(self, queue: str, group: str) -> bool:
        """Whether the group has messages before it that lie in segments, so that a lease may read a file."""
        with self.shard.lock:
            self.shard.check()
            found = self.shard.core.by_name.get(queue)
            number = found.group_ids.get(group, 0) if found is not None else 0
            return found is not None and found.groups[number].reads_segments()

    def lease_waiting(self, queue: str, group: str, request: LeaseRequest, seconds: float) -> tuple[LeaseReply, Ticket]:
        """The same, blocking until something is leased or `seconds` have passed. Nothing polls."""
        reply, ticket = self.lease(queue, group, request)
        if reply.count:
            return reply, ticket
        request = request.in_existing_group()
        clock = self.shard.clock
        deadline = clock.monotonic() + round(seconds * 1_000_000)
        turn = threading.Semaphore(0)
        while True:
            waiter = self.watch(queue, turn.release, group)
            served = False
            try:
                reply, ticket = self.lease(queue, group, request)
                left = deadline - clock.monotonic()
                if not reply.count and left > 0:
                    turn.acquire(timeout=left / 1e6)
                    reply, ticket = self.lease(queue, group, request)
                served = reply.count > 0
            finally:
                self.unwatch(waiter, served=served)
            if served or clock.monotonic() >= deadline:
                return reply, ticket

    def watch(self, queue: str, wake: Callable[[], object], group: str = DEFAULT_GROUP) -> Watch:
        """Have `wake` called when the queue may have something to lease. The group is in use until `unwatch`."""
        with self.shard.lock:
            self.shard.check()
            found = admin.group_named(admin.queue_named(self.shard.core, queue), group)
            waiter = self.shard.waiters.add(found.queue.id, found.id, wake)
            found.waiting += 1
            return waiter, found

    def unwatch(self, watch: Watch, *, served: bool) -> None:
        waiter, group = watch
        with self.shard.lock:
            self.shard.check()
            self.shard.changing = True  # a wake-up that is not passed on is lost
            group.waiting -= 1
            group.active_at = max(group.active_at, self.shard.clock.now())
            self.shard.waiters.leave(waiter, served=served)
            self.shard.changing = False

    def pipeline(self) -> Pipeline:
        return Pipeline(self)

    def transact(
        self, operations: Sequence[Operation], producer: Producer | None = None
    ) -> tuple[list[list[MessageId]], Ticket]:
        return transactions.transact(self.shard, operations, producer)

    def init_producer(self, name: str) -> tuple[tuple[int, int], Ticket]:
        """Id and epoch for a producer that takes over from all of its name before it."""
        begun: list[ProducerSet] = []

        def decide(now: int) -> list[ProducerSet]:
            begun[:] = [decide_producer(self.shard.core.producers, name, now)]
            return begun

        ticket = self.shard.change(decide)
        return (begun[0].producer, begun[0].epoch), ticket

    # sinks

    def stage(self, queue: str, name: str, position: int, data: bytes) -> Ticket:
        """Put bytes into a staged file, at a position. `queue`, which must exist, is where its messages shall go."""
        self.shard.look(lambda now: admin.queue_named(self.shard.core, queue))
        self.shard.check_space()
        self.staging.reserve(name, position, len(data))
        self.staging.write(name, position, data)
        return 0

    def discard_staged(self, queue: str, names: Sequence[str]) -> Ticket:
        """Remove staged files that will not be committed."""
        sink_commit.discard_staged(self.shard, self.staging, names)
        return 0

    def commit_sink(self, wanted: SinkCommit, client: str = "") -> tuple[SinkState, Ticket]:
        """Put in the next part of a batch; call again until it is in."""
        return sink_commit.commit_sink(self.shard, self.staging, wanted, client)

    def sink_state(self, queue: str, sink: str) -> tuple[SinkState, Ticket]:
        """How far a sink is."""
        return sink_commit.sink_state(self.shard, queue, sink)

    # browsing

    def read(
        self, queue: str, partition: int | str, offset: int | None, timestamp: int | None, limit: int
    ) -> tuple[list[Message], Ticket]:
        return browse.read(self.shard, queue, partition, offset, timestamp, limit)

    def peek(self, queue: str, limit: int) -> tuple[list[Message], Ticket]:
        return browse.peek(self.shard, queue, limit)

    def delayed(self, queue: str, limit: int) -> tuple[list[Message], Ticket]:
        return browse.delayed(self.shard, queue, limit)

    def cancel(self, id: MessageId) -> Ticket:
        return self.shard.change(lambda now: admin.decide_cancel(self.shard.core, id, now))

    def why(self, id: MessageId) -> tuple[list[Reason], Ticket]:
        return browse.why_waiting(self.shard, id)

    def stats(self, queue: str) -> tuple[QueueStats, Ticket]:
        return browse.stats(self.shard, queue)

    # queues and groups

    def create_queue(self, name: str, options: Mapping[str, Any], *, exist_ok: bool) -> Ticket:
        wanted = queue_options(options)

        def decide(now: int) -> list[Any]:
            known = self.shard.core.by_name.get(check_name(name))
            if known is None:
                return admin.decide_create_queue(self.shard.core, name, wanted, now)
            if exist_ok and known.options == wanted:
                return []
            raise QueueExists(f"queue {name!r} exists already" + (" with other options" if exist_ok else ""))

        return self.shard.change(decide)

    def update_queue(self, name: str, changes: Mapping[str, Any]) -> Ticket:
        return self.shard.change(
            lambda now: admin.decide_update_queue(admin.queue_named(self.shard.core, name), changes, now)
        )

    def delete_queue(self, name: str) -> Ticket:
        core = self.shard.core
        return self.shard.change(lambda now: admin.decide_delete_queue(core, admin.queue_named(core, name)))

    def queues(self) -> tuple[list[str], Ticket]:
        return self.shard.look(lambda now: sorted(self.shard.core.by_name))

    def options(self, name: str) -> tuple[QueueOptions, Ticket]:
        return self.shard.look(lambda now: admin.queue_named(self.shard.core, name).options)

    def pause(self, name: str, paused: bool) -> Ticket:
        return self.shard.change(lambda now: admin.decide_pause(admin.queue_named(self.shard.core, name), paused, now))

    def purge(self, name: str) -> Ticket:
        return self.shard.change(lambda now: admin.decide_purge(admin.queue_named(self.shard.core, name), now))

    def create_group(self, queue: str, group: str, start: Position, *, observes: bool = False) -> Ticket:
        return self.shard.change(
            lambda now: browse.decide_create_group(self.shard.core, queue, group, start, now, observes=observes)
        )

    def delete_group(self, queue: str, group: str) -> Ticket:
        def decide(now: int) -> list[Any]:
            found = admin.queue_named(self.shard.core, queue)
            return admin.decide_delete_group(found, admin.group_named(found, group))

        return self.shard.change(decide)

    def seek(self, queue: str, group: str, to: Position, partition: int | str | None) -> Ticket:
        return self.shard.change(lambda now: browse.decide_seek(self.shard.core, queue, group, to, partition, now))

    def groups(self, queue: str) -> tuple[dict[str, list[PartitionLag]], Ticket]:
        return browse.groups(self.shard, queue)

    # members of groups

    def join(
        self, queue: str, group: str, member: str, session_seconds: float, start: Position | None = None
    ) -> tuple[Membership, Ticket]:
        return members.join(self.shard, queue, group, member, session_seconds, start)

    def heartbeat(
        self, queue: str, group: str, member: str, generation: int, held: Sequence[str]
    ) -> tuple[Membership, Ticket]:
        return members.heartbeat(self.shard, queue, group, member, generation, held)

    def leave(self, queue: str, group: str, member: str, generation: int) -> Ticket:
        return members.leave(self.shard, queue, group, member, generation)

    def members(self, queue: str, group: str) -> tuple[list[Member], Ticket]:
        return members.members(self.shard, queue, group)

    # dead letters

    def dead_letters(self, queue: str, wanted: LetterFilter) -> tuple[list[Message], Ticket]:
        return dead_letters.find(self.shard, queue, wanted)

    def redrive(self, queue: str, wanted: LetterFilter, per_second: float | None) -> tuple[int, Ticket]:
        return dead_letters.redrive(self.shard, queue, wanted, per_second)

    def replace_letters(self, queue: str, ids: Sequence[MessageId], batch: Batch) -> Ticket:
        """New messages in the place of dead letters: pushed and settled in one frame."""
        return dead_letters.replace(self.shard, queue, ids, batch)

    def purge_dead_letters(self, queue: str) -> Ticket:
        return dead_letters.purge(self.shard, queue)

    # storage

    def compact(self) -> Freed:
        """Apply retention now and rewrite files that are mostly empty; what it gave back."""
        self.shard.require_open()
        return Freed() if self._keeper is None else self._keeper.compact()

    def seal(self) -> int:
        """Seal everything written so far, the current journal file too; how many files it took."""
        if self._keeper is None:
            return 0
        self.shard.journal.rotate()
        return self._keeper.seal()

    def checkpoint(self) -> None:
        """Write a checkpoint now."""
        if self._keeper is not None:
            self._keeper.checkpoint()
