"""Reading: browse by offset and time, peek; nothing changes (C21, D4)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from penstock import Message
from penstock.errors import InvalidField, QueueNotFound
from penstock.model import to_datetime
from tests.behaviour.steps import TICK, drain, lease_one, numbered, take


def payloads(messages):
    return [message.payload for message in messages]


def test_a_queue_is_read_from_any_offset(ps):
    queue = ps.queue("mail")
    queue.push_many(numbered(5))
    queue.push_many(numbered(5, "b"))

    assert payloads(queue.read()) == numbered(5) + numbered(5, "b")
    assert payloads(queue.read(offset=3, limit=4)) == [b"3", b"4", b"b0", b"b1"]
    assert payloads(queue.read(offset=9)) == [b"b4"]
    assert queue.read(offset=10) == queue.read(offset=10_000) == []
    assert queue.read()[3].id.offset == 3


def test_a_queue_is_read_from_any_time(ps, clock):
    queue = ps.queue("mail")
    start = to_datetime(clock.now())
    for number in range(4):
        queue.push(str(number).encode())
        clock.advance(10)

    assert payloads(queue.read(timestamp=start + timedelta(seconds=10))) == [b"1", b"2", b"3"]
    assert payloads(queue.read(timestamp=start + timedelta(seconds=10.001))) == [b"2", b"3"]
    assert payloads(queue.read(timestamp=(start - timedelta(days=1)).isoformat(), limit=1)) == [b"0"]
    assert queue.read(timestamp=start + timedelta(days=1)) == []
    assert payloads(queue.read(offset=3, timestamp=start)) == [b"3"]


def test_what_is_read_has_all_its_fields(ps, clock):
    queue = ps.queue("mail")
    id = queue.push(
        {"n": 1}, key="k", priority=9, delay=60, ttl=600, headers={"a": "b"}, dedup_key="d", max_attempts=3, trace="t"
    )
    now = to_datetime(clock.now())

    (message,) = queue.read()

    assert message.json() == {"n": 1}
    assert (message.id, message.key, message.priority, message.headers) == (id, "k", 9, {"a": "b"})
    assert (message.dedup_key, message.max_attempts, message.trace) == ("d", 3, "t")
    assert message.pushed_at == now
    assert message.available_at == now + timedelta(seconds=60)
    assert message.expires_at == now + timedelta(seconds=600)


def test_a_message_reads_the_same_before_and_after_sealing(ps, way, clock):
    queue = ps.queue("mail")
    queue.push_many(
        [
            b"plain",
            "text",
            {"json": True},
            Message(payload=b"a", key="k", headers={"x": "y"}, trace="t", dedup_key="d"),
            Message(payload=b"b", priority=1, delay=5, ttl=50, max_attempts=2),
            Message(payload=b"c", deliver_at=to_datetime(clock.now()) + timedelta(days=9)),
        ]
    )
    clock.advance(1)
    queue.push(b"later")
    before = queue.read()

    way.seal()

    assert queue.read() == before


def test_settled_messages_can_still_be_read(ps, clock):
    queue = ps.create_queue("mail", max_attempts=1)
    queue.push_many([*numbered(3), Message(payload=b"expired", ttl=5)])
    acked, dead, cancelled = queue.lease(3)
    acked.ack()
    dead.nack()
    cancelled.release()
    queue.cancel(cancelled.id)
    clock.advance(6)

    assert payloads(queue.read()) == [*numbered(3), b"expired"]


def test_partitions_are_read_one_by_one(ps):
    queue = ps.create_queue("rooms", partitions="named")
    for name in ("a", "b", "a"):
        queue.push(name.encode(), partition=name)

    assert [str(message.id) for message in queue.read("a")] == ["rooms/a/0", "rooms/a/1"]
    with pytest.raises(InvalidField, match="partition"):
        queue.read("c")
    with pytest.raises(QueueNotFound):
        ps.queue("nobody").read()


def test_reading_and_peeking_change_nothing(ps):
    queue = ps.queue("mail")
    queue.push_many(numbered(3))
    before = queue.stats(), queue.groups()

    for _ in range(3):
        queue.read()
        queue.peek(10)
        queue.delayed()
        queue.why("mail/0/1")

    assert (queue.stats(), queue.groups()) == before
    assert [(d.payload, d.attempt) for d in queue.lease(3)] == [(b"0", 1), (b"1", 1), (b"2", 1)]


def test_peek_shows_what_stands_before_the_default_group(ps):
    queue = ps.create_queue("mail", partitions=2)
    queue.push(b"a", partition=0)
    queue.push(b"b", partition=1)
    queue.push(b"c", partition=0)
    lease_one(queue, partitions=[0]).ack()

    assert payloads(queue.peek()) == [b"b"]
    assert payloads(queue.peek(10)) == [b"b", b"c"]
    assert payloads(queue.lease(10)) == [b"b", b"c"]


def test_peek_looks_past_what_is_settled_and_shows_what_is_held_last(ps):
    queue = ps.queue("mail")
    queue.push_many(numbered(200))
    leased = queue.lease(199)
    for delivery in leased[1:]:
        delivery.ack()

    assert payloads(queue.peek(2)) == [b"199", b"0"]


def test_peek_shows_redriven_messages(ps, clock):
    queue = ps.queue("mail")
    queue.push_many(numbered(2))
    lease_one(queue).reject()
    drain(queue)
    queue.dlq.redrive()
    clock.advance(TICK)

    assert payloads(queue.peek()) == [b"0"]


def test_a_redriven_message_is_lag_and_the_oldest(ps, clock):
    queue = ps.queue("mail")
    queue.push_many(numbered(2))
    pushed_at = queue.read()[0].pushed_at
    lease_one(queue).reject()
    drain(queue)
    clock.advance(60)
    assert (queue.stats().groups["default"].lag, queue.stats().groups["default"].oldest_unsettled_at) == (0, None)

    queue.dlq.redrive()
    clock.advance(TICK)

    stats = queue.stats().groups["default"]
    assert (stats.ready, stats.lag, stats.oldest_unsettled_at) == (1, 1, pushed_at)
    assert queue.groups()["default"][0].lag == 1


def test_reading_crosses_segments_and_memory(ps, way):
    queue = ps.queue("mail")
    queue.push_many(numbered(3, "a"))
    way.seal()
    queue.push_many(numbered(3, "b"))
    way.seal()
    queue.push_many(numbered(3, "c"))

    everything = numbered(3, "a") + numbered(3, "b") + numbered(3, "c")
    for offset in range(9):
        assert payloads(queue.read(offset=offset, limit=4)) == everything[offset : offset + 4]
    assert take(queue, 7) == everything[:7]
    assert take(queue, 7) == everything[7:]


def test_masked_fields_are_kept_and_hide_nothing_from_consumers_and_owners(ps):
    queue = ps.create_queue("payments", masked_fields=["card.number", "customer.*.email"])
    assert queue.options().masked_fields == ("card.number", "customer.*.email")
    payload = b'{"card": {"number": "4111"}}'
    queue.push(payload)

    assert [message.payload for message in queue.peek(1)] == [payload]
    (delivery,) = queue.lease()
    assert delivery.payload == payload
    ps.update_queue("payments", masked_fields=[])
    assert queue.options().masked_fields == ()


def test_a_queue_is_not_encrypted_without_a_master_key(ps):
    with pytest.raises(InvalidField, match="encryption: no master key is set"):
        ps.create_queue("secret", encryption=True)

    assert "secret" not in ps.queues()
