"""Settling: ack, nack, reject, release, snooze; with proof, once, in any order (C4, C5, C23)."""

from __future__ import annotations

import pytest

from penstock.errors import BadReceipt, LeaseLost
from penstock.model import Outcome
from tests.behaviour.steps import TICK, drain, lease_one, numbered, take


def test_an_acknowledged_message_does_not_come_again(ps, clock):
    queue = ps.queue("mail")
    queue.push(b"a")

    lease_one(queue).ack()
    clock.advance(3600)

    assert take(queue) == []
    assert queue.stats().acked == 1


def test_the_committed_offset_is_the_last_contiguous_ack(ps):
    queue = ps.queue("mail")
    queue.push_many(numbered(4))
    leased = queue.lease(4)

    def committed():
        (row,) = queue.groups()["default"]
        return row.committed_offset, row.lag

    leased[2].ack()
    assert committed() == (0, 3)
    leased[0].ack()
    assert committed() == (1, 2)
    leased[1].ack()
    assert committed() == (3, 1)
    leased[3].ack()
    assert committed() == (4, 0)


@pytest.mark.parametrize("second", ["ack", "nack", "reject", "release"])
@pytest.mark.parametrize("first", ["ack", "nack", "reject", "release"])
def test_a_delivery_is_settled_once(ps, first, second):
    queue = ps.queue("mail")
    queue.push(b"a")
    delivery = lease_one(queue)
    getattr(delivery, first)()
    before = queue.stats()

    with pytest.raises(LeaseLost):
        getattr(delivery, second)()

    assert queue.stats() == before


def test_a_whole_lease_is_settled_in_one_step(ps):
    queue = ps.queue("mail")
    queue.push_many(numbered(10))
    leased = queue.lease(10)
    leased[4].ack()

    leased.ack()

    assert queue.stats().acked == 10
    with pytest.raises(LeaseLost):
        leased.ack()


def test_a_whole_lease_can_fail_be_given_back_or_be_rejected(ps, clock):
    queue = ps.queue("mail")
    queue.push_many(numbered(3))

    queue.lease(3).release()
    queue.lease(3).nack(delay=5)
    assert queue.stats().waiting == 3
    clock.advance(5 + TICK)
    queue.lease(3).reject("bad")

    assert queue.stats().dead == 3
    assert [letter.payload for letter in queue.dlq.list()] == numbered(3)


def test_settling_one_delivery_leaves_the_others_of_its_lease(ps):
    queue = ps.queue("mail")
    queue.push_many(numbered(5))
    leased = queue.lease(5)

    leased[0].ack()
    leased[1].nack(delay=60)
    leased[2].reject("bad")
    leased[3].release()
    leased[4].snooze(60)

    stats = queue.stats()
    assert (stats.acked, stats.waiting, stats.dead, stats.ready, stats.leased) == (1, 2, 1, 1, 0)


def test_a_released_message_is_ready_at_once_and_the_attempt_does_not_count(ps):
    queue = ps.create_queue("mail", max_attempts=1)
    queue.push(b"a")

    for _ in range(5):
        delivery = lease_one(queue)
        assert delivery.attempt == 1
        delivery.release()

    assert take(queue) == [b"a"]
    assert queue.stats().dead == 0


def test_a_snoozed_message_comes_later_and_the_attempt_does_not_count(ps, clock):
    queue = ps.create_queue("mail", max_attempts=1)
    queue.push(b"a")

    for _ in range(3):
        lease_one(queue).snooze(60)
        clock.advance(59)
        assert take(queue) == []
        clock.advance(1 + TICK)

    delivery = lease_one(queue)
    assert delivery.attempt == 1
    delivery.ack()


def test_a_nack_with_a_delay_waits_exactly_that_long(ps, clock):
    queue = ps.queue("mail")
    queue.push(b"a")

    lease_one(queue).nack(delay=7, error="busy")
    clock.advance(6.999)
    assert take(queue) == []
    clock.advance(0.001 + TICK)

    assert lease_one(queue).attempt == 2


def test_a_nack_without_delay_is_ready_at_once(ps):
    queue = ps.queue("mail")
    queue.push(b"a")

    lease_one(queue).nack(delay=0)

    assert lease_one(queue).attempt == 2


def test_an_attempt_counts_per_message_and_not_per_lease(ps, clock):
    queue = ps.queue("mail")
    queue.push_many(numbered(3))
    leased = queue.lease(3)
    leased[1].nack(delay=0)
    leased[0].ack()
    leased[2].release()
    clock.advance(TICK)

    assert {d.payload: d.attempt for d in queue.lease(3)} == {b"1": 2, b"2": 1}


def test_a_rejected_message_is_dead_at_its_first_attempt(ps):
    queue = ps.create_queue("mail", max_attempts=10)
    queue.push(b"poison")

    lease_one(queue, consumer="ann").reject("unreadable")

    (letter,) = queue.dlq.list()
    assert letter.payload == b"poison"
    assert letter.headers["penstock-reason"] == "rejected"
    assert letter.headers["penstock-error"] == "unreadable"
    assert take(queue) == []


