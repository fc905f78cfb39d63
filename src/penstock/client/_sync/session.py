# Generated from penstock/client/_async/session.py by `make generate`. Do not edit.
"""What the client's faces need of a session; its rules are those of `penstock.client.session`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from penstock.batch import Batch
from penstock.clock import Clock
from penstock.model import Durability, MessageId, Receipt
from penstock.operations import Operation
from penstock.replies import LeaseReplies, LeaseReply, Piece, PushReply
from penstock.requests import LeaseRequest, PartitionChoice, QueueChoice, Settling
from penstock.requests import Operation as Step

R = TypeVar("R")


class Pipeline(Protocol):
    """Settles that are not waited for one by one; they may overtake each other. A lost lease is no error here.

    Creating one waits for nothing: an event loop may be about to close.
    """

    def settle(self, receipts: Sequence[Receipt], how: Settling) -> None: ...

    def confirm(self) -> None:
        """Return when all of them are durable; raises what went wrong."""


class SessionCalls(Protocol):
    """What a session can be asked."""

    clock: Clock

    def close(self) -> None: ...

    def execute(self, operation: Operation[R]) -> R: ...

    def push_bytes(self, queue: str, payload: bytes) -> MessageId:
        """Push one message with no options at all."""

    def push_one(self, queue: str, data: bytes, durability: Durability | None) -> MessageId:
        """Push a batch of one message."""

    def push(
        self,
        queue: str,
        batch: Batch,
        partition: PartitionChoice,
        durability: Durability | None,
        skips: bool = False,
    ) -> PushReply:
        """Push a batch; with `skips`, those of its messages that can be stored."""

    def lease(self, queue: str, group: str, request: LeaseRequest, wait_seconds: float) -> LeaseReply: ...

    def lease_queues(
        self, choice: QueueChoice, group: str, request: LeaseRequest, wait_seconds: float
    ) -> LeaseReplies: ...

    def loaded(self, pieces: Sequence[Piece]) -> Sequence[Piece]: ...

    def settle(self, receipts: Sequence[Receipt], how: Settling) -> None: ...

    def settle_lease(self, nonce: int, how: Settling) -> None: ...

    def settle_leases(self, nonces: Sequence[int], how: Settling) -> None:
        """Raises for a lease that is lost when the others are settled."""

    def extend(self, nonce: int, seconds: float) -> int: ...

    def pipeline(self) -> Pipeline: ...

    def transact(self, operations: Sequence[Step]) -> list[list[MessageId]]: ...
