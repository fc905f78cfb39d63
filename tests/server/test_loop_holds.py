"""No request within limits holds the event loop for long: requests of maximal size, of every shape, on every port."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import grpc
import msgspec
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from websockets.sync.client import connect

from penstock import limits
from penstock import operations as ops
from penstock.embedded.session import Session
from penstock.errors import BadRequest
from penstock.server.grpc import values
from penstock.server.grpc.generated import queues_pb2
from penstock.server.grpc.service import METHODS
from penstock.server.http.openapi import PARAMETERS
from penstock.server.http.routes import ROUTES
from penstock.wire.frames import BINARY_FROM, PROTOCOL_VERSION, JsonType, Type, frame, json_frame
from penstock.wire.json_reader import OneOrMany
from penstock.wire.requests import Hello, encode
from tests.support.dose import dose
from tests.support.http import RawClient, request
from tests.support.watchdog import SECONDS, Watched, watched

TEXTS = ("mail", "default", "a", "", "{}", "mail/0/1", "mail:0:1:1:0000000000000001", "é")
VARINT, LENGTH = 0, 2  # wire types of protocol buffers: making such messages of values would take too long


def varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes((*found, number))


def whole(field: Any, value: bytes) -> bytes:
    """A field of bytes, text or another message."""
    return varint(field.number << 3 | LENGTH) + varint(len(value)) + value


def small(draw: random.Random, kind: Any, depth: int = 2) -> bytes:
    """A message with some of its fields set."""
    return b"".join(_small(draw, field, depth) for field in kind.fields if draw.random() < 0.7)


def _small(draw: random.Random, field: Any, depth: int) -> bytes:
    if field.message_type is not None:
        return whole(field, small(draw, field.message_type, depth - 1)) if depth else b""
    if field.type in (field.TYPE_STRING, field.TYPE_BYTES):
        return whole(field, draw.choice(TEXTS).encode())
    if field.type in (field.TYPE_DOUBLE, field.TYPE_FLOAT):
        return b""
    return varint(field.number << 3 | VARINT) + varint(draw.choice((0, 1, 2, 100)))


def filled(draw: random.Random, kind: Any, length: int) -> bytes:
    """A message as long as that, by one of its fields: one that is long, or one that is there many times."""
    fields = [field for field in kind.fields if field.message_type is not None or field.type == field.TYPE_STRING]
    fields += [field for field in kind.fields if field.type == field.TYPE_BYTES]
    if not fields:
        return small(draw, kind)
    field = draw.choice(fields)
    head = b"".join(_small(draw, other, 2) for other in kind.fields if other is not field)
    if field.is_repeated:
        unit = _small(draw, field, 2)
        return head + unit * (length // len(unit))
    if field.message_type is not None:
        return head + whole(field, filled(draw, field.message_type, length - 10))
    return head + whole(field, b"a" * length)


pb: Any = queues_pb2
LIMIT_SECONDS = 0.1
ATTEMPTS = 3  # the processor has other work: the best of them counts
BODY_BYTES = limits.frame_bytes_max - 4096
PATHS = sorted({route.path for route in ROUTES if route.body is not None})
UNITS = ('"a",', "1,", "{},", '{"payload":1},', '{"payload":1,"headers":{"a":"b"}},', "[[]],", '"\\u0001",', "é")
JSON = 0  # one of the types of tasks
SPECIAL = (Type.PUSH_ONE, Type.PUSH_TYPED)
BINARY = [kind for kind in Type if BINARY_FROM <= kind < Type.OK and kind not in SPECIAL]

# What is repeated until a push is so large.
LARGE_PUSHES = {
    "payloads": (pb.PushRequest(payloads=[b"a"]).SerializeToString(), BODY_BYTES),
    "payloads that are stored": (pb.PushRequest(payloads=[b"a"]).SerializeToString(), 600_000),
    "keys": (pb.PushRequest(messages=[pb.NewMessage(key="k")]).SerializeToString(), BODY_BYTES),
    "keys that are stored": (pb.PushRequest(messages=[pb.NewMessage(key="k")]).SerializeToString(), 600_000),
    "headers": (pb.PushRequest(messages=[pb.NewMessage(headers={"a": "b"})]).SerializeToString(), 2_000_000),
}


@pytest.fixture(scope="module")
def broker() -> Iterator[Watched]:
    with closing(Session(None)) as session, watched(session) as made:
        yield made


def names_of(kind: Any) -> list[str]:
    kinds = kind.kinds if isinstance(kind, OneOrMany) else (kind,)
    return [name for each in kinds for name in getattr(each, "__struct_fields__", ())]


def json_body(draw: random.Random, names: list[str], length: int = BODY_BYTES, head: str = "") -> bytes:
    """An object that is as large as it may be, by one field that is."""
    name, unit = draw.choice([*names, "unknown"]), draw.choice(UNITS)
    many = unit * (length // len(unit.encode()))
    value = draw.choice(
        (
            "[" + many.rstrip(",") + "]" if unit != "é" else f'"{many}"',
            '"' + "a" * length + '"',
            '"' + "\\u0001" * (length // 6) + '"',
            "{" + '"a":"b",' * (length // 8) + '"a":"b"}',
            "[" * 500 + "]" * 500,
            "1" * length,
        )
    )
    if name == "unknown":
        name = "a" * draw.choice((length, 100))
        value = "1" if len(name) == length else value
    return f'{{{head}"{name}":{value}}}'.encode()


def packed(draw: random.Random, length: int = BODY_BYTES) -> bytes:
    """MessagePack that is as large as it may be: lists, maps and texts that are long, short or nested."""
    filler = draw.choice((b"\x01", b"\xa0", b"\x90", b"\xc0", b"\xa1a", b"\x91\x01"))
    count = length // len(filler) - 10
    long = b"\xdd" + count.to_bytes(4) + filler * count
    text = b"\xdb" + (length - 10).to_bytes(4) + b"a" * (length - 10)
    pairs = b"\xdf" + (length // 4).to_bytes(4) + b"\xa1a\xa1b" * (length // 4)
    value = draw.choice((long, text, pairs, b"\x91" * 900 + b"\x01"))
    fields = [b"\xa4mail", b"\xa7default", b"\x01", b"\x00", b"\xc0", b"\xa0", b"\xc0"][: draw.randrange(8)]
    return bytes((0x91 + len(fields),)) + b"".join(fields) + value


def holds(broker: Watched, send: Any) -> None:
    """Fail when the loop is held for too long by what `send` sends and waits for."""
    seen = []
    for _ in range(ATTEMPTS):
        broker.forget()
        send()
        seen.append((broker.longest, broker.culprit))
        if broker.longest <= LIMIT_SECONDS:
            return
    pytest.fail(f"the loop was held for {min(seen)}")


@pytest.mark.parametrize("seed", range(dose(12, 400)))
def test_no_http_request_holds_the_loop(broker, seed):
    draw = random.Random(seed)
    route = draw.choice([route for route in ROUTES if route.body is not None])
    path = route.path.format_map(dict.fromkeys(PARAMETERS, "mail"))
    body = json_body(draw, names_of(route.body))

    def send() -> None:
        with RawClient(broker.http.port) as client:
            client.send(request(route.method, path, body))
            assert client.answer().status < 600

    holds(broker, send)


@pytest.mark.parametrize("seed", range(dose(4, 100)))
def test_no_websocket_message_holds_the_loop(broker, seed):
    draw = random.Random(seed)
    kind = draw.choice(("push", "ack", "subscribe", "events", "extend", "nack"))
    body = json_body(draw, ["messages", "receipts", "queue", "queues", "partitions", "id"], head=f'"type":"{kind}",')

    def send() -> None:
        with connect(f"ws://127.0.0.1:{broker.http.port}/api/v1/stream", max_size=None, compression=None) as link:
            link.send(body.decode())
            link.recv(SECONDS)

    holds(broker, send)


@pytest.mark.parametrize("seed", range(dose(8, 300)))
def test_no_tcp_frame_holds_the_loop(broker, seed):
    draw = random.Random(seed)
    kind = draw.choice([*map(int, BINARY), int(Type.CALL), JSON, JSON])
    if kind == JSON:
        names = ["task_type", "tasks", "receipts", "finishes", "task_ids", "queues"]
        frames = json_frame(draw.choice(list(JsonType)[:7]), json_body(draw, names))
    elif kind == Type.CALL:
        name = draw.choice(sorted([*ops.TABLE, "transact"]))
        frames = frame(kind, 2, msgspec.msgpack.encode([name, packed(draw, BODY_BYTES - 100)]))
    else:
        frames = frame(kind, 2, packed(draw))
    hello = b"" if kind == JSON else frame(Type.HELLO, 1, encode(Hello(PROTOCOL_VERSION, "test")))

    def send() -> None:
        with socket.create_connection(("127.0.0.1", broker.tcp.port), timeout=SECONDS) as client:
            try:
                client.sendall(hello + frames)
                client.shutdown(socket.SHUT_WR)
                while client.recv(1 << 16):
                    pass
            except ConnectionError:
                pass  # refused while it was sent

    holds(broker, send)


@pytest.mark.parametrize("seed", range(dose(12, 400)))
def test_no_grpc_request_holds_the_loop(broker, seed):
    draw = random.Random(seed)
    service = draw.choice(sorted(METHODS))
    methods = METHODS[service].messages.DESCRIPTOR.services_by_name[service].methods
    method = draw.choice([method for method in methods if not (method.server_streaming or method.client_streaming)])
    grpc_holds(broker, f"{service}/{method.name}", filled(draw, method.input_type, BODY_BYTES))


@pytest.mark.parametrize("name", LARGE_PUSHES)
def test_no_grpc_push_holds_the_loop(broker, name):
    unit, length = LARGE_PUSHES[name]
    grpc_holds(broker, "Queues/Push", pb.PushRequest(queue="mail").SerializeToString() + unit * (length // len(unit)))


def grpc_holds(broker: Watched, path: str, data: bytes) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{broker.grpc.port}", [("grpc.max_receive_message_length", -1)]) as channel:
        call = channel.unary_unary(f"/penstock.v1.{path}")

        def send() -> None:
            answer = call.future(data, timeout=SECONDS)
            assert answer.code() not in {grpc.StatusCode.INTERNAL, grpc.StatusCode.DEADLINE_EXCEEDED}, answer.details()

        holds(broker, send)


@given(st.lists(st.binary(max_size=20), max_size=60), st.text(max_size=10), st.integers(1, 200), st.binary(max_size=6))
def test_a_request_in_pieces_is_what_it_was(payloads, queue, piece_bytes, rest):
    data = pb.PushRequest(queue=queue, payloads=payloads).SerializeToString() + rest
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(values, "LARGE_BYTES", 0)
        patch.setattr(values, "PIECE_BYTES", piece_bytes)
        try:
            right = pb.PushRequest.FromString(data)
        except DecodeError:
            with pytest.raises(BadRequest):
                values._parsed(pb.PushRequest, data)
        else:
            assert values._parsed(pb.PushRequest, data) == right


def test_no_request_to_settle_many_lost_leases_holds_the_loop(broker):
    body = msgspec.json.encode({"receipts": ["mail:0:1:1:0000000000000001"] * 50_000})

    def send() -> None:
        with RawClient(broker.http.port) as client:
            client.send(request("POST", "/api/v1/ack", body))
            assert client.answer().status == 409

    holds(broker, send)


@pytest.mark.parametrize("count", [50_000, 1_000_000])
def test_no_grpc_request_to_settle_many_lost_leases_holds_the_loop(broker, count):
    settlement = pb.Settlement(ack=pb.Ack(), receipts=["mail:0:1:1:0000000000000001"] * count)
    grpc_holds(broker, "Queues/Settle", pb.SettleRequest(settlements=[settlement]).SerializeToString())
