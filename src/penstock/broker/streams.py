"""Delivery as messages come, within the credit that the consumer gives.

A stream leases in batches while it has credit, is not paused and the last delivery has been handed over. Each batch is
a lease of its own. When the consumer goes, what it has not settled of them is given back, not counted as an attempt.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock import limits, validation
from penstock.broker.access import Client
from penstock.broker.leases import Pending
from penstock.errors import InvalidField, PenstockError
from penstock.model import DEFAULT_GROUP, Position
from penstock.replies import LeaseReply, leases_of
from penstock.requests import RELEASE, QueueChoice

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

CREDIT_MAX: Final = 1 << 31
HELD_SWEEP: Final = 1024  # leases kept in mind before those that are settled are forgotten


class StreamRequest(msgspec.Struct, frozen=True):
    """What a stream is to deliver."""

    queue: str  # "" when there are several
    group: str = DEFAULT_GROUP
    batch: int = 100  # messages per delivery, at most
    lease_seconds: float | None = None
    consumer: str = ""
    partitions: tuple[int | str, ...] | None = None
    auto_ack: bool = False
    start: Position | None = None  # where the group begins if it is not there
    queues: QueueChoice | None = None


class Stream:
    """Delivers messages to one consumer as they become ready, one lease per batch, while it has credit."""

    def __init__(
        self,
        broker: Broker,
        client: Client,
        request: StreamRequest,
        deliver: Callable[[LeaseReply], None],
        ended: Callable[[PenstockError | None], None],
    ) -> None:
        self._broker = broker
        self._client = client
        self._asked = request
        self._deliver = deliver
        self._ended = ended
        self._credit = 0
        self._is_paused = False
        self._is_over = False
        self._pending: Pending | None = None
        self._start = request.start
        self._held: list[int] = []  # nonces of leases that may have something unsettled
        validation.lease_request(
            request.batch, request.lease_seconds, request.consumer, request.partitions, False, start=request.start
        )

    def credit(self, messages: int) -> None:
        """Allow this many more messages."""
        if isinstance(messages, bool) or not isinstance(messages, int) or not 1 <= messages <= CREDIT_MAX:
            raise InvalidField(f"credit: {messages!r} is outside 1 to {CREDIT_MAX:,}")
        self._credit = min(self._credit + messages, CREDIT_MAX)
        self._pump()

    def pause(self) -> None:
        """The way to the consumer is full."""
        self._is_paused = True

    def resume(self) -> None:
        """It has room again."""
        self._is_paused = False
        self._pump()

    def close(self) -> None:
        """The consumer has gone: give back what it has not settled."""
        if self._is_over:
            return
        self._is_over = True
        self._broker.streams.discard(self)
        if self._pending is not None:
            self._pending.cancel()
        for nonce in self._held:
            with suppress(PenstockError):
                self._broker.session.settle_lease(nonce, RELEASE)

    def end(self) -> None:
        """The broker stops: nothing more will come. What was delivered may still be settled."""
        if not self._is_over:
            if self._pending is not None:
                self._pending.cancel()
            self._finish(None)

    def _pump(self) -> None:
        if self._is_over or self._is_paused or self._pending is not None or not self._credit:
            return
        options = self._asked
        request = validation.lease_request(
            min(options.batch, self._credit),
            options.lease_seconds,
            options.consumer,
            options.partitions,
            options.auto_ack,
            start=self._start,
        )
        wait = limits.wait_seconds_max
        if options.queues is not None:
            pending = self._broker.lease_queues(
                self._client, options.queues, options.group, request, wait, self._leased
            )
        else:
            self._start = None  # a group that is deleted later is not made again
            pending = self._broker.lease(self._client, options.queue, options.group, request, wait, self._leased)
        # The answer may have come during the call, and with it the next request.
        if self._pending is None and not pending.is_over:
            self._pending = pending

    def _leased(self, answer: Any) -> None:
        self._pending = None
        if self._is_over:
            return
        if isinstance(answer, PenstockError):
            self._finish(answer)
            return
        for lease in leases_of(answer):
            if lease.count:
                self._credit -= lease.count
                self._keep(lease.nonce)
                self._deliver(lease)
        # Not from within: a queue that always has something must not grow the stack, nor keep the loop to itself.
        self._broker.loop.call_soon(self._pump)

    def _keep(self, nonce: int) -> None:
        if len(self._held) >= HELD_SWEEP:
            self._held = [nonce for nonce in self._held if self._broker.shard.queue_of_lease(nonce) is not None]
        if not self._asked.auto_ack:
            self._held.append(nonce)

    def _finish(self, error: PenstockError | None) -> None:
        self._is_over = True
        self._broker.streams.discard(self)
        self._ended(error)
