"""Leases for clients that may wait: woken by whatever makes a message ready, in the order in which they came.

    asking ──something──▶ telling ──durable──▶ on_reply
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
from penstock.broker.access import Client
from penstock.broker.callbacks import OnReply, answer_of
from penstock.broker.reply_size import ANSWER_BYTES_MAX, fit, fit_leases
from penstock.errors import NotAuthorised, PenstockError
from penstock.operations import Action
from penstock.replies import LeaseReplies, LeaseReply, leases_of
from penstock.requests import ACK, RELEASE, LeaseRequest, QueueChoice
from penstock.shard.payload_rows import sealed_extents
from penstock.shard.queue_sets import SetKey, set_key

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.embedded.session import Watch


SURE_TO_FIT = ANSWER_BYTES_MAX // limits.payload_bytes_max  # this many messages fit, however large


class Pending:
    """One lease request until its reply leaves."""

    __slots__ = (
        "_acks",
        "_broker",
        "_client",
        "_group",
        "_is_answered",
        "_on_reply",
        "_queue",
        "_request",
        "_started",
        "_timer",
        "_wait",
        "_waiter",
        "is_over",
    )

    def __init__(
        self,
        broker: Broker,
        client: Client,
        queue: str,
        group: str,
        request: LeaseRequest,
        wait: float,
        on_reply: OnReply,
    ) -> None:
        self._broker = broker
        self._client = client
        self._queue = queue
        self._group = group
        # What does not fit into an answer is given back, so it must not be acknowledged yet.
        self._acks = request.auto_ack and request.count_max > SURE_TO_FIT
        self._request = msgspec.structs.replace(request, auto_ack=False) if self._acks else request
        self._wait = wait
        self._on_reply = on_reply
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
        """The wait is over: reply with an empty lease."""
        if not self._is_answered:
            self._started = self._broker.clock.monotonic()
            self._over(self._nothing(), 0)

    def _nothing(self) -> Any:
        return LeaseReply(self._queue, self._group, 0, 0, (), 0)

    def _ask(self) -> None:
        session = self._broker.session
        reads = self._request.task_types is not None or answer_of(lambda: session.needs_files(self._queue, self._group))
        if isinstance(reads, PenstockError):
            self._answered(reads)
            return
        if reads:
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
        return self._broker.session.load_lease(reply), ticket

    def _answered(self, answer: Any) -> None:
        if self.is_over or self._is_answered:
            if not isinstance(answer, PenstockError):
                self._give_back(answer[0])
        elif isinstance(answer, PenstockError):
            self._over(answer, 0)
        elif answer[0].count:
            fitted = answer_of(lambda: self._fitted(*answer))
            self._over(fitted, 0) if isinstance(fitted, PenstockError) else self._over(*fitted)
        elif not self._wait:
            self._over(*answer)
        elif self._waiter is None or self._waiter[0].woken:
            self._watch()

    def _fitted(self, reply: Any, ticket: int) -> tuple[Any, int]:
        """What fits into an answer; the rest is given back, and what is left acknowledged if that was asked for."""
        session = self._broker.session
        reply, excess = fit(reply)
        if excess:
            session.settle(excess, RELEASE)
        if self._acks:
            ticket = session.settle_lease(reply.nonce, ACK) or ticket
        return reply, ticket

    def _watch(self) -> None:
        """Get in line, and ask once more: something may have come since the last time."""
        self._leave(served=False)
        if self._timer is None:
            self._broker.waiting.add(self)
            self._timer = self._broker.loop.call_later(self._wait, self.finish)
        try:
            self._waiter = self._watched()
        except PenstockError as error:
            self._over(error, 0)
            return
        self._ask()

    def _watched(self) -> Watch:
        self._request = self._request.in_existing_group()
        return self._broker.session.watch(self._queue, self._wake, self._group)

    def _wake(self) -> None:
        """Called from any thread, with the shard's lock held."""
        with suppress(RuntimeError):  # the loop is closed
            self._broker.loop.call_soon_threadsafe(self._woken)

    def _woken(self) -> None:
        if self.is_over or self._is_answered:
            return
        self._started = self._broker.clock.monotonic()  # waiting for messages is not what a lease takes
        refused = self._refused()
        if refused is None:
            self._ask()
        else:  # its grants have changed while it waited
            self._over(refused, 0)

    def _refused(self) -> PenstockError | None:
        return self._broker.refused(self._client, Action.CONSUME, self._queue, even_draining=True)

    def _leave(self, *, served: bool) -> None:
        if self._waiter is not None:
            self._broker.session.unwatch(self._waiter, served=served)
            self._waiter = None

    def _over(self, answer: Any, ticket: int) -> None:
        self._is_answered = True
        self._leave(served=not isinstance(answer, PenstockError) and answer.count > 0)
        self._broker.waiting.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if isinstance(answer, PenstockError):
            self.is_over = True
            self._on_reply(self._broker.count(self._queue, answer))
        else:
            self._broker.confirmer.after(ticket, self._confirmed(answer), answer)

    def _confirmed(self, reply: Any) -> Callable[[Any], None]:
        def reply_once(answer: Any) -> None:
            if self.is_over:
                self._give_back(reply)
                return
            self.is_over = True
            for lease in leases_of(reply):
                self._broker.measure_lease(lease, self._started)
            self._on_reply(answer)

        return reply_once

    def _give_back(self, reply: Any) -> None:
        for lease in leases_of(reply):
            if lease.nonce:
                with suppress(PenstockError):
                    self._broker.session.settle_lease(lease.nonce, RELEASE)


