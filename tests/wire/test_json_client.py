"""JSON from the client's side is the inverse of the broker's: what goes in one end comes out of the other."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Message, limits
from penstock.batch import Batch
from penstock.envelopes import tasks_batch
from penstock.model import ContentType, MessageId
from penstock.model_tasks import TaskSubmission
from penstock.replies import LeaseReply, Piece, PushReply
from penstock.wire.json_messages import lease_reply, push_reply, read_push
from tests.support.json_over_http import client as json_client

texts = st.text(st.characters(codec="utf-8"), max_size=20)
messages = st.builds(
    Message,
    payload=st.one_of(st.binary(max_size=50), texts, st.dictionaries(texts, st.integers()), st.floats(-1, 1)),
    key=st.none() | texts.filter(bool),
    priority=st.integers(0, limits.priority_max),
    delay=st.sampled_from([0, 0.000001, 0.1, 0.3, 86_400.000001]),
    ttl=st.sampled_from([None, 0.000001, 1.1, 3600]),
    headers=st.none() | st.dictionaries(texts.filter(bool), texts, max_size=3),
    dedup_key=st.none() | texts.filter(bool),
    max_attempts=st.none() | st.integers(1, limits.attempts_max),
    trace=st.none() | st.just("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
)


def pushed(batch, partition=None):
    return read_push(msgspec.json.encode({"messages": json_client.messages_of(batch, partition)}))


@given(st.lists(messages, min_size=1, max_size=5))
def test_a_batch_is_the_same_after_its_way_through_json(items):
    batch = Batch.build(items)

    assert bytes(pushed(batch).batch.data) == bytes(batch.data)


@pytest.mark.parametrize("payload", [b"1", b" 1", b'{"a": 1}\n', b"not json", b"", b'"\xff"', b"1e999", b"[" * 2_000])
def test_what_is_called_json_is_kept_byte_for_byte_whatever_it_is(payload):
    batch = Batch.build([Message(payload=payload, content_type=ContentType.JSON)] * 2)

    assert bytes(pushed(batch).batch.data) == bytes(batch.data)


def test_a_time_to_deliver_and_partitions_travel_too():
    at = datetime(2040, 1, 2, 3, 4, 5, 6, UTC)
    batch = Batch.build([Message(payload=b"a", deliver_at=at), Message(payload=b"b")])

    assert bytes(pushed(batch).batch.data) == bytes(batch.data)
    assert pushed(batch, 3).partition == ["3", "3"]
    assert pushed(batch, "room").partition == ["room", "room"]
    assert pushed(batch, ["room", None]).partition == ["room", None]


@pytest.mark.parametrize(
    ("parts", "duplicates"),
    [
        ([("0", 3, 7, None)], {}),
        ([("0", 2, 7, np.array([0, 2])), ("1", 1, 4, np.array([1]))], {}),
        ([("0", 1, 9, np.array([1]))], {0: MessageId("mail", "0", 3), 2: MessageId("mail", "", 1)}),
    ],
)
def test_the_answer_to_a_push_says_the_same(parts, duplicates):
    reply = PushReply("mail", 3, parts, duplicates)

    found = json_client.read_pushed("mail", push_reply(reply))

    assert found.ids() == reply.ids()
    assert set(found.duplicates) == set(duplicates)


def leased(*pieces):
    count = sum(len(piece.offsets) for piece in pieces)
    reply = LeaseReply("mail", "billing", 0xABC, 1_900_000_000_000_001, pieces, count)
    return json_client.read_leased("mail", "billing", lease_reply(reply))


def rows(piece):
    return [
        (piece.partition(index), offset, piece.attempt(index), piece.pushed(index), payload)
        for index, (offset, payload) in enumerate(zip(piece.offsets, piece.payloads(), strict=True))
    ]


@given(st.lists(messages, min_size=1, max_size=5))
def test_a_lease_says_the_same(items):
    batch = Batch.build(items)
    count = len(items)
    sent = Piece(batch, slice(0, count), "0", range(5, 5 + count), 1, 1_800_000_000_000_000)
    mixed = Piece(batch, slice(0, count), ["a"] * count, [*range(count)], [*range(1, count + 1)], [*range(count)])

    found = leased(sent, mixed)

    assert (found.nonce, found.expires_at, found.count) == (0xABC, 1_900_000_000_000_001, 2 * count)
    assert [row for piece in found.pieces for row in rows(piece)] == rows(sent) + rows(mixed)
    (piece,) = found.pieces
    for row in range(count):
        for name in ("key", "headers", "trace", "dedup_key", "content_type_of"):
            assert (getattr(piece.batch, name)(row) or None) == (getattr(batch, name)(row) or None)
    assert leased().count == 0


def test_a_large_lease_is_cut_into_batches_that_are_allowed(monkeypatch):
    monkeypatch.setattr(json_client, "PIECE_BYTES_MAX", 100)
    batch = Batch.build([b"x" * 40, b"y" * 40, b"z" * 40, b"w" * 300])

    found = leased(Piece(batch, slice(0, 4), "0", range(4), 1, 1))

    assert [len(piece.offsets) for piece in found.pieces] == [2, 1, 1]
    assert [row for piece in found.pieces for row in rows(piece)] == [
        ("0", n, 1, 1, batch.payload(n)) for n in range(4)
    ]


def test_tasks_travel_as_json_both_ways():
    tasks = [TaskSubmission(task_id=f"{n:036}", task_type="a", queue="mail", args=b'["\xc3\xa4"]') for n in range(2)]
    batch = tasks_batch(tasks)
    sent = json_client.messages_of(batch, None)
    (piece,) = leased(Piece(batch, slice(0, 2), "0", range(2), 1, 1)).pieces

    assert [bytes(message["payload"]) for message in sent] == batch.payloads()
    assert bytes(pushed(batch).batch.data) == bytes(batch.data)
    assert [piece.batch.content_type_of(row) for row in range(2)] == [ContentType.TASK] * 2
    assert piece.payloads() == batch.payloads()
