"""The methods of a session over the wire: each makes a request and asks.

They are written once for threads and for event loops. Where `ask` is a coroutine function, what they return is awaited.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from penstock import operations as ops
from penstock.batch import Batch
from penstock.model import Durability, Receipt
from penstock.remote import request as requests
from penstock.remote.request import Request
from penstock.replies import Piece
from penstock.requests import LeaseRequest, Operation, PartitionChoice, QueueChoice, Settling


class RemoteSession:
    """A transport implements `ask`, and the pushes of single messages as it does best."""

    @abstractmethod
    def ask(self, request: Request) -> Any:
        """The reply to a request; its error is raised."""

    def ask_push(self, request: Request) -> Any:
        """As `ask`, for a push: a transport may hold it back while too many are under way."""
        return self.ask(request)

    def execute(self, operation: ops.Operation[Any]) -> Any:
        """Execute an operation; its result."""
        return self.ask(requests.execute(operation))

    def push_one(self, queue: str, data: bytes, durability: Durability | None) -> Any:
        """Push a batch of one message; its `MessageId`."""
        return self.ask_push(requests.push_encoded(queue, data, durability))

    def push(
        self,
        queue: str,
        batch: Batch,
        partition: PartitionChoice,
        durability: Durability | None,
        skips: bool = False,
    ) -> Any:
        """Push a batch, or those of its messages that can be stored; a `PushReply`."""
        return self.ask_push(requests.push(queue, batch, partition, durability, skips=skips))

    def lease(self, queue: str, group: str, request: LeaseRequest, wait_seconds: float = 0.0) -> Any:
        """Lease messages, a `LeaseReply`; the broker waits up to `wait_seconds` for the first."""
        return self.ask(requests.lease(queue, group, request, wait_seconds))

    def lease_queues(self, choice: QueueChoice, group: str, request: LeaseRequest, wait_seconds: float = 0.0) -> Any:
        """Lease messages of several queues, `LeaseReplies`; the broker waits up to `wait_seconds` for the first."""
        return self.ask(requests.lease_queues(choice, group, request, wait_seconds))

    def loaded(self, pieces: Sequence[Piece]) -> Sequence[Piece]:
        """Payloads that came over the wire are in memory."""
        return pieces

    def settle(self, receipts: Sequence[Receipt], how: Settling) -> Any:
        """End deliveries."""
        return self.ask(requests.settle(receipts, 0, how))

    def settle_lease(self, nonce: int, how: Settling) -> Any:
        """End all deliveries that a lease still holds."""
        return self.ask(requests.settle((), nonce, how))

    def settle_leases(self, nonces: Sequence[int], how: Settling) -> Any:
        """End all deliveries that some leases still hold."""
        return self.ask(requests.settle((), 0, how, nonces))

    def extend(self, nonce: int, seconds: float) -> Any:
        """Hold a lease longer; the instant at which it ends, µs."""
        return self.ask(requests.extend(nonce, seconds))

    def transact(self, operations: Sequence[Operation]) -> Any:
        """Pushes and settles, all or nothing; the ids of each push."""
        return self.ask(requests.transact(operations))
