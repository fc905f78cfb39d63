# Generated from penstock/client/_async/delivery.py by `make generate`. Do not edit.
"""Deliveries, and how to settle them."""

from __future__ import annotations

from penstock import validation
from penstock.client.session import Session
from penstock.client.values import BaseDelivery, BaseLeased, BaseLeasedQueues
from penstock.model import Outcome
from penstock.requests import ACK, RELEASE, Settling


class Delivery(BaseDelivery):
    """One handing of one message; settle it once."""

    __slots__ = ()

    def ack(self) -> None:
        """Done: it will not be delivered to this group again."""
        session: Session = self._leased.session  # as in `_settle`, without a call: this is hot
        session.settle((self.proof,), ACK)
        self.settled = True

    def nack(self, delay: float | None = None, error: str = "") -> None:
        """Failed: retry after `delay`, or after the queue's backoff; dead-letter after the last attempt."""
        self._settle(validation.settling(Outcome.RETRIED, delay, error))

    def reject(self, reason: str = "") -> None:
        """Hopeless: dead-letter now."""
        self._settle(validation.settling(Outcome.REJECTED, error=reason))

    def release(self) -> None:
        """Give it back; the attempt does not count."""
        self._settle(RELEASE)

    def snooze(self, seconds: float) -> None:
        """Deliver it again later; the attempt does not count."""
        self._settle(validation.settling(Outcome.SNOOZED, seconds))

    def extend(self, seconds: float) -> None:
        """Hold the whole lease for `seconds` from now."""
        leased: Leased = self._leased
        leased.extend(seconds)

    def _settle(self, how: Settling) -> None:
        session: Session = self._leased.session
        session.settle((self.proof,), how)
        self.settled = True


class Leased(BaseLeased[Delivery]):
    """The deliveries of one lease, as a sequence."""

    __slots__ = ()

    _delivery = Delivery

    def ack(self) -> None:
        """Acknowledge all that is not settled yet, in one operation."""
        if self.nonce:
            self.session.settle_lease(self.nonce, ACK)

    def nack(self, delay: float | None = None, error: str = "") -> None:
        """Retry all of them, after `delay` or after the queue's backoff."""
        self._settle(validation.settling(Outcome.RETRIED, delay, error))

    def reject(self, reason: str = "") -> None:
        """Dead-letter all of them now."""
        self._settle(validation.settling(Outcome.REJECTED, error=reason))

    def release(self) -> None:
        """Give all of them back; the attempts do not count."""
        self._settle(RELEASE)

    def extend(self, seconds: float) -> None:
        """Hold the lease for `seconds` from now."""
        self.expires_micros = self.session.extend(self.nonce, validation.extension(seconds))

    def _settle(self, how: Settling) -> None:
        if self.nonce:
            self.session.settle_lease(self.nonce, how)


class LeasedQueues(BaseLeasedQueues[Delivery, Leased]):
    """The deliveries of a lease over several queues, as a sequence; `leases` has them by queue."""

    __slots__ = ()

    def ack(self) -> None:
        """Acknowledge all that is not settled yet, in one operation."""
        self._settle(ACK)

    def nack(self, delay: float | None = None, error: str = "") -> None:
        """Retry all of them, after `delay` or after the backoff of their queues."""
        self._settle(validation.settling(Outcome.RETRIED, delay, error))

    def reject(self, reason: str = "") -> None:
        """Dead-letter all of them now."""
        self._settle(validation.settling(Outcome.REJECTED, error=reason))

    def release(self) -> None:
        """Give all of them back; the attempts do not count."""
        self._settle(RELEASE)

    def extend(self, seconds: float) -> None:
        """Hold the leases for `seconds` from now."""
        for lease in self.leases:
            lease.extend(seconds)

    def _settle(self, how: Settling) -> None:
        if self.leases:
            self.session.settle_leases([lease.nonce for lease in self.leases], how)
