# Generated from penstock/client/_async/consumer.py by `make generate`. Do not edit.
"""Endless consumption: lease, hand out one by one, acknowledge on success, keep the lease alive meanwhile.

`consume` competes for messages. A `Subscription` is a member of a group that shares the partitions out among its
members: its heartbeats are sent in the background, so that a slow loop body does not cost the membership. Everything
else happens between two deliveries: partitions that shall go are given up, `on_revoked` is called, and only then is
their release confirmed; partitions that come are announced with `on_assigned` before their first delivery.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Callable, Iterable
from contextlib import ExitStack, closing, suppress
from itertools import groupby
from typing import Any, Final

from penstock import limits
from penstock import operations as ops
from penstock.client._sync.delivery import Delivery, Leased, LeasedQueues
from penstock.client.member import MemberState, drawn
from penstock.client.session import Pipeline, Session
from penstock.client.thread_runtime import Event, Lock, Pause, background, call, confirm_left, keeping_leases, wait_for
from penstock.client.values import LEFT, BatchSize
from penstock.errors import GroupNotFound, MemberFenced, PenstockError, QueueNotFound
from penstock.requests import ACK, RELEASE

IDLE_SECONDS_MIN: Final = 1e-6  # so that a look that does not wait counts as idle
STOP_CHECK_SECONDS: Final = 1.0  # how soon a stop is noticed while nothing comes
RETURN_CHECK_SECONDS: Final = 1.0  # how often a deleted queue or group is looked for

OnPartitions = Callable[[list[str]], Any] | None
Lease = Callable[[int, float], Leased | LeasedQueues]  # how many at most, and how long to wait


def consume(
    lease: Lease,
    session: Session,
    batch: int | None,
    idle_seconds: float | None,
    stop: Event | None,
) -> Generator[Delivery, None, None]:
    """Implement `Queue.consume` and `Queues.consume`: deliveries of one lease after the other."""
    patience = limits.wait_seconds_max if stop is None else STOP_CHECK_SECONDS
    wait = patience if idle_seconds is None else min(patience, idle_seconds)
    idle = 0.0
    size = BatchSize(batch, session.clock)
    with keeping_leases(session) as keeper:
        while stop is None or not stop.is_set():
            leased = lease(size.size, wait)
            idle = 0.0 if leased else idle + wait
            if idle_seconds is not None and idle >= idle_seconds:
                return
            if leased:
                size.begin()
                with ExitStack() as held, closing(_hand_out(leased, stop)) as deliveries:
                    for each in leased.leases if isinstance(leased, LeasedQueues) else (leased,):
                        held.enter_context(keeper.holding(each))
                    for delivery in deliveries:
                        yield delivery
                size.end(leased)


def _hand_out(leased: Leased | LeasedQueues, stop: Event | None) -> Generator[Delivery, None, None]:
    """One by one. Acks are not waited for singly: the end of the lease confirms them all."""
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
            if stop is not None and stop.is_set():
                break
    except BaseException:
        if current is not None and not current.settled:
            pipeline.settle((current.proof,), LEFT)
        _release(pipeline, deliveries)
        confirm_left(pipeline)
        raise
    _release(pipeline, deliveries)
    pipeline.confirm()


def _release(pipeline: Pipeline, deliveries: Iterable[Delivery]) -> None:
    """Give back what was not handed out, uncounted."""
    # By their receipts, since settles may overtake each other: the lease as a whole would include the one at hand.
    for _, proofs in groupby((delivery.proof for delivery in deliveries), lambda proof: proof.nonce):
        pipeline.settle(list(proofs), RELEASE)


def surviving(run: Callable[[], Generator[Delivery, None, None]], stop: Event | None) -> Generator[Delivery, None, None]:
    """What `run` hands out, started again whenever the queue or the group was deleted and is back.

    Whether a group was deleted by itself, or went with a queue that has been created again since, cannot be known
    afterwards: so who asks to survive the one survives the other.
    """
    stop = stop or Event()
    while not stop.is_set():
        try:
            with closing(run()) as deliveries:
                for delivery in deliveries:
                    yield delivery
        except (QueueNotFound, GroupNotFound):
            wait_for(stop, RETURN_CHECK_SECONDS)
        else:
            return


class Subscription:
    """One member of a group. `run` is iterated by one consumer."""

    def __init__(
        self,
        session: Session,
        member: MemberState,
        on_assigned: OnPartitions,
        on_revoked: OnPartitions,
        stop: Event | None,
    ) -> None:
        self._session = session
        self._member = member
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._stop = stop
        self._asking = Lock()  # one request about membership at a time, so that replies come in order
        self._pending: deque[Any] = deque()
        self._pipeline: Pipeline = session.pipeline()

    def run(self) -> Generator[Delivery, None, None]:
        """Deliveries for ever, or until `stop` is set."""
        self._join()
        try:
            with background(self._send_heartbeats), keeping_leases(self._session) as keeper:
                while not self._is_stopped():
                    self._follow()
                    leased = self._lease()
                    if leased:
                        with keeper.holding(leased), closing(self._hand_out(leased)) as deliveries:
                            for delivery in deliveries:
                                yield delivery
        finally:
            self._leave()

    def leases(
        self, idle_seconds: float | None = None, look_seconds: float | None = None
    ) -> Generator[Leased, None, None]:
        """Whole leases, for whoever settles all of each before the next one; until nothing came for `idle_seconds`.

        With `look_seconds` an empty one, when nothing came for that long.
        """
        patience = limits.wait_seconds_max if self._stop is None else STOP_CHECK_SECONDS
        patience = patience if look_seconds is None else min(patience, look_seconds)
        wait = patience if idle_seconds is None else min(patience, idle_seconds)
        idle = 0.0
        self._join()
        try:
            with background(self._send_heartbeats), keeping_leases(self._session) as keeper:
                while not self._is_stopped() and (idle_seconds is None or idle < idle_seconds or not idle):
                    self._follow()
                    leased = self._lease(wait)
                    idle = 0.0 if leased is None or leased else idle + max(wait, IDLE_SECONDS_MIN)
                    if leased:
                        with keeper.holding(leased):
                            yield leased
                    elif leased is not None and look_seconds is not None:
                        yield leased
        finally:
            self._leave()

    def _is_stopped(self) -> bool:
        return self._stop is not None and self._stop.is_set()

    # deliveries

    def _lease(self, wait: float | None = None) -> Leased | None:
        member, session = self._member, self._session
        if wait is None:
            wait = limits.wait_seconds_max if self._stop is None else STOP_CHECK_SECONDS
        try:
            reply = session.lease(member.queue, member.group, member.request(), wait)
        except MemberFenced:
            self._heartbeat()
            return None
        return Leased(session, reply)

    def _hand_out(self, leased: Leased) -> Generator[Delivery, None, None]:
        pipeline = self._pipeline = self._session.pipeline()
        self._pending = deque(leased)
        current: Delivery | None = None
        try:
            while self._pending and not self._is_stopped():
                current = self._pending.popleft()
                assert current is not None
                yield current
                if not current.settled:
                    pipeline.settle((current.proof,), ACK)
                current = None
                self._follow()
        finally:
            # Nothing is awaited before these: the loop may be closing.
            if current is not None and not current.settled:
                pipeline.settle((current.proof,), LEFT)
            if self._pending:
                pipeline.settle([delivery.proof for delivery in self._pending], RELEASE)
                self._pending.clear()
            pipeline.confirm()

    # membership

    def _follow(self) -> None:
        """Follow the latest assignment: give partitions up, confirm that, take new ones on."""
        member = self._member
        while member.is_behind():
            membership = member.membership
            gone = member.gone(membership)
            if gone:
                self._give_up(gone)
            if membership is None:
                member.renew()
                self._join()
                continue
            member.seen = membership
            gained = member.gained(membership)
            if gained:
                member.mine.update(gained)
                call(self._on_assigned, gained)
            if membership.revoking:
                self._heartbeat()

    def _give_up(self, partitions: list[str]) -> None:
        unbegun = drawn(self._pending, partitions)
        if unbegun:
            self._pipeline.settle([delivery.proof for delivery in unbegun], RELEASE)
        self._pipeline.confirm()
        call(self._on_revoked, partitions)
        self._member.mine.difference_update(partitions)

    def _join(self) -> None:
        member = self._member
        with self._asking:
            member.membership = self._session.execute(
                ops.Join(member.queue, member.group, member.member, member.session_seconds, member.start)
            )
            member.start = None  # a group that is deleted from now on stays deleted

    def _heartbeat(self) -> None:
        """Report that this member is alive and what it holds; the reply is the latest assignment."""
        member = self._member
        with self._asking:
            known = member.membership
            if known is None:
                return
            try:
                member.membership = self._session.execute(
                    ops.Heartbeat(member.queue, member.group, member.member, known.generation, member.held())
                )
            except MemberFenced:
                member.membership = None

    def _send_heartbeats(self, pause: Pause) -> None:
        membership = self._member.membership
        assert membership is not None
        while pause(membership.heartbeat_seconds):
            with suppress(PenstockError):  # whatever it is, the consumer meets it too
                self._heartbeat()

    def _leave(self) -> None:
        member = self._member
        membership = member.membership
        try:
            if member.mine:
                call(self._on_revoked, sorted(member.mine))
        finally:
            if membership is not None:
                with suppress(PenstockError):
                    self._session.execute(
                        ops.Leave(member.queue, member.group, member.member, membership.generation)
                    )
