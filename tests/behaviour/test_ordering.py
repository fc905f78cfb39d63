"""Order: per partition and per key, kept through retries (D2)."""

from __future__ import annotations

import random

import pytest

from penstock import Message
from penstock.errors import InvalidField
from tests.behaviour.steps import TICK, drain, fail, lease_one, numbered, take


def push_keys(queue, *pairs):
    """Each pair is a key and a payload."""
    return queue.push_many([Message(payload=payload, key=key) for key, payload in pairs]).ids


# By partition.


def test_a_partition_in_order_has_one_lease_at_a_time(ps):
    queue = ps.create_queue("orders", ordering="partition", partitions=2)
    for number in range(4):
        queue.push(f"a{number}".encode(), partition=0)
    queue.push(b"b0", partition=1)

    first = queue.lease(2, partitions=[0])
    assert first.payloads() == [b"a0", b"a1"]
    assert take(queue) == [b"b0"]
    first[0].ack()
    assert take(queue) == []
    first[1].ack()

    assert take(queue) == [b"a2", b"a3"]


def test_a_retry_holds_its_partition_until_it_is_settled(ps, clock):
    queue = ps.create_queue("orders", ordering="partition")
    queue.push_many(numbered(4))
    first, second = queue.lease(2)
    second.ack()
    first.nack(delay=10)

    assert take(queue) == []
    clock.advance(10 + TICK)
    leased = queue.lease(10)

    assert leased.payloads() == [b"0", b"2", b"3"]
    assert [delivery.attempt for delivery in leased] == [2, 1, 1]


def test_a_dead_message_lets_its_partition_go(ps, clock):
    queue = ps.create_queue("orders", ordering="partition", max_attempts=2)
    queue.push_many(numbered(2))
    fail(queue, clock, 2)

    assert take(queue) == [b"1"]


def test_a_released_message_is_the_next_of_its_partition(ps):
    queue = ps.create_queue("orders", ordering="partition")
    queue.push_many(numbered(3))
    queue.lease(2).release()

    assert take(queue) == [b"0", b"1", b"2"]


def test_a_lease_that_runs_out_keeps_the_order_of_its_partition(ps, clock):
    queue = ps.create_queue("orders", ordering="partition", lease_seconds=10, backoff_jitter=0)
    queue.push_many(numbered(3))
    queue.lease(2)

    clock.advance(10)
    assert take(queue) == []
    clock.advance(1 + TICK)

    assert take(queue) == [b"0", b"1", b"2"]


def test_snoozing_holds_the_partition_too(ps, clock):
    queue = ps.create_queue("orders", ordering="partition")
    queue.push_many(numbered(2))
    lease_one(queue).snooze(60)

    assert take(queue) == []
    clock.advance(60 + TICK)
    assert take(queue) == [b"0", b"1"]


def test_a_message_that_expires_does_not_hold_its_partition(ps, clock):
    queue = ps.create_queue("orders", ordering="partition")
    queue.push_many([Message(payload=b"short", ttl=5), b"next"])
    lease_one(queue).nack(delay=60)

    clock.advance(5 + TICK)

    assert take(queue) == [b"next"]


def test_cancelling_the_message_that_holds_a_partition_frees_it(ps):
    queue = ps.create_queue("orders", ordering="partition")
    id = queue.push(b"stuck")
    queue.push(b"next")
    lease_one(queue).nack(delay=3600)

    queue.cancel(id)

    assert take(queue) == [b"next"]


def test_a_redriven_message_comes_before_the_rest_of_its_partition(ps, clock):
    queue = ps.create_queue("orders", ordering="partition")
    queue.push_many(numbered(3))
    lease_one(queue).reject()
    lease_one(queue).ack()

    queue.dlq.redrive()
    clock.advance(TICK)

    assert take(queue) == [b"0", b"2"]


# By key.


