"""Every limit of a message and of a batch: what is at it passes, what is over it is refused by item and field."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock import limits
from penstock.batch import Batch, encode_one, encode_one_with
from penstock.errors import InputError, InvalidField, InvalidName, TooLarge
from penstock.model import Message

FINE = Message(payload=b"fine", key="k", dedup_key="d", trace="t", headers={"a": "b"}, ttl=1, max_attempts=1)
COUNTS = [1, 3, 100]  # columns are made in other ways for one, for a few and for many

ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)


class Thing:
    """No payload. What it is called is the same in every process, and so are the names of the tests."""

    def __repr__(self) -> str:
        return "a thing"


def last(count: int, **options: Any) -> list[Message]:
    """Messages of which the last has these options."""
    return [FINE] * (count - 1) + [Message(**{"payload": b"", **options})]


def text(length: int) -> str:
    return "x" * length


AT_THE_LIMIT: list[dict[str, Any]] = [
    {"payload": bytes(limits.payload_bytes_max)},
    {"key": text(limits.key_bytes_max)},
    {"dedup_key": text(limits.dedup_key_bytes_max)},
    {"trace": text(limits.trace_bytes_max)},
    {"headers": {"name": text(limits.headers_bytes_max - 4)}},
    {"headers": {text(limits.headers_bytes_max): ""}},
    {"priority": 0},
    {"priority": limits.priority_max},
    {"max_attempts": limits.attempts_max},
    {"delay": limits.delay_seconds_max},
    {"ttl": limits.delay_seconds_max},
    {"ttl": 1e-6},
    {"deliver_at": datetime.max.replace(tzinfo=UTC)},
    {"deliver_at": datetime(1970, 1, 1, tzinfo=UTC)},
]

TOO_LARGE: list[tuple[str, dict[str, Any]]] = [
    ("payload", {"payload": bytes(limits.payload_bytes_max + 1)}),
    ("payload", {"payload": text(limits.payload_bytes_max + 1)}),
    ("payload", {"payload": {"a": text(limits.payload_bytes_max)}}),
    ("key", {"key": text(limits.key_bytes_max + 1)}),
    ("key", {"key": "é" * (limits.key_bytes_max // 2 + 1)}),
    ("dedup_key", {"dedup_key": text(limits.dedup_key_bytes_max + 1)}),
    ("trace", {"trace": text(limits.trace_bytes_max + 1)}),
    ("headers", {"headers": {"name": text(limits.headers_bytes_max - 3)}}),
    ("headers", {"headers": {str(pair): text(1000) for pair in range(66)}}),
]

INVALID: list[tuple[str, dict[str, Any]]] = [
    ("priority", {"priority": -1}),
    ("priority", {"priority": 256}),
    ("priority", {"priority": 1.5}),
    ("priority", {"priority": True}),
    ("priority", {"priority": "urgent"}),
    ("delay", {"delay": -0.001}),
    ("delay", {"delay": math.nan}),
    ("delay", {"delay": math.inf}),
    ("delay", {"delay": 10**400}),
    ("delay", {"delay": limits.delay_seconds_max + 1}),
    ("delay", {"delay": "5"}),
    ("delay", {"delay": True}),
    ("delay", {"delay": None}),
    ("ttl", {"ttl": -1}),
    ("ttl", {"ttl": 0}),
    ("ttl", {"ttl": 1e-9}),
    ("ttl", {"ttl": math.nan}),
    ("ttl", {"ttl": limits.delay_seconds_max + 1}),
    ("deliver_at", {"deliver_at": datetime(2030, 1, 1, tzinfo=UTC).replace(tzinfo=None)}),
    ("deliver_at", {"deliver_at": "tomorrow"}),
    ("deliver_at", {"deliver_at": 1_900_000_000}),
    ("deliver_at", {"deliver_at": datetime(1969, 12, 31, tzinfo=UTC)}),
    ("max_attempts", {"max_attempts": 0}),
    ("max_attempts", {"max_attempts": limits.attempts_max + 1}),
    ("max_attempts", {"max_attempts": True}),
    ("max_attempts", {"max_attempts": "3"}),
    ("content_type", {"content_type": 9}),
    ("content_type", {"content_type": "json"}),
    ("key", {"key": 5}),
    ("key", {"key": b"bytes"}),
    ("key", {"key": "\ud800"}),
    ("dedup_key", {"dedup_key": 5}),
    ("trace", {"trace": ["a"]}),
    ("headers", {"headers": ["a"]}),
    ("headers", {"headers": []}),
    ("headers", {"headers": {"a": 1}}),
    ("headers", {"headers": {1: "a"}}),
    ("headers", {"headers": {"a": "\ud800"}}),
    ("payload", {"payload": Thing()}),
    ("payload", {"payload": "\ud800"}),
    ("payload", {"payload": {"a": {1j}}}),
    ("payload", {"payload": ENDLESS}),
]


def name(options: Any) -> str:
    """A short test id."""
    return f"{options!r:.40}" if isinstance(options, dict) else str(options)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("options", AT_THE_LIMIT, ids=name)
def test_what_is_at_a_limit_passes_the_build_and_the_check(options, count):
    batch = Batch.build(last(count, **options))

    assert Batch.parse(batch.data, validate=True).count == count


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(("field", "options"), TOO_LARGE, ids=name)
def test_what_is_over_a_limit_is_too_large_by_item_and_field(field, options, count):
    with pytest.raises(TooLarge, match=rf"^item {count - 1}: {field}: .* is over the limit of [\d,]+ \(.+\)$"):
        Batch.build(last(count, **options))


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(("field", "options"), INVALID, ids=name)
def test_what_is_not_valid_is_refused_by_item_and_field(field, options, count):
    with pytest.raises(InvalidField, match=f"^item {count - 1}: {field}: "):
        Batch.build(last(count, **options))


@pytest.mark.parametrize("partition", [-1, True, 1.5, "", "a/b", "x" * 129])
def test_a_partition_that_could_not_be_stored_is_refused_by_item(partition):
    error = InvalidName if isinstance(partition, str) else InvalidField
    with pytest.raises(error, match=r"^item 2: partition: "):
        Batch.build(last(3, partition=partition))


@pytest.mark.parametrize("kind", [bytes, str, list], ids=["bytes", "text", "json"])
def test_a_plain_item_that_is_too_large_is_named(kind):
    big = {bytes: bytes(limits.payload_bytes_max + 1), str: text(limits.payload_bytes_max + 1)}
    items = [kind(), kind(), big.get(kind, [text(limits.payload_bytes_max)])]

    with pytest.raises(TooLarge, match=r"^item 2: payload: "):
        Batch.build(items)
    with pytest.raises(TooLarge, match=r"^item 0: payload: "):
        Batch.build(items[2:])


@pytest.mark.parametrize("item", [Thing(), {1j}, "\ud800", {"a": "\ud800"}, ENDLESS], ids=repr)
def test_a_plain_item_that_cannot_be_stored_is_named(item):
    with pytest.raises(InvalidField, match=r"^item 1: payload: this .* cannot be stored"):
        Batch.build([type(item)() if isinstance(item, str | list | dict) else b"", item])


def test_a_batch_is_refused_when_its_messages_are_too_many_bytes_together():
    payload = bytes(4 * limits.MIB)

    assert Batch.build([payload] * 3).count == 3
    with pytest.raises(TooLarge, match=r"^batch: 16,777,272 bytes is over the limit of 16,777,216 .push in smaller"):
        Batch.build([payload] * 4)


def test_a_batch_is_refused_when_its_offsets_could_not_count_its_bytes():
    payload = bytes(8 * limits.MIB)

    with pytest.raises(TooLarge, match=r"^batch: 4,303,355,904 bytes"):
        Batch.build([payload] * 513)  # 4 GiB and a bit: as an int32 it would pass for 8 MiB


def test_the_limit_of_a_batch_counts_payloads_before_compression():
    with pytest.raises(TooLarge, match=r"^batch: "):
        Batch.build([bytes(4 * limits.MIB)] * 4, compress=True)


def test_the_limit_of_a_batch_counts_every_column():
    message = Message(payload=bytes(limits.payload_bytes_max), key=text(limits.key_bytes_max))
    filler = [Message(payload=b"", headers={"a": text(60_000)})] * 110

    with pytest.raises(TooLarge, match=r"^batch: "):
        Batch.build([message, *filler])


def test_a_batch_is_refused_when_its_messages_are_too_many():
    with pytest.raises(TooLarge, match=r"^batch: 1,000,001 messages is over the limit of 1,000,000"):
        Batch.build([b""] * (limits.batch_messages_max + 1))


def test_a_million_messages_fit():
    batch = Batch.build([b""] * limits.batch_messages_max)

    assert Batch.parse(batch.data, validate=True).count == limits.batch_messages_max


@pytest.mark.parametrize("items", [b"abc", "abc", {"a": 1}, bytearray(b"a"), 5, None], ids=repr)
def test_what_is_not_a_list_of_messages_is_refused(items):
    with pytest.raises(InvalidField, match=r"^items: a .* is not a list of messages .pass a list"):
        Batch.build(items)


SINGLE: list[tuple[str, type[InputError], dict[str, Any]]] = [
    ("key", TooLarge, {"key": text(limits.key_bytes_max + 1)}),
    ("dedup_key", TooLarge, {"dedup_key": text(limits.dedup_key_bytes_max + 1)}),
    ("trace", TooLarge, {"trace": text(limits.trace_bytes_max + 1)}),
    ("headers", TooLarge, {"headers": {"a": text(limits.headers_bytes_max)}}),
    ("payload", TooLarge, {"payload": bytes(limits.payload_bytes_max + 1)}),
    ("payload", TooLarge, {"payload": bytes(limits.payload_bytes_max + 1), "key": "k"}),
    ("payload", InvalidField, {"payload": Thing()}),
    ("key", InvalidField, {"key": 5}),
    ("headers", InvalidField, {"headers": {"a": 5}}),
    ("headers", InvalidField, {"headers": "ab"}),
    ("priority", InvalidField, {"priority": 256}),
    ("priority", InvalidField, {"priority": "urgent"}),
    ("delay", InvalidField, {"delay_us": -1}),
    ("delay", InvalidField, {"delay_us": 1.5}),
    ("ttl", InvalidField, {"ttl_us": 2**63}),
    ("deliver_at", InvalidField, {"deliver_at_us": limits.instant_us_max + 1}),
    ("max_attempts", InvalidField, {"max_attempts": 0}),
    ("content_type", InvalidField, {"content_type": 5}),
]


@pytest.mark.parametrize(("field", "error", "options"), SINGLE, ids=name)
def test_a_single_message_is_refused_by_field(field, error, options):
    with pytest.raises(error, match=f"^{field}: "):
        encode_one_with(**{"payload": b"", **options})


def test_a_plain_single_message_is_refused_by_field():
    with pytest.raises(TooLarge, match=r"^payload: 10,485,761 bytes is over the limit of 10,485,760 \(.+\)$"):
        encode_one(bytes(limits.payload_bytes_max + 1))
