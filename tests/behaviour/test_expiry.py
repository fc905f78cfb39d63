"""Expiry and eviction: what waits too long goes, by its own time to live or by the queue's patience (C13)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from penstock import Message
from penstock.model import to_datetime
from tests.behaviour.steps import drain, lease_one, take


def in_seconds(clock, seconds):
    return to_datetime(clock.now()) + timedelta(seconds=seconds)


def test_a_message_expires_after_its_time_to_live(ps, clock):
    queue = ps.queue("mail")
    queue.push_many([Message(payload=b"short", ttl=10), Message(payload=b"long", ttl=100), b"ever"])

    clock.advance(10)
    stats = queue.stats()
    assert (stats.ready, stats.groups["default"].dropped_by) == (2, {"expired": 1})
    assert take(queue, 1) == [b"long"]
    clock.advance(1000)

    assert b"short" not in drain(queue)


def test_a_queue_may_give_its_messages_a_time_to_live(ps, clock):
    queue = ps.create_queue("mail", ttl_seconds=10)
    queue.push(b"one")
    queue.push_many([b"many", Message(payload=b"own", ttl=60), Message(payload=b"keyed", key="k")])
    assert queue.read(limit=1)[0].expires_at == in_seconds(clock, 10)

    clock.advance(10)

    assert take(queue) == [b"own"]
    assert queue.stats().groups["default"].dropped_by == {"expired": 3}


def test_the_time_to_live_of_a_queue_is_that_of_the_moment_of_the_push(ps, clock):
    queue = ps.create_queue("mail", ttl_seconds=10)
    queue.push(b"before")
    ps.update_queue("mail", ttl_seconds=None)
    queue.push(b"after")

    clock.advance(11)

    assert take(queue) == [b"after"]


def test_a_held_message_does_not_expire_but_its_retry_does(ps, clock):
    queue = ps.queue("mail")
    queue.push_many([Message(payload=b"acked", ttl=10), Message(payload=b"failed", ttl=10)])
    acked, failed = queue.lease(2)

    clock.advance(15)
    acked.ack()
    failed.nack(delay=1)
    clock.advance(2)

    assert take(queue) == []
    stats = queue.stats()
    assert (stats.acked, stats.groups["default"].dropped_by) == (1, {"expired": 1})


def test_a_delayed_message_may_expire_before_it_is_due(ps, clock):
    queue = ps.queue("mail")
    queue.push(b"never", delay=60, ttl=10)

    clock.advance(11)
    assert queue.stats().groups["default"].dropped_by == {"expired": 1}
    clock.advance(60)

    assert take(queue) == []


def test_expiry_counts_for_every_group(ps, clock):
    queue = ps.create_queue("mail")
    queue.create_group("audit")
    queue.push(b"a", ttl=10)
    lease_one(queue).ack()

    clock.advance(11)

    assert queue.stats().acked == 1
    assert queue.stats().groups["audit"].dropped_by == {"expired": 1}


@pytest.mark.parametrize("action", ["dead", "drop"])
def test_a_message_that_waited_too_long_is_taken_out(ps, way, clock, action):
    queue = ps.create_queue("mail", max_wait_seconds=60, max_wait_action=action)
    queue.push(b"a")
    clock.advance(40)
    queue.push(b"b")
    clock.advance(21)

    way.let_time_happen()

    stats = queue.stats()
    if action == "dead":
        assert (stats.dead, stats.groups["default"].dropped) == (1, 0)
        assert [letter.headers["penstock-error"] for letter in queue.dlq.list()] == ["waited too long"]
    else:
        assert (stats.dead, stats.groups["default"].dropped_by) == (0, {"evicted": 1})
    assert take(queue) == [b"b"]


def test_messages_of_one_segment_are_evicted_each_in_its_own_time(ps, way, clock):
    queue = ps.create_queue("mail", max_wait_seconds=60)
    queue.push(b"a")
    clock.advance(40)
    queue.push(b"b")
    way.seal()
    clock.advance(21)

    way.let_time_happen()

    assert take(queue) == [b"b"]


def test_a_message_that_was_delivered_once_is_not_evicted(ps, way, clock):
    queue = ps.create_queue("mail", max_wait_seconds=60)
    queue.push(b"a")
    lease_one(queue).nack(delay=100)
    clock.advance(90)

    way.let_time_happen()

    assert queue.stats().waiting == 1


def test_the_wait_of_a_delayed_message_begins_when_it_is_due(ps, way, clock):
    queue = ps.create_queue("mail", max_wait_seconds=60)
    queue.push(b"a", delay=100)

    clock.advance(99)
    way.let_time_happen()
    assert queue.stats().waiting == 1
    clock.advance(62)
    way.let_time_happen()

    assert queue.stats().dead == 1


@pytest.mark.parametrize("way", ["memory"], indirect=True)
def test_messages_that_a_seek_has_brought_twice_hold_up_none_that_expire_with_them(ps, clock):
    queue = ps.create_queue("mail", ordering="key")
    for _ in range(2):
        queue.push(b"fades", ttl=2)
        queue.seek("default", "earliest")
    clock.advance(3)

    assert queue.stats().groups["default"].dropped_by == {"expired": 2}
