"""Large JSON is decoded in pieces: the same values, the same refusals, and never much in one go."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import operations as ops
from penstock.errors import InputError
from penstock.wire import json_models as models
from penstock.wire import json_protocols, json_reader
from penstock.wire import json_tasks as tasks
from penstock.wire.json_messages import read_plain
from penstock.wire.json_operations import json_of
from penstock.wire.json_reader import Reader
from tests.support.dose import dose

KINDS = (
    models.Push, models.PlainPush, models.Lease, models.Ack, models.Nack, models.Transaction, models.LetterReplacement,
    json_of(ops.Seek).body, json_of(ops.Heartbeat).body, tasks.NEW_TASKS, tasks.FINISHED_RUNS,
)  # fmt: skip
texts = st.text(max_size=8) | st.sampled_from(["\\", '"', '\\"', "[", "}", ",", "é", "\x00", "payload"])
values: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 300) | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from([name for kind in (*KINDS, models.NewMessage) for name in kind.__struct_fields__])
messages = st.fixed_dictionaries({"payload": values}, optional={"key": texts, "headers": st.dictionaries(texts, texts)})
pushes = st.fixed_dictionaries({"messages": st.lists(messages, max_size=8)})
types = st.sampled_from(["push", "ack", "x"])
parts = st.fixed_dictionaries({"type": types, "queue": texts, "messages": st.lists(messages)})
bodies = (
    pushes
    | st.fixed_dictionaries({"operations": st.lists(parts, max_size=4)})
    | st.fixed_dictionaries({"receipts": st.lists(texts, max_size=9)})
    | st.dictionaries(names, values | st.lists(messages), max_size=4)
    | values
)

MANY = b'{"messages":[%b{"payload":1}]}' % (b'{"payload":1},' * 5_000)


@pytest.fixture(autouse=True, scope="module")
def small_pieces() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_reader, "PIECE_BYTES", 12)
        patch.setattr(json_reader, "PIECE_VALUES", 0)
        patch.setattr(json_reader, "_SCAN_BYTES", 7)
        yield


def outcome(work: Any) -> Any:
    try:
        return "ok", work()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return type(error), ""


@settings(max_examples=dose(60, 5_000))
@given(st.sampled_from(KINDS), bodies, st.sampled_from([None, 1]), st.booleans())
def test_pieces_give_the_values_and_the_refusals_of_the_whole(kind, value, indent, escapes):
    body = json.dumps(value, indent=indent, ensure_ascii=escapes).encode(errors="surrogatepass")

    whole = outcome(lambda: msgspec.json.decode(body, type=kind))
    assert outcome(lambda: json_reader.decode(kind, body)) == whole


@settings(max_examples=dose(40, 5_000))
@given(bodies, st.integers(0, 200), st.binary(max_size=2))
def test_what_is_no_json_is_refused_in_pieces_too(value, cut, garbage):
    body = json.dumps(value).encode()
    body = body[:cut] + garbage + body[cut + len(garbage) :]

    whole = outcome(lambda: msgspec.json.decode(body, type=models.Push))
    assert (outcome(lambda: json_reader.decode(models.Push, body))[0] == "ok") == (whole[0] == "ok")


@pytest.mark.parametrize(
    ("body", "place"),
    [
        (b'{"messages":[%b{"payload":1,"priority":900}]}' % (b'{"payload":1},' * 7), "messages[7].priority: "),
        (b'{"messages":[%b{"payload":1,"no":900}]}' % (b'{"payload":1},' * 3), "messages[3].no: "),
        (b'{"messages":[{"payload":1,"headers":{"a":"b","c":"d","e":1}}]}', "messages[0].headers"),
        (b'{"messages":[{"payload":"long enough"}],"producer":{"id":"x","epoch":1,"sequence":1}}', "producer.id: "),
        (b'{"messages":[{"payload":"long enough"}],"durability":1}', "durability: "),
        (b'{"messages":1}', "messages: "),
    ],
)
def test_a_refusal_names_the_place_in_the_whole(body, place):
    with pytest.raises(InputError) as refused:
        Reader(models.Push).read(body)

    assert refused.value.message.startswith(place)


def test_what_a_websocket_says_is_decoded_in_pieces_by_its_type():
    body = b'{"messages":[%b{"payload":1}],"queue":"mail","type":"push","id":7}' % (b'{"payload":[1,2]},' * 9)

    said = json_protocols.client_message.read(body)
    assert isinstance(said, json_protocols.Push)
    assert (len(said.messages), said.queue, said.id) == (10, "mail", 7)


@given(st.binary(max_size=40) | st.text(max_size=40).map(str.encode))
def test_utf_8_is_checked_as_the_whole_is(data):
    def check(work: Any) -> Any:
        try:
            work()
        except UnicodeDecodeError as error:
            return error.start
        return None

    assert check(lambda: json_reader.check_utf8(data)) == check(data.decode)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (models.Push, MANY),
        (models.Push, b'{"messages":[{"payload":1,"headers":{%b"a":"b"}}]}' % (b'"a":"b",' * 5_000)),
        (models.Ack, b'{"receipts":[%b"a"]}' % (b'"a",' * 5_000)),
        (models.Lease, b'{"partitions":[%b"a"]}' % (b'"a",' * 5_000)),
        (models.Transaction, b'{"operations":[{"type":"push","queue":"a",%b]}' % MANY[1:]),
    ],
)  # fmt: skip
def test_nothing_but_bytes_is_made_of_much_in_one_go(kind, body, monkeypatch):
    monkeypatch.setattr(json_reader, "PIECE_BYTES", 1000)
    seen = []
    original = json_reader._decoder

    def decoder(kind: Any) -> Any:
        def decode(data: bytes) -> Any:
            decoded = original(kind)(data)
            if isinstance(decoded, list | dict):
                seen.append(len(data))
            return decoded

        return decode

    monkeypatch.setattr(json_reader, "_decoder", decoder)

    json_reader.decode(kind, body)
    assert sum(seen) > len(body) * 0.9
    assert max(seen) <= 1002


def test_a_push_of_plain_messages_heeds_the_limit_of_a_batch(monkeypatch):
    monkeypatch.setattr("penstock.limits.batch_messages_max", 3)

    assert read_plain(b'{"messages":[%b{"payload":1}]}' % (b'{"payload":1},' * 2)) is not None
    assert read_plain(MANY) is None  # the reader of all fields refuses it
