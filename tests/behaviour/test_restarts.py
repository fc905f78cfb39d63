"""The end of a process, clean or not, and what is there afterwards (B3)."""

from __future__ import annotations

import pytest

from penstock import Message
from penstock.errors import LeaseLost
from tests.behaviour.steps import TICK, drain, fail, kill, lease_one, numbered, take

on_disk = pytest.mark.parametrize("way", ["file", "sealed", "forgetful"], indirect=True)
however_it_ends = pytest.mark.parametrize("end", ["restart", "crash"])


@on_disk
@however_it_ends
def test_what_was_pushed_is_there_as_it_was_pushed(ps, way, clock, end):
    queue = ps.create_queue("rooms", partitions="named")
    queue.push_many(
        [
            Message(payload={"n": 1}, key="k", headers={"a": "b"}, priority=3, trace="t", partition="left"),
            Message(payload="text", ttl=60, dedup_key="d", max_attempts=2, partition="right"),
            Message(payload=b"later", delay=30, partition="left"),
        ]
    )
    before = queue.read("left"), queue.read("right"), queue.stats()

    queue = getattr(way, end)().queue("rooms")

    after = queue.stats()
    assert (queue.read("left"), queue.read("right")) == before[:2]
    assert after.groups == before[2].groups


@on_disk
@however_it_ends
def test_a_receipt_does_not_outlive_its_process(ps, way, end):
    queue = ps.queue("mail")
    queue.push(b"a")
    receipt = lease_one(queue).receipt

    queue = getattr(way, end)().queue("mail")

    with pytest.raises(LeaseLost):
        way.settle([receipt])
    assert drain(queue) == [b"a"]


@on_disk
@however_it_ends
def test_groups_stand_where_they_stood(ps, way, end):
    queue = ps.queue("mail")
    queue.push_many(numbered(5))
    queue.create_group("late", start="latest")
    queue.create_group("gone")
    queue.delete_group("gone")
    queue.seek("default", 3)
    queue.push(b"5")

    queue = getattr(way, end)().queue("mail")

    assert set(queue.groups()) == {"default", "late"}
    assert drain(queue) == [b"3", b"4", b"5"]
    assert drain(queue, group="late") == [b"5"]


@on_disk
@however_it_ends
@pytest.mark.parametrize("ordering", ["partition", "key"])
def test_order_is_kept_over_the_end_of_a_process(ps, way, clock, end, ordering):
    queue = ps.create_queue("orders", ordering=ordering)
    queue.push_many([Message(payload=p, key="k") for p in numbered(4)])
    lease_one(queue).ack()
    lease_one(queue).nack(delay=60)

    queue = getattr(way, end)().queue("orders")

    assert take(queue) == []
    clock.advance(60 + TICK)
    seen = []
    while leased := queue.lease(1):
        seen += leased.payloads()
        leased.ack()
    assert seen == [b"1", b"2", b"3"]


@on_disk
@however_it_ends
def test_a_deleted_queue_does_not_come_back(ps, way, end):
    queue = ps.queue("mail")
    queue.push_many(numbered(3))
    kill(queue)
    way.seal()
    ps.delete_queue("mail")
    ps.queue("mail").push(b"new")

    ps = getattr(way, end)()

    assert ps.queues() == ["mail"]
    assert [(m.id.offset, m.payload) for m in ps.queue("mail").read()] == [(0, b"new")]
    assert drain(ps.queue("mail")) == [b"new"]


@on_disk
def test_work_goes_on_over_many_ends(ps, way, clock):
    queue = ps.create_queue("mail", partitions=2)
    pushed, seen = [], []
    for number in range(6):
        batch = [Message(payload=f"{number}-{n}".encode(), priority=n * 60, key=str(n)) for n in range(4)]
        pushed += [message.payload for message in batch]
        queue.push_many(batch)
        if number % 2:
            way.session.checkpoint()
        leased = queue.lease(3)
        seen += leased.payloads()
        leased.ack()
        queue = (way.crash if number % 3 else way.restart)().queue("mail")

    seen += drain(queue)

    assert sorted(seen) == sorted(pushed)
    assert queue.stats().acked == 24


@on_disk
@however_it_ends
def test_a_pull_of_the_plug_between_checkpoints_loses_nothing_that_was_confirmed(ps, way, clock, end):
    queue = ps.queue("mail")
    queue.push_many(numbered(3, "before-"))
    queue.lease(1).ack()
    way.session.checkpoint()
    queue.push_many(numbered(3, "after-"))
    queue.lease(1).ack()
    lease_one(queue).nack(delay=10)

    queue = getattr(way, end)().queue("mail")
    clock.advance(11)

    assert queue.stats().acked == 2
    assert sorted(drain(queue)) == [b"after-0", b"after-1", b"after-2", b"before-2"]


@pytest.mark.parametrize("way", ["file"], indirect=True)
def test_a_poison_message_cannot_end_the_process_for_ever(ps, way):
    queue = ps.create_queue("mail", max_attempts=3)
    queue.push_many([b"poison", b"harmless"])
    for attempt in (1, 2, 3):
        delivery = lease_one(queue)
        assert (delivery.payload, delivery.attempt) == (b"poison", attempt)
        queue = way.crash().queue("mail")

    assert drain(queue) == [b"harmless"]
    (letter,) = queue.dlq.list()
    assert letter.headers["penstock-error"] == "the process stopped"


@on_disk
@however_it_ends
def test_everything_at_once_adds_up_after_a_restart(ps, way, clock, end):
    queue = ps.create_queue("mail", partitions=2, max_attempts=2, dedup_seconds=3600)
    queue.create_group("audit", start="latest")
    queue.push_many([Message(payload=str(n).encode(), priority=n * 5, dedup_key=str(n), key=str(n)) for n in range(40)])
    queue.push_many([Message(payload=b"delayed", delay=100), Message(payload=b"short", ttl=5)])
    fail(queue, clock, 4)
    queue.lease(5).ack()
    kill(queue, 3)
    queue.dlq.redrive(limit=1)
    queue.lease(6, group="audit")
    queue.cancel(queue.read(limit=40)[-1].id)
    clock.advance(6)
    before, letters = queue.stats(), ps.queue("mail.dlq").stats()

    ps = getattr(way, end)()
    after = ps.queue("mail").stats()

    for name, group in before.groups.items():
        again = after.groups[name]
        assert (again.acked, again.dead, again.dropped_by) == (group.acked, group.dead, group.dropped_by)
        assert again.ready + again.leased + again.waiting == group.ready + group.leased + group.waiting
    assert after.leased == 0
    assert letters.ready == ps.queue("mail.dlq").stats().ready == 4
