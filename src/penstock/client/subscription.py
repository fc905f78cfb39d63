"""Endless consumption as a member of a group: join, lease from what is owned, follow every rebalance, leave.

A thread of its own sends heartbeats, so that a slow loop body costs nobody the membership. Everything else happens on
the consumer's thread, between two deliveries: partitions that shall go are given back, `on_revoked` is called, and only
then is their release confirmed; partitions that come are announced with `on_assigned` before their first delivery.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from penstock import limits
from penstock import operations as ops
from penstock.client.consuming import STOP_CHECK_SECONDS
from penstock.client.keeping import keeper_of
from penstock.client.place import Place, drawn
from penstock.client.session import Pipeline, Session
from penstock.client.settlings import ACK, LEFT, RELEASE
from penstock.client.sync_delivery import Delivery, Leased
from penstock.errors import MemberFenced, PenstockError

Told = Callable[[list[str]], object] | None


class Subscription:
    """One member. `run` is iterated by one thread."""

    def __init__(
        self,
        session: Session,
        place: Place,
        on_assigned: Told,
        on_revoked: Told,
        stop: threading.Event | None,
    ) -> None:
        self._session = session
        self._place = place
        self._on_assigned = on_assigned or _nothing
        self._on_revoked = on_revoked or _nothing
        self._stop = stop
        self._asking = threading.Lock()  # one question of membership at a time, so that answers come in order
        self._over = threading.Event()
        self._pending: deque[Any] = deque()
        self._pipeline: Pipeline = session.pipeline()

    def run(self) -> Iterator[Delivery]:
        """Deliveries for ever, or until `stop` is set."""
        self._join()
        heart = threading.Thread(target=self._beat, name="penstock-member", daemon=True)
        heart.start()
        try:
            with keeper_of(self._session).consuming() as keeper:
                while not self._is_stopped():
                    self._follow()
                    leased = self._lease()
                    if leased:
                        with keeper.holding(leased):
                            yield from self._hand_out(leased)
        finally:
            self._over.set()
            heart.join()
            self._leave()

    def _is_stopped(self) -> bool:
        return self._stop is not None and self._stop.is_set()

    # deliveries

    def _lease(self) -> Leased | None:
        place, session = self._place, self._session
        wait = limits.wait_seconds_max if self._stop is None else STOP_CHECK_SECONDS
        try:
            reply = session.lease(place.queue, place.group, place.request(), wait)
        except MemberFenced:
            self._heartbeat()
            return None
        return Leased(session, reply)

    def _hand_out(self, leased: Leased) -> Iterator[Delivery]:
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
            if current is not None and not current.settled:
                pipeline.settle((current.proof,), LEFT)
            if self._pending:
                pipeline.settle([delivery.proof for delivery in self._pending], RELEASE)
                self._pending.clear()
            pipeline.confirm()

    # membership

    def _follow(self) -> None:
        """Do what was told since the last time: let go, confirm it, take on."""
        place = self._place
        while place.is_behind():
            told = place.membership
            gone = place.gone(told)
            if gone:
                self._let_go(gone)
            if told is None:
                place.renew()
                self._join()
                continue
            place.seen = told
            gained = place.gained(told)
            if gained:
                place.mine.update(gained)
                self._on_assigned(gained)
            if told.revoking:
                self._heartbeat()

    def _let_go(self, partitions: list[str]) -> None:
        unbegun = drawn(self._pending, partitions)
        if unbegun:
            self._pipeline.settle([delivery.proof for delivery in unbegun], RELEASE)
        self._pipeline.confirm()
        self._on_revoked(partitions)
        self._place.mine.difference_update(partitions)

    def _join(self) -> None:
        place = self._place
        with self._asking:
            place.membership = self._session.execute(
                ops.Join(place.queue, place.group, place.member, place.session_seconds, place.start)
            )
            place.start = None  # a group that is deleted from now on stays deleted

    def _heartbeat(self) -> None:
        """Say that we are alive and what we hold, and hear what has changed."""
        place = self._place
        with self._asking:
            known = place.membership
            if known is None:
                return
            try:
                place.membership = self._session.execute(
                    ops.Heartbeat(place.queue, place.group, place.member, known.generation, place.held())
                )
            except MemberFenced:
                place.membership = None

    def _beat(self) -> None:
        told = self._place.membership
        assert told is not None
        while not self._over.wait(told.heartbeat_seconds):
            with suppress(PenstockError):  # whatever it is, the consumer meets it too
                self._heartbeat()

    def _leave(self) -> None:
        place = self._place
        told = place.membership
        try:
            if place.mine:
                self._on_revoked(sorted(place.mine))
        finally:
            if told is not None:
                with suppress(PenstockError):
                    self._session.execute(ops.Leave(place.queue, place.group, place.member, told.generation))


def _nothing(partitions: list[str]) -> None:
    """What is called when nobody wants to be told."""
