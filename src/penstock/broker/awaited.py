"""The broker's operations for coroutines: each callback form, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.batch import Batch
from penstock.broker.access import Client
from penstock.broker.answers import Told, raised, resolve
from penstock.broker.folding import Producer
from penstock.errors import PenstockError
from penstock.model import Durability, Outcome, Receipt
from penstock.replies import LeaseReply, PushReply
from penstock.requests import LeaseRequest, PartitionChoice, Settling

if TYPE_CHECKING:
    from penstock.broker.leasing import Pending


class Awaited:
    """What a broker offers beside its callback forms; these raise."""

    loop: asyncio.AbstractEventLoop
    push: Callable[..., None]
    lease: Callable[..., Pending]
    settle: Callable[..., None]
    settle_each: Callable[..., None]
    settle_lease: Callable[..., None]
    extend: Callable[..., None]

    async def pushed(
        self,
        client: Client,
        queue: str,
        batch: Batch,
        partition: PartitionChoice = None,
        durability: Durability | None = None,
        producer: Producer | None = None,
    ) -> PushReply:
        """`push`, awaited."""
        reply: PushReply = await self._awaited(
            partial(self.push, client, queue, batch, partition, durability, producer)
        )
        return reply

    async def leased(
        self, client: Client, queue: str, group: str, request: LeaseRequest, wait_seconds: float = 0.0
    ) -> LeaseReply:
        """`lease`, awaited; cancelling it gives back what was leased meanwhile."""
        future: asyncio.Future[Any] = self.loop.create_future()

        def told(answer: Any) -> None:
            if future.done():  # cancelled, and the caller has not run since
                self._give_back(client, answer)
            else:
                resolve(future, answer)

        pending = self.lease(client, queue, group, request, wait_seconds, told)
        try:
            reply: LeaseReply = raised(await future)
        except asyncio.CancelledError:
            pending.cancel()
            if future.done() and not future.cancelled():  # it came in the same moment
                self._give_back(client, future.result())
            raise
        return reply

    def _give_back(self, client: Client, answer: Any) -> None:
        if isinstance(answer, LeaseReply) and answer.count:
            self.settle_lease(client, answer.nonce, Settling(Outcome.RELEASED), lambda told: None)

    async def settled(self, client: Client, receipts: Sequence[Receipt], how: Settling) -> None:
        """`settle`, awaited."""
        await self._awaited(partial(self.settle, client, receipts, how))

    async def settled_each(
        self, client: Client, receipts: Sequence[Receipt], how: Settling
    ) -> list[PenstockError | None]:
        """`settle_each`, awaited."""
        answers: list[PenstockError | None] = await self._awaited(partial(self.settle_each, client, receipts, how))
        return answers

    async def settled_lease(self, client: Client, nonce: int, how: Settling) -> None:
        """`settle_lease`, awaited."""
        await self._awaited(partial(self.settle_lease, client, nonce, how))

    async def extended(self, client: Client, nonce: int, seconds: float) -> int:
        """`extend`, awaited."""
        expires_at: int = await self._awaited(partial(self.extend, client, nonce, seconds))
        return expires_at

    async def _awaited(self, operation: Callable[[Told], None]) -> Any:
        future: asyncio.Future[Any] = self.loop.create_future()
        operation(partial(resolve, future))
        return raised(await future)
