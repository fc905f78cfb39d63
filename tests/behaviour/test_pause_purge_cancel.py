"""What operators do: pause, resume, purge, cancel, delete, change options (C21)."""

from __future__ import annotations

import pytest

from penstock import Message
from penstock.errors import LeaseLost, MessageNotFound, QueueExists, QueueNotFound
from tests.behaviour.steps import TICK, drain, lease_one, numbered, take


def test_a_paused_queue_hands_nothing_out_and_takes_everything_in(ps):
    queue = ps.queue("mail")
    queue.push(b"before")
    queue.pause()

    queue.push(b"after")
    assert queue.stats().paused
    assert take(queue) == take(queue, group="other", start="earliest") == []
    queue.resume()

    assert not queue.stats().paused
    assert take(queue) == [b"before", b"after"]


def test_pausing_leaves_leases_alone(ps, clock):
    queue = ps.queue("mail")
    queue.push_many(numbered(2))
    acked, failed = queue.lease(2)
    queue.pause()

    acked.ack()
    failed.nack(delay=1)
    clock.advance(1 + TICK)
    assert take(queue) == []
    queue.resume()

    assert take(queue) == [b"1"]


def test_time_goes_on_while_a_queue_is_paused(ps, clock):
    queue = ps.queue("mail")
    queue.push(b"short", ttl=10)
    queue.push(b"delayed", delay=10)
    queue.pause()

    clock.advance(11)
    queue.resume()

    assert take(queue) == [b"delayed"]


def test_pausing_twice_and_resuming_twice_is_the_same_as_once(ps):
    queue = ps.queue("mail")
    queue.push(b"a")
    queue.pause()
    queue.pause()
    queue.resume()
    queue.resume()

    assert take(queue) == [b"a"]


@pytest.mark.parametrize("way", ["file", "sealed"], indirect=True)
def test_a_queue_stays_paused_over_a_restart(ps, way):
    queue = ps.queue("mail")
    queue.push(b"a")
    queue.pause()

    queue = way.restart().queue("mail")

    assert queue.stats().paused
    assert take(queue) == []
    queue.resume()
    assert take(queue) == [b"a"]


def test_purge_drops_everything_unsettled_in_every_group(ps, clock):
    queue = ps.create_queue("mail")
    queue.create_group("billing")
    queue.push_many([*numbered(4), Message(payload=b"delayed", delay=60), Message(payload=b"urgent", priority=255)])
    leased = queue.lease(4)
    leased[0].ack()
    leased[1].nack(delay=5)
    leased[2].release()

    queue.purge()

    stats = queue.stats()
    assert (stats.acked, stats.groups["default"].dropped_by) == (1, {"purged": 5})
    assert stats.groups["billing"].dropped_by == {"purged": 6}
    assert stats.ready == stats.leased == stats.waiting == 0
    clock.advance(100)
    assert take(queue) == take(queue, group="billing") == []
    queue.push(b"new")
    assert take(queue) == take(queue, group="billing") == [b"new"]


def test_what_was_leased_cannot_be_settled_after_a_purge(ps):
    queue = ps.queue("mail")
    queue.push_many(numbered(2))
    leased = queue.lease(2)
    queue.purge()

    with pytest.raises(LeaseLost):
        leased[0].ack()
    with pytest.raises(LeaseLost):
        leased.ack()

    assert queue.stats().acked == 0


def test_a_purge_gives_consumers_their_room_back(ps):
    queue = ps.create_queue("mail", max_in_flight=1)
    queue.push(b"a")
    queue.lease(1, consumer="ann")

    queue.purge()
    queue.push(b"b")

    assert take(queue, consumer="ann") == [b"b"]


def test_purge_leaves_dead_letters_alone(ps, clock):
    queue = ps.queue("mail")
    queue.push_many(numbered(2))
    lease_one(queue).reject()

    queue.purge()

    assert queue.stats().dead == 1
    assert queue.dlq.redrive() == 1
    clock.advance(TICK)
    assert drain(queue) == [b"0"]


