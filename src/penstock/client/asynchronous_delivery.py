"""Deliveries of the asyncio face, and handing them out one by one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress

from penstock import validation
from penstock.client.delivery import BaseDelivery, BaseLeased
from penstock.client.session import AsyncSession
from penstock.client.settlings import ACK, LEFT, RELEASE
from penstock.errors import StateError, Unavailable
from penstock.model import Outcome
from penstock.requests import Settling


class Delivery(BaseDelivery):
    """One handing of one message; settle it once."""

    __slots__ = ()

    async def ack(self) -> None:
        await self._settle(ACK)

    async def nack(self, delay: float | None = None, error: str = "") -> None:
        await self._settle(validation.settling(Outcome.RETRIED, delay, error))

    async def reject(self, reason: str = "") -> None:
        await self._settle(validation.settling(Outcome.REJECTED, error=reason))

    async def release(self) -> None:
        await self._settle(RELEASE)

    async def snooze(self, seconds: float) -> None:
        await self._settle(validation.settling(Outcome.SNOOZED, seconds))

    async def extend(self, seconds: float) -> None:
        leased: Leased = self._leased
        await leased.extend(seconds)

    async def _settle(self, how: Settling) -> None:
        session: AsyncSession = self._leased.session
        await session.settle((self.proof,), how)
        self.settled = True


class Leased(BaseLeased[Delivery]):
    """The deliveries of one lease, as a sequence."""

    __slots__ = ()

    _delivery = Delivery

    async def ack(self) -> None:
        await self._settle(ACK)

    async def nack(self, delay: float | None = None, error: str = "") -> None:
        await self._settle(validation.settling(Outcome.RETRIED, delay, error))

    async def reject(self, reason: str = "") -> None:
        await self._settle(validation.settling(Outcome.REJECTED, error=reason))

    async def release(self) -> None:
        await self._settle(RELEASE)

    async def extend(self, seconds: float) -> None:
        self.expires_micros = await self.session.extend(self.nonce, validation.extension(seconds))

    async def _settle(self, how: Settling) -> None:
        if self.nonce:
            await self.session.settle_lease(self.nonce, how)


async def hand_out(leased: Leased) -> AsyncGenerator[Delivery]:
    """One by one; the end of the lease confirms all acks."""
    pipeline = leased.session.pipeline()
    current: Delivery | None = None
    deliveries = iter(leased)
    try:
        for delivery in deliveries:
            current = delivery
            yield delivery
            current = None
            if not delivery.settled:
                pipeline.settle((delivery.proof,), ACK)
    except (GeneratorExit, asyncio.CancelledError):
        # No awaiting here: the loop may be closing. The settles are made durable by whoever commits next.
        if current is not None and not current.settled:
            pipeline.settle((current.proof,), LEFT)
        # By their receipts, since settles may overtake each other: the lease as a whole would include the one at hand.
        if rest := [delivery.proof for delivery in deliveries]:
            pipeline.settle(rest, RELEASE)
        raise
    await pipeline.confirm()


@asynccontextmanager
async def kept_alive(leased: Leased) -> AsyncIterator[None]:
    """Extend a lease at half its time, until the block ends or the lease does."""

    async def extend() -> None:
        with suppress(StateError):  # the lease is over, or the handle closed
            while True:
                await asyncio.sleep(leased.lease_seconds / 2)
                with suppress(Unavailable):  # the broker may be back in time
                    await leased.extend(leased.lease_seconds)

    keeper = asyncio.create_task(extend())
    try:
        yield
    finally:
        keeper.cancel()
