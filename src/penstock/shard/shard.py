"""A shard: push, lease and settle, each with the lock held and in the order that `engine` gives.

Nothing is reported before it is durable: every operation returns its result with a *ticket*, the sequence that must be
durable before the result may leave. `confirm` waits for it in a thread, a `Confirmer` on an event loop. A ticket of 0
needs no waiting. A queue that does not exist is created in the frame of the first push; a refused push leaves no trace.

Only this module and `engine` know both delivery and the journal.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import numpy as np

from penstock import limits
from penstock.batch import Alike, Batch, layout, one_with_ttl
from penstock.batch.layout import DUE
from penstock.delivery import admin, timers
from penstock.delivery import settle as settle_rules
from penstock.delivery.admin import queue_to_push
from penstock.delivery.entries import Entry, Int64s, PartitionsAdded, Push, encode_push_one
from penstock.delivery.group import Group
from penstock.delivery.inspection import ready_of_push
from penstock.delivery.lease import decide_room, leased, select_lease
from penstock.delivery.log import ColumnNotLoaded, Extent, Queue
from penstock.delivery.partial_push import decide_partial
from penstock.delivery.producers import (
    NOBODY,
    Answer,
    answer_bytes_max,
    answered_push,
    check_producer,
    ids_of,
)
from penstock.delivery.push import (
    COMPARED_MAX,
    PushDecision,
    check_same,
    check_types,
    decide_coalesced,
    decide_push,
    used_otherwise,
)
from penstock.delivery.rate_limits import Bill, decide_bill, pay
from penstock.delivery.settle import Chosen
from penstock.delivery.typed_selection import LOOKED_MAX
from penstock.errors import LeaseLost, TooLarge
from penstock.model import DLQ_SUFFIX, ContentType, Durability, MessageId, Outcome, Position, Receipt
from penstock.replies import LeaseReply, Piece, PushFailure, PushReply
from penstock.requests import LeaseRequest, PartitionChoice, Producer, Settling
from penstock.shard.engine import Engine, Ticket
from penstock.shard.payload_rows import load, pieces_of_takes, sealed_extents
from penstock.storage.extents import Extent as SealedExtent

T = TypeVar("T")
NONCES_DRAWN: Final = 512

DECIDED: Final = DUE | layout.PRIORITY | layout.DEDUP_KEY  # columns that leave something to decide about a push


class Shard(Engine):
    """What can be done with the messages of a shard."""

    was_cut = False  # the last lease by types had more to look at than one may; the lock guards it

    # confirmation

    def confirm(self, ticket: Ticket) -> None:
        """Block until what the ticket stands for cannot be undone."""
        if ticket:
            self.commit.wait(ticket)

    @property
    def read_ticket(self) -> Ticket:
        """For replies about the state as it is now. The caller holds the lock."""
        return self._must_sync

    # looking without the lock, for the broker: each is one look at a dictionary

    @property
    def queue_count(self) -> int:
        """How many queues there are."""
        return len(self.core.by_name)

    def queues(self) -> list[Queue]:
        """All queues, the oldest first."""
        return sorted(self.core.queues.values(), key=lambda queue: queue.id)

    def queue_called(self, name: str) -> Queue | None:
        """A queue by its name."""
        return self.core.by_name.get(name)

    @property
    def blocked_task_count(self) -> int:
        """How many tasks wait for others to end."""
        return len(self.core.tasks.held)

    def queue_of_lease(self, nonce: int) -> str | None:
        """The queue whose messages a lease holds; None when the lease is over."""
        lease = self.core.leases.get(nonce)
        return None if lease is None else lease.group.queue.name

    def leased_count(self) -> int:
        """How many messages are leased."""
        return sum(lease.count for lease in list(self.core.leases.values()))

    # watching entries

    def observe(self, observers: Mapping[type, Callable[[Any], None]], on: bool) -> None:
        """Have each kind of entry passed to its observer before it is applied, or no longer."""
        with self.locked():
            for kind, observer in observers.items():
                (self.core.observe if on else self.core.stop_observing)(kind, observer)

    def queue_numbered(self, number: int) -> Queue | None:
        """A queue by its number, for observers, who are called with the lock held."""
        return self.core.queues.get(number)

    # pushing

    def push(
        self,
        name: str,
        batch: Batch,
        partition: PartitionChoice = None,
        durability: Durability | None = None,
        producer: Producer | None = None,
        client: str = "",
        *,
        skips: bool = False,
    ) -> tuple[PushReply, Ticket]:
        """Append a batch to a queue, which is made when it is not there; with `skips`, those that can be stored."""
        self.throttle.wait()
        return self.run(lambda: self._push(name, batch, partition, durability, producer, client, skips))

    def _push(
        self,
        name: str,
        batch: Batch,
        partition: PartitionChoice,
        durability: Durability | None,
        producer: Producer | None,
        client: str,
        skips: bool,
    ) -> tuple[PushReply, Ticket]:
        now = self.begin_push()
        if producer is not None:
            known = self._pushed_before(name, check_producer(producer), batch)
            if known is not None:
                return known, self._must_sync
        queue, created = queue_to_push(self.core, name, now)
        if queue.options.max_length is not None:
            self.tick(now, self.clock.monotonic())  # what has expired makes room
        if skips:
            return self._push_some(queue, created, batch, partition, durability, producer, client, now)
        decided = decide_push(self.core, queue, batch, now, partition, producer or NOBODY)
        if decided.duplicates:
            check_types(queue, batch, decided.duplicates)
        if producer is not None and decided.duplicates:
            _check_frame(queue, decided.push)
        bill = decide_bill([(queue, decided.push)], client, now) if queue.push_limits is not None else None
        reply = self.push_reply(queue, batch, decided)
        if producer is not None and decided.duplicates and decided.entries:
            decided.entries.append(_answered(queue, producer, now, reply))
        read = self._must_sync if decided.duplicates else 0
        if not decided.entries and not created:
            return reply, read
        entries = [*created, *decided.entries] if created else decided.entries
        return reply, self._commit_push(queue, entries, durability, bill, now) or read

    def _push_some(
        self,
        queue: Queue,
        created: Sequence[Entry],
        batch: Batch,
        partition: PartitionChoice,
        durability: Durability | None,
        producer: Producer | None,
        client: str,
        now: int,
    ) -> tuple[PushReply, Ticket]:
        """`_push`, of what can be stored: the reply says of each message what became of it."""
        some = decide_partial(self.core, queue, batch, now, partition, producer or NOBODY)
        decided = some.decided
        if producer is not None and (decided.duplicates or some.failures):
            _check_frame(queue, decided.push)
        bill = decide_bill([(queue, decided.push)], client, now) if queue.push_limits is not None else None
        failures = {row: PushFailure(why.code, why.message, why.hint) for row, why in some.failures.items()}
        reply = self.push_reply(queue, some.batch, decided).among(some.rows, batch.count, failures)
        entries = decided.entries
        if producer is not None and (failures or (decided.duplicates and entries)):
            # Also when nothing is stored: sent again, it must not be decided anew.
            entries = [*entries, _answered(queue, producer, now, reply)]
        if not entries:
            return reply, self._must_sync
        if created and not decided.push.parts:
            return reply, 0  # a queue is not made for a push that stores nothing
        return reply, self._commit_push(queue, [*created, *entries], durability, bill, now) or self._must_sync

    def _pushed_before(self, name: str, producer: Producer, batch: Batch) -> PushReply | None:
        """The reply that a producer received when it pushed the same before."""
        queue = self.core.by_name.get(name)
        answer = self.core.producers.find(producer, 0 if queue is None else queue.id)
        if answer is None or queue is None:
            return None
        if answer.pushes:
            reply = _reply_before(name, answer)
            if reply.count != batch.count:  # some of them are duplicates, so there is nothing else to compare
                raise used_otherwise(producer)
            return reply
        rows = answer.row_array()
        push = Push(queue.id, 0, answer.parts, b"", rows)
        count = answer.parts[0][1] if rows is None else len(rows)
        if count != batch.count:
            raise used_otherwise(producer)
        compared = min(count, COMPARED_MAX)
        partitions, offsets = push.positions(count)
        positions = list(zip(partitions[:compared].tolist(), offsets[:compared].tolist(), strict=True))
        check_same(queue, producer, positions, [batch.payload(row) for row in range(compared)])
        return PushReply(name, count, _named_parts(queue, push, ()), {})

    def push_folded(
        self,
        name: str,
        payloads: Sequence[bytes],
        producers: Sequence[Producer | None],
        client: str = "",
        content: ContentType | Alike = ContentType.BYTES,
    ) -> tuple[tuple[str, Sequence[int]], Ticket]:
        """Single messages that came together, as one batch to one partition: its name, and the offset of each.

        They are refused as a whole, and nothing has happened then: each alone may still be accepted.
        """
        if not self.throttle.is_set():
            self.throttle.wait()
        return self.run(lambda: self._push_folded(name, payloads, producers, client, content))

    def _push_folded(
        self,
        name: str,
        payloads: Sequence[bytes],
        producers: Sequence[Producer | None],
        client: str,
        content: ContentType | Alike,
    ) -> tuple[tuple[str, Sequence[int]], Ticket]:
        now = self.begin_push()
        queue, created = queue_to_push(self.core, name, now)
        if queue.options.max_length is not None:
            self.tick(now, self.clock.monotonic())
        entries, number, offsets = decide_coalesced(self.core, queue, payloads, producers, now, content)
        bill = None
        if queue.push_limits is not None:
            bill = decide_bill([(queue, entry) for entry in entries if isinstance(entry, Push)], client, now)
        read = 0 if type(offsets) is range else self._must_sync
        entries = [*created, *entries] if created else entries
        ticket = self._commit_push(queue, entries, None, bill, now) if entries else 0
        return (queue.partitions[number].name, offsets), ticket or read

    def push_one(self, name: str, data: bytes, durability: Durability | None = None) -> tuple[MessageId, Ticket]:
        """The short path for one message that leaves nothing to decide: no priority, delay or dedup key."""
        if not self.throttle.is_set():
            self.throttle.wait()
        flags = layout.flags_of(data)
        try:
            with self.lock:
                queue = self.core.by_name.get(name)
                is_plain = queue is not None and queue.plain and not flags & DECIDED
                if queue is not None and is_plain and not (self.is_closed or self.changing or self.journal.disk_full):
                    partition = queue.partitions[0]
                    offset, now, life = partition.end, self.clock.now(), 0
                    if queue.ttl_us or flags & layout.TTL:
                        data, life = one_with_ttl(data, flags, queue.ttl_us)
                        flags |= layout.TTL
                    level = durability or queue.options.durability or self.durability
                    frame = encode_push_one(queue.id, now, 0, offset, data)
                    self.changing = True
                    self.core.push_one(queue, data, flags, now, self.journal.sequence + 1)
                    if life:
                        self.core.expire_one(queue, now + life, offset)
                    sequence = self.append_frame(frame, b"", level)
                    if self.waiters:
                        self.waiters.wake(queue.id, 1)  # in every group
                    self.changing = False
                    is_waited_for = level == "fsync" or self.is_remote
                    return MessageId(name, partition.name, offset), sequence if is_waited_for else 0
        except BaseException:
            self.notice()
            raise
        reply, ticket = self.push(name, Batch(data), None, durability)
        return reply.ids()[0], ticket

    def begin_push(self) -> int:
        """`begin()` for pushes, which a nearly full disk refuses too. Returns now."""
        if self.journal.disk_full:
            self.check_space()
        return self.begin()[0]

    def check_space(self) -> None:
        if self.journal.disk_full:
            raise self.journal.push_refusal()

    def _commit_push(
        self,
        queue: Queue,
        entries: list[Entry],
        durability: Durability | None,
        bill: Bill | None,
        now: int,
    ) -> Ticket:
        ticket = self.commit_frame(entries, durability or queue.options.durability or self.durability)
        if bill:
            pay(bill, now)
        queue = self.core.queues[queue.id]  # one that was made was only imagined before
        if self.waiters:
            self._wake_for(queue, entries)
        if queue.near > 0:
            self.delays_changed(queue)
        self.changing = False
        return ticket

    def _wake_for(self, queue: Queue, entries: Sequence[Entry]) -> None:
        count = sum(ready_of_push(queue, entry) for entry in entries if isinstance(entry, Push))
        if count:
            self.waiters.wake(queue.id, count)

    def delays_changed(self, queue: Queue) -> None:
        """After a push to a queue that has messages waiting for their time."""
        if timers.has_too_many_delays(queue):
            timers.drop_far_delays(self.core, queue)
        self.mind_timers()

    def extent_of(self, sealed: SealedExtent) -> Extent:
        """An extent of a segment, with the priorities that every lease looks at. Reads a file: not with the lock."""
        extent = Extent.of_sealed(sealed)
        if extent.flags & layout.PRIORITY:
            extent.load("priority", self.column(extent, "priority"))
        return extent

    def push_reply(
        self, queue: Queue, batch: Batch, decided: PushDecision, made: Sequence[str] | None = None
    ) -> PushReply:
        """What a push is answered; `made` are the partitions that its frame makes, if it is not alone in it."""
        parts = _named_parts(queue, decided.push, decided.entries, made)
        return PushReply(queue.name, batch.count, parts, decided.duplicates)

    # leasing

    def lease(self, name: str, group: str, request: LeaseRequest) -> tuple[LeaseReply, Ticket]:
        """Hand out messages. Nothing to be had is an empty reply, not an error.

        What lies in segments is not in the reply yet; `loaded` brings it when someone looks.
        """
        if request.task_types is not None:
            return self._lease_typed(name, group, request)
        try:
            with self.lock:
                return self.lease_locked(name, group, request)
        except ColumnNotLoaded as need:
            return self.with_columns(need, lambda: self.lease_locked(name, group, request))
        except BaseException:
            self.notice()
            raise

    def _lease_typed(self, name: str, group: str, request: LeaseRequest) -> tuple[LeaseReply, Ticket]:
        """`lease` by types of tasks, which may have to look at many messages: the lock is free in between."""

        def operation() -> tuple[LeaseReply, Ticket, bool]:
            reply, ticket = self.lease_locked(name, group, request)
            return reply, ticket, self.was_cut

        while True:
            reply, ticket, is_cut = self.run(operation)
            if reply.count or not is_cut:
                return reply, ticket

    def lease_locked(self, name: str, group_name: str, request: LeaseRequest) -> tuple[LeaseReply, Ticket]:
        """`lease`, for a caller that holds the lock."""
        core = self.core
        now, monotonic = self.begin()
        if self.is_remote:
            self.require_fresh()
        self.tick(now, monotonic)
        queue = core.by_name.get(name) or admin.queue_named(core, name)
        number = queue.group_ids.get(group_name)
        group = queue.groups[number] if number is not None else self.group_of_use(queue, group_name, request.start, now)
        group.active_at = now
        read = self._must_sync
        room, nonce = decide_room(group, request, now), self._nonce()
        self.changing = True
        try:
            entries, lease, selection = select_lease(core, group, request, room, now, monotonic, nonce)
        except ColumnNotLoaded:  # nothing was used up
            self.changing = False
            raise
        self.was_cut = selection is not None and selection.looked >= LOOKED_MAX
        if entries:
            level = queue.options.durability or self.durability if request.auto_ack or len(entries) > 1 else "os"
            read = self.commit_frame(entries, level) or read
        if lease is None or group.limits is not None or (selection is not None and selection.wakes):
            leased(core, group, request.client, selection, now)
            self.mind_timers()
        if lease is None:
            self.changing = False
            return LeaseReply(name, group_name, 0, 0, (), 0), read
        expires_at = now + lease.deadline - monotonic
        if not request.auto_ack:
            core.add_lease(lease)
            if self.is_remote:
                self.unstarted.append((self.journal.sequence, lease, monotonic))
            if expires_at < self.asleep_until:
                self.on_deadline(expires_at)
        self.changing = False
        pieces, seconds = pieces_of_takes(lease.takes), (lease.deadline - monotonic) / 1e6
        return LeaseReply(name, group_name, nonce, expires_at, pieces, lease.count, seconds, group.batch_max), read

    def group_of_use(self, queue: Queue, name: str, start: Position | None, now: int) -> Group:
        """A group that somebody wants to use: made where `start` says, if it is not there and a start is given."""
        entries = admin.decide_group_of_use(queue, name, start, now)
        if entries:
            self.commit_frame(entries, queue.options.durability or self.durability)
            self.changing = False
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
        ticket = self.commit_frame([settled], lease.group.queue.options.durability or self.durability)
        self.core.close_deliveries(lease, lease.count)
        if self.waiters:
            self.changed([settled])
        self.changing = False
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
        queue = chosen[0].lease.group.queue if chosen else None
        level = (queue.options.durability if queue else None) or self.durability
        ticket = self.commit_frame(entries, level, chosen) if entries else 0
        if how.outcome is not Outcome.ACKED or self.waiters:
            self.changed(entries)
        self.changing = False
        return ticket

    def extend(self, nonce: int, seconds: float) -> int:
        """Move a lease's deadline; returns when it expires now. Leases are volatile: nothing is journaled."""

        def question(now: int) -> int:
            lease = self.core.leases.get(nonce)
            if lease is None or lease.deadline <= self.core.over_at:
                raise LeaseLost("the lease expired or everything in it was settled")
            monotonic = self.clock.monotonic()
            deadline = monotonic + round(seconds * 1_000_000)
            self.changing = True
            lease.deadline = deadline
            self.core.set_deadline(lease)
            self.on_deadline(now + deadline - monotonic)  # it may be sooner than before
            self.changing = False
            return now + deadline - monotonic

        return self.look(question)[0]

    # everything else

    def change(self, decide: Callable[[int], Iterable[Entry]], level: Durability | None = None) -> Ticket:
        """Run one decision as one frame."""

        def operation(now: int) -> Ticket:
            entries = list(decide(now))
            if entries and self.joining is not None:
                entries += self.joining(now)
            ticket = self.commit_frame(entries, level or self.durability) if entries else 0
            self.changed(entries)
            self.on_unreported()
            return ticket

        return self.run_now(operation)

    def look(self, question: Callable[[int], T]) -> tuple[T, Ticket]:
        """Answer a question from the state, with the ticket of what it read."""

        def operation() -> tuple[T, Ticket]:
            now, monotonic = self.begin()
            if self.is_remote:
                self.require_fresh()
            self.tick(now, monotonic)
            return question(now), self._must_sync

        return self.run(operation)

    def redrive(
        self, name: str, letters: Sequence[settle_rules.DeadLetter], first_seconds: float, gap_seconds: float
    ) -> Ticket:
        """Bring dead letters back to where they died."""
        return self.change(
            lambda now: settle_rules.decide_redrive(
                self.core,
                admin.queue_named(self.core, name + DLQ_SUFFIX),
                letters,
                now,
                first_seconds,
                gap_seconds,
            )
        )

    # segments

    def loaded(self, pieces: Sequence[Piece], *, only_kept: bool = False) -> Sequence[Piece]:
        """Pieces in memory, with `only_kept` without what is gone; the next row group is coming. No lock is held."""
        sealed = sealed_extents(pieces)
        if not sealed or self.store is None:
            return pieces
        if self.prefetcher is not None:
            for extent in sealed:
                self.prefetcher.after(extent)
        return load(pieces, self.store, only_kept=only_kept)