def test_receipts_travel_as_text(ps, way):
    queue = ps.create_queue("orders", partitions="named")
    queue.push(b"a", partition="left")
    queue.push(b"b", partition="right")
    receipts = [delivery.receipt for delivery in queue.lease(2)]

    way.settle(receipts)

    assert queue.stats().acked == 2
    assert receipts[0].startswith("orders:left:0:1:")


def test_settling_several_receipts_is_whole_or_not_at_all(ps, way):
    queue = ps.queue("mail")
    queue.push_many(numbered(3))
    deliveries = list(queue.lease(3))
    deliveries[1].ack()

    with pytest.raises(LeaseLost):
        way.settle([delivery.receipt for delivery in deliveries])

    assert queue.stats().acked == 1
    assert queue.stats().leased == 2


def test_a_receipt_named_twice_in_one_call_is_refused(ps, way):
    queue = ps.queue("mail")
    queue.push(b"a")
    receipt = lease_one(queue).receipt

    with pytest.raises(LeaseLost):
        way.settle([receipt, receipt])

    assert queue.stats().leased == 1


def test_a_forged_receipt_settles_nothing(ps, way):
    queue = ps.queue("mail")
    queue.push_many(numbered(2))
    genuine = queue.lease(1)[0].receipt
    name, partition, offset, attempt, nonce = genuine.split(":")
    forged = [
        f"{name}:{partition}:1:{attempt}:{nonce}",
        f"{name}:{partition}:{offset}:2:{nonce}",
        f"{name}:{partition}:{offset}:{attempt}:{int(nonce, 16) ^ 2:016x}",
        f"other:{partition}:{offset}:{attempt}:{nonce}",
        f"{name}:7:{offset}:{attempt}:{nonce}",
    ]

    for receipt in forged:
        with pytest.raises(LeaseLost):
            way.settle([receipt])
    for receipt in ("", "mail", "mail:0:0", genuine + ":x", "mail:0:x:1:ff", "mail:0:0:1:xyz"):
        with pytest.raises(BadReceipt):
            way.settle([receipt])

    assert queue.stats().leased == 1
    way.settle([genuine])


def test_a_receipt_of_an_earlier_attempt_cannot_settle_a_later_one(ps, way, clock):
    queue = ps.queue("mail")
    queue.push(b"a")
    first = lease_one(queue)
    first.nack(delay=0)
    clock.advance(TICK)
    second = lease_one(queue)

    with pytest.raises(LeaseLost):
        way.settle([first.receipt])

    second.ack()


def test_a_late_consumer_cannot_settle_the_attempt_of_another(ps, clock):
    queue = ps.create_queue("mail", lease_seconds=10, backoff_base_seconds=0)
    queue.push(b"a")
    late = lease_one(queue, consumer="late")
    clock.advance(10)
    quick = lease_one(queue, consumer="quick")

    for settle in (late.ack, late.nack, late.reject, late.release):
        with pytest.raises(LeaseLost):
            settle()

    assert queue.stats().leased == 1
    quick.ack()
    assert queue.stats().dead == 0


def test_the_text_of_an_error_may_be_anything(ps, clock):
    queue = ps.create_queue("mail", max_attempts=2)
    queue.push(b"a")

    lease_one(queue).nack(delay=0, error="unreadable \udcff name")
    clock.advance(TICK)
    lease_one(queue).nack(error="ö" * 100_000)

    (letter,) = queue.dlq.list()
    assert 1_000 < len(letter.headers["penstock-error"].encode()) <= 4_096


def test_settling_through_another_group_is_refused(ps, way):
    queue = ps.queue("mail")
    queue.push(b"a")
    mine, theirs = lease_one(queue), lease_one(queue, group="audit", start="earliest")

    mine.ack()

    assert queue.stats().groups["audit"].leased == 1
    theirs.ack()
    assert queue.stats().groups["audit"].acked == 1


def test_everything_pushed_can_be_drained(ps):
    queue = ps.create_queue("orders", partitions=3)
    for number in range(3):
        queue.push_many(numbered(20, f"{number}-"))

    assert len(drain(queue, 7)) == 60
    stats = queue.stats()
    assert (stats.ready, stats.acked) == (0, 60)


@pytest.mark.parametrize("outcome", [Outcome.ACKED, Outcome.REJECTED, Outcome.RELEASED, Outcome.RETRIED])
def test_a_message_that_was_purged_under_its_consumer_cannot_be_settled(ps, way, outcome):
    queue = ps.queue("mail")
    queue.push(b"a")
    receipt = lease_one(queue).receipt
    queue.purge()

    with pytest.raises(LeaseLost):
        way.settle([receipt], outcome)
