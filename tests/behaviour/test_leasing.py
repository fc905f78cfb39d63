"""Leasing: who gets what, for how long, from which partitions (C2, C3, C19, D5)."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest

from penstock import Message
from penstock.errors import LeaseLost
from penstock.model import to_datetime
from tests.behaviour.steps import TICK, drain, lease_one, numbered, take


def test_a_lease_hands_out_the_oldest_first(ps):
    queue = ps.queue("mail")
    queue.push_many(numbered(5))

    assert take(queue, 3) == [b"0", b"1", b"2"]
    assert take(queue, 3) == [b"3", b"4"]
    assert take(queue, 3) == []


def test_a_leased_message_is_nobody_elses(ps):
    queue = ps.queue("mail")
    queue.push(b"only")

    queue.lease(1, consumer="ann")

    assert len(queue.lease(1, consumer="bob")) == 0


def test_a_lease_is_a_sequence(ps):
    queue = ps.queue("mail")
    queue.push_many(numbered(2))
    queue.push(b"2", priority=0)
    leased = queue.lease(10)

    assert len(leased) == 3
    assert leased[0].payload == b"0"
    assert leased[-1].payload == b"2"
    assert [d.payload for d in leased[1:]] == [b"1", b"2"]
    assert [d.payload for d in leased] == leased.payloads()
    assert leased.lease_id
    with pytest.raises(IndexError):
        leased[3]


def test_leases_that_are_held_are_listed_the_oldest_first(ps, clock):
    queue = ps.queue("mail")
    queue.push_many(numbered(3))
    first = queue.lease(2, consumer="ann", lease_seconds=60)
    clock.advance(seconds=1)
    second = queue.lease(1, consumer="bob", lease_seconds=30)

    listed = queue.leases()

    assert [(lease.lease_id, lease.consumer, lease.messages) for lease in listed] == [
        (first.lease_id, "ann", 2),
        (second.lease_id, "bob", 1),
    ]
    assert (listed[0].group, listed[0].partitions) == ("default", ["0"])
    assert listed[0].expires_at - listed[0].leased_at == timedelta(seconds=60)
    assert len(queue.leases(limit=1)) == 1
    first.ack()
    clock.advance(seconds=31)
    assert queue.leases("default") == []


def test_an_empty_lease_is_not_an_error(ps):
    ps.create_queue("mail")
    leased = ps.queue("mail").lease(10)

    assert len(leased) == 0
    assert leased.lease_id == ""
    leased.ack()


def test_an_expired_lease_is_delivered_again_and_its_old_receipt_is_refused(ps, clock):
    queue = ps.queue("mail")
    queue.push(b"a")
    first = lease_one(queue)

    clock.advance(30 + TICK)
    assert take(queue) == []  # the backoff of the first retry
    clock.advance(1.1 + TICK)
    second = lease_one(queue)

    assert (second.payload, second.attempt) == (b"a", 2)
    with pytest.raises(LeaseLost):
        first.ack()
    second.ack()


def test_a_lease_lasts_as_long_as_it_was_asked_for(ps, clock):
    queue = ps.create_queue("mail", lease_seconds=10)
    queue.push_many(numbered(2))
    short, long = queue.lease(1), queue.lease(1, lease_seconds=100)

    clock.advance(11)
    with pytest.raises(LeaseLost):
        short.ack()
    clock.advance(88)
    long.ack()

    assert short[0].expires_at - short[0].pushed_at == timedelta(seconds=10)
    assert long[0].expires_at - long[0].pushed_at == timedelta(seconds=100)


def test_a_lease_runs_until_its_deadline_and_not_a_moment_less(ps, clock):
    queue = ps.create_queue("mail", lease_seconds=10)
    queue.push(b"a")
    delivery = lease_one(queue)

    clock.advance(9.999)

    delivery.ack()


def test_extending_a_lease_moves_its_end(ps, clock):
    queue = ps.queue("mail")
    queue.push_many(numbered(2))
    leased = queue.lease(2)

    clock.advance(20)
    leased[0].extend(30)
    assert leased[0].expires_at == to_datetime(clock.now()) + timedelta(seconds=30)
    clock.advance(20)
    leased.ack()

    assert queue.stats().acked == 2


def test_a_lease_can_be_extended_again_and_again(ps, clock):
    queue = ps.queue("mail")
    queue.push(b"slow")
    leased = queue.lease(1)

    for _ in range(10):
        clock.advance(25)
        leased.extend(30)

    assert leased[0].attempt == 1
    leased.ack()


def test_a_lease_that_ran_out_cannot_be_extended(ps, clock):
    queue = ps.queue("mail")
    queue.push(b"a")
    leased = queue.lease(1)

    clock.advance(31)

    with pytest.raises(LeaseLost):
        leased.extend(30)


def test_shortening_a_lease_ends_it_sooner(ps, clock):
    queue = ps.queue("mail")
    queue.push(b"a")
    leased = queue.lease(1)

    leased.extend(1)
    clock.advance(2)

    with pytest.raises(LeaseLost):
        leased.ack()


def test_only_the_messages_of_a_lease_that_are_not_settled_come_back(ps, clock):
    queue = ps.queue("mail")
    queue.push_many(numbered(4))
    leased = queue.lease(4)
    leased[1].ack()
    leased[3].ack()

    clock.advance(30 + TICK)
    assert queue.stats().waiting == 2
    clock.advance(1.1 + TICK)

    assert {d.payload: d.attempt for d in queue.lease(10)} == {b"0": 2, b"2": 2}


def test_a_lease_may_ask_for_some_partitions_only(ps):
    queue = ps.create_queue("orders", partitions=4)
    for number in range(4):
        queue.push(str(number).encode(), partition=number)

    assert sorted(take(queue, partitions=[1, "3"])) == [b"1", b"3"]
    assert take(queue, partitions=[1]) == []
    assert sorted(take(queue)) == [b"0", b"2"]


def test_messages_that_come_back_stay_in_their_partition_for_such_leases(ps, clock):
    queue = ps.create_queue("orders", partitions=2)
    queue.push(b"zero", partition=0)
    queue.push(b"one", partition=1)
    for delivery in queue.lease(2):
        delivery.release()

    assert take(queue, partitions=[1]) == [b"one"]
    assert take(queue, partitions=[0]) == [b"zero"]


def test_one_lease_is_shared_fairly_by_the_partitions(ps):
    queue = ps.create_queue("rooms", partitions="named")
    queue.push_many([Message(payload=b"deep", partition="a") for _ in range(50)])
    queue.push_many([Message(payload=name.encode(), partition=name) for name in ("b", "c", "d")])

    assert Counter(take(queue, 8)) == {b"deep": 5, b"b": 1, b"c": 1, b"d": 1}


def test_no_partition_starves_behind_a_deep_one(ps):
    queue = ps.create_queue("rooms", partitions="named")
    queue.push_many([Message(payload=b"deep", partition="a") for _ in range(50)])
    queue.push_many([Message(payload=name.encode(), partition=name) for name in ("b", "c", "d")])

    first = [lease_one(queue).payload for _ in range(4)]

    assert sorted(first) == [b"b", b"c", b"d", b"deep"]


def test_a_consumer_holds_no_more_than_max_in_flight(ps):
    queue = ps.create_queue("mail", max_in_flight=3)
    queue.push_many(numbered(10))

    held = queue.lease(10, consumer="ann")
    assert len(held) == 3
    assert len(queue.lease(10, consumer="ann")) == 0
    assert len(queue.lease(10, consumer="bob")) == 3

    held[0].ack()
    assert len(queue.lease(10, consumer="ann")) == 1
    held.nack()
    assert len(queue.lease(10, consumer="ann")) == 2


def test_a_lease_that_ran_out_gives_its_room_back(ps, clock):
    queue = ps.create_queue("mail", max_in_flight=1)
    queue.push_many(numbered(2))
    queue.lease(1, consumer="ann")

    clock.advance(31)

    assert take(queue, consumer="ann") == [b"1"]


def test_auto_ack_settles_with_the_lease(ps, clock):
    queue = ps.queue("mail")
    queue.push_many(numbered(3))

    assert take(queue, 2, auto_ack=True) == [b"0", b"1"]
    stats = queue.stats()
    assert (stats.acked, stats.leased, stats.ready) == (2, 0, 1)
    clock.advance(100)

    assert drain(queue) == [b"2"]


def test_auto_ack_leaves_nothing_to_settle(ps):
    queue = ps.queue("mail")
    queue.push(b"a")
    leased = queue.lease(1, auto_ack=True)

    with pytest.raises(LeaseLost):
        leased[0].ack()


def test_auto_ack_counts_for_no_limit_in_flight(ps):
    queue = ps.create_queue("mail", max_in_flight=2)
    queue.push_many(numbered(4))

    assert take(queue, 10, auto_ack=True) == [b"0", b"1"]
    assert take(queue, 10, auto_ack=True) == [b"2", b"3"]


def test_many_messages_are_leased_in_one_go(ps):
    queue = ps.queue("mail")
    queue.push_many(numbered(2_000))
    queue.push_many(numbered(500, "b"))

    leased = queue.lease(2_200)

    assert leased.payloads() == numbered(2_000) + numbered(200, "b")
    leased.ack()
    assert queue.stats().groups["default"].lag == 300


@pytest.mark.parametrize(
    "call",
    [
        lambda ps, queue, held: held.extend(100),
        lambda ps, queue, held: held.ack(),
        lambda ps, queue, held: held.nack(),
        lambda ps, queue, held: held[0].ack(),
        lambda ps, queue, held: queue.push(b"new"),
        lambda ps, queue, held: queue.lease(1),
        lambda ps, queue, held: queue.read(),
        lambda ps, queue, held: ps.queues(),
        lambda ps, queue, held: queue.create_group("new"),
        lambda ps, queue, held: queue.purge(),
        lambda ps, queue, held: ps.compact(),
    ],
    ids=["extend", "ack", "nack", "ack-one", "push", "lease", "read", "queues", "group", "purge", "compact"],
)
def test_any_call_may_come_when_a_lease_runs_out_and_its_messages_die(ps, clock, call):
    queue = ps.create_queue("mail", max_attempts=1, lease_seconds=5, max_length=9)
    queue.push(b"short")
    queue.push(b"long")
    queue.lease(1)
    held = queue.lease(1, lease_seconds=100)

    clock.advance(10)
    call(ps, queue, held)

    assert b"short" in [letter.payload for letter in queue.dlq.list()]