class PendingQueues(Pending):
    """One lease request over several queues until its reply leaves."""

    __slots__ = ("_choice", "_watched_key")

    def __init__(
        self,
        broker: Broker,
        client: Client,
        choice: QueueChoice,
        group: str,
        request: LeaseRequest,
        wait: float,
        on_reply: OnReply,
    ) -> None:
        super().__init__(broker, client, choice.names[0], group, request, wait, on_reply)
        self._choice = choice
        self._watched_key: SetKey | None = None

    def _key(self) -> SetKey:
        """Whoever may consume other queues has a set of its own. Grants may change while a request waits."""
        who = (self._client.owner, self._client.principal.grants)
        return set_key(self._choice, self._group, self._request, who)

    def _nothing(self) -> LeaseReplies:
        return LeaseReplies((), 0)

    def _ask(self) -> None:
        key = self._key()
        if self._waiter is not None and key != self._watched_key:
            self._watch()  # which asks again
            return
        answer = answer_of(lambda: self._leased(key, may_read=False))
        if answer is None:
            self._broker.in_thread(self._lease_and_load, self._answered)
        elif not isinstance(answer, PenstockError) and any(sealed_extents(lease.pieces) for lease in answer[0].leases):
            reply, ticket = answer
            self._broker.in_thread(lambda: (self._broker.session.loaded_reply(reply), ticket), self._answered)
        else:
            self._answered(answer)

    def _leased(self, key: SetKey, *, may_read: bool) -> tuple[LeaseReplies, int] | None:
        broker = self._broker
        require = partial(broker.authorise, self._client.principal, Action.CONSUME)
        return broker.session.lease_set(key, self._request, require, may_read=may_read)

    def _lease_and_load(self) -> Any:
        answer = self._leased(self._key(), may_read=True)
        assert answer is not None
        return self._broker.session.loaded_reply(answer[0]), answer[1]

    def _answered(self, answer: Any) -> None:
        if isinstance(answer, NotAuthorised):
            self._broker.audit.denied(self._client, Action.CONSUME, self._queue, answer)
        super()._answered(answer)

    def _fitted(self, reply: LeaseReplies, ticket: int) -> tuple[LeaseReplies, int]:
        session = self._broker.session
        fitting, excess = fit_leases(reply.leases)
        if excess:
            session.settle(excess, RELEASE)
        if self._acks:
            for lease in fitting:
                ticket = max(ticket, session.settle_lease(lease.nonce, ACK))
        return LeaseReplies(fitting, sum(lease.count for lease in fitting)), ticket

    def _watched(self) -> Watch:
        self._watched_key = self._key()
        return self._broker.session.watch_queues(self._watched_key, self._wake)

    def _refused(self) -> PenstockError | None:
        return None  # each queue is checked when it is leased from
