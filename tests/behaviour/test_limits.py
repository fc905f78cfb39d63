"""Limits: how long a queue may grow, and what happens at the edge (C19)."""

from __future__ import annotations

import pytest

from penstock import Message
from penstock.errors import QueueFull
from tests.behaviour.steps import TICK, drain, lease_one, numbered, take


def test_a_full_queue_refuses_new_messages(ps):
    queue = ps.create_queue("mail", max_length=3)
    queue.push_many(numbered(3))
    before = queue.stats()

    with pytest.raises(QueueFull):
        queue.push(b"one too many")

    assert queue.stats() == before
    assert drain(queue) == numbered(3)


def test_a_full_queue_has_room_again_once_something_is_settled(ps):
    queue = ps.create_queue("mail", max_length=2)
    queue.push_many(numbered(2))
    delivery = lease_one(queue)
    with pytest.raises(QueueFull):
        queue.push(b"leased messages count")

    delivery.ack()
    queue.push(b"2")

    assert take(queue) == [b"1", b"2"]


@pytest.mark.parametrize("end", ["ack", "reject", "purge", "cancel", "expire"])
def test_whatever_ends_a_message_makes_room(ps, clock, end):
    queue = ps.create_queue("mail", max_length=1)
    id = queue.push(b"a", ttl=60)
    if end in ("ack", "reject"):
        getattr(lease_one(queue), end)()
    elif end == "purge":
        queue.purge()
    elif end == "cancel":
        queue.cancel(id)
    else:
        clock.advance(61)

    queue.push(b"b")

    assert take(queue) == [b"b"]


def test_messages_that_wait_count_too(ps):
    queue = ps.create_queue("mail", max_length=2)
    queue.push(b"delayed", delay=60)
    queue.push(b"retried")
    lease_one(queue).nack(delay=60)

    with pytest.raises(QueueFull):
        queue.push(b"c")


def test_the_group_that_is_furthest_behind_decides(ps):
    queue = ps.create_queue("mail", max_length=2)
    queue.create_group("slow")
    queue.push_many(numbered(2))
    drain(queue)

    with pytest.raises(QueueFull):
        queue.push(b"2")
    take(queue, 1, group="slow", auto_ack=True)

    queue.push(b"2")


def test_a_queue_may_drop_its_oldest_instead(ps):
    queue = ps.create_queue("mail", max_length=3, overflow="drop_oldest")
    queue.push_many(numbered(3))

    queue.push(b"3")
    queue.push_many([b"4", b"5"])

    stats = queue.stats()
    assert (stats.ready, stats.groups["default"].dropped_by) == (3, {"overflowed": 3})
    assert drain(queue) == [b"3", b"4", b"5"]


def test_the_oldest_of_all_partitions_is_dropped(ps, clock):
    queue = ps.create_queue("mail", partitions=3, max_length=3, overflow="drop_oldest")
    for number in (2, 0, 1):
        queue.push(str(number).encode(), partition=number)
        clock.advance(1)

    queue.push(b"new", partition=1)

    assert sorted(take(queue)) == [b"0", b"1", b"new"]


def test_what_a_consumer_holds_is_not_dropped(ps):
    queue = ps.create_queue("mail", max_length=2, overflow="drop_oldest")
    queue.push_many(numbered(2))
    held = lease_one(queue)

    queue.push(b"2")

    assert take(queue) == [b"2"]
    held.ack()
    assert queue.stats().groups["default"].dropped_by == {"overflowed": 1}


def test_a_batch_that_is_longer_than_the_queue_keeps_its_newest(ps):
    queue = ps.create_queue("mail", max_length=3, overflow="drop_oldest")
    queue.push(b"old")

    ids = queue.push_many(numbered(5)).ids

    assert [id.offset for id in ids] == [1, 2, 3, 4, 5]
    assert queue.stats().ready == 3
    assert drain(queue) == [b"2", b"3", b"4"]


def test_the_limit_holds_when_everything_is_held(ps):
    queue = ps.create_queue("mail", max_length=2, overflow="drop_oldest")
    queue.push_many(numbered(2))
    held = queue.lease(2)

    queue.push(b"no room at all")

    stats = queue.stats()
    assert (stats.leased, stats.ready, stats.groups["default"].dropped_by) == (2, 0, {"overflowed": 1})
    held.ack()
    assert take(queue) == []


def test_dropping_the_oldest_counts_for_each_group(ps):
    queue = ps.create_queue("mail", max_length=2, overflow="drop_oldest")
    queue.create_group("slow")
    queue.push_many(numbered(2))
    assert drain(queue) == numbered(2)

    queue.push(b"2")

    assert drain(queue) == [b"2"]
    assert drain(queue, group="slow") == [b"1", b"2"]


@pytest.mark.parametrize("ordering", ["partition", "key"])
def test_dropping_the_oldest_frees_what_stood_behind_it(ps, clock, ordering):
    queue = ps.create_queue("mail", max_length=2, overflow="drop_oldest", ordering=ordering)
    queue.push_many([Message(payload=payload, key="k") for payload in (b"stuck", b"next")])
    lease_one(queue).nack(delay=3600)

    queue.push(b"new", key="k")

    assert drain(queue) == [b"next", b"new"]


def test_dropped_retries_and_delays_never_come(ps, clock):
    queue = ps.create_queue("mail", max_length=2, overflow="drop_oldest")
    queue.push(b"delayed", delay=10)
    queue.push(b"retried")
    lease_one(queue).nack(delay=10)

    queue.push_many([b"a", b"b"])
    clock.advance(10 + TICK)

    assert drain(queue) == [b"a", b"b"]


def test_raising_the_limit_lets_more_in(ps):
    queue = ps.create_queue("mail", max_length=1)
    queue.push(b"a")

    ps.update_queue("mail", max_length=2)
    queue.push(b"b")

    with pytest.raises(QueueFull):
        queue.push(b"c")
