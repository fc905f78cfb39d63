"""Groups: independent readers that start where they are told and can be moved (D3, D4, D7)."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta

import pytest

from penstock import Message
from penstock.errors import GroupExists, GroupNotFound, InvalidField, LeaseLost
from penstock.model import to_datetime
from tests.behaviour.steps import TICK, drain, fail, lease_one, numbered, take


def payloads(messages):
    return [message.payload for message in messages]


def test_groups_read_the_same_messages_each_for_itself(ps, clock):
    queue = ps.create_queue("events")
    queue.create_group("billing")
    queue.push_many(numbered(3))

    assert drain(queue) == numbered(3)
    first, *rest = queue.lease(3, group="billing")
    first.nack(delay=5)
    rest[0].reject()
    rest[1].ack()
    clock.advance(5 + TICK)

    assert take(queue) == []
    assert [(d.payload, d.attempt) for d in queue.lease(3, group="billing")] == [(b"0", 2)]
    stats = queue.stats()
    assert (stats.acked, stats.dead) == (3, 0)
    assert (stats.groups["billing"].acked, stats.groups["billing"].dead) == (1, 1)


def test_a_group_that_was_never_created_is_refused_with_a_suggestion(ps):
    queue = ps.create_queue("events")
    queue.create_group("billing")
    queue.push(b"a")

    for wait in (0, 5):
        with pytest.raises(GroupNotFound) as refused:
            queue.lease(group="biling", wait=wait)
        assert "did you mean 'billing'?" in refused.value.hint
        assert "start=" in refused.value.hint
    for consuming in (queue.consume("biling"), queue.subscribe("biling")):
        with pytest.raises(GroupNotFound):
            next(consuming)
    assert set(queue.groups()) == {"default", "billing"}


STARTS = [("earliest", [0, 1, 2, 3]), ("latest", [3]), (2, [2, 3]), (99, [3]), ({"0": 1}, [1, 2, 3])]


@pytest.mark.parametrize(("start", "expected"), STARTS)
def test_a_start_in_a_lease_makes_the_group_there(ps, start, expected):
    queue = ps.queue("events")
    queue.push_many(numbered(3))
    drain(queue)

    first = queue.lease(10, group="late", start=start).payloads()
    queue.push(b"3")

    assert [*first, *take(queue, group="late")] == [str(number).encode() for number in expected]
    assert set(queue.groups()) == {"default", "late"}


def test_a_start_does_nothing_to_a_group_that_is_there(ps):
    queue = ps.queue("events")
    queue.push_many(numbered(3))
    queue.create_group("billing", start="latest")

    assert queue.lease(group="billing", start="earliest").payloads() == []
    assert queue.lease(start="latest").payloads() == [b"0"]


def test_a_start_may_be_a_time(ps, way, clock):
    queue = ps.queue("events")
    queue.push(b"old")
    clock.advance(10)
    since = to_datetime(clock.now())
    queue.push(b"new")
    way.seal()

    assert take(queue, group="late", start=since) == [b"new"]
    assert take(queue, group="text", start=since.isoformat()) == [b"new"]


@pytest.mark.parametrize("start", ["yesterday", -1, 1.5, True, {}, {"0": -1}, [], "2030-01-01T00:00:00"])
def test_a_start_that_is_none_is_refused_although_the_group_is_there(ps, start):
    queue = ps.create_queue("events")
    queue.create_group("billing")

    for call in (queue.lease, queue.consume, queue.subscribe):
        with pytest.raises(InvalidField, match="start"):
            next(iter(call(group="billing", start=start)))


def test_consume_and_subscribe_make_their_group_where_they_are_asked_to(ps):
    queue = ps.queue("events")
    queue.push_many(numbered(2))

    for consuming, payload in (
        (queue.consume("reader", start=1), b"1"),
        (queue.subscribe("member", start="earliest"), b"0"),
    ):
        with closing(consuming):
            assert next(consuming).payload == payload
    assert set(queue.groups()) == {"default", "reader", "member"}


def test_a_group_that_is_deleted_under_its_consumers_stays_deleted(ps):
    queue = ps.queue("events")
    queue.push_many(numbered(2))
    consumers = [queue.consume("reader", start="earliest"), queue.subscribe("member", start="earliest")]
    for consumer in consumers:
        assert next(consumer).payload == b"0"

    queue.delete_group("reader")
    queue.delete_group("member")

    for consumer in consumers:
        with pytest.raises(GroupNotFound):
            for _ in consumer:
                pass
    assert set(queue.groups()) == {"default"}


@pytest.mark.parametrize(("start", "expected"), STARTS)
def test_a_group_starts_where_it_is_asked_to(ps, start, expected):
    queue = ps.queue("events")
    queue.push_many(numbered(3))

    queue.create_group("billing", start=start)
    queue.push(b"3")

    assert drain(queue, group="billing") == [str(number).encode() for number in expected]


def test_a_group_that_starts_at_latest_does_so_in_partitions_to_come(ps):
    queue = ps.create_queue("rooms", partitions="named")
    queue.push(b"old", partition="a")
    queue.create_group("tail", start="latest")

    queue.push(b"new", partition="a")
    queue.push(b"fresh", partition="b")

    assert sorted(drain(queue, group="tail")) == [b"fresh", b"new"]


def test_a_group_may_start_at_a_time(ps, clock):
    queue = ps.queue("events")
    instants = []
    for number in range(4):
        instants.append(to_datetime(clock.now()))
        queue.push(str(number).encode())
        clock.advance(60)

    queue.create_group("exact", start=instants[2])
    queue.create_group("between", start=instants[2] - timedelta(seconds=1))
    queue.create_group("text", start=instants[3].isoformat())
    queue.create_group("future", start=instants[3] + timedelta(days=1))
    queue.create_group("ancient", start=instants[0] - timedelta(days=1))

    assert drain(queue, group="exact") == [b"2", b"3"]
    assert drain(queue, group="between") == [b"2", b"3"]
    assert drain(queue, group="text") == [b"3"]
    assert drain(queue, group="future") == []
    assert drain(queue, group="ancient") == numbered(4)


def test_a_group_may_start_at_an_offset_of_each_partition(ps):
    queue = ps.create_queue("events", partitions=3)
    for number in range(3):
        queue.push_many([Message(payload=f"{number}-{n}".encode(), partition=number) for n in range(3)])

    queue.create_group("billing", start={0: 2, "1": 3})

    assert sorted(drain(queue, group="billing")) == [b"0-2", b"2-0", b"2-1", b"2-2"]


def test_a_group_is_made_once(ps):
    queue = ps.create_queue("events")
    queue.create_group("billing")

    with pytest.raises(GroupExists):
        queue.create_group("billing", start="latest")
    with pytest.raises(GroupExists):
        queue.create_group("default")


def test_a_deleted_group_is_forgotten(ps):
    queue = ps.queue("events")
    queue.push(b"a")
    held = lease_one(queue, group="billing", start="earliest")

    queue.delete_group("billing")

    assert set(queue.groups()) == {"default"}
    with pytest.raises(LeaseLost):
        held.ack()
    with pytest.raises(GroupNotFound):
        take(queue, group="billing")


def test_the_default_group_cannot_be_deleted(ps):
    queue = ps.create_queue("events")

    with pytest.raises(InvalidField):
        queue.delete_group("default")


def test_seek_replays_from_the_beginning(ps):
    queue = ps.queue("events")
    queue.push_many(numbered(3))
    assert drain(queue) == numbered(3)

    queue.seek("default", "earliest")

    assert queue.stats().ready == 3
    assert drain(queue) == numbered(3)


def test_seek_skips_to_the_end(ps):
    queue = ps.queue("events")
    queue.push_many(numbered(3))

    queue.seek("default", "latest")
    queue.push(b"new")

    assert drain(queue) == [b"new"]


def test_seek_moves_to_an_offset_and_forgets_what_was_tried(ps, clock):
    queue = ps.create_queue("events", max_attempts=3)
    queue.push_many(numbered(4))
    fail(queue, clock, 2)
    lease_one(queue).reject()
    queue.lease(1)[0].ack()

    queue.seek("default", 1)

    stats = queue.stats()
    assert (stats.ready, stats.dead, stats.acked, stats.waiting) == (3, 0, 0, 0)
    assert [(d.payload, d.attempt) for d in queue.lease(10)] == [(b"1", 1), (b"2", 1), (b"3", 1)]


def test_seek_by_time_crosses_memory_and_segments(ps, way, clock):
    queue = ps.queue("events")
    instants = []
    for number in range(6):
        instants.append(to_datetime(clock.now()))
        queue.push_many([f"{number}{letter}".encode() for letter in "ab"])
        clock.advance(60)
        if number == 3:
            way.seal()

    for number in (0, 1, 3, 4, 5):
        queue.seek("default", instants[number])
        expected = [f"{n}{letter}".encode() for n in range(number, 6) for letter in "ab"]
        assert drain(queue) == expected
        assert payloads(queue.read(timestamp=instants[number])) == expected


def test_seek_moves_one_partition_alone(ps):
    queue = ps.create_queue("events", partitions=2)
    for number in range(2):
        queue.push_many([Message(payload=f"{number}-{n}".encode(), partition=number) for n in range(2)])
    drain(queue)

    queue.seek("default", "earliest", partition=1)
    assert drain(queue) == [b"1-0", b"1-1"]
    queue.seek("default", 1, partition=0)
    assert drain(queue) == [b"0-1"]
    queue.seek("default", {"0": 0, "1": 1})

    assert sorted(drain(queue)) == [b"0-0", b"0-1", b"1-1"]


def test_seek_takes_leases_away_from_their_holders(ps):
    queue = ps.queue("events")
    queue.push_many(numbered(2))
    leased = queue.lease(2)

    queue.seek("default", "earliest")

    with pytest.raises(LeaseLost):
        leased.ack()
    with pytest.raises(LeaseLost):
        leased[0].ack()
    assert drain(queue) == numbered(2)


def test_seek_leaves_what_a_lease_holds_of_other_partitions(ps):
    queue = ps.create_queue("events", partitions=2)
    for number in range(2):
        queue.push(str(number).encode(), partition=number)
    held = {delivery.partition: delivery for delivery in queue.lease(2)}

    queue.seek("default", "earliest", partition=0)

    with pytest.raises(LeaseLost):
        held["0"].ack()
    held["1"].ack()
    assert drain(queue) == [b"0"]
    assert queue.stats().acked == 2


def test_what_was_to_come_back_before_a_seek_does_not_come_twice(ps, clock):
    queue = ps.queue("events")
    queue.push_many(numbered(2))
    first, second = queue.lease(2)
    first.nack(delay=10)
    second.release()

    queue.seek("default", "earliest")
    lease_one(queue).nack(delay=5)
    clock.advance(20)

    assert sorted(d.payload for d in queue.lease(10)) == numbered(2)
    assert take(queue) == []


def test_seek_moves_one_group_only(ps):
    queue = ps.queue("events")
    queue.push_many(numbered(2))
    drain(queue)
    drain(queue, group="billing", start="earliest")

    queue.seek("billing", "earliest")

    assert drain(queue) == []
    assert drain(queue, group="billing") == numbered(2)


def test_seek_brings_back_priorities_and_delays(ps, clock):
    queue = ps.queue("events")
    queue.push(b"idle", priority=1)
    queue.push(b"urgent", priority=255)
    queue.push(b"later", delay=60)
    clock.advance(61)
    assert drain(queue) == [b"urgent", b"later", b"idle"]
    queue.push(b"future", delay=60)

    queue.seek("default", "earliest")
    assert drain(queue) == [b"urgent", b"later", b"idle"]
    clock.advance(61)

    assert drain(queue) == [b"future"]


def test_seek_needs_a_group_that_exists(ps):
    queue = ps.create_queue("events")

    with pytest.raises(GroupNotFound):
        queue.seek("nobody", "earliest")


def test_lag_is_reported_per_partition_and_group(ps):
    queue = ps.create_queue("events", partitions=2)
    for number in (0, 0, 0, 1):
        queue.push(b"x", partition=number)
    queue.create_group("behind")
    leased = queue.lease(10)
    for delivery in leased:
        if delivery.partition == "1" or delivery.offset < 2:
            delivery.ack()

    rows = {row.partition: row for row in queue.groups()["default"]}
    assert (rows["0"].start_offset, rows["0"].committed_offset, rows["0"].end_offset, rows["0"].lag) == (0, 2, 3, 1)
    assert (rows["1"].committed_offset, rows["1"].lag) == (1, 0)
    assert [row.lag for row in queue.groups()["behind"]] == [3, 1]
    assert queue.stats().groups["default"].lag == 1
    assert queue.stats().groups["behind"].lag == 4


def test_the_age_of_the_oldest_unsettled_message_is_reported(ps, way, clock):
    queue = ps.queue("events")
    first = to_datetime(clock.now())
    queue.push(b"a")
    clock.advance(60)
    second = to_datetime(clock.now())
    queue.push(b"b")
    way.seal()

    assert queue.stats().groups["default"].oldest_unsettled_at == first
    lease_one(queue).ack()
    assert queue.stats().groups["default"].oldest_unsettled_at == second
    drain(queue)
    assert queue.stats().groups["default"].oldest_unsettled_at is None


def test_a_group_that_nobody_uses_is_forgotten(ps, way, clock):
    queue = ps.create_queue("events", group_expiry_seconds=3600)
    queue.create_group("idle")
    queue.create_group("busy")
    queue.push(b"a")

    clock.advance(3000)
    drain(queue, group="busy")
    clock.advance(1000)
    way.let_time_happen()

    assert set(queue.groups()) == {"default", "busy"}


def test_a_group_that_holds_a_lease_is_not_forgotten(ps, way, clock):
    queue = ps.create_queue("events", group_expiry_seconds=60)
    queue.push(b"a")
    held = lease_one(queue, group="slow", start="earliest", lease_seconds=3600)

    clock.advance(1000)
    way.let_time_happen()

    held.ack()


def test_a_group_for_which_somebody_waits_is_not_forgotten(ps, way, clock):
    queue = ps.create_queue("events", group_expiry_seconds=60)
    queue.create_group("patient")
    watch = way.session.watch("events", lambda: None, "patient")

    clock.advance(1000)
    way.let_time_happen()
    assert "patient" in queue.groups()
    way.session.unwatch(watch, served=False)
    clock.advance(50)
    way.let_time_happen()
    assert "patient" in queue.groups()
    clock.advance(50)
    way.let_time_happen()
    assert "patient" not in queue.groups()


def test_a_group_that_is_moved_now_and_then_is_not_forgotten(ps, way, clock):
    queue = ps.create_queue("events", group_expiry_seconds=3600)
    queue.create_group("observer", observes=True)
    queue.push_many([b"a", b"b"])

    for offset in (1, 2):
        clock.advance(3000)
        queue.seek("observer", {"0": offset})
        way.let_time_happen()

    assert queue.groups()["observer"][0].committed_offset == 2


def test_a_group_that_observes_may_be_late_without_being_load(ps, way, clock):
    queue = ps.create_queue("events", max_length=2, max_wait_seconds=60)
    queue.create_group("observer", observes=True)
    for _ in range(3):
        queue.push_many([b"a", b"b"])
        drain(queue)

    clock.advance(3600)
    way.let_time_happen()

    assert queue.stats().groups["observer"].lag == 6
    assert "events.dlq" not in ps.queues()


@pytest.mark.parametrize("way", ["file", "sealed"], indirect=True)
def test_a_group_still_observes_after_a_restart(ps, way, clock):
    ps.create_queue("events", max_wait_seconds=60).create_group("observer", observes=True)
    queue = way.restart().queue("events")
    queue.push(b"a")
    drain(queue)
    queue.seek("observer", "earliest")
    clock.advance(3600)
    way.let_time_happen()

    assert queue.stats().groups["observer"].lag == 1


@pytest.mark.parametrize("to", ["earliest", "latest", 0, 2, 5, 99])
def test_a_dry_run_says_what_a_seek_then_does(ps, clock, to):
    queue = ps.create_queue("events")
    queue.push_many(numbered(8))
    first, second, third = queue.lease(3)
    first.ack()
    third.ack()
    queue.lease(1)[0].nack(delay=60)
    before = queue.stats()

    preview = queue.preview_seek("default", to)

    assert queue.stats() == before
    second.extend(60)  # nothing was taken from its holder
    start = preview.partitions[0].to_offset
    settled, unsettled = {0, 2}, {1, 3, 4, 5, 6, 7}
    assert preview.redelivered == len({offset for offset in settled if offset >= start})
    assert preview.skipped == len({offset for offset in unsettled if offset < start})
    assert (preview.leased, preview.partitions[0].from_offset) == (1, 1)
    queue.seek("default", to)
    clock.advance(TICK)
    assert len(drain(queue)) == len(unsettled) - preview.skipped + preview.redelivered


def test_a_dry_run_of_a_seek_of_one_partition_names_that_one(ps):
    queue = ps.create_queue("events", partitions=3)
    queue.push(b"a", partition=1)
    preview = queue.preview_seek("default", "latest", 1)
    assert [(row.partition, row.skipped) for row in preview.partitions] == [("1", 1)]
    with pytest.raises(GroupNotFound):
        queue.preview_seek("nobody", "latest")
