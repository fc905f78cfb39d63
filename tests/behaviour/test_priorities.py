"""Priorities: strict, weighted, and nobody waits for ever (C10, C11)."""

from __future__ import annotations

from collections import Counter

import pytest

from penstock import Message
from penstock.model import PRIORITY_NAMES
from tests.behaviour.steps import TICK, drain, lease_one, take

LANES = {"critical": 50, "high": 25, "normal": 15, "low": 7, "background": 3}


def push_lanes(queue, count):
    queue.push_many([Message(payload=name.encode(), priority=name) for name in LANES for _ in range(count)])


def test_higher_priorities_come_first_and_equal_ones_in_order(ps):
    queue = ps.queue("mail")
    pushed = [(b"a", 128), (b"b", 0), (b"c", 255), (b"d", 129), (b"e", 255), (b"f", 128), (b"g", 127)]
    queue.push_many([Message(payload=payload, priority=priority) for payload, priority in pushed])

    assert take(queue) == [b"c", b"e", b"d", b"a", b"f", b"g", b"b"]


def test_priorities_hold_over_all_partitions_and_pushes(ps):
    queue = ps.create_queue("mail", partitions=3)
    queue.push(b"low", priority="low", partition=0)
    queue.push(b"plain", partition=1)
    queue.push(b"high", priority="high", partition=2)
    queue.push(b"critical", priority="critical", partition=0)

    assert [lease_one(queue).payload for _ in range(4)] == [b"critical", b"high", b"plain", b"low"]


@pytest.mark.parametrize(("name", "number"), PRIORITY_NAMES.items())
def test_priorities_have_names(ps, name, number):
    queue = ps.queue("mail")
    queue.push(b"a", priority=name)

    assert lease_one(queue).priority == number


def test_a_late_urgent_message_overtakes_a_backlog(ps):
    queue = ps.queue("mail")
    queue.push_many([b"plain"] * 20)
    assert take(queue, 5) == [b"plain"] * 5

    queue.push(b"urgent", priority=255)
    queue.push(b"idle", priority=1)

    assert take(queue, 2) == [b"urgent", b"plain"]
    assert take(queue, 100) == [b"plain"] * 14 + [b"idle"]


def test_low_priorities_are_not_lost_behind_higher_ones(ps):
    queue = ps.queue("mail")
    for number in range(3):
        queue.push_many([Message(payload=f"{number}-{p}".encode(), priority=p) for p in (10, 128, 200)])
        assert take(queue, 1) == [f"{number}-200".encode()]

    assert drain(queue) == [b"0-128", b"1-128", b"2-128", b"0-10", b"1-10", b"2-10"]


def test_a_strict_queue_serves_nothing_lower_while_there_is_something_higher(ps, clock):
    queue = ps.create_queue("mail", starvation_seconds=0)
    push_lanes(queue, 3)
    served = []
    for _ in range(15):
        clock.advance(60)
        delivery = lease_one(queue)
        served.append(delivery.payload.decode())
        delivery.ack()

    assert served == [name for name in LANES for _ in range(3)]


@pytest.mark.parametrize("batch", [1, 7, 100, 1000])
def test_weighted_service_shares_fifty_twentyfive_fifteen_seven_three(ps, batch):
    queue = ps.create_queue("mail", service="weighted")
    push_lanes(queue, 600)

    served: Counter[bytes] = Counter()
    while served.total() < 1_000:
        served.update(take(queue, min(batch, 1_000 - served.total())))

    assert {name: served[name.encode()] for name in LANES} == {name: 10 * share for name, share in LANES.items()}


def test_weighted_service_gives_an_idle_lanes_share_to_the_others(ps):
    queue = ps.create_queue("mail", service="weighted")
    queue.push_many([Message(payload=name.encode(), priority=name) for name in ("high", "low") for _ in range(100)])

    served = Counter(take(queue, 64))

    assert served == {b"high": 50, b"low": 14}
    assert len(drain(queue)) == 136


def test_an_idle_lane_saves_nothing_up(ps):
    queue = ps.create_queue("mail", service="weighted")
    queue.push_many([b"normal"] * 300)
    assert len(take(queue, 100)) == 100

    queue.push_many([Message(payload=b"critical", priority="critical") for _ in range(300)])

    assert Counter(take(queue, 65))[b"critical"] <= 50


def test_within_a_lane_weighted_service_is_strict(ps):
    queue = ps.create_queue("mail", service="weighted")
    queue.push_many([Message(payload=str(p).encode(), priority=p) for p in (96, 150, 128, 159)])

    assert take(queue) == [b"159", b"150", b"128", b"96"]


def test_a_lane_that_has_waited_too_long_is_served_one_message_out_of_turn(ps, clock):
    queue = ps.create_queue("mail", starvation_seconds=30)
    queue.push_many([Message(payload=b"idle", priority=0) for _ in range(3)])
    queue.push_many([b"busy"] * 50)
    assert take(queue, 1) == [b"busy"]

    clock.advance(31)
    queue.push_many([b"busy"])
    assert Counter(take(queue, 3)) == {b"busy": 2, b"idle": 1}
    assert take(queue, 3) == [b"busy"] * 3  # the boost served one, then the wait begins anew
    clock.advance(31)
    assert take(queue, 1) == [b"idle"]


def test_a_lane_that_is_served_all_the_time_does_not_starve(ps, clock):
    queue = ps.create_queue("mail", starvation_seconds=30)
    queue.push_many([Message(payload=b"idle", priority=0) for _ in range(2)])
    queue.push_many([b"plain"] * 20)
    for _ in range(6):
        clock.advance(10)
        take(queue, 2)

    queue.push_many([Message(payload=b"urgent", priority=255) for _ in range(5)])

    assert b"plain" not in take(queue, 4)


def test_every_lane_may_starve_and_each_gets_its_turn(ps, clock):
    queue = ps.create_queue("mail", starvation_seconds=30)
    push_lanes(queue, 40)
    assert take(queue, 1) == [b"critical"]

    clock.advance(31)

    assert Counter(take(queue, 10)) == {b"critical": 6, b"high": 1, b"normal": 1, b"low": 1, b"background": 1}


def test_a_slow_consumer_that_takes_one_at_a_time_starves_no_lane(ps, clock):
    queue = ps.create_queue("mail", starvation_seconds=30)
    push_lanes(queue, 10)
    served = []
    for _ in range(10):
        served += take(queue, 1)
        clock.advance(40)

    assert set(served[:6]) == {name.encode() for name in LANES}


def test_the_boost_waits_as_long_as_the_queue_says(ps, clock):
    queue = ps.create_queue("mail", starvation_seconds=5)
    queue.push(b"idle", priority=0)
    queue.push_many([b"busy"] * 10)
    take(queue, 1)

    clock.advance(4)
    assert take(queue, 1) == [b"busy"]
    clock.advance(1 + TICK)
    assert take(queue, 1) == [b"idle"]


def test_a_lane_that_was_empty_has_not_waited(ps, clock):
    queue = ps.create_queue("mail", starvation_seconds=30)
    queue.push(b"idle", priority=0)
    queue.push(b"busy")
    assert take(queue) == [b"busy", b"idle"]

    clock.advance(31)
    queue.push(b"idle again", priority=0)
    queue.push(b"busy again")

    assert take(queue, 1) == [b"busy again"]
