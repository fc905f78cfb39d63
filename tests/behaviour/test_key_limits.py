"""Limits of each key on the way to consumers: how many in flight, and how fast (C16)."""

from __future__ import annotations

import pytest

from penstock import Message
from tests.behaviour.steps import TICK, drain, lease_one, take


def keyed(*names: str) -> list[Message]:
    """Messages `a0`, `a1` … of the key `a`."""
    return [Message(payload=name.encode(), key=name[0]) for name in names]


def test_no_more_of_a_key_are_in_flight_than_may_be_and_others_flow(ps):
    queue = ps.create_queue("mail", key_max_in_flight=2)
    queue.push_many(keyed("a0", "a1", "a2", "b0", "a3", "b1", "b2"))

    leased = queue.lease(100)
    assert leased.payloads() == [b"a0", b"a1", b"b0", b"b1"]
    assert take(queue) == []
    deliveries = list(leased)
    deliveries[1].ack()

    assert take(queue) == [b"a2"]
    deliveries[0].ack()
    deliveries[2].ack()
    assert sorted(take(queue)) == [b"a3", b"b2"]


def test_messages_without_a_key_have_no_limit(ps):
    queue = ps.create_queue("mail", key_max_in_flight=1)
    queue.push_many([b"x", b"y", b"z"])

    assert take(queue) == [b"x", b"y", b"z"]


@pytest.mark.parametrize("end", ["ack", "nack", "release", "reject", "expiry", "purge", "seek", "auto_ack"])
def test_whatever_ends_a_delivery_makes_room_for_its_key(ps, clock, end):
    queue = ps.create_queue("mail", key_max_in_flight=1, backoff_base_seconds=100, backoff_max_seconds=100)
    queue.push_many(keyed("a0", "a1"))
    if end == "auto_ack":
        assert take(queue, 1, auto_ack=True) == [b"a0"]
        assert take(queue) == [b"a1"]
        return
    delivery = lease_one(queue)
    assert take(queue) == []
    if end == "purge":
        queue.purge()
        queue.push_many(keyed("a2", "a3"))
        assert take(queue) == [b"a2"]
    elif end == "seek":
        queue.seek("default", "earliest")
        assert take(queue) == [b"a0"]
    elif end == "expiry":
        clock.advance(31)
        assert take(queue) == [b"a1"]
    elif end == "release":
        delivery.release()
        assert take(queue) == [b"a0"]
    else:
        getattr(delivery, end)()
        assert take(queue) == [b"a1"]
    assert take(queue) == []


def test_a_retry_waits_for_room_like_any_other_and_goes_before_later_ones(ps, clock):
    queue = ps.create_queue("mail", key_max_in_flight=1)
    queue.push_many(keyed("a0", "a1", "a2"))
    lease_one(queue).nack(delay=1)
    second = lease_one(queue)
    assert second.payload == b"a1"

    clock.advance(1 + TICK)
    assert take(queue) == []
    second.ack()

    assert drain(queue, 1) == [b"a0", b"a2"]


def test_the_limit_counts_over_all_partitions_but_for_each_group(ps):
    queue = ps.create_queue("mail", partitions=3, key_max_in_flight=1)
    queue.create_group("audit")
    for number in range(3):
        queue.push(str(number).encode(), key="k", partition=number)

    assert len(take(queue)) == 1
    assert take(queue) == []
    assert len(take(queue, group="audit")) == 1


def test_the_limit_holds_after_a_crash(ps, way, clock):
    if not way.lasts:
        return
    queue = ps.create_queue("mail", key_max_in_flight=2)
    queue.push_many(keyed("a0", "a1", "a2", "a3"))
    take(queue)

    queue = way.crash().queue("mail")
    clock.advance(TICK)

    leased = queue.lease(100)
    assert len(leased) == 2
    assert take(queue) == []
    leased.ack()
    assert len(take(queue)) == 2


def test_a_limit_that_is_set_later_counts_what_is_in_flight(ps, way):
    queue = ps.create_queue("mail")
    queue.push_many(keyed("a0", "a1", "a2", "b0"))
    way.seal()
    held = list(queue.lease(2))

    ps.update_queue("mail", key_max_in_flight=2)
    assert take(queue) == [b"b0"]
    held[0].ack()
    assert take(queue) == [b"a2"]

    queue.push_many(keyed("a3", "a4"))
    assert take(queue) == []
    ps.update_queue("mail", key_max_in_flight=3)
    assert take(queue) == [b"a3"]
    ps.update_queue("mail", key_max_in_flight=None)
    assert take(queue) == [b"a4"]


