"""Those who wait are woken when there is something for them: as many as came ready, and never one too few.

Nobody waits in a thread here: a waiter is what `Session.lease_waiting` does, cut at the place where it sleeps.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import Message
from penstock.client._sync.delivery import Leased
from penstock.client._sync.queue import Queue
from penstock.client.handles import Penstock
from penstock.clock import ManualClock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.model import Outcome
from penstock.requests import LeaseRequest, QueueChoice, Settling
from penstock.shard.queue_leases import lease_queues
from penstock.shard.queue_sets import SetKey, set_key
from tests.support.dose import dose

GROUPS = ("default", "second")


class Sleeper:
    """A call that waits for one message; `awake` once it is woken, `done` once it was served."""

    def __init__(self, session: Session, group: str, consumer: str) -> None:
        self._session = session
        self._group = group
        self._request = LeaseRequest(count_max=1, consumer=consumer, lease_seconds=30.0)
        self.nonce = 0
        self.looks = 0
        self._sit_down()

    @property
    def done(self) -> bool:
        return self.nonce != 0

    def look(self) -> bool:
        reply, _ = self._session.lease("mail", self._group, self._request)
        self.looks += 1
        self.nonce = reply.nonce if reply.count else 0
        return self.done

    def turn(self) -> None:
        """It was woken: it looks, and sits down again when there is nothing."""
        served = self.look()
        self._session.unwatch(self._watch, served=served)
        if not served:
            self._sit_down()

    def _sit_down(self) -> None:
        self.awake = False
        self._watch = self._watched()
        if self.look():
            self._session.unwatch(self._watch, served=True)

    def _watched(self) -> Any:
        return self._session.watch("mail", self._wake, self._group)

    def _wake(self) -> None:
        self.awake = True


class SetSleeper(Sleeper):
    """The same for a call over several queues."""

    def look(self) -> bool:
        reply = lease_queues(self._session.shard, self._key, self._request)
        assert reply is not None
        self.looks += 1
        self.nonce = reply[0].leases[0].nonce if reply[0].count else 0
        return self.done

    @property
    def _key(self) -> SetKey:
        return set_key(QueueChoice(("mail", "other*")), self._group, self._request)

    def _watched(self) -> Any:
        return self._session.watch_queues(self._key, self._wake)


class Passing(ManualClock):
    """Time that passes by itself, as it were: nobody is told that it was moved, which would wake everybody."""

    def on_jump(self, tell: Callable[[], None]) -> None:
        pass


def opened() -> tuple[Session, ManualClock]:
    clock = Passing()
    return Session(None, clock=clock, rng=random.Random(1), background=False), clock


def settle_down(sleepers: list[Sleeper]) -> int:
    """Let all who are awake look until everybody sleeps or is served; how many looked."""
    turns = 0
    while awake := [each for each in sleepers if each.awake and not each.done]:
        for each in awake:
            each.turn()
            turns += 1
    return turns


def wait_in(session: Session, count: int, group: str = "default", kind: type[Sleeper] = Sleeper) -> list[Sleeper]:
    sleepers = [kind(session, group, f"c{number}") for number in range(count)]
    assert not any(each.done for each in sleepers)
    return sleepers


@pytest.mark.parametrize("kind", [Sleeper, SetSleeper])
@pytest.mark.parametrize("how", ["delay", "retry", "release", "nack", "push", "time-out", "redrive"])
def test_one_message_that_comes_ready_wakes_one(how, kind):
    session, clock = opened()
    queue = Penstock(BlockingSession(session)).create_queue("mail", lease_seconds=1.0, backoff_base_seconds=0)
    queue.create_group("second")
    made_ready: dict[str, Callable[[], object]] = {
        "delay": lambda: clock.advance(2),
        "retry": lambda: clock.advance(2),
        "time-out": lambda: clock.advance(2),
        "push": lambda: queue.push(b"x"),
        "nack": lambda: held.nack(delay=0),
        "redrive": queue.dlq.redrive,
    }
    if how != "push":
        queue.push(b"x", delay=1 if how == "delay" else 0)
    held: Leased = queue.lease()
    if how == "retry":
        held.nack(delay=1)
    if how == "redrive":
        held.reject()
    sleepers = wait_in(session, 20, kind=kind)

    (held.release if how == "release" else made_ready[how])()
    session.shard.look(lambda now: None)

    assert sum(each.awake for each in sleepers) == 1
    assert settle_down(sleepers) == 1
    assert sum(each.done for each in sleepers) == 1


@pytest.mark.parametrize("kind", [Sleeper, SetSleeper])
def test_a_wake_up_that_is_not_used_goes_to_the_next(kind):
    session, _ = opened()
    queue = Penstock(BlockingSession(session)).create_queue("mail")
    first, second, third = wait_in(session, 3, kind=kind)
    queue.push(b"x")
    assert (first.awake, second.awake) == (True, False)

    session.unwatch(first._watch, served=False)  # its client has gone

    assert (second.awake, third.awake) == (True, False)


def test_a_message_that_is_not_due_wakes_nobody():
    session, _ = opened()
    queue = Penstock(BlockingSession(session)).create_queue("mail")
    sleepers = wait_in(session, 5)

    queue.push(b"x", delay=10)
    queue.push_many([Message(payload=b"y", delay=10), b"z"])

    assert sum(each.awake for each in sleepers) == 1


def test_each_group_is_woken_for_itself():
    session, _ = opened()
    queue = Penstock(BlockingSession(session)).create_queue("mail")
    queue.create_group("second")
    first, second = wait_in(session, 5), wait_in(session, 5, "second")

    queue.push_many([b"x", b"y"])

    assert [sum(each.awake for each in sleepers) for sleepers in (first, second)] == [2, 2]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["push", "many", "wait", "wait", "ack", "ack", "nack", "release", "time", "pause", "purge"]),
        st.sampled_from([0, 0, 1, 1, 2, 3, 6, 7]),
    ),
    min_size=30,
    max_size=60,
)
OPTIONS: list[dict[str, Any]] = [
    {},
    {"ordering": "key"},
    {"ordering": "partition", "partitions": 2},
    {"max_in_flight": 1},
    {"key_max_in_flight": 1},
    {"lease_per_second": 2.0, "lease_burst": 2},
    {"delay_seconds": 3.0},
    {"window_seconds": 4.0},
    {"ttl_seconds": 7.0},
    {"partitions": 3, "dead_letter": False, "max_attempts": 2},
]


@settings(max_examples=dose(200, 5_000), deadline=None)
@given(STEPS, st.sampled_from(OPTIONS), st.sampled_from([(Sleeper,), (SetSleeper,), (Sleeper, SetSleeper)]))
def test_nobody_sleeps_while_there_is_a_message_to_be_had(steps, options, kinds):
    session, clock = opened()
    queue = Penstock(BlockingSession(session)).create_queue("mail", lease_seconds=5.0, backoff_jitter=0.0, **options)
    queue.create_group("second")
    sleepers: list[Sleeper] = []
    for what, number in steps:
        if what == "wait":
            kind = kinds[len(sleepers) % len(kinds)]
            sleepers.append(kind(session, GROUPS[number % 2], f"c{number % 3}"))
        else:
            do(what, number, session, queue, clock, sleepers)
        session.shard.look(lambda now: None)
        settle_down(sleepers)
        for each in [each for each in sleepers if not each.done]:
            assert not each.look(), f"{what} {number}: a message could be had, and a waiter slept on"


def do(what: str, number: int, session: Session, queue: Queue, clock: ManualClock, sleepers: list[Sleeper]) -> None:
    key = f"k{number % 3}"
    later = number % 4 if number > 4 and not session.shard.core.by_name["mail"].ordered else 0
    if what == "push":
        queue.push(b"x", key=key, delay=later)
    elif what == "many":
        queue.push_many([Message(payload=b"x", key=f"k{row % 3}", delay=later * (row % 2)) for row in range(number)])
    elif what == "time":
        clock.advance(number)
    elif what == "pause":
        queue.pause()
        queue.resume()
    elif what == "purge":
        queue.purge()
    else:
        settle_one(what, number, session, sleepers)


def settle_one(what: str, number: int, session: Session, sleepers: list[Sleeper]) -> None:
    held = [each for each in sleepers if each.nonce in session.shard.core.leases]
    if not held:
        return
    lease = session.shard.core.leases[held[number % len(held)].nonce]
    if lease.deadline <= session.shard.core.over_at:
        return
    how = {
        "ack": Settling(Outcome.ACKED),
        "nack": Settling(Outcome.RETRIED, delay_seconds=float(number % 3)),
        "release": Settling(Outcome.RELEASED),
    }[what]
    session.settle_lease(lease.nonce, how)
