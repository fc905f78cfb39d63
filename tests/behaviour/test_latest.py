"""Queues that keep the latest message of each key, by every way in (A11)."""

from __future__ import annotations

import pytest

from penstock import Message
from penstock.errors import InvalidField, QueueNotFound
from tests.behaviour.steps import drain

STORED = pytest.mark.parametrize("way", ["file", "tcp", "http", "postgres"], indirect=True)


def push(queue, **values):
    queue.push_many([Message(payload=value, key=key) for key, value in values.items()])


def contents(queue):
    return [(message.id.offset, message.key, message.json()) for message in queue.read()]


@STORED
def test_the_latest_message_of_each_key_stays_at_its_offset(ps, way):
    queue = ps.create_queue("settings", compaction="latest")
    push(queue, ann=1, bob=1)
    push(queue, ann=2)
    drain(queue)
    way.seal()

    assert queue.compact().messages_removed == 1

    assert contents(queue) == [(1, "bob", 1), (2, "ann", 2)]
    queue.create_group("late", start="earliest")
    assert [delivery.key for delivery in queue.lease(max=10, group="late")] == ["bob", "ann"]
    assert contents(way.restart().queue("settings")) == [(1, "bob", 1), (2, "ann", 2)]


@STORED
def test_what_a_group_has_not_read_stays_unless_the_queue_drops_it(ps, way):
    careful = ps.create_queue("careful", compaction="latest")
    careless = ps.create_queue("careless", compaction="latest", compaction_drops_unread=True)
    for queue in (careful, careless):
        push(queue, ann=1)
        push(queue, ann=2)
    way.seal()

    assert careful.compact().messages_removed == 0
    assert careless.compact().messages_removed == 1

    assert [delivery.json() for delivery in careful.lease(max=10)] == [1, 2]
    assert [delivery.json() for delivery in careless.lease(max=10)] == [2]


@STORED
def test_null_with_a_key_is_a_tombstone_that_is_delivered_and_goes_after_its_time(ps, way, clock):
    queue = ps.create_queue("settings", compaction="latest", tombstone_seconds=60)
    push(queue, ann=1, bob=1)
    queue.push(None, key="ann")
    push(queue, eve=1)
    assert [(d.key, d.is_tombstone, d.json()) for d in queue.lease(max=10)][2:] == [
        ("ann", True, None),
        ("eve", False, 1),
    ]
    queue.seek("default", "latest")
    way.seal()

    queue.compact()
    assert contents(queue) == [(1, "bob", 1), (2, "ann", None), (3, "eve", 1)]
    clock.advance(61)
    queue.compact()
    assert contents(queue) == [(1, "bob", 1), (3, "eve", 1)]


@STORED
def test_upkeep_compacts_by_itself_when_the_ratio_is_reached(ps, way, clock):
    queue = ps.create_queue("settings", compaction="latest", compaction_ratio=0.6, compaction_seconds=60)
    for value in range(2):
        push(queue, ann=value)
        drain(queue)
    way.seal()
    way.keep_house()
    assert len(contents(queue)) == 2

    for value in range(2, 5):
        push(queue, ann=value)
    drain(queue)
    way.seal()
    clock.advance(61)
    way.keep_house()
    assert contents(queue) == [(4, "ann", 4)]


def test_every_message_needs_a_key(ps):
    queue = ps.create_queue("settings", compaction="latest")

    with pytest.raises(InvalidField, match="key"):
        queue.push(b"1")
    with pytest.raises(InvalidField, match="key"), ps.transaction() as tx:
        tx.push("settings", b"1")

    assert contents(queue) == []


def test_a_queue_that_keeps_everything_cannot_be_compacted(ps):
    queue = ps.create_queue("mail")

    with pytest.raises(InvalidField, match="keeps all of its messages"):
        queue.compact()


@STORED
@pytest.mark.parametrize("partitions", [1, 3])
def test_the_latest_message_of_a_key_is_found_wherever_it_is(ps, way, partitions):
    queue = ps.create_queue("settings", compaction="latest", partitions=partitions)
    push(queue, ann=1, bob=1)
    push(queue, ann=2, eve=1)
    queue.push(None, key="eve")

    def latest(queue, *keys):
        return [None if (found := queue.latest(key)) is None else found.json() for key in keys]

    assert latest(queue, "ann", "bob", "eve", "nobody") == [2, 1, None, None]
    way.seal()
    push(queue, bob=2)
    assert latest(queue, "ann", "bob", "eve", "nobody") == [2, 2, None, None]
    drain(queue)
    way.seal()
    queue.compact()
    assert latest(queue, "ann", "bob", "eve", "nobody") == [2, 2, None, None]
    assert latest(way.restart().queue("settings"), "ann", "bob", "eve", "nobody") == [2, 2, None, None]


@STORED
def test_the_latest_message_is_that_of_the_partition_that_was_chosen(ps, way):
    queue = ps.create_queue("settings", compaction="latest", partitions=3)
    for partition in range(3):
        queue.push({"at": partition}, key=f"key-{partition}", partition=partition)
    assert [queue.latest(f"key-{number}").json()["at"] for number in range(3)] == [0, 1, 2]


def test_only_compacted_queues_have_a_latest_message_of_a_key(ps):
    queue = ps.create_queue("plain")
    with pytest.raises(InvalidField, match="keeps all of its messages"):
        queue.latest("ann")
    with pytest.raises(InvalidField, match="key"):
        queue.latest("")
    with pytest.raises(QueueNotFound):
        ps.queue("none").latest("ann")
