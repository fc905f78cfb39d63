"""Retention that waits for the archive: nothing goes before the group `archive` has passed it."""

from __future__ import annotations

import pytest

from tests.behaviour.steps import drain, numbered

pytestmark = pytest.mark.parametrize("way", ["file", "sealed"], indirect=True)

ARCHIVED = {"retention_seconds": 60, "retention_until_archived": True}


@pytest.fixture
def queue(ps):
    return ps.create_queue("mail", **ARCHIVED)


def push_sealed(queue, way, count):
    """Each message in a segment of its own."""
    for payload in numbered(count):
        queue.push(payload)
        way.seal()


def kept(queue):
    return [message.payload for message in queue.read()]


def age(ps, way, clock, seconds=100_000):
    clock.advance(seconds)
    way.let_time_happen()
    ps.compact()


def test_nothing_goes_while_there_is_no_archive(ps, way, clock, queue):
    push_sealed(queue, way, 3)
    drain(queue)

    age(ps, way, clock)

    assert kept(queue) == numbered(3)


def test_what_the_archive_has_passed_goes_and_nothing_else(ps, way, clock, queue):
    push_sealed(queue, way, 3)
    drain(queue)
    queue.create_group("archive")
    age(ps, way, clock)
    assert kept(queue) == numbered(3)

    queue.seek("archive", {"0": 2})
    age(ps, way, clock)

    assert kept(queue) == [b"2"]


def test_an_archive_may_be_an_ordinary_consumer(ps, way, clock, queue):
    queue.create_group("archive")
    push_sealed(queue, way, 3)
    drain(queue)
    queue.lease(2, group="archive").ack()

    age(ps, way, clock)

    assert kept(queue) == [b"2"]


def test_other_groups_hold_retention_as_ever(ps, way, clock, queue):
    push_sealed(queue, way, 3)
    queue.create_group("archive", start="latest")
    queue.lease(1).ack()

    age(ps, way, clock)

    assert kept(queue) == [b"1", b"2"]


def test_dropping_unread_messages_stops_at_the_archive(ps, way, clock, queue):
    ps.update_queue("mail", retention_drops_unread=True)
    push_sealed(queue, way, 3)
    queue.create_group("archive")
    queue.seek("archive", {"0": 1})

    age(ps, way, clock)

    assert kept(queue) == [b"1", b"2"]


def test_the_archive_is_not_forgotten_however_long_it_rests(ps, way, clock, queue):
    ps.update_queue("mail", group_expiry_seconds=3600)
    queue.create_group("archive")
    queue.create_group("idle")
    push_sealed(queue, way, 2)
    drain(queue)

    age(ps, way, clock)

    assert set(queue.groups()) == {"default", "archive"}
    assert kept(queue) == numbered(2)


def test_an_archive_of_a_queue_that_does_not_wait_for_it_is_a_group_like_any(ps, way, clock, queue):
    ps.update_queue("mail", group_expiry_seconds=3600, retention_until_archived=False)
    queue.create_group("archive")
    push_sealed(queue, way, 2)
    drain(queue)

    age(ps, way, clock)

    assert set(queue.groups()) == {"default"}
    assert kept(queue) == []


@pytest.mark.parametrize("lose", ["expire", "purge"])
def test_messages_that_time_or_people_settled_are_kept_for_the_archive(ps, way, clock, queue, lose):
    ps.update_queue("mail", ttl_seconds=30)
    queue.create_group("archive")
    push_sealed(queue, way, 3)
    queue.seek("archive", {"0": 1})
    if lose == "purge":
        queue.purge()

    age(ps, way, clock)
    assert kept(queue) == [b"1", b"2"]

    queue.seek("archive", {"0": 3})
    age(ps, way, clock)
    assert kept(queue) == []


def test_an_archive_that_is_behind_neither_fills_the_queue_nor_fills_the_dead_letters(ps, way, clock, queue):
    ps.update_queue("mail", max_length=2, max_wait_seconds=30)
    queue.create_group("archive")

    for _ in range(3):
        push_sealed(queue, way, 2)
        drain(queue)
        age(ps, way, clock)

    assert kept(queue) == numbered(2) * 3
    assert queue.dlq.list() == []
    assert queue.stats().groups["archive"].lag == 6


def test_the_wait_for_the_archive_outlasts_the_process(ps, way, clock, queue):
    push_sealed(queue, way, 3)
    drain(queue)
    queue.create_group("archive")
    queue.seek("archive", {"0": 1})

    again = way.crash()
    age(again, way, clock)

    assert kept(again.queue("mail")) == [b"1", b"2"]
