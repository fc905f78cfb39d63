"""Whatever a producer may push comes out as it went in, by every way through bytes and Arrow."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import limits
from penstock.batch import Batch, encode_one, encode_one_with, one_with_ttl
from penstock.batch.layout import TTL
from penstock.model import ContentType, Message, check_priority

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TEXT = st.text(max_size=20)
MICROS = st.integers(0, limits.delay_seconds_max * 1_000_000)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
MESSAGES = st.builds(
    Message,
    payload=st.binary(max_size=40) | TEXT | JSON,
    key=st.none() | TEXT,
    priority=st.integers(0, 255) | st.sampled_from(["low", "high"]),
    delay=st.just(0.0) | st.integers(0, 10**9) | st.floats(0, 1e6),
    deliver_at=st.none() | st.datetimes(EPOCH.replace(tzinfo=None), timezones=st.just(UTC)),
    ttl=st.none() | st.integers(1, 10**9),
    headers=st.none() | st.dictionaries(TEXT, TEXT, max_size=3),
    dedup_key=st.none() | TEXT,
    max_attempts=st.none() | st.integers(1, limits.attempts_max),
    trace=st.none() | TEXT,
    content_type=st.none() | st.sampled_from(ContentType),
)
# Twice as many rows as change the way a column is read, so that both ways are tried.
LISTS = st.lists(MESSAGES, max_size=8) | st.lists(MESSAGES, min_size=1, max_size=8).map(lambda some: some * 20)

examples = settings(max_examples=80, deadline=None)


def values(column: np.ndarray | None, count: int, default: int) -> list[int]:
    return [default] * count if column is None else column.tolist()


@examples
@given(LISTS)
def test_every_field_of_every_message_comes_back(messages):
    batch = Batch.parse(Batch.build(messages).data, validate=True)
    count = len(messages)

    assert batch.count == count
    assert batch.keys() == [message.key for message in messages]
    assert batch.dedup_keys() == [message.dedup_key for message in messages]
    assert [batch.trace(row) for row in range(count)] == [message.trace for message in messages]
    assert [batch.headers(row) for row in range(count)] == [message.headers or None for message in messages]
    assert values(batch.priority, count, 128) == [check_priority(message.priority) for message in messages]
    assert values(batch.delay, count, 0) == [round(message.delay * 1e6) for message in messages]
    assert values(batch.ttl, count, 0) == [(message.ttl or 0) * 1_000_000 for message in messages]
    assert values(batch.max_attempts, count, 0) == [message.max_attempts or 0 for message in messages]
    assert batch.payloads() == [batch.payload(row) for row in range(count)]
    for row, message in enumerate(messages):
        if isinstance(message.payload, bytes):
            assert batch.payload(row) == message.payload


@examples
@given(LISTS)
def test_arrow_and_back_gives_the_same_bytes(messages):
    batch = Batch.build(messages)
    table = batch.to_arrow()

    table.validate(full=True)
    assert Batch.from_arrow(table).data == batch.data
    assert Batch.build(table).data == batch.data


@examples
@given(LISTS, st.randoms(use_true_random=False))
def test_taking_rows_is_building_from_those_messages(messages, random):
    rows = random.sample(range(len(messages)), random.randint(0, len(messages)))
    batch = Batch.build(messages)

    taken = Batch.parse(batch.take(np.array(rows, np.int64)).data, validate=True)

    assert taken.payloads() == [batch.payload(row) for row in rows]
    assert taken.keys() == [messages[row].key for row in rows]
    assert [taken.headers(place) for place in range(len(rows))] == [messages[row].headers or None for row in rows]


@examples
@given(st.lists(st.binary(max_size=200)), st.booleans())
def test_plain_payloads_come_back(items, compress):
    data = Batch.build(items, compress=compress).data

    for batch in (Batch.parse(data, validate=True), Batch.parse(memoryview(data), validate=False)):
        assert batch.payloads() == items
        assert batch.payloads(slice(1, 5)) == items[1:5]


@examples
@given(st.binary(max_size=300))
def test_one_plain_message_is_a_batch_of_one(payload):
    assert encode_one(payload) == encode_one_with(payload) == Batch.build([payload]).data
    assert Batch.parse(encode_one(payload), validate=True).payload(0) == payload


@examples
@given(MESSAGES, MICROS, MICROS, MICROS)
def test_one_message_with_options_is_a_sound_batch_of_one(message, delay_us, deliver_at_us, ttl_us):
    names = ("key", "priority", "headers", "dedup_key", "max_attempts", "trace", "content_type")
    options = {name: getattr(message, name) for name in names}

    data = encode_one_with(message.payload, delay_us=delay_us, deliver_at_us=deliver_at_us, ttl_us=ttl_us, **options)
    batch = Batch.parse(data, validate=True)

    assert batch.key(0) == message.key
    assert batch.headers(0) == (message.headers or None)
    assert values(batch.priority, 1, 128) == [check_priority(message.priority)]
    assert [values(column, 1, 0)[0] for column in (batch.delay, batch.deliver_at, batch.ttl)] == [
        delay_us,
        deliver_at_us,
        ttl_us,
    ]


@examples
@given(LISTS, st.integers(1, limits.delay_seconds_max * 1_000_000), st.booleans())
def test_a_time_to_live_for_those_that_have_none_changes_nothing_else(messages, micros, compress):
    batch = Batch.build(messages, compress=compress)

    living = Batch.parse(batch.with_ttl(micros).data, validate=True)

    assert values(living.ttl, batch.count, 0) == [life or micros for life in values(batch.ttl, batch.count, 0)]
    assert living.with_ttl(micros + 1).data == living.data
    assert living.flags == batch.flags | TTL
    assert _others(living) == _others(batch)


def _others(batch: Batch) -> list[object]:
    count = batch.count
    fixed = (batch.priority, batch.delay, batch.deliver_at, batch.max_attempts, batch.content_type)
    texts = [[batch.key(row), batch.dedup_key(row), batch.trace(row), batch.headers(row)] for row in range(count)]
    return [[values(column, count, -1) for column in fixed], texts, batch.payloads()]


@examples
@given(st.binary(max_size=40), st.none() | TEXT, st.none() | st.integers(1, 10**9), MICROS)
def test_one_message_lives_as_long_as_it_says_or_else_as_its_queue_says(payload, key, own, micros):
    data = encode_one_with(payload, key=key, ttl_us=own or 0)

    living, life = one_with_ttl(data, Batch(data).flags, micros)

    assert life == (own or micros)
    if life:
        assert living == encode_one_with(payload, key=key, ttl_us=life)
        assert living == Batch(data).with_ttl(life).data
    else:
        assert living == data
