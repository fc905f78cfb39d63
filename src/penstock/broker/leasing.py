"""Leases for clients that may wait: woken by whatever makes a message ready, in the order in which they came.

    asking ──something──▶ telling ──durable──▶ told
      │  ▲                   ▲
   nothing, patience left    │ patience over
      ▼  │ woken             │
    waiting ─────────────────┘                    cancel() at any point: what was leased is given back

A waiter is registered before it asks, so that nothing that becomes ready in between is missed. Files are read in
threads; the event loop never waits for one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from penstock import limits
from penstock.broker.answers import Told, answer_of
from penstock.broker.fitting import ANSWER_BYTES_MAX, fit
from penstock.errors import PenstockError
from penstock.model import Outcome
from penstock.replies import LeaseReply
from penstock.requests import LeaseRequest, Settling
from penstock.shard.payload_rows import sealed_extents

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.embedded.session import Watch

_RELEASE = Settling(Outcome.RELEASED)
_ACK = Settling(Outcome.ACKED)
SURE_TO_FIT = ANSWER_BYTES_MAX // limits.payload_bytes_max  # so many messages fit, however large


class Pending:
    """One lease request until its answer is told."""

    __slots__ = (
        "_acks",
        "_broker",
        "_group",
        "_is_answered",
        "_queue",
        "_request",
        "_started",
        "_timer",
        "_told",
        "_wait",
        "_waiter",
        "is_over",
    )

    def __init__(self, broker: Broker, queue: str, group: str, request: LeaseRequest, wait: float, told: Told) -> None:
        self._broker = broker
        self._queue = queue
        self._group = group
        # What does not fit into an answer is given back, so it must not be acknowledged yet.
        self._acks = request.auto_ack and request.count_max > SURE_TO_FIT
        self._request = msgspec.structs.replace(request, auto_ack=False) if self._acks else request
        self._wait = wait
        self._told = told
        self._started = broker.clock.monotonic()
        self._waiter: Watch | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_answered = False  # there is an answer, which may not be durable yet
        self.is_over = False

    def start(self) -> None:
        """Ask for the first time."""
        self._ask()

    def cancel(self) -> None:
        """Nobody waits for the answer any more; what is leased for it meanwhile is given back."""
        if not self.is_over:
            self.is_over = self._is_answered = True
            self._leave(served=False)
            self._broker.waiting.discard(self)
            if self._timer is not None:
                self._timer.cancel()

    def finish(self) -> None:
        """Patience is over: tell what there is, which is nothing."""
        if not self._is_answered:
            self._started = self._broker.clock.monotonic()
            self._over(LeaseReply(self._queue, self._group, 0, 0, (), 0), 0)

    def _ask(self) -> None:
        session = self._broker.session
        if session.needs_files(self._queue, self._group):
            self._broker.in_thread(self._lease_and_load, self._answered)
            return
        answer = answer_of(lambda: session.lease(self._queue, self._group, self._request))
        if not isinstance(answer, PenstockError) and sealed_extents(answer[0].pieces):
            # What time has just brought back may lie in a segment too.
            self._broker.in_thread(partial(self._load, *answer), self._answered)
            return
        self._answered(answer)

    def _lease_and_load(self) -> tuple[LeaseReply, int]:
        return self._load(*self._broker.session.lease(self._queue, self._group, self._request))

    def _load(self, reply: LeaseReply, ticket: int) -> tuple[LeaseReply, int]:
        return msgspec.structs.replace(reply, pieces=self._broker.session.loaded(reply.pieces)), ticket

    def _answered(self, answer: Any) -> None:
        if self.is_over or self._is_answered:
            if not isinstance(answer, PenstockError):
                self._give_back(answer[0])
        elif isinstance(answer, PenstockError):
            self._over(answer, 0)
        elif answer[0].count:
            self._over(*self._fitted(*answer))
        elif not self._wait:
            self._over(*answer)
        elif self._waiter is None or self._waiter[0].woken:
            self._watch()

    def _fitted(self, reply: LeaseReply, ticket: int) -> tuple[LeaseReply, int]:
        """What fits into an answer; the rest is given back, and what is left acknowledged if that was asked for."""
        session = self._broker.session
        reply, excess = fit(reply)
        if excess:
            session.settle(excess, _RELEASE)
        if self._acks:
            ticket = session.settle_lease(reply.nonce, _ACK) or ticket
        return reply, ticket

    def _watch(self) -> None:
        """Get in line, and ask once more: something may have come since the last time."""
        self._leave(served=False)
        self._request = self._request.in_existing_group()
        if self._timer is None:
            self._broker.waiting.add(self)
            self._timer = self._broker.loop.call_later(self._wait, self.finish)
        try:
            self._waiter = self._broker.session.watch(self._queue, self._wake, self._group)
        except PenstockError as error:
            self._over(error, 0)
            return
        self._ask()

    def _wake(self) -> None:
        """Called from any thread, with the shard's lock held."""
        with suppress(RuntimeError):  # the loop is closed
            self._broker.loop.call_soon_threadsafe(self._woken)

    def _woken(self) -> None:
        if not self.is_over and not self._is_answered:
            self._started = self._broker.clock.monotonic()  # waiting for messages is not what a lease takes
            self._ask()

    def _leave(self, *, served: bool) -> None:
        if self._waiter is not None:
            self._broker.session.unwatch(self._waiter, served=served)
            self._waiter = None

    def _over(self, answer: LeaseReply | PenstockError, ticket: int) -> None:
        self._is_answered = True
        self._leave(served=isinstance(answer, LeaseReply) and answer.count > 0)
        self._broker.waiting.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if isinstance(answer, PenstockError):
            self.is_over = True
            self._broker.meter.refused(self._queue, answer.code)
            self._told(answer)
        else:
            self._broker.confirmer.after(ticket, self._confirmed(answer), answer)

    def _confirmed(self, reply: LeaseReply) -> Callable[[Any], None]:
        def tell(answer: Any) -> None:
            if self.is_over:
                self._give_back(reply)
                return
            self.is_over = True
            self._broker.measure_lease(reply, self._started)
            self._told(answer)

        return tell

    def _give_back(self, reply: LeaseReply) -> None:
        if reply.nonce:
            with suppress(PenstockError):
                self._broker.session.settle_lease(reply.nonce, _RELEASE)