def test_purge_takes_redriven_messages_too(ps, clock):
    queue = ps.queue("mail")
    queue.push_many(numbered(2))
    lease_one(queue).reject()
    drain(queue)
    queue.dlq.redrive()

    queue.purge()
    clock.advance(TICK)

    assert take(queue) == []
    assert queue.stats().groups["default"].dropped_by == {"purged": 1}


def test_a_purged_queue_can_be_replayed(ps):
    queue = ps.queue("mail")
    queue.push_many(numbered(2))
    queue.purge()

    queue.seek("default", "earliest")

    assert drain(queue) == numbered(2)


def test_a_message_can_be_cancelled_before_anyone_has_it(ps):
    queue = ps.queue("mail")
    ids = queue.push_many(numbered(6)).ids

    queue.cancel(ids[0])
    queue.cancel(str(ids[3]))

    assert drain(queue) == [b"1", b"2", b"4", b"5"]
    assert queue.stats().groups["default"].dropped_by == {"cancelled": 2}


def test_a_cancelled_message_is_gone_for_every_group(ps):
    queue = ps.create_queue("mail")
    queue.create_group("billing")
    id = queue.push(b"a")

    queue.cancel(id)

    assert take(queue) == take(queue, group="billing") == []


def test_a_message_that_one_group_is_done_with_is_cancelled_for_the_others(ps):
    queue = ps.create_queue("mail")
    queue.create_group("billing")
    id = queue.push(b"a")
    lease_one(queue).ack()

    queue.cancel(id)

    stats = queue.stats()
    assert stats.acked == 1
    assert stats.groups["billing"].dropped_by == {"cancelled": 1}


def test_a_retry_can_be_cancelled(ps, clock):
    queue = ps.queue("mail")
    id = queue.push(b"a")
    lease_one(queue).nack(delay=10)

    queue.cancel(id)
    clock.advance(11)

    assert take(queue) == []


def test_what_a_consumer_holds_cannot_be_cancelled(ps):
    queue = ps.queue("mail")
    id = queue.push(b"a")
    delivery = lease_one(queue)

    with pytest.raises(LeaseLost):
        queue.cancel(id)

    delivery.ack()
    with pytest.raises(MessageNotFound):
        queue.cancel(id)


def test_only_what_exists_can_be_cancelled(ps):
    queue = ps.queue("mail")
    queue.push(b"a")

    for id in ("mail/0/1", "mail/7/0"):
        with pytest.raises(MessageNotFound):
            queue.cancel(id)
    with pytest.raises(QueueNotFound):
        queue.cancel("nobody/0/0")

    assert queue.stats().ready == 1


def test_a_queue_is_made_once(ps):
    ps.create_queue("mail", max_attempts=3)

    with pytest.raises(QueueExists):
        ps.create_queue("mail", max_attempts=3)
    with pytest.raises(QueueExists):
        ps.create_queue("mail", exist_ok=True)
    assert ps.create_queue("mail", exist_ok=True, max_attempts=3).options().max_attempts == 3


def test_options_can_be_changed(ps, clock):
    queue = ps.create_queue("mail", lease_seconds=10, max_attempts=3)
    queue.push_many(numbered(2))
    old = queue.lease(1)

    ps.update_queue("mail", lease_seconds=100)
    new = queue.lease(1)

    assert (queue.options().lease_seconds, queue.options().max_attempts) == (100, 3)
    clock.advance(50)
    with pytest.raises(LeaseLost):
        old.ack()
    new.ack()


def test_a_deleted_queue_is_gone_with_its_dead_letters(ps, clock):
    queue = ps.create_queue("mail")
    queue.push_many([Message(payload=b"a", delay=5), Message(payload=b"b", ttl=5), b"c", b"d"])
    held, dead = queue.lease(2)
    dead.reject()

    ps.delete_queue("mail")

    assert ps.queues() == []
    for call in (queue.stats, queue.lease, queue.purge, queue.pause, queue.groups, queue.read, queue.dlq.list):
        with pytest.raises(QueueNotFound):
            call()
    with pytest.raises(LeaseLost):
        held.ack()
    clock.advance(100)
    assert ps.queues() == []
    with pytest.raises(QueueNotFound):
        ps.delete_queue("mail")
