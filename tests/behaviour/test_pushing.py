"""Pushing: one, many, with options; what comes back; what arrives (C1)."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
import pytest

from penstock import Batch, ContentType, Message, MessageId
from penstock.errors import InvalidField, QueueFull
from penstock.model import to_datetime
from tests.behaviour.steps import drain, lease_one, numbered, take


def test_a_message_arrives_as_it_was_pushed(ps, clock):
    queue = ps.queue("mail")

    id = queue.push(
        b"hello",
        key="k",
        priority="high",
        headers={"a": "1", "b": "2"},
        dedup_key="once",
        max_attempts=3,
        trace="00-abc-def-01",
    )
    delivery = lease_one(queue)

    assert id == delivery.id == MessageId("mail", "0", 0)
    assert str(id) == "mail/0/0"
    assert (delivery.payload, delivery.key, delivery.priority) == (b"hello", "k", 192)
    assert delivery.headers == {"a": "1", "b": "2"}
    assert (delivery.dedup_key, delivery.trace) == ("once", "00-abc-def-01")
    assert delivery.attempt == 1
    assert delivery.pushed_at == to_datetime(clock.now())
    assert delivery.expires_at == delivery.pushed_at + timedelta(seconds=30)


@pytest.mark.parametrize(
    ("item", "content_type", "payload"),
    [
        (b"\x00\xff", ContentType.BYTES, b"\x00\xff"),
        ("grüße", ContentType.TEXT, "grüße".encode()),
        ({"a": [1, None]}, ContentType.JSON, b'{"a":[1,null]}'),
        (17, ContentType.JSON, b"17"),
        (b"", ContentType.BYTES, b""),
    ],
)
def test_bytes_text_and_json_are_distinguished(ps, item, content_type, payload):
    queue = ps.queue("mail")
    queue.push(item)
    queue.push_many([item])

    for delivery in queue.lease(2):
        assert delivery.payload == payload
        assert delivery.content_type is content_type
        if content_type is ContentType.JSON:
            assert delivery.json() == item


def test_offsets_count_from_zero_without_gaps(ps):
    queue = ps.queue("mail")

    ids = [queue.push(b"one"), *queue.push_many([b"two", b"three"]).ids, queue.push(b"four")]

    assert [id.offset for id in ids] == [0, 1, 2, 3]


def test_many_items_may_each_have_their_own_options(ps, clock):
    queue = ps.create_queue("mail", partitions=2)
    items = [
        b"plain",
        "text",
        Message(payload={"n": 1}, key="k", priority=255, headers={"h": "v"}, partition=1),
        Message(payload=b"later", delay=60, partition=1),
    ]

    result = queue.push_many(items)
    leased = {delivery.payload: delivery for delivery in queue.lease(10)}

    assert len(result) == 4
    assert result.statuses == ["queued"] * 4
    assert result.duplicates == []
    assert [id.partition for id in result.ids][2:] == ["1", "1"]
    assert set(leased) == {b"plain", b"text", b'{"n":1}'}
    assert leased[b'{"n":1}'].headers == {"h": "v"}
    assert leased[b'{"n":1}'].id == result.ids[2]


def test_a_batch_and_a_table_are_pushed_like_a_list(ps):
    queue = ps.queue("mail")

    queue.push_many(Batch.build([b"a", b"b"]))
    queue.push_many(pa.table({"payload": [b"c", b"d"], "key": ["k", None]}))
    queue.push_many(iter([b"e"]))
    queue.push_many(Batch.from_arrow(pa.table({"payload": [b"f"]})))

    assert [(d.payload, d.key) for d in queue.lease(10)] == [
        (b"a", None),
        (b"b", None),
        (b"c", "k"),
        (b"d", None),
        (b"e", None),
        (b"f", None),
    ]


def test_pushing_nothing_changes_nothing(ps):
    queue = ps.queue("mail")
    queue.push(b"first")

    result = queue.push_many([])
    id = queue.push(b"second")

    assert (len(result), result.ids, result.statuses) == (0, [], [])
    assert id.offset == 1
    assert drain(queue) == [b"first", b"second"]


def test_a_compressible_batch_arrives_byte_for_byte(ps):
    queue = ps.queue("mail")
    payloads = [b"x" * 1000 + str(number).encode() for number in range(100)]

    queue.push_many(Batch.build(payloads, compress=True))

    assert queue.lease(100).payloads() == payloads


def test_a_large_payload_arrives_byte_for_byte(ps):
    queue = ps.queue("mail")
    payload = bytes(range(256)) * 4096

    queue.push(payload)

    assert lease_one(queue).payload == payload


def test_the_first_push_makes_the_queue_with_its_defaults(ps):
    assert ps.queues() == []

    ps.queue("mail").push(b"hello")

    assert ps.queues() == ["mail"]
    assert ps.queue("mail").options() == ps.create_queue("other").options()


def test_messages_of_one_key_go_to_one_partition_and_keys_spread(ps):
    queue = ps.create_queue("orders", partitions=8)
    keys = [f"key-{number % 40}" for number in range(200)]

    ids = queue.push_many([Message(payload=b"x", key=key) for key in keys]).ids
    again = {key: queue.push(b"y", key=key).partition for key in keys[:40]}

    assert {(key, id.partition) for key, id in zip(keys, ids, strict=True)} == set(again.items())
    assert len({id.partition for id in ids}) > 4


def test_messages_without_a_key_spread_over_partitions_batch_by_batch(ps):
    queue = ps.create_queue("orders", partitions=4)

    partitions = {queue.push(b"x").partition for _ in range(8)}
    together = {id.partition for id in queue.push_many(numbered(10)).ids}

    assert partitions == {"0", "1", "2", "3"}
    assert len(together) == 1


def test_named_partitions_are_made_on_first_use(ps):
    queue = ps.create_queue("rooms", partitions="named")
    assert queue.stats().partitions == 0

    first = queue.push(b"a", partition="kitchen")
    second = queue.push(b"b", partition="hall")
    third = queue.push(b"c", partition="kitchen")

    assert [str(id) for id in (first, second, third)] == ["rooms/kitchen/0", "rooms/hall/0", "rooms/kitchen/1"]
    assert queue.stats().partitions == 2
    assert [m.payload for m in queue.read("kitchen")] == [b"a", b"c"]
    assert sorted(drain(queue)) == [b"a", b"b", b"c"]


def test_partitions_can_be_added_while_messages_wait(ps):
    queue = ps.create_queue("orders", partitions=2)
    queue.create_group("audit")
    queue.push(b"old", partition=1)

    ps.update_queue("orders", partitions=4)
    queue.push(b"new", partition=3)

    assert queue.stats().partitions == 4
    assert sorted(drain(queue)) == [b"new", b"old"]
    assert sorted(drain(queue, group="audit")) == [b"new", b"old"]


def test_partitions_cannot_be_taken_away(ps):
    ps.create_queue("orders", partitions=3)

    with pytest.raises(InvalidField, match="partitions"):
        ps.update_queue("orders", partitions=2)
    assert ps.queue("orders").options().partitions == 3


def test_a_refused_push_leaves_no_queue_behind(ps):
    with pytest.raises(InvalidField):
        ps.queue("fresh").push(b"x", partition=7)

    assert ps.queues() == []


def test_a_push_of_many_is_whole_or_not_at_all(ps):
    queue = ps.create_queue("small", max_length=3)
    queue.push(b"one")

    with pytest.raises(QueueFull):
        queue.push_many([b"two", b"three", b"four"])

    assert take(queue) == [b"one"]
    assert queue.push_many([b"two"]).ids[0].offset == 1


def test_a_deleted_queue_starts_over_under_its_name(ps):
    queue = ps.create_queue("orders", max_attempts=1)
    queue.push_many([Message(payload=b"old", dedup_key="d"), b"dead"])
    held, dying = queue.lease(2)
    dying.nack()

    ps.delete_queue("orders")
    assert ps.queues() == []
    fresh = queue.push(b"new", dedup_key="d")

    assert fresh.offset == 0
    assert queue.dlq.list() == []
    assert take(queue) == [b"new"]
    assert held.payload == b"old"
