"""What sessions over the wire have in common, whatever carries their requests: each call makes a request and asks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar

from penstock import operations as ops
from penstock.batch import Batch
from penstock.model import Durability, MessageId, Receipt
from penstock.remote import request as requests
from penstock.remote.request import Request
from penstock.replies import LeaseReply, Piece, PushReply
from penstock.requests import LeaseRequest, Operation, PartitionChoice, Settling

R = TypeVar("R")


class RemoteSession:
    """For threads. A transport implements `ask`, and the pushes of single messages as it does best."""

    @abstractmethod
    def ask(self, request: Request) -> Any:
        """The reply to a request; its error is raised."""

    def execute(self, operation: ops.Operation[R]) -> R:
        """Execute an operation."""
        reply: R = self.ask(requests.execute(operation))
        return reply

    def push_one(self, queue: str, data: bytes, durability: Durability | None) -> MessageId:
        """Push a batch of one message."""
        id: MessageId = self.ask(requests.push_encoded(queue, data, durability))
        return id

    def push(self, queue: str, batch: Batch, partition: PartitionChoice, durability: Durability | None) -> PushReply:
        """Push a batch."""
        reply: PushReply = self.ask(requests.push(queue, batch, partition, durability))
        return reply

    def lease(self, queue: str, group: str, request: LeaseRequest, wait_seconds: float = 0.0) -> LeaseReply:
        """Lease messages; the broker waits up to `wait_seconds` for the first."""
        reply: LeaseReply = self.ask(requests.lease(queue, group, request, wait_seconds))
        return reply

    def loaded(self, pieces: Sequence[Piece]) -> Sequence[Piece]:
        """What came over the wire is here."""
        return pieces

    def settle(self, receipts: Sequence[Receipt], how: Settling) -> None:
        """End deliveries."""
        self.ask(requests.settle(receipts, 0, how))

    def settle_lease(self, nonce: int, how: Settling) -> None:
        """End all deliveries that a lease still holds."""
        self.ask(requests.settle((), nonce, how))

    def extend(self, nonce: int, seconds: float) -> int:
        """Hold a lease longer; the instant at which it ends, µs."""
        expires_at: int = self.ask(requests.extend(nonce, seconds))
        return expires_at

    def transact(self, operations: Sequence[Operation]) -> list[list[MessageId]]:
        """Pushes and settles, all or nothing; the ids of each push."""
        ids: list[list[MessageId]] = self.ask(requests.transact(operations))
        return ids


class AsyncRemoteSession:
    """For an event loop. A transport implements `ask`, and the pushes of single messages as it does best."""

    @abstractmethod
    async def ask(self, request: Request) -> Any:
        """The reply to a request; its error is raised."""

    async def execute(self, operation: ops.Operation[R]) -> R:
        """Execute an operation."""
        reply: R = await self.ask(requests.execute(operation))
        return reply

    async def push_one(self, queue: str, data: bytes, durability: Durability | None) -> MessageId:
        """Push a batch of one message."""
        id: MessageId = await self.ask(requests.push_encoded(queue, data, durability))
        return id

    async def push(
        self, queue: str, batch: Batch, partition: PartitionChoice, durability: Durability | None
    ) -> PushReply:
        """Push a batch."""
        reply: PushReply = await self.ask(requests.push(queue, batch, partition, durability))
        return reply

    async def lease(self, queue: str, group: str, request: LeaseRequest, wait_seconds: float = 0.0) -> LeaseReply:
        """Lease messages; the broker waits up to `wait_seconds` for the first."""
        reply: LeaseReply = await self.ask(requests.lease(queue, group, request, wait_seconds))
        return reply

    def loaded(self, pieces: Sequence[Piece]) -> Sequence[Piece]:
        """What came over the wire is here."""
        return pieces

    async def settle(self, receipts: Sequence[Receipt], how: Settling) -> None:
        """End deliveries."""
        await self.ask(requests.settle(receipts, 0, how))

    async def settle_lease(self, nonce: int, how: Settling) -> None:
        """End all deliveries that a lease still holds."""
        await self.ask(requests.settle((), nonce, how))

    async def extend(self, nonce: int, seconds: float) -> int:
        """Hold a lease longer; the instant at which it ends, µs."""
        expires_at: int = await self.ask(requests.extend(nonce, seconds))
        return expires_at

    async def transact(self, operations: Sequence[Operation]) -> list[list[MessageId]]:
        """Pushes and settles, all or nothing; the ids of each push."""
        ids: list[list[MessageId]] = await self.ask(requests.transact(operations))
        return ids
