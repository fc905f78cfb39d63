"""The embedded session for threads: methods return when their effect is durable."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TypeVar

from penstock import operations as ops
from penstock.batch import Batch, encode_one
from penstock.embedded.session import Session
from penstock.errors import LeaseLost
from penstock.forks import refuse_in_forks
from penstock.model import Durability, MessageId, Receipt, check_durability
from penstock.replies import LeaseReplies, LeaseReply, PushReply
from penstock.requests import LeaseRequest, Operation, PartitionChoice, QueueChoice, Settling
from penstock.shard.engine import Ticket

R = TypeVar("R")


class Pipeline:
    """Settles that are not waited for one by one: the last of them confirms them all."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._ticket: Ticket = 0

    def settle(self, receipts: Sequence[Receipt], how: Settling) -> None:
        with suppress(LeaseLost):
            self._ticket = self._session.settle(receipts, how)

    def confirm(self) -> None:
        """Return when all of them are durable."""
        self._session.confirm(self._ticket)


class BlockingSession:
    """A session whose methods return what is durable; safe to share between threads."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.clock = session.clock
        self.loaded = session.loaded
        self.extend = session.extend
        # The shard's own methods: what is called most often goes straight to it.
        self._push_one = session.push_one
        self._push = session.shard.push
        self._lease = session.lease
        self._settle = session.settle
        self._settle_lease = session.settle_lease
        self._confirm = session.confirm
        refuse_in_forks(self)

    def close(self) -> None:
        self.session.close()

    def execute(self, operation: ops.Operation[R]) -> R:
        """Execute an operation."""
        reply, ticket = self.session.run(operation)
        self._confirm(ticket)
        return reply

    def push_bytes(self, queue: str, payload: bytes) -> MessageId:
        """Push one message without options."""
        id, ticket = self._push_one(queue, encode_one(payload))
        if ticket:
            self._confirm(ticket)
        return id

    def push_one(self, queue: str, data: bytes, durability: Durability | None) -> MessageId:
        """Push a batch of one message."""
        id, ticket = self._push_one(queue, data, durability)
        if ticket:
            self._confirm(ticket)
        return id

    def push(
        self,
        queue: str,
        batch: Batch,
        partition: PartitionChoice,
        durability: Durability | None,
        skips: bool = False,
    ) -> PushReply:
        """Push a batch; with `skips`, those of its messages that can be stored."""
        if durability is not None:
            check_durability(durability)
        reply, ticket = self._push(queue, batch, partition, durability, skips=skips)
        if ticket:
            self._confirm(ticket)
        return reply

    def lease(self, queue: str, group: str, request: LeaseRequest, wait_seconds: float) -> LeaseReply:
        """Lease messages; blocks up to `wait_seconds` for the first."""
        if wait_seconds:
            reply, ticket = self.session.lease_waiting(queue, group, request, wait_seconds)
        else:
            reply, ticket = self._lease(queue, group, request)
        if ticket:
            self._confirm(ticket)
        if reply.count and self.session.reads_elsewhere:
            return self.session.load_lease(reply)
        return reply

    def lease_queues(self, choice: QueueChoice, group: str, request: LeaseRequest, wait_seconds: float) -> LeaseReplies:
        """Lease messages of several queues; blocks up to `wait_seconds` for the first."""
        reply, ticket = self.session.lease_queues(choice, group, request, wait_seconds)
        if ticket:
            self._confirm(ticket)
        return self.session.loaded_reply(reply) if self.session.reads_elsewhere else reply

    def settle(self, receipts: Sequence[Receipt], how: Settling) -> None:
        """End deliveries."""
        ticket = self._settle(receipts, how)
        if ticket:
            self._confirm(ticket)

    def settle_lease(self, nonce: int, how: Settling) -> None:
        """End all deliveries that a lease still holds."""
        ticket = self._settle_lease(nonce, how)
        if ticket:
            self._confirm(ticket)

    def settle_leases(self, nonces: Sequence[int], how: Settling) -> None:
        """End all deliveries that some leases still hold; raises for one that is lost when the others are settled."""
        failure, ticket = self.session.settle_leases(nonces, how)
        self._confirm(ticket)
        if failure is not None:
            raise failure

    def pipeline(self) -> Pipeline:
        return Pipeline(self.session)

    def transact(self, operations: Sequence[Operation]) -> list[list[MessageId]]:
        """Pushes and settles, all or nothing; the ids of each push."""
        ids, ticket = self.session.transact(operations)
        self._confirm(ticket)
        return ids
