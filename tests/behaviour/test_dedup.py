"""Dedup keys: one message per key and window, the same id returned (C14)."""

from __future__ import annotations

import pytest

from penstock import Message
from tests.behaviour.steps import drain, lease_one


def test_a_second_push_of_a_key_returns_the_first_id(ps):
    queue = ps.queue("mail")

    first = queue.push(b"first", dedup_key="k")
    other = queue.push(b"other", dedup_key="l")
    second = queue.push(b"second", dedup_key="k")

    assert second == first != other
    assert drain(queue) == [b"first", b"other"]


def test_duplicates_within_one_push_are_found_too(ps):
    queue = ps.queue("mail")
    queue.push(b"known", dedup_key="k")

    items = [("k", b"a"), ("l", b"b"), ("l", b"c"), (None, b"d"), (None, b"e"), ("m", b"f"), ("l", b"g")]
    result = queue.push_many([Message(payload=payload, dedup_key=key) for key, payload in items])

    assert result.statuses == ["duplicate", "queued", "duplicate", "queued", "queued", "queued", "duplicate"]
    assert result.duplicates == [0, 2, 6]
    assert [id.offset for id in result.ids] == [0, 1, 1, 2, 3, 4, 1]
    assert drain(queue) == [b"known", b"b", b"d", b"e", b"f"]


def test_a_push_of_nothing_but_duplicates_changes_nothing(ps):
    queue = ps.queue("mail")
    ids = queue.push_many([Message(payload=b"x", dedup_key=str(n)) for n in range(3)]).ids
    before = queue.stats()

    again = queue.push_many([Message(payload=b"y", dedup_key=str(n)) for n in range(3)])

    assert again.ids == ids
    assert queue.stats() == before


def test_a_key_is_free_again_after_the_window(ps, clock):
    queue = ps.create_queue("mail", dedup_seconds=60)
    first = queue.push(b"first", dedup_key="k")

    clock.advance(59.9)
    assert queue.push(b"second", dedup_key="k") == first
    clock.advance(0.2)
    third = queue.push(b"third", dedup_key="k")

    assert third != first
    assert queue.push(b"fourth", dedup_key="k") == third
    assert drain(queue) == [b"first", b"third"]


def test_the_window_is_a_day_by_default(ps, clock):
    queue = ps.queue("mail")
    first = queue.push(b"first", dedup_key="k")

    clock.advance(86_399)
    assert queue.push(b"second", dedup_key="k") == first
    clock.advance(2)
    assert queue.push(b"third", dedup_key="k") != first


def test_a_window_of_nothing_forgets_at_once(ps, clock):
    queue = ps.create_queue("mail", dedup_seconds=0)

    assert queue.push(b"a", dedup_key="k") != queue.push(b"b", dedup_key="k")


def test_changing_the_window_counts_at_once(ps, clock):
    queue = ps.create_queue("mail", dedup_seconds=60)
    first = queue.push(b"first", dedup_key="k")
    clock.advance(100)

    ps.update_queue("mail", dedup_seconds=3600)
    assert queue.push(b"second", dedup_key="k") == first
    ps.update_queue("mail", dedup_seconds=10)
    assert queue.push(b"third", dedup_key="k") != first


def test_a_key_stays_known_after_its_message_was_settled(ps):
    queue = ps.queue("mail")
    first = queue.push(b"first", dedup_key="k")
    lease_one(queue).ack()

    assert queue.push(b"second", dedup_key="k") == first
    assert drain(queue) == []


def test_keys_are_known_per_queue(ps):
    one, other = ps.queue("one"), ps.queue("other")

    one.push(b"a", dedup_key="k")
    other.push(b"b", dedup_key="k")

    assert drain(other) == [b"b"]


def test_a_duplicate_has_the_id_of_another_partition_if_the_first_went_there(ps):
    queue = ps.create_queue("mail", partitions=4)
    first = queue.push(b"a", partition=3, dedup_key="k")

    assert queue.push(b"b", partition=0, dedup_key="k") == first
    assert drain(queue) == [b"a"]


def test_duplicates_do_not_count_towards_the_length(ps):
    queue = ps.create_queue("mail", max_length=1)
    first = queue.push(b"a", dedup_key="k")

    assert queue.push(b"b", dedup_key="k") == first


@pytest.mark.parametrize("stop", ["restart", "crash"])
@pytest.mark.parametrize("way", ["file", "sealed", "forgetful"], indirect=True)
def test_keys_are_remembered_over_the_end_of_the_process(ps, way, clock, stop):
    queue = ps.create_queue("mail", dedup_seconds=60)
    ids = queue.push_many([Message(payload=b"x", dedup_key=str(n)) for n in range(100)]).ids
    one = queue.push(b"y", dedup_key="one")

    queue = getattr(way, stop)().queue("mail")

    assert queue.push_many([Message(payload=b"z", dedup_key=str(n)) for n in range(100)]).ids == ids
    assert queue.push(b"z", dedup_key="one") == one
    clock.advance(61)
    assert queue.push(b"z", dedup_key="one") != one


@pytest.mark.parametrize("stop", ["restart", "crash"])
@pytest.mark.parametrize("way", ["file", "sealed", "forgetful"], indirect=True)
def test_the_latest_message_of_a_key_is_the_one_remembered(ps, way, clock, stop):
    queue = ps.create_queue("mail", dedup_seconds=60)
    queue.push(b"first", dedup_key="k")
    way.session.checkpoint()
    clock.advance(61)
    queue.push(b"keeps the window alive", dedup_key="other")
    second = queue.push(b"second", dedup_key="k")
    way.session.checkpoint()

    queue = getattr(way, stop)().queue("mail")

    assert queue.push(b"third", dedup_key="k") == second
