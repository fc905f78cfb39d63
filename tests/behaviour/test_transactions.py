"""Transactions: settle and push over any queues, all or nothing (E1)."""

from __future__ import annotations

import pytest

from penstock import Message
from penstock.errors import Closed, InvalidField, InvalidName, LeaseLost, QueueFull, TooLarge
from tests.behaviour.steps import TICK, drain, lease_one, numbered, take


def test_ack_and_push_happen_together(ps):
    source = ps.queue("source")
    source.push(b"in")
    delivery = lease_one(source)

    with ps.transaction() as tx:
        tx.ack(delivery)
        tx.push("sink", b"out", key="k", priority=200)
        tx.push_many("audit", [b"a", Message(payload=b"b", delay=60)])
        assert ps.queues() == ["source"]
        assert source.stats().leased == 1

    assert source.stats().acked == 1
    assert [(d.payload, d.key, d.priority) for d in ps.queue("sink").lease(1)] == [(b"out", "k", 200)]
    assert take(ps.queue("audit")) == [b"a"]
    assert [str(id) for ids in tx.ids for id in ids] == ["sink/0/0", "audit/0/0", "audit/0/1"]


def test_an_error_in_the_block_means_that_nothing_happened(ps):
    source = ps.queue("source")
    source.push(b"in")
    delivery = lease_one(source)

    def attempt():
        with ps.transaction() as tx:
            tx.ack(delivery)
            tx.push("sink", b"out")
            1 // 0  # noqa: B018

    with pytest.raises(ZeroDivisionError):
        attempt()

    assert ps.queues() == ["source"]
    delivery.ack()


@pytest.mark.parametrize("last", ["lost", "full", "name", "partition", "ordered"])
def test_one_refusal_refuses_all_of_it(ps, clock, last):
    source = ps.queue("source")
    source.push_many(numbered(2))
    first, second = source.lease(2)
    full = ps.create_queue("full", max_length=1)
    full.push(b"x")
    ps.create_queue("ordered", ordering="key")
    second.release()
    before = {name: ps.queue(name).stats() for name in ps.queues()}

    def attempt():
        with ps.transaction() as tx:
            tx.ack(first)
            tx.push("sink", b"out")
            if last == "lost":
                tx.ack(second)
            elif last == "full":
                tx.push("full", b"y")
            elif last == "name":
                tx.push("sink.dlq", b"y")
            elif last == "partition":
                tx.push("sink", b"y", partition=9)
            else:
                tx.push("ordered", b"y", priority=3)

    with pytest.raises((LeaseLost, QueueFull, InvalidName, InvalidField)):
        attempt()

    assert {name: ps.queue(name).stats() for name in ps.queues()} == before
    assert source.stats().leased == 1
    first.ack()


def test_pushes_that_fit_one_by_one_but_not_together_are_refused(ps):
    queue = ps.create_queue("small", max_length=2)
    queue.push(b"x")

    def attempt():
        with ps.transaction() as tx:
            tx.push("small", b"a")
            tx.push("small", b"b")

    with pytest.raises(QueueFull):
        attempt()

    assert queue.stats().ready == 1


def test_a_delivery_may_fail_be_rejected_or_be_released_in_a_transaction(ps, clock):
    queue = ps.create_queue("source", max_attempts=1)
    queue.push_many(numbered(4))
    deliveries = queue.lease(4)

    with ps.transaction() as tx:
        tx.ack(deliveries[0])
        tx.nack(deliveries[1], error="last attempt")
        tx.reject(deliveries[2], reason="bad")
        tx.release(deliveries[3])

    stats = queue.stats()
    assert (stats.acked, stats.dead, stats.ready, stats.leased) == (1, 2, 1, 0)
    assert [letter.headers["penstock-reason"] for letter in queue.dlq.list()] == ["dead", "rejected"]


def test_a_nack_in_a_transaction_waits_its_delay(ps, clock):
    queue = ps.queue("source")
    queue.push(b"a")

    with ps.transaction() as tx:
        tx.nack(lease_one(queue), delay=10)

    assert take(queue) == []
    clock.advance(10 + TICK)
    assert lease_one(queue).attempt == 2


def test_a_delivery_is_settled_once_in_a_transaction(ps):
    queue = ps.queue("source")
    queue.push(b"a")
    delivery = lease_one(queue)

    def attempt():
        with ps.transaction() as tx:
            tx.ack(delivery)
            tx.release(delivery)

    with pytest.raises(LeaseLost):
        attempt()

    assert queue.stats().leased == 1


def test_a_lease_that_ran_out_stops_the_transaction(ps, clock):
    queue = ps.queue("source")
    queue.push(b"a")
    delivery = lease_one(queue)
    clock.advance(31)

    def attempt():
        with ps.transaction() as tx:
            tx.ack(delivery)
            tx.push("sink", b"must not appear")

    with pytest.raises(LeaseLost):
        attempt()

    assert ps.queues() == ["source"]


def test_dedup_keys_count_within_a_transaction(ps):
    queue = ps.queue("sink")
    first = queue.push(b"known", dedup_key="k")

    with ps.transaction() as tx:
        tx.push("sink", b"again", dedup_key="k")
        tx.push("sink", b"new", dedup_key="l")
        tx.push("sink", b"new again", dedup_key="l")

    assert tx.ids[0] == [first]
    assert tx.ids[1] == tx.ids[2]
    assert drain(queue) == [b"known", b"new"]


def test_several_pushes_to_one_new_queue_are_in_order(ps):
    with ps.transaction() as tx:
        for payload in numbered(5):
            tx.push("fresh", payload)

    assert drain(ps.queue("fresh")) == numbered(5)


def test_an_empty_transaction_is_nothing(ps):
    with ps.transaction():
        pass

    assert ps.queues() == []


def test_a_transaction_is_over_when_its_block_is(ps):
    with ps.transaction() as tx:
        tx.push("sink", b"a")

    with pytest.raises(Closed):
        tx.push("sink", b"b")
    assert take(ps.queue("sink")) == [b"a"]


def test_a_transaction_wakes_and_frees_like_single_calls(ps):
    queue = ps.create_queue("orders", ordering="key")
    queue.push_many([Message(payload=payload, key="k") for payload in numbered(2)])

    with ps.transaction() as tx:
        tx.ack(lease_one(queue))

    assert take(queue) == [b"1"]


def test_a_transaction_that_is_too_large_for_one_frame_changes_nothing(ps):
    queue = ps.queue("source")
    queue.push(b"a")
    delivery = lease_one(queue)

    def attempt():
        with ps.transaction() as tx:
            tx.ack(delivery)
            for _ in range(4):
                tx.push("sink", b"x" * 9_000_000)

    with pytest.raises(TooLarge):
        attempt()

    assert ps.queues() == ["source"]
    assert queue.stats().leased == 1
    delivery.ack()


@pytest.mark.parametrize("way", ["file", "sealed", "forgetful"], indirect=True)
def test_a_transaction_survives_whole(ps, way):
    source = ps.queue("source")
    source.push_many(numbered(2))
    with ps.transaction() as tx:
        tx.ack(lease_one(source))
        tx.push("sink", b"out")

    ps = way.crash()

    assert ps.queue("source").stats().acked == 1
    assert take(ps.queue("sink")) == [b"out"]
