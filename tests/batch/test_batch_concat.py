"""Batches that are joined: the same messages, one after the other."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock import Message
from penstock.batch import Batch, join

messages = st.builds(
    Message,
    payload=st.binary(max_size=20),
    key=st.sampled_from([None, "", "k", "ü"]),
    priority=st.sampled_from([128, 0, 255]),
    delay=st.sampled_from([0.0, 1.5]),
    deliver_at=st.sampled_from([None, datetime(2030, 1, 2, tzinfo=UTC)]),
    ttl=st.sampled_from([None, 3.0]),
    max_attempts=st.sampled_from([None, 7]),
    headers=st.sampled_from([None, {}, {"a": "b", "c": ""}]),
    dedup_key=st.sampled_from([None, "d"]),
    trace=st.sampled_from([None, "t"]),
)


def rows(batch: Batch) -> list[Any]:
    fixed = (batch.priority, batch.delay, batch.deliver_at, batch.ttl, batch.max_attempts)
    defaults = (128, 0, 0, 0, 0)
    return [
        (
            batch.payload(row),
            batch.key(row),
            batch.dedup_key(row),
            batch.trace(row),
            batch.headers(row) or {},
            batch.content_type_of(row),
            *(default if column is None else int(column[row]) for column, default in zip(fixed, defaults, strict=True)),
        )
        for row in range(batch.count)
    ]


@given(st.lists(st.lists(messages, min_size=1, max_size=3), min_size=1, max_size=5))
def test_joined_batches_hold_the_same_messages_one_after_the_other(items):
    batches = [Batch.build(some) for some in items]

    joined = join(batches)

    assert rows(joined) == [row for batch in batches for row in rows(batch)]
    assert rows(Batch.parse(joined.data, validate=True)) == rows(joined)
