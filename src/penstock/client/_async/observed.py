"""A session that is observed: the same methods, with observers around push, lease and settle."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

from penstock.batch import Batch, encode_one
from penstock.client.observers import Call, Observer, Observers
from penstock.client.session import AsyncPipeline, AsyncSession
from penstock.model import Durability, MessageId, Receipt
from penstock.operations import Operation
from penstock.replies import LeaseReplies, LeaseReply, PushReply
from penstock.requests import LeaseRequest, PartitionChoice, QueueChoice, Settling
from penstock.requests import Operation as Step

R = TypeVar("R")
LEASES_KEPT_MAX = 10_000  # whose queue and size are known when they are settled as a whole


class ObservedSession:
    """Passes everything on to a session, and observers learn of it."""

    def __init__(self, session: AsyncSession, observers: list[Observer]) -> None:
        self.session = session  # what is behind it
        self.clock = session.clock
        self.loaded = session.loaded
        self._observers = Observers(observers)
        self._leases: dict[int, tuple[str, int]] = {}  # nonce → queue, deliveries

    async def close(self) -> None:
        await self.session.close()

    async def execute(self, operation: Operation[R]) -> R:
        return await self.session.execute(operation)

    # pushing

    async def push_bytes(self, queue: str, payload: bytes) -> MessageId:
        return await self.push_one(queue, encode_one(payload), None)

    async def push_one(self, queue: str, data: bytes, durability: Durability | None) -> MessageId:
        batch, call = Batch(data), Call("push", queue, messages=1)
        started = self.clock.monotonic()
        with self._observers.around(call):
            if call.trace is not None:
                data = bytes(batch.with_trace(call.trace).data)
            id = await self.session.push_one(queue, data, durability)
        self._pushed(call, batch, started)
        return id

    async def push(
        self,
        queue: str,
        batch: Batch,
        partition: PartitionChoice,
        durability: Durability | None,
        skips: bool = False,
    ) -> PushReply:
        call, started = Call("push", queue, messages=batch.count), self.clock.monotonic()
        with self._observers.around(call):
            traced = batch if call.trace is None else batch.with_trace(call.trace)
            reply = await self.session.push(queue, traced, partition, durability, skips)
        self._pushed(call, batch, started)
        return reply

    def _pushed(self, call: Call, batch: Batch, started: int) -> None:
        self._observers.measured("penstock_pushed_messages", "counter", call.messages, queue=call.queue)
        self._observers.measured("penstock_pushed_bytes", "counter", batch.payload_bytes, queue=call.queue)
        self._took(call, started)

    def _took(self, call: Call, started: int) -> None:
        seconds = (self.clock.monotonic() - started) / 1e6
        self._observers.measured(f"penstock_{call.operation}_duration_seconds", "histogram", seconds, queue=call.queue)

    # leasing

    async def lease(self, queue: str, group: str, request: LeaseRequest, wait_seconds: float) -> LeaseReply:
        call, started = Call("lease", queue, group), self.clock.monotonic()
        with self._observers.around(call):
            reply = await self.session.lease(queue, group, request, wait_seconds)
            self._leased(call, reply)
        if not wait_seconds:  # waiting for a message is not work
            self._took(call, started)
        return reply

    async def lease_queues(
        self, choice: QueueChoice, group: str, request: LeaseRequest, wait_seconds: float
    ) -> LeaseReplies:
        call = Call("lease", ",".join(choice.names), group)
        with self._observers.around(call):
            replies = await self.session.lease_queues(choice, group, request, wait_seconds)
            for reply in replies.leases:
                self._leased(call, reply)
        return replies

    def _leased(self, call: Call, reply: LeaseReply) -> None:
        """Count what was handed out; its traces, and how long the oldest of each piece has waited."""
        if not reply.count:
            return
        if len(self._leases) >= LEASES_KEPT_MAX:
            self._leases.pop(next(iter(self._leases)), None)
        self._leases[reply.nonce] = (reply.queue, reply.count)
        call.messages += reply.count
        self._observers.measured(
            "penstock_delivered_messages", "counter", reply.count, queue=reply.queue, group=reply.group
        )
        now = self.clock.now()
        for piece in reply.pieces:
            waited = max(0, now - piece.pushed(0)) / 1e6
            self._observers.measured("penstock_delivery_latency_seconds", "histogram", waited, queue=reply.queue)
            if isinstance(piece.batch, Batch):
                traces = (piece.batch.trace(piece.row(index)) for index in range(len(piece.offsets)))
                call.traces += [trace for trace in traces if trace is not None]

    # settling

    async def settle(self, receipts: Sequence[Receipt], how: Settling) -> None:
        queue = receipts[0].queue if receipts else ""
        with self._settling(queue, len(receipts), how):
            await self.session.settle(receipts, how)

    async def settle_lease(self, nonce: int, how: Settling) -> None:
        queue, count = self._leases.pop(nonce, ("", 0))
        with self._settling(queue, count, how):
            await self.session.settle_lease(nonce, how)

    async def settle_leases(self, nonces: Sequence[int], how: Settling) -> None:
        known = [self._leases.pop(nonce, ("", 0)) for nonce in nonces]
        queue = known[0][0] if known else ""
        with self._settling(queue, sum(count for _, count in known), how):
            await self.session.settle_leases(nonces, how)

    def _settling(self, queue: str, count: int, how: Settling) -> AbstractContextManager[None]:
        return self._observers.settling(Call("settle", queue, messages=count), how.outcome.name.lower(), self.clock)

    async def extend(self, nonce: int, seconds: float) -> int:
        return await self.session.extend(nonce, seconds)

    def pipeline(self) -> AsyncPipeline:
        return self.session.pipeline()

    async def transact(self, operations: Sequence[Step]) -> list[list[MessageId]]:
        return await self.session.transact(operations)