def test_messages_of_one_key_are_never_in_flight_together(ps):
    queue = ps.create_queue("orders", ordering="key")
    push_keys(queue, ("a", b"a0"), ("a", b"a1"), ("b", b"b0"), ("a", b"a2"), ("b", b"b1"), (None, b"x"), (None, b"y"))

    first = queue.lease(10)
    assert first.payloads() == [b"a0", b"b0", b"x", b"y"]
    assert take(queue) == []
    first[0].ack()
    second = queue.lease(10)
    assert second.payloads() == [b"a1"]
    first[1].ack()
    assert take(queue) == [b"b1"]
    second.ack()

    assert take(queue) == [b"a2"]


def test_a_key_is_held_even_by_a_lease_of_one(ps):
    queue = ps.create_queue("orders", ordering="key")
    push_keys(queue, ("a", b"a0"), ("a", b"a1"), ("b", b"b0"))

    assert take(queue, 1) == [b"a0"]
    assert take(queue, 1) == [b"b0"]
    assert take(queue, 1) == []


def test_a_retry_holds_its_key_until_it_is_settled(ps, clock):
    queue = ps.create_queue("orders", ordering="key")
    push_keys(queue, ("a", b"a0"), ("a", b"a1"), ("b", b"b0"))
    lease_one(queue).nack(delay=10)

    assert take(queue) == [b"b0"]
    assert take(queue) == []
    clock.advance(10 + TICK)
    retry = queue.lease(10)
    assert retry.payloads() == [b"a0"]
    retry.ack()

    assert take(queue) == [b"a1"]


@pytest.mark.parametrize("end", ["ack", "reject", "dead", "cancel", "purge of all", "expire"])
def test_every_end_of_a_message_frees_its_key(ps, clock, end):
    queue = ps.create_queue("orders", ordering="key", max_attempts=1)
    first, *_ = queue.push_many(
        [Message(payload=b"a0", key="a", ttl=50 if end == "expire" else None), Message(payload=b"a1", key="a")]
    ).ids
    delivery = lease_one(queue)
    if end in ("ack", "reject"):
        getattr(delivery, end)()
    elif end == "dead":
        delivery.nack()
    elif end == "purge of all":
        queue.purge()
        push_keys(queue, ("a", b"a1"))
    else:
        delivery.snooze(100)
        assert take(queue) == []
        if end == "cancel":
            queue.cancel(first)
        else:
            clock.advance(51)

    assert take(queue) == [b"a1"]


def test_release_keeps_the_key_for_the_same_message(ps):
    queue = ps.create_queue("orders", ordering="key")
    push_keys(queue, ("a", b"a0"), ("a", b"a1"))
    lease_one(queue).release()

    assert take(queue) == [b"a0"]
    assert take(queue) == []


def test_cancelling_a_message_behind_its_key_does_not_break_the_chain(ps):
    queue = ps.create_queue("orders", ordering="key")
    _, second, _ = push_keys(queue, ("a", b"a0"), ("a", b"a1"), ("a", b"a2"))
    first = queue.lease(10)

    queue.cancel(second)
    first.ack()

    assert take(queue) == [b"a2"]


def test_keys_stay_in_order_over_pushes_and_leases_of_one(ps):
    queue = ps.create_queue("orders", ordering="key")
    for number in range(6):
        push_keys(queue, ("a", f"a{number}".encode()), ("b", f"b{number}".encode()))

    seen = []
    while leased := queue.lease(1):
        seen.append(leased[0].payload)
        leased.ack()

    for key in (b"a", b"b"):
        assert [p for p in seen if p.startswith(key)] == [key + str(n).encode() for n in range(6)]


