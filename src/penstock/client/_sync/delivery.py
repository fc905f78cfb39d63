# Generated from penstock/client/_async/delivery.py by `make generate`. Do not edit.
"""Deliveries, and how to settle them."""

from __future__ import annotations

from penstock import validation
from penstock.client.session import Session
from penstock.client.values import BaseDelivery, BaseLeased, BaseLeasedQueues
from penstock.model import Outcome
from penstock.requests import ACK, RELEASE, Settling


class Delivery(BaseDelivery):
    """One delivery of a message to a consumer. Settle it exactly once."""

    __slots__ = ()

    def ack(self) -> None:
        """Acknowledge: the message is not delivered to this group again. Raises `LeaseLost`."""
        session: Session = self._leased.session  # as in `_settle`, without a call: this is hot
        session.settle((self.proof,), ACK)
        self.settled = True

    def nack(self, delay: float | None = None, error: str = "") -> None:
        """Report failure: retry after `delay` or the queue's backoff, dead-letter after the last attempt.

        Raises `LeaseLost` if the lease has ended.
        """
        self._settle(validation.settling(Outcome.RETRIED, delay, error))

    def reject(self, reason: str = "") -> None:
        """Move the message to the dead-letter queue now, without further attempts. Raises `LeaseLost`."""
        self._settle(validation.settling(Outcome.REJECTED, error=reason))

    def release(self) -> None:
        """Return the message to the queue. The attempt does not count. Raises `LeaseLost`."""
        self._settle(RELEASE)

    def snooze(self, seconds: float) -> None:
        """Deliver the message again later. The attempt does not count. Raises `LeaseLost`."""
        self._settle(validation.settling(Outcome.SNOOZED, seconds))

    def extend(self, seconds: float) -> None:
        """Extend the whole lease to `seconds` from now. Raises `LeaseLost`."""
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
        """Acknowledge all unsettled deliveries in one operation. Raises `LeaseLost`."""
        if self.nonce:
            self.session.settle_lease(self.nonce, ACK)

    def nack(self, delay: float | None = None, error: str = "") -> None:
        """Retry all of them, after `delay` or the queue's backoff. Raises `LeaseLost`."""
        self._settle(validation.settling(Outcome.RETRIED, delay, error))

    def reject(self, reason: str = "") -> None:
        """Move all of them to the dead-letter queue now. Raises `LeaseLost`."""
        self._settle(validation.settling(Outcome.REJECTED, error=reason))

    def release(self) -> None:
        """Return all of them to the queue. The attempts do not count. Raises `LeaseLost`."""
        self._settle(RELEASE)

    def extend(self, seconds: float) -> None:
        """Extend the lease to `seconds` from now. Raises `LeaseLost`."""
        self.expires_micros = self.session.extend(self.nonce, validation.extension(seconds))

    def _settle(self, how: Settling) -> None:
        if self.nonce:
            self.session.settle_lease(self.nonce, how)


class LeasedQueues(BaseLeasedQueues[Delivery, Leased]):
    """The deliveries of a lease over several queues, as a sequence; `leases` groups them by queue."""

    __slots__ = ()

    def ack(self) -> None:
        """Acknowledge all unsettled deliveries in one operation. Raises `LeaseLost`."""
        self._settle(ACK)

    def nack(self, delay: float | None = None, error: str = "") -> None:
        """Retry all of them, after `delay` or the backoff of their queues. Raises `LeaseLost`."""
        self._settle(validation.settling(Outcome.RETRIED, delay, error))

    def reject(self, reason: str = "") -> None:
        """Move all of them to their dead-letter queues now. Raises `LeaseLost`."""
        self._settle(validation.settling(Outcome.REJECTED, error=reason))

    def release(self) -> None:
        """Return all of them to their queues. The attempts do not count. Raises `LeaseLost`."""
        self._settle(RELEASE)

    def extend(self, seconds: float) -> None:
        """Extend the leases to `seconds` from now. Raises `LeaseLost`."""
        for lease in self.leases:
            lease.extend(seconds)

    def _settle(self, how: Settling) -> None:
        if self.leases:
            self.session.settle_leases([lease.nonce for lease in self.leases], how)
