"""A transaction: operations gathered, then done in one frame."""

from __future__ import annotations

from typing import Any

from penstock import validation
from penstock.batch import Batch
from penstock.client.values import BaseDelivery
from penstock.errors import Closed
from penstock.model import Message, MessageId, Outcome, check_name
from penstock.requests import Operation, PushOperation, SettleOperation


class BaseTransaction:
    """Gathers; nothing happens before the commit, and an error in the block means that nothing happens at all."""

    def __init__(self) -> None:
        self._operations: list[Operation] = []
        self._over = False
        self.ids: list[list[MessageId]] = []  # of each push, once committed

    def push(self, queue: str, payload: Any, **options: Any) -> None:
        """One message; options as in `Queue.push`."""
        self.push_many(queue, [Message(payload=payload, **options)])

    def push_many(self, queue: str, items: Any) -> None:
        """Several messages for one queue."""
        batch = Batch.build(items)
        self._add(PushOperation(check_name(queue), batch, batch.partitions))

    def ack(self, delivery: BaseDelivery) -> None:
        self._add(SettleOperation(delivery.proof, validation.settling(Outcome.ACKED)))

    def nack(self, delivery: BaseDelivery, delay: float | None = None, error: str = "") -> None:
        self._add(SettleOperation(delivery.proof, validation.settling(Outcome.RETRIED, delay, error)))

    def reject(self, delivery: BaseDelivery, reason: str = "") -> None:
        self._add(SettleOperation(delivery.proof, validation.settling(Outcome.REJECTED, error=reason)))

    def release(self, delivery: BaseDelivery) -> None:
        self._add(SettleOperation(delivery.proof, validation.settling(Outcome.RELEASED)))

    def _add(self, operation: Operation) -> None:
        if self._over:
            raise Closed("this transaction is over", hint="begin a new one with transaction()")
        self._operations.append(operation)
