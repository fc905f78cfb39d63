"""A shard: what can be done with messages, each operation as decide → append → apply.

Tell no one before it is durable: every operation returns its result with a *ticket*, the sequence that must be durable
before the result may be told. `confirm` waits for it in a thread, `confirmed` on an event loop. A ticket of 0 needs no
waiting.

Only this module and `engine` know both delivery and the journal.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from penstock.batch import Batch, layout
from penstock.delivery import admin, dead, delays
from penstock.delivery import settle as settle_rules
from penstock.delivery.entries import Entry, QueueDeleted, QueueSet, encode_push_one
from penstock.delivery.group import Group
from penstock.delivery.lease import decide_lease
from penstock.delivery.log import SPECIAL, Need, Queue
from penstock.delivery.push import Decided, decide_push
from penstock.delivery.settle import Chosen
from penstock.engine import Engine, Ticket
from penstock.errors import DiskFull, LeaseLost
from penstock.materialise import load, pieces_of_takes, sealed_extents
from penstock.model import DLQ_SUFFIX, Durability, MessageId, Outcome, QueueOptions, Receipt
from penstock.replies import LeaseReply, Piece, PushReply
from penstock.requests import LeaseRequest, PartitionChoice, Settling

T = TypeVar("T")
NONCES_DRAWN: Final = 512


class Shard(Engine):
    """What can be done with the messages of a shard."""

    # confirmation

    def confirm(self, ticket: Ticket) -> None:
        """Block until what the ticket stands for cannot be undone."""
        if ticket:
            self.commit.wait(ticket)

    @property
    def read_ticket(self) -> Ticket:
        """For telling of the state as it is now. The caller holds the lock."""
        return self._must_sync

    async def confirmed(self, ticket: Ticket) -> None:
        """The same on an event loop."""
        if ticket and self.journal.durable_sequence < ticket:
            await self.commit.future(ticket, asyncio.get_running_loop())

    # pushing

    def push(
        self,
        name: str,
        batch: Batch,
        partition: PartitionChoice = None,
        durability: Durability | None = None,
    ) -> tuple[PushReply, Ticket]:
        """Append a batch to a queue, which is made when it is not there."""
        self.throttle.wait()
        return self.run(lambda: self._push(name, batch, partition, durability))

    def _push(
        self, name: str, batch: Batch, partition: PartitionChoice, durability: Durability | None
    ) -> tuple[PushReply, Ticket]:
        now = self.begin_push()
        queue, created = self.queue_for_push(name, now)
        if queue.options.max_length is not None:
            self.tick(now, self.clock.monotonic())  # what has expired makes room
        decided = self._decide_push(queue, created, batch, now, partition)
        ticket = self._commit_push(queue, created, decided, durability)
        return self.push_reply(queue, batch, decided), ticket

    def push_one(self, name: str, data: bytes, durability: Durability | None = None) -> tuple[MessageId, Ticket]:
        """The short path for one message that leaves nothing to decide: no priority, delay, ttl or dedup key."""
        if not self.throttle.is_set():
            self.throttle.wait()
        with self.lock:
            queue = self.core.by_name.get(name)
            flags = layout.flags_of(data)
            is_plain = queue is not None and queue.plain and not flags & (SPECIAL | layout.DEDUP_KEY)
            if queue is not None and is_plain and not self.is_closed and not self.journal.disk_full:
                partition = queue.partitions[0]
                offset, now = partition.end, self.clock.now()
                level = durability or queue.options.durability or self.durability
                sequence = self.append_frame(encode_push_one(queue.id, now, 0, offset, data), b"", level)
                self.core.push_one(queue, data, flags, now, sequence)
                if self.waiters:
                    self.waiters.wake(queue.id, len(queue.groups))
                return MessageId(name, partition.name, offset), sequence if level == "fsync" else 0
        reply, ticket = self.push(name, Batch(data), None, durability)
        return reply.ids()[0], ticket

    def begin_push(self) -> int:
        """The same for pushes, which a nearly full disk refuses too."""
        if self.journal.disk_full:
            raise DiskFull("the disk is nearly full; pushes are refused until space is free again")
        return self.begin()[0]

    def queue_for_push(self, name: str, now: int) -> tuple[Queue, list[Entry]]:
        """The queue, and the entries that made it if it is new. They are applied, not yet appended."""
        queue = self.core.by_name.get(name)
        if queue is not None:
            if queue.is_dlq:
                raise admin.reserved_name(name)
            return queue, []
        entries = admin.decide_create_queue(self.core, name, QueueOptions(), now)
        self.core.apply(entries, self.journal.sequence + 1)
        return self.core.by_name[name], entries

    def _decide_push(
        self, queue: Queue, created: list[Entry], batch: Batch, now: int, partition: PartitionChoice
    ) -> Decided:
        try:
            return decide_push(self.core, queue, batch, now, partition)
        except Exception:
            self.undo_create(created)
            raise

    def undo_create(self, created: Iterable[Entry]) -> None:
        """Queues made for an operation that was refused: nothing of them is in the journal."""
        gone = [QueueDeleted(each.queue) for each in created if isinstance(each, QueueSet)]
        # The state must not claim a frame that was not appended: a checkpoint would take its word for it.
        self.core.apply(gone, self.journal.sequence)

    def _commit_push(
        self, queue: Queue, created: list[Entry], decided: Decided, durability: Durability | None
    ) -> Ticket:
        level = durability or queue.options.durability or self.durability
        read = self._must_sync if decided.duplicates else 0
        if not decided.entries and not created:
            return read
        ticket = self.commit_frame(created, decided.entries, level)
        if self.waiters:
            # Every group may have each of them.
            self.waiters.wake(queue.id, len(queue.groups) * sum(count for _, count, _ in decided.push.parts))
        if queue.near > 0:
            self._delays_changed(queue)
        return ticket or read

    def _delays_changed(self, queue: Queue) -> None:
        if delays.crowded(queue):
            delays.shrink(self.core, queue)
        next_at = self.core.wheel.next_at()
        if next_at is not None:
            self.on_deadline(next_at)

    def push_reply(self, queue: Queue, batch: Batch, decided: Decided) -> PushReply:
        push = decided.push
        parts = [
            (queue.partitions[number].name, count, first, rows)
            for (number, count, first), rows in zip(push.parts, push.rows_by_part() if push.parts else [], strict=True)
        ]
        return PushReply(queue.name, batch.count, parts, decided.duplicates)

    # leasing

    def lease(self, name: str, group: str, request: LeaseRequest) -> tuple[LeaseReply, Ticket]:
        """Hand out messages. Nothing to be had is an empty reply, not an error.

        What lies in segments is not in the reply yet; `loaded` brings it when someone looks.
        """
        try:
            with self.lock:
                return self._lease(name, group, request)
        except Need as need:
            return self.with_columns(need, lambda: self._lease(name, group, request))

    def _lease(self, name: str, group_name: str, request: LeaseRequest) -> tuple[LeaseReply, Ticket]:
        core = self.core
        now, monotonic = self.begin()
        self.tick(now, monotonic)
        queue = core.by_name.get(name) or admin.queue_named(core, name)
        number = queue.group_ids.get(group_name)
        group = queue.groups[number] if number is not None else self._new_group(queue, group_name, now)
        group.active_at = now
        read = self._must_sync
        entries, lease = decide_lease(core, group, request, now, monotonic, self._nonce())
        if entries:
            level = queue.options.durability or self.durability if request.auto_ack or len(entries) > 1 else "os"
            read = self.commit_frame([], entries, level) or read
        if lease is None:
            return LeaseReply(name, group_name, 0, 0, (), 0), read
        pieces = pieces_of_takes(lease.takes)
        expires_at = now + lease.deadline - monotonic
        if not request.auto_ack:
            core.hold(lease)
            if expires_at < self.asleep_until:
                self.on_deadline(expires_at)
        return LeaseReply(name, group_name, lease.nonce, expires_at, pieces, lease.count), read

    def _new_group(self, queue: Queue, name: str, now: int) -> Group:
        """A group first named in a lease starts at the oldest message kept."""
        entries = admin.decide_create_group(queue, name, "earliest", now)
        self.commit_frame([], entries, queue.options.durability or self.durability)
        return queue.groups[queue.group_ids[name]]

    def _nonce(self) -> int:
        if not self._nonces:
            drawn = self.rng.randbytes(8 * NONCES_DRAWN)
            # Never 0, which stands for no lease.
            self._nonces = [nonce | 1 for (nonce,) in struct.iter_unpack("<Q", drawn)]
        return self._nonces.pop()

    # settling

    def settle_lease(self, nonce: int, how: Settling) -> Ticket:
        """End all deliveries that a lease still holds."""
        if how.outcome is Outcome.ACKED:
            ticket = self.run(lambda: self._ack_whole(nonce))
            if ticket is not None:
                return ticket
        return self._settle(lambda: settle_rules.find_lease(self.core, nonce), how)

    def _ack_whole(self, nonce: int) -> Ticket | None:
        """The short way when nothing of the lease was settled on its own; None when something was."""
        now, monotonic = self.begin()
        self.tick(now, monotonic)
        whole = settle_rules.decide_ack_whole(self.core, nonce, now)
        if whole is None:
            return None
        lease, settled = whole
        self.core.let_go(lease, lease.count)
        ticket = self.commit_frame([], [settled], lease.group.queue.options.durability or self.durability)
        if self.waiters:
            self.changed([settled])
        return ticket

    def settle(self, receipts: Sequence[Receipt], how: Settling) -> Ticket:
        """End deliveries with proof of each; all of them or none."""
        return self._settle(lambda: settle_rules.find_receipts(self.core, receipts), how)

    def _settle(self, find: Callable[[], list[Chosen]], how: Settling) -> Ticket:
        def operation() -> Ticket:
            now, monotonic = self.begin()
            self.tick(now, monotonic)
            return self._settle_chosen(find(), how, now)

        return self.run(operation)

    def _settle_chosen(self, chosen: list[Chosen], how: Settling, now: int) -> Ticket:
        entries = settle_rules.decide_settle(self.core, chosen, how, now, self.rng)
        settle_rules.close_chosen(self.core, chosen)
        queue = chosen[0].lease.group.queue if chosen else None
        level = (queue.options.durability if queue else None) or self.durability
        ticket = self.commit_frame([], entries, level) if entries else 0
        if how.outcome is not Outcome.ACKED or self.waiters:
            self.changed(entries)
        return ticket

    def extend(self, nonce: int, seconds: float) -> int:
        """Move a lease's deadline; returns when it expires now. Leases are volatile: nothing is journaled."""

        def question(now: int) -> int:
            lease = self.core.leases.get(nonce)
            if lease is None:
                raise LeaseLost("the lease expired or everything in it was settled")
            monotonic = self.clock.monotonic()
            lease.deadline = monotonic + round(seconds * 1_000_000)
            self.core.hold_until(lease)
            expires_at = now + lease.deadline - monotonic
            self.on_deadline(expires_at)  # it may be sooner than before
            return expires_at

        return self.look(question)[0]

    # everything else

    def change(self, decide: Callable[[int], Iterable[Entry]], level: Durability | None = None) -> Ticket:
        """Run one decision as one frame."""

        def operation() -> Ticket:
            now, monotonic = self.begin()
            self.tick(now, monotonic)
            entries = list(decide(now))
            ticket = self.commit_frame([], entries, level or self.durability) if entries else 0
            self.changed(entries)
            return ticket

        return self.run(operation)

    def look(self, question: Callable[[int], T]) -> tuple[T, Ticket]:
        """Answer a question from the state, with the ticket of what it read."""

        def operation() -> tuple[T, Ticket]:
            now, monotonic = self.begin()
            self.tick(now, monotonic)
            return question(now), self._must_sync

        return self.run(operation)

    def redrive(
        self, name: str, letters: Sequence[dead.DeadLetter], first_seconds: float, gap_seconds: float
    ) -> Ticket:
        """Bring dead letters back to where they died."""
        return self.change(
            lambda now: dead.decide_redrive(
                self.core,
                admin.queue_named(self.core, name + DLQ_SUFFIX),
                letters,
                now,
                first_seconds,
                gap_seconds,
            )
        )

    # segments

    def loaded(self, pieces: Sequence[Piece]) -> Sequence[Piece]:
        """Pieces with everything in memory, and the next row group on its way. No lock is held."""
        sealed = sealed_extents(pieces)
        if not sealed or self.store is None:
            return pieces
        if self.prefetcher is not None:
            for extent in sealed:
                self.prefetcher.after(extent)
        return load(pieces, self.store)
