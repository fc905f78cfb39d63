"""Retries: backoff, attempts, and that one never holds up another (C6, C7, C8)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from penstock import Message
from penstock.model import to_datetime
from tests.behaviour.steps import TICK, fail, lease_one, numbered, take


def wait_after(queue, clock):
    """Seconds until a message that just failed may be had again, to a tick."""
    (reason,) = queue.why(queue.read()[0].id)
    due = reason.text.split("due at ")[1].partition(";")[0]
    return (_instant(due) - to_datetime(clock.now())) / timedelta(seconds=1)


def _instant(text):
    from datetime import datetime

    return datetime.fromisoformat(text)


def test_the_backoff_grows_to_its_maximum(ps, clock):
    queue = ps.create_queue(
        "mail",
        max_attempts=10,
        backoff_base_seconds=2,
        backoff_multiplier=3,
        backoff_max_seconds=30,
        backoff_jitter=0,
    )
    queue.push(b"a")
    waits = []
    for _ in range(5):
        lease_one(queue).nack()
        waits.append(wait_after(queue, clock))
        clock.advance(waits[-1] + TICK)

    assert waits == [2, 6, 18, 30, 30]


def test_the_backoff_is_a_second_doubled_up_to_a_minute_by_default(ps, clock):
    queue = ps.create_queue("mail", max_attempts=20)
    queue.push(b"a")
    for expected in (1, 2, 4, 8, 16, 32, 60, 60):
        lease_one(queue).nack()
        wait = wait_after(queue, clock)
        assert expected * 0.9 <= wait <= expected * 1.1
        clock.advance(wait + TICK)


def test_jitter_spreads_what_failed_together(ps, clock):
    queue = ps.create_queue("mail", backoff_base_seconds=10, backoff_jitter=0.5)
    queue.push_many(numbered(100))
    queue.lease(100).nack()

    clock.advance(5 - TICK)
    assert take(queue) == []
    clock.advance(5)
    half = len(take(queue))
    clock.advance(5 + 2 * TICK)
    rest = len(take(queue))

    assert 25 < half < 75
    assert half + rest == 100


def test_a_message_may_carry_its_own_number_of_attempts(ps, clock):
    queue = ps.create_queue("mail", max_attempts=3)
    queue.push(b"one", max_attempts=1)
    fail(queue, clock, 1)
    assert queue.stats().dead == 1

    queue.push_many([Message(payload=b"five", max_attempts=5)])
    fail(queue, clock, 4)
    assert queue.stats().dead == 1
    fail(queue, clock, 1)
    assert queue.stats().dead == 2


def test_changing_max_attempts_counts_for_messages_that_wait(ps, clock):
    queue = ps.create_queue("mail", max_attempts=5)
    queue.push(b"a")
    fail(queue, clock, 2)

    ps.update_queue("mail", max_attempts=3)
    fail(queue, clock, 1)

    assert queue.stats().dead == 1


def test_a_lease_that_runs_out_counts_as_an_attempt_and_backs_off(ps, clock):
    queue = ps.create_queue("mail", lease_seconds=10, max_attempts=2, backoff_base_seconds=5, backoff_jitter=0)
    queue.push(b"a")
    lease_one(queue, consumer="ann")

    clock.advance(10)
    assert queue.stats().waiting == 1
    clock.advance(5 - TICK)
    assert take(queue) == []
    clock.advance(2 * TICK)
    assert lease_one(queue, consumer="bob").attempt == 2
    clock.advance(10)

    stats = queue.stats()
    assert (stats.dead, stats.waiting, stats.leased) == (1, 0, 0)
    (letter,) = queue.dlq.list()
    assert letter.headers["penstock-last-consumer"] == "bob"
    assert letter.headers["penstock-error"] == "the lease expired"


def test_a_slow_retry_does_not_hold_up_a_quick_one(ps, clock):
    queue = ps.queue("mail")
    queue.push_many([b"slow", b"quick"])
    slow, quick = queue.lease(2)
    slow.nack(delay=3600)
    quick.nack(delay=1)

    clock.advance(1 + TICK)

    assert take(queue) == [b"quick"]


def test_a_retry_that_is_due_comes_before_new_messages(ps, clock):
    queue = ps.queue("mail")
    queue.push(b"retried")
    lease_one(queue).nack(delay=1)
    queue.push(b"new")
    clock.advance(1 + TICK)

    assert take(queue) == [b"retried", b"new"]


def test_retries_come_back_in_the_order_in_which_they_are_due(ps, clock):
    queue = ps.queue("mail")
    queue.push_many(numbered(4))
    for delivery, delay in zip(queue.lease(4), (40, 10, 30, 20), strict=True):
        delivery.nack(delay=delay)

    clock.advance(60)

    assert [lease_one(queue).payload for _ in range(4)] == [b"1", b"3", b"2", b"0"]


def test_a_retry_keeps_its_priority(ps, clock):
    queue = ps.queue("mail")
    queue.push(b"urgent", priority=200)
    queue.push(b"idle", priority=10)
    queue.push(b"plain")
    for delivery in queue.lease(3):
        delivery.nack(delay=1)
    clock.advance(1 + TICK)

    assert [(d.payload, d.priority) for d in queue.lease(3)] == [(b"urgent", 200), (b"plain", 128), (b"idle", 10)]


def test_a_released_message_keeps_its_priority(ps):
    queue = ps.queue("mail")
    queue.push(b"idle", priority=10)
    queue.push(b"plain")
    queue.lease(2).release()

    assert take(queue, 1) == [b"plain"]
    assert take(queue, 1) == [b"idle"]


@pytest.mark.parametrize("attempts", [1, 2, 5])
def test_a_message_is_delivered_exactly_max_attempts_times(ps, clock, attempts):
    queue = ps.create_queue("mail", max_attempts=attempts)
    queue.push(b"a")

    seen = []
    for _ in range(attempts + 3):
        for delivery in queue.lease(1):
            seen.append(delivery.attempt)
            delivery.nack(delay=0)
        clock.advance(TICK)

    assert seen == list(range(1, attempts + 1))
    assert len(queue.dlq.list()) == 1
