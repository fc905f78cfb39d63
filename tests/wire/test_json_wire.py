"""JSON on the wire: the same batch as Python would build, the same bytes back, and no work per field."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import operations as ops
from penstock.batch import Batch
from penstock.embedded.session import Session
from penstock.errors import InvalidField
from penstock.model import ContentType, Message, MessageId, QueueOptions
from penstock.replies import PushReply
from penstock.requests import LeaseRequest
from penstock.wire.json_messages import lease_reply, push_reply, read_push
from penstock.wire.json_models import Lease
from penstock.wire.json_options import OPTION_NAMES, NewQueue, changes_of, view_of
from penstock.wire.json_reader import Reader
from tests.support.operations import run_operation

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
FIELDS = st.fixed_dictionaries(
    {"payload": JSON},
    optional={
        "key": st.text(max_size=20),
        "priority": st.integers(0, 255) | st.sampled_from(["low", "critical"]),
        "delay_ms": st.integers(0, 10**9),
        "ttl_ms": st.integers(1, 10**9),
        "deliver_at": st.datetimes(datetime(1970, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC)),  # noqa: DTZ001
        "headers": st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
        "dedup_key": st.text(max_size=20),
        "partition": st.integers(0, 9),
        "max_attempts": st.integers(1, 65_535),
        "trace": st.text(max_size=20),
    },
)


def as_message(fields: dict[str, Any]) -> Message:
    """The message that JSON fields describe."""
    given = dict(fields)
    payload = msgspec.json.encode(given.pop("payload"))
    seconds = {name.removesuffix("_ms"): given.pop(name) / 1000 for name in ("delay_ms", "ttl_ms") if name in given}
    return Message(payload=payload, content_type=ContentType.JSON, **given, **seconds)


@given(st.lists(FIELDS, min_size=1, max_size=100))
def test_a_push_in_json_is_the_batch_that_python_would_build(messages):
    request = read_push(msgspec.json.encode({"messages": messages}))
    expected = Batch.build([as_message(message) for message in messages])

    assert bytes(request.batch.data) == bytes(expected.data)
    assert request.batch.partitions == expected.partitions


@given(st.lists(JSON, min_size=1, max_size=100))
def test_payloads_come_back_byte_for_byte(values):
    payloads = [msgspec.json.encode(value) for value in values]
    body = b'{"messages":[' + b",".join(b'{"payload": ' + payload + b" }" for payload in payloads) + b"]}"

    assert read_push(body).batch.payloads() == payloads


@given(st.lists(FIELDS, min_size=1, max_size=80))
def test_a_lease_in_json_has_what_was_pushed(messages):
    keep = ("payload", "key", "headers", "trace")
    plain = [{name: value for name, value in message.items() if name in keep} for message in messages]
    session = Session(None, background=False)
    session.push("mail", read_push(msgspec.json.encode({"messages": plain})).batch, None, None)
    reply, _ = session.lease("mail", "default", LeaseRequest(1000))

    found = msgspec.json.decode(lease_reply(reply))["messages"]

    for index, (message, delivery) in enumerate(zip(plain, found, strict=True)):
        assert msgspec.json.encode(delivery["payload"]) == msgspec.json.encode(message["payload"])
        assert (delivery["key"], delivery["headers"]) == (message.get("key"), message.get("headers") or {})
        assert delivery.get("trace") == message.get("trace")
        assert delivery["id"] == f"mail/0/{index}"
        assert delivery["receipt"] == f"mail:0:{index}:1:{reply.nonce:016x}"


def test_a_push_over_several_partitions_is_answered_in_the_order_of_its_messages():
    session = Session(None, background=False)
    run_operation(session, ops.CreateQueue("mail", {"partitions": 4}, exist_ok=False))
    body = {"messages": [{"payload": n, "partition": n % 3, "dedup_key": str(n % 5)} for n in range(9)]}
    reply, _ = session.push("mail", *push_arguments(body), None)

    results = msgspec.json.decode(push_reply(reply))["results"]

    assert [result["id"] for result in results] == list(map(str, reply.ids()))
    assert [result["status"] for result in results] == ["queued"] * 5 + ["duplicate"] * 4


def push_arguments(body: dict[str, Any]) -> tuple[Batch, Any]:
    request = read_push(msgspec.json.encode(body))
    return request.batch, request.partition


def test_a_push_of_nothing_new_is_answered_too():
    reply = PushReply("mail", 1, (), {0: MessageId("mail", "0", 7)})

    assert push_reply(reply) == b'{"results":[{"id":"mail/0/7","status":"duplicate"}]}'


def calls_of(work: Callable[[], Any]) -> int:
    """How many Python functions something calls."""
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def test_a_thousand_messages_take_no_python_call_each():
    session = Session(None, background=False)
    body = b'{"messages":[' + b",".join([b'{"payload":{"a":1}}'] * 1000) + b"]}"
    keyed = b'{"messages":[' + b",".join([b'{"payload":{"a":1},"key":"k","priority":9}'] * 1000) + b"]}"
    pushed, _ = session.push("mail", read_push(body).batch, None, None)
    leased, _ = session.lease("mail", "default", LeaseRequest(1000))
    lease_reply(leased)

    assert calls_of(lambda: read_push(body)) < 50
    assert calls_of(lambda: read_push(keyed)) < 300
    assert calls_of(lambda: push_reply(pushed)) < 10
    assert calls_of(lambda: lease_reply(leased)) < 60


# options


def test_every_option_goes_to_json_and_back():
    options = QueueOptions(lease_seconds=1.5, ttl_seconds=60, max_length=5, partitions="named")
    view = msgspec.json.encode(view_of("mail", options))

    given = changes_of(Reader(NewQueue).read(view))

    assert {name: given[name] for name in ("lease_seconds", "ttl_seconds", "max_length", "partitions")} == {
        "lease_seconds": 1.5, "ttl_seconds": 60, "max_length": 5, "partitions": "named",
    }  # fmt: skip
    assert set(given) == set(OPTION_NAMES.values()) == set(QueueOptions.__struct_fields__)


def test_an_unknown_field_is_named_with_its_place_and_the_one_that_was_meant():
    with pytest.raises(InvalidField) as caught:
        Reader(Lease).read(b'{"maxx": 1}')

    assert (caught.value.message, caught.value.hint) == ("maxx: there is no such field", "did you mean 'max'?")