def test_a_redriven_message_waits_for_its_key(ps, clock):
    queue = ps.create_queue("orders", ordering="key")
    push_keys(queue, ("a", b"a0"), ("a", b"a1"), ("a", b"a2"))
    lease_one(queue).reject()
    holder = lease_one(queue)
    assert holder.payload == b"a1"

    queue.dlq.redrive()
    clock.advance(TICK)
    assert take(queue) == []
    holder.ack()

    seen = []
    while leased := queue.lease(10):
        assert len(leased) == 1
        seen += leased.payloads()
        leased.ack()
    assert sorted(seen) == [b"a0", b"a2"]


def test_a_redriven_message_holds_its_key(ps, clock):
    queue = ps.create_queue("orders", ordering="key")
    push_keys(queue, ("a", b"a0"), ("b", b"b0"))
    lease_one(queue).reject()
    lease_one(queue).ack()

    queue.dlq.redrive()
    clock.advance(TICK)
    assert take(queue) == [b"a0"]
    push_keys(queue, ("a", b"a1"))

    assert take(queue) == []


def test_groups_keep_the_order_of_keys_each_for_itself(ps):
    queue = ps.create_queue("orders", ordering="key")
    queue.create_group("audit")
    push_keys(queue, ("a", b"a0"), ("a", b"a1"))

    lease_one(queue).ack()
    assert take(queue, group="audit") == [b"a0"]
    assert take(queue, group="audit") == []

    assert take(queue) == [b"a1"]


@pytest.mark.parametrize("seed", range(3))
def test_any_history_keeps_keys_in_order(ps, clock, seed):
    queue = ps.create_queue("orders", ordering="key", partitions=2, max_attempts=50)
    rng = random.Random(seed)
    pushed: dict[str, list[bytes]] = {key: [] for key in "abc"}
    for _ in range(8):
        batch = []
        for _ in range(5):
            key = rng.choice("abc")
            pushed[key].append(f"{key}{len(pushed[key])}".encode())
            batch.append((key, pushed[key][-1]))
        push_keys(queue, *batch)

    settled: dict[str, list[bytes]] = {key: [] for key in "abc"}
    held = []
    for _ in range(400):
        held += queue.lease(rng.randint(1, 3))
        assert len({delivery.key for delivery in held}) == len(held)
        if held:
            delivery = held.pop(rng.randrange(len(held)))
            if rng.random() < 0.6:
                settled[delivery.key].append(delivery.payload)
                delivery.ack()
            else:
                rng.choice([delivery.release, lambda d=delivery: d.nack(delay=1), lambda d=delivery: d.snooze(1)])()
        clock.advance(rng.choice([0, 0.5, 1.1]))
        if settled == pushed:
            break

    assert settled == pushed


# What ordered queues refuse.


@pytest.mark.parametrize("ordering", ["partition", "key"])
@pytest.mark.parametrize("option", [{"priority": 200}, {"delay": 5}, {"deliver_at": "2100-01-01T00:00:00Z"}])
def test_ordered_queues_refuse_priority_and_delay_per_message(ps, ordering, option):
    queue = ps.create_queue("orders", ordering=ordering)

    with pytest.raises(InvalidField, match="ordered by"):
        queue.push(b"a", **option)
    with pytest.raises(InvalidField, match="ordered by"):
        queue.push_many([b"x", Message(payload=b"a", **option)])

    assert queue.stats().messages == 0


def test_the_ordering_of_a_queue_cannot_change_under_its_messages(ps):
    queue = ps.create_queue("orders")
    queue.push(b"a")

    with pytest.raises(InvalidField, match="ordering"):
        ps.update_queue("orders", ordering="key")
    drain(queue)
    ps.update_queue("orders", ordering="key")

    assert queue.options().ordering == "key"


def test_partitions_cannot_be_added_under_messages_in_key_order(ps):
    queue = ps.create_queue("orders", ordering="key", partitions=2)
    push_keys(queue, ("a", b"a0"))

    with pytest.raises(InvalidField, match="partitions"):
        ps.update_queue("orders", partitions=3)
    drain(queue)
    ps.update_queue("orders", partitions=3)

    assert queue.stats().partitions == 3
