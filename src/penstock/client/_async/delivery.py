"""Deliveries, and how to settle them."""

from __future__ import annotations

from penstock import validation
from penstock.client.session import AsyncSession
from penstock.client.values import BaseDelivery, BaseLeased, BaseLeasedQueues
from penstock.model import Outcome
from penstock.requests import ACK, RELEASE, Settling


class Delivery(BaseDelivery):
    """One handing of one message; settle it once."""

    __slots__ = ()

    async def ack(self) -> None:
        """Done: it will not be delivered to this group again."""
        session: AsyncSession = self._leased.session  # as in `_settle`, without a call: this is hot
        await session.settle((self.proof,), ACK)
        self.settled = True

    async def nack(self, delay: float | None = None, error: str = "") -> None:
        """Failed: retry after `delay`, or after the queue's backoff; dead-letter after the last attempt."""
        await self._settle(validation.settling(Outcome.RETRIED, delay, error))

    async def reject(self, reason: str = "") -> None:
        """Hopeless: dead-letter now."""
        await self._settle(validation.settling(Outcome.REJECTED, error=reason))

    async def release(self) -> None:
        """Give it back; the attempt does not count."""
        await self._settle(RELEASE)

    async def snooze(self, seconds: float) -> None:
        """Deliver it again later; the attempt does not count."""
        await self._settle(validation.settling(Outcome.SNOOZED, seconds))

    async def extend(self, seconds: float) -> None:
        """Hold the whole lease for `seconds` from now."""
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
        """Acknowledge all that is not settled yet, in one operation."""
        if self.nonce:
            await self.session.settle_lease(self.nonce, ACK)

    async def nack(self, delay: float | None = None, error: str = "") -> None:
        """Retry all of them, after `delay` or after the queue's backoff."""
        await self._settle(validation.settling(Outcome.RETRIED, delay, error))

    async def reject(self, reason: str = "") -> None:
        """Dead-letter all of them now."""
        await self._settle(validation.settling(Outcome.REJECTED, error=reason))

    async def release(self) -> None:
        """Give all of them back; the attempts do not count."""
        await self._settle(RELEASE)

    async def extend(self, seconds: float) -> None:
        """Hold the lease for `seconds` from now."""
        self.expires_micros = await self.session.extend(self.nonce, validation.extension(seconds))

    async def _settle(self, how: Settling) -> None:
        if self.nonce:
            await self.session.settle_lease(self.nonce, how)


class LeasedQueues(BaseLeasedQueues[Delivery, Leased]):
    """The deliveries of a lease over several queues, as a sequence; `leases` has them by queue."""

    __slots__ = ()

    async def ack(self) -> None:
        """Acknowledge all that is not settled yet, in one operation."""
        await self._settle(ACK)

    async def nack(self, delay: float | None = None, error: str = "") -> None:
        """Retry all of them, after `delay` or after the backoff of their queues."""
        await self._settle(validation.settling(Outcome.RETRIED, delay, error))

    async def reject(self, reason: str = "") -> None:
        """Dead-letter all of them now."""
        await self._settle(validation.settling(Outcome.REJECTED, error=reason))

    async def release(self) -> None:
        """Give all of them back; the attempts do not count."""
        await self._settle(RELEASE)

    async def extend(self, seconds: float) -> None:
        """Hold the leases for `seconds` from now."""
        for lease in self.leases:
            await lease.extend(seconds)

    async def _settle(self, how: Settling) -> None:
        if self.leases:
            await self.session.settle_leases([lease.nonce for lease in self.leases], how)
