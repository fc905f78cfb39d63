"""A shard: what can be done with messages, in the order that `engine` tells.

Tell no one before it is durable: every operation returns its result with a *ticket*, the sequence that must be durable
before the result may be told. `confirm` waits for it in a thread, `confirmed` on an event loop. A ticket of 0 needs no
waiting.

Only this module, `pushing` and `engine` know both delivery and the journal.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from penstock.delivery import admin, dead_letters
from penstock.delivery import settle as settle_rules
from penstock.delivery.entries import Entry
from penstock.delivery.group import Group
from penstock.delivery.lease import decide_room, leased, select_lease
from penstock.delivery.log import ColumnNotLoaded, Queue
from penstock.delivery.settle import Chosen
from penstock.errors import LeaseLost
from penstock.model import DLQ_SUFFIX, Durability, Outcome, Position, Receipt
from penstock.replies import LeaseReply, Piece
from penstock.requests import LeaseRequest, Settling
from penstock.shard.engine import Ticket
from penstock.shard.payload_rows import load, pieces_of_takes, sealed_extents
from penstock.shard.pushes import Pushing

T = TypeVar("T")
NONCES_DRAWN: Final = 512


class Shard(Pushing):
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

    # leasing

    def lease(self, name: str, group: str, request: LeaseRequest) -> tuple[LeaseReply, Ticket]:
        """Hand out messages. Nothing to be had is an empty reply, not an error.

        What lies in segments is not in the reply yet; `loaded` brings it when someone looks.
        """
        try:
            with self.lock:
                return self._lease(name, group, request)
        except ColumnNotLoaded as need:
            return self.with_columns(need, lambda: self._lease(name, group, request))
        except BaseException:
            self.notice()
            raise

    def _lease(self, name: str, group_name: str, request: LeaseRequest) -> tuple[LeaseReply, Ticket]:
        core = self.core
        now, monotonic = self.begin()
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

        def operation() -> Ticket:
            now, monotonic = self.begin()
            self.tick(now, monotonic)
            entries = list(decide(now))
            ticket = self.commit_frame(entries, level or self.durability) if entries else 0
            self.changed(entries)
            self.on_unreported()
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
        self, name: str, letters: Sequence[dead_letters.DeadLetter], first_seconds: float, gap_seconds: float
    ) -> Ticket:
        """Bring dead letters back to where they died."""
        return self.change(
            lambda now: dead_letters.decide_redrive(
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
