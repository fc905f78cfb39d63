"""Delays, of a message or of its queue: never early, never in the way (C12, C20)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from penstock import Message
from penstock.errors import MessageNotFound
from penstock.model import to_datetime
from tests.behaviour.steps import TICK, drain, lease_one, numbered, take

YEAR = 365 * 86_400


def in_seconds(clock, seconds):
    return to_datetime(clock.now()) + timedelta(seconds=seconds)


def test_a_delayed_message_comes_when_it_is_due_and_never_before(ps, clock):
    queue = ps.queue("mail")
    queue.push(b"later", delay=10)

    assert queue.stats().waiting == 1
    clock.advance(9.999)
    assert take(queue) == []
    clock.advance(0.001 + TICK)

    assert take(queue) == [b"later"]


def test_a_message_can_be_delivered_at_an_instant(ps, clock):
    queue = ps.queue("mail")
    queue.push(b"datetime", deliver_at=in_seconds(clock, 60))
    queue.push(b"text", deliver_at=in_seconds(clock, 30).isoformat())
    queue.push(b"past", deliver_at=datetime(2001, 1, 1, tzinfo=UTC))

    assert drain(queue) == [b"past"]
    clock.advance(30 + TICK)
    assert drain(queue) == [b"text"]
    clock.advance(30)
    assert drain(queue) == [b"datetime"]


def test_delayed_messages_come_in_the_order_in_which_they_are_due(ps, clock):
    queue = ps.queue("mail")
    delays = [50, 10, 40, 30, 20]
    queue.push_many([Message(payload=str(delay).encode(), delay=delay) for delay in delays])
    assert take(queue) == []

    clock.advance(60)

    assert [lease_one(queue).payload for _ in delays] == [b"10", b"20", b"30", b"40", b"50"]


def test_a_message_that_is_not_due_never_blocks_one_that_is(ps, clock):
    queue = ps.queue("mail")
    queue.push(b"urgent but later", priority=255, delay=3600)
    queue.push_many([Message(payload=b"later", delay=60), b"now"])
    queue.push(b"idle", priority=0)

    assert drain(queue) == [b"now", b"idle"]
    clock.advance(60 + TICK)
    assert drain(queue) == [b"later"]
    clock.advance(3540)
    assert drain(queue) == [b"urgent but later"]


def test_a_delay_that_ends_keeps_the_priority_of_its_message(ps, clock):
    queue = ps.queue("mail")
    queue.push(b"urgent", priority=200, delay=10)
    queue.push(b"idle", priority=5, delay=10)
    clock.advance(11)
    queue.push(b"plain")

    assert [lease_one(queue).payload for _ in range(3)] == [b"urgent", b"plain", b"idle"]


def test_years_ahead_are_allowed(ps, clock):
    queue = ps.queue("mail")
    queue.push(b"far", delay=12 * YEAR)
    queue.push(b"farther", deliver_at=in_seconds(clock, 50 * YEAR))

    clock.advance(12 * YEAR - 1)
    assert take(queue) == []
    clock.advance(1 + TICK)
    assert drain(queue) == [b"far"]
    clock.advance(38 * YEAR - 1)
    assert take(queue) == []
    clock.advance(1)
    assert take(queue) == [b"farther"]


def test_delayed_messages_can_be_listed_soonest_first(ps, clock):
    queue = ps.create_queue("mail", partitions=2)
    queue.push(b"b", delay=20, partition=0)
    queue.push(b"a", delay=10, partition=1)
    queue.push(b"c", delay=30, partition=0, key="k")
    queue.push(b"now", partition=0)

    listed = queue.delayed()
    assert [message.payload for message in listed] == [b"a", b"b", b"c"]
    assert listed[0].available_at == in_seconds(clock, 10)
    assert listed[2].key == "k"
    assert [message.payload for message in queue.delayed(limit=2)] == [b"a", b"b"]
    clock.advance(15)
    assert [message.payload for message in queue.delayed()] == [b"b", b"c"]


def test_a_delayed_message_can_be_cancelled(ps, clock):
    queue = ps.queue("mail")
    keep, drop = queue.push_many([Message(payload=p, delay=10) for p in (b"keep", b"drop")]).ids

    queue.cancel(str(drop))

    assert [message.id for message in queue.delayed()] == [keep]
    assert queue.stats().groups["default"].dropped_by == {"cancelled": 1}
    clock.advance(11)
    assert drain(queue) == [b"keep"]
    with pytest.raises(MessageNotFound):
        queue.cancel(drop)


def test_a_cancelled_delay_is_not_counted_as_waiting(ps):
    queue = ps.queue("mail")
    id = queue.push(b"later", delay=60)
    queue.push(b"now")

    queue.cancel(id)

    stats = queue.stats()
    assert (stats.waiting, stats.ready) == (0, 1)


def test_a_delay_before_a_groups_start_is_not_counted_as_waiting_for_it(ps):
    queue = ps.queue("mail")
    queue.push(b"later", delay=60)
    queue.push(b"now")
    queue.create_group("late", start=1)

    stats = queue.stats()

    assert (stats.groups["late"].waiting, stats.groups["late"].ready) == (0, 1)
    assert (stats.waiting, stats.ready) == (1, 1)


def test_every_group_waits_for_a_delay_and_each_gets_it(ps, clock):
    queue = ps.create_queue("mail")
    queue.create_group("audit")
    queue.push(b"later", delay=10)
    assert take(queue) == take(queue, group="audit") == []

    clock.advance(11)

    assert take(queue) == take(queue, group="audit") == [b"later"]


def test_a_queue_may_delay_everything(ps, clock):
    queue = ps.create_queue("mail", delay_seconds=10)
    queue.push(b"a")
    clock.advance(5)
    queue.push(b"b")

    clock.advance(5 - TICK)
    assert take(queue) == []
    clock.advance(2 * TICK)
    assert take(queue) == [b"a"]
    assert take(queue) == []
    clock.advance(5)

    assert take(queue) == [b"b"]


def test_a_message_may_wait_longer_than_its_queue_says(ps, clock):
    queue = ps.create_queue("mail", delay_seconds=10)
    queue.push(b"long", delay=30)
    queue.push(b"short", delay=5)

    clock.advance(10 + TICK)
    assert take(queue) == [b"short"]
    clock.advance(20)
    assert take(queue) == [b"long"]


@pytest.mark.parametrize("option", ["delay_seconds", "window_seconds"])
def test_a_queue_that_holds_messages_back_still_serves_every_priority(ps, clock, option):
    queue = ps.create_queue("mail", **{option: 10})
    queue.push(b"urgent", priority=255)
    queue.push(b"plain")
    queue.push(b"idle", priority=0)

    assert take(queue) == []
    clock.advance(10 + TICK)

    assert take(queue) == [b"urgent", b"plain", b"idle"]


@pytest.mark.parametrize("ordering", ["partition", "key"])
def test_an_ordered_queue_may_delay_everything(ps, clock, ordering):
    queue = ps.create_queue("mail", delay_seconds=10, ordering=ordering)
    queue.push(b"a", key="k")
    assert take(queue) == []
    clock.advance(6)
    queue.push(b"b", key="k")

    clock.advance(4 + TICK)
    assert drain(queue) == [b"a"]
    clock.advance(6)
    assert drain(queue) == [b"b"]


def test_a_window_holds_a_partition_until_it_is_quiet(ps, clock):
    queue = ps.create_queue("mail", window_seconds=10, partitions=2)
    queue.push(b"a", partition=0)
    queue.push(b"other", partition=1)
    clock.advance(6)
    queue.push(b"b", partition=0)
    clock.advance(6)

    assert take(queue) == [b"other"]
    clock.advance(4 + TICK)

    assert take(queue) == [b"a", b"b"]


def test_a_window_holds_low_priorities_that_were_passed_over_too(ps, clock):
    queue = ps.create_queue("mail", window_seconds=10)
    queue.push(b"idle", priority=0)
    queue.push(b"busy")
    clock.advance(10 + TICK)
    assert take(queue, 1) == [b"busy"]

    queue.push(b"new")

    assert take(queue) == []
    clock.advance(10 + TICK)
    assert take(queue) == [b"new", b"idle"]


@pytest.mark.parametrize("option", ["delay_seconds", "window_seconds"])
def test_no_priority_is_forgotten_while_the_queue_holds_it_back(ps, clock, option):
    queue = ps.create_queue("mail", **{option: 10})
    queue.push(b"low", priority=64)
    clock.advance(10 + TICK)
    assert take(queue) == [b"low"]
    queue.push(b"first", priority=255)
    assert take(queue) == []
    queue.push(b"second", priority=255)

    clock.advance(10 + TICK)

    assert take(queue) == [b"first", b"second"]


def test_a_retry_does_not_wait_for_the_window(ps, clock):
    queue = ps.create_queue("mail", window_seconds=10)
    queue.push(b"a")
    clock.advance(10 + TICK)
    lease_one(queue).nack(delay=5)
    queue.push(b"b")

    clock.advance(5 + TICK)

    assert take(queue) == [b"a"]


def test_many_delays_all_end(ps, clock):
    queue = ps.queue("mail")
    queue.push_many([Message(payload=p, delay=1 + n % 97) for n, p in enumerate(numbered(500))])

    seen = []
    for _ in range(20):
        clock.advance(5)
        seen += drain(queue)

    assert sorted(seen) == sorted(numbered(500))