def test_the_highest_priority_of_a_key_goes_first(ps):
    queue = ps.create_queue("mail", key_max_in_flight=1)
    queue.push_many(keyed("a0", "a1"))
    first = lease_one(queue)
    assert take(queue) == []
    queue.push(b"urgent", key="a", priority="high")
    assert take(queue) == []

    first.ack()

    assert drain(queue, 1) == [b"urgent", b"a1"]


def test_delayed_messages_keep_the_limit(ps, clock):
    queue = ps.create_queue("mail", key_max_in_flight=1)
    for number in range(3):
        queue.push(str(number).encode(), key="k", delay=1)
    assert take(queue) == []
    clock.advance(1 + TICK)

    assert drain(queue, 100) == [b"0", b"1", b"2"]


def test_a_key_over_its_rate_is_passed_over_and_comes_back_in_order(ps, clock):
    queue = ps.create_queue("mail", key_lease_per_second=1, key_lease_burst=2)
    queue.push_many(keyed("a0", "a1", "a2", "b0", "a3", "b1"))

    assert take(queue) == [b"a0", b"a1", b"b0", b"b1"]
    assert take(queue) == []
    clock.advance(0.999_999)
    assert take(queue) == []
    clock.advance(0.000_001)
    assert take(queue) == [b"a2"]
    queue.push_many(keyed("a4"))
    assert take(queue) == []
    clock.advance(2)
    assert drain(queue) == [b"a3", b"a4"]


def test_in_key_order_the_rate_holds_too(ps, clock):
    queue = ps.create_queue("mail", ordering="key", key_lease_per_second=1, key_max_in_flight=5)
    queue.push_many(keyed("a0", "a1", "b0", "a2"))

    assert drain(queue) == [b"a0", b"b0"]
    clock.advance(1)
    lease_one(queue).release()
    assert take(queue) == []
    clock.advance(1)
    assert drain(queue) == [b"a1"]
    clock.advance(1)
    assert drain(queue) == [b"a2"]


def test_both_limits_of_a_key_hold_together(ps, clock):
    queue = ps.create_queue("mail", key_max_in_flight=1, key_lease_per_second=1, key_lease_burst=2)
    queue.push_many(keyed("a0", "a1", "a2"))
    lease_one(queue).ack()
    second = lease_one(queue)
    second.ack()
    assert take(queue) == []
    clock.advance(1)

    assert take(queue) == [b"a2"]


def test_what_was_taken_out_of_a_line_does_not_stop_it(ps, clock):
    queue = ps.create_queue("mail", key_max_in_flight=1)
    ids = queue.push_many(keyed("a0", "a1", "a2", "a3")).ids
    first = lease_one(queue)
    assert take(queue) == []
    queue.cancel(ids[1])
    first.ack()
    queue.cancel(ids[2])

    assert take(queue) == [b"a3"]


def test_when_too_much_is_parked_reading_stops_and_goes_on_later(ps, monkeypatch):
    monkeypatch.setattr("penstock.limits.parked_messages_max", 3)
    queue = ps.create_queue("mail", key_max_in_flight=1)
    queue.push_many(keyed("a0", "a1", "a2", "a3", "a4", "a5", "b0"))

    seen = []
    for _ in range(4):
        seen += drain(queue)

    assert sorted(seen) == [b"a0", b"a1", b"a2", b"a3", b"a4", b"a5", b"b0"]
    assert [name for name in seen if name.startswith(b"a")] == [b"a0", b"a1", b"a2", b"a3", b"a4", b"a5"]


def test_an_ack_wakes_those_who_wait_for_its_key(ps, way):
    queue = ps.create_queue("mail", key_max_in_flight=1)
    queue.push_many(keyed("a0", "a1"))
    first = lease_one(queue)
    woken = []
    waiter = way.session.watch("mail", lambda: woken.append(1))
    assert take(queue) == []

    first.ack()

    assert woken
    way.session.unwatch(waiter, served=True)


def test_why_names_the_limit_of_the_key(ps, clock):
    queue = ps.create_queue("mail", key_max_in_flight=1, key_lease_per_second=1)
    ids = queue.push_many(keyed("a0", "a1", "b0")).ids
    clock.advance(1)
    first = lease_one(queue)

    assert queue.why(ids[1])[0].code == "limited_by_key"
    first.ack()
    assert queue.why(ids[1])[0].code == "key_rate"
    clock.advance(1)
    assert queue.why(ids[1])[0].code == "in_line"