def _answered(queue: Queue, producer: Producer, now: int, reply: PushReply) -> Entry:
    failures = {row: (why.code, why.message, why.hint) for row, why in reply.failures.items()}
    return answered_push(queue.id, producer, now, reply.ids(), reply.duplicates, failures)


def _reply_before(queue: str, answer: Answer) -> PushReply:
    """The reply that an answer with ids stands for. What older versions kept says only that there were duplicates."""
    ids = [id for push in answer.pushes for id in ids_of(push)]
    failures = {row: PushFailure(*why) for *why, rows in answer.failures for row in rows}
    count = len(ids) + len(failures)
    if not answer.duplicates and not failures:
        return PushReply(queue, count, (), dict(enumerate(ids)))
    places = dict(zip((row for row in range(count) if row not in failures), ids, strict=True))
    duplicates = {row: places.pop(row) for row in answer.duplicates}
    parts = [(id.partition, 1, id.offset, np.array([row])) for row, id in places.items()]
    return PushReply(queue, count, parts, duplicates, failures)


def _check_frame(queue: Queue, push: Push) -> None:
    """The ids of duplicates go into the frame too."""
    size = len(push.batch) + answer_bytes_max(queue, push)
    if size > limits.frame_bytes_max - limits.MIB:
        raise TooLarge(f"the batch and the ids of its messages take {size:,} bytes", hint="split it into smaller ones")


def _named_parts(
    queue: Queue, push: Push, entries: Sequence[Entry], made: Sequence[str] | None = None
) -> list[tuple[str, int, int, Int64s | None]]:
    known = queue.partitions
    end = len(known)
    if made is None and push.parts and push.parts[-1][0] >= end:  # they are in order
        added = (entry for entry in entries if isinstance(entry, PartitionsAdded) and entry.queue == queue.id)
        made = [name for entry in added for name in entry.names]
    return [
        (known[number].name if number < end else (made or ())[number - end], count, first, rows)
        for (number, count, first), rows in zip(push.parts, push.rows_by_part() if push.parts else (), strict=True)
    ]
