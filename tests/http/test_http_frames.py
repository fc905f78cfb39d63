"""POST /api/v1/rpc: the frames of the TCP protocol over HTTP."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.batch import Batch
from penstock.model import Outcome
from penstock.server.http import frames as route
from penstock.wire import answers, requests
from penstock.wire.errors import ErrorReply
from penstock.wire.frames import HTTP_PATH, MEDIA_TYPE, PROTOCOL_VERSION, Splitter, Type, frame
from tests.support.http import HttpThread

HEADERS = {"content-type": MEDIA_TYPE, "penstock-protocol": str(PROTOCOL_VERSION)}
Answers = dict[int, tuple[int, bytes]]


@pytest.fixture
def server() -> Iterator[HttpThread]:
    made = HttpThread(request_bytes_max=100_000)
    yield made
    made.stop()


def post(server: HttpThread, body: bytes, **headers: str) -> Any:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return server.http.post(HTTP_PATH, content=body, headers=HEADERS | named)


def frames_in(body: bytes) -> Answers:
    """By their correlations."""
    data, cuts = Splitter(1 << 20).feed(body)
    return {correlation: (kind, data[start:stop]) for kind, correlation, start, stop in cuts}


def answered(server: HttpThread, *asked: bytes, **headers: str) -> Answers:
    response = post(server, b"".join(asked), **headers)
    assert (response.status_code, response.headers["content-type"]) == (200, MEDIA_TYPE)
    assert response.headers["x-accel-buffering"] == "no"
    assert "no-store" in response.headers["cache-control"]
    return frames_in(response.content)


def push(correlation: int, payload: bytes, sequence: int = 0) -> bytes:
    return frame(Type.PUSH_ONE, correlation, requests.encode_push_one(b"mail", sequence, payload))


def lease(correlation: int, count: int = 1, wait: float = 0.0) -> bytes:
    return frame(Type.LEASE, correlation, requests.encode(requests.Lease("mail", "default", count, wait)))


def stored(server: HttpThread) -> int:
    return sum(len(queue.partitions[0].extents) for queue in server.session.shard.core.queues.values())


def raw(server: HttpThread, body: bytes, version: str = "1.1", *, length: int | None = None) -> socket.socket:
    """A connection on which a request was sent."""
    lines = [f"POST {HTTP_PATH} HTTP/{version}", f"host: 127.0.0.1:{server.port}"]
    lines += [f"{name}: {value}" for name, value in HEADERS.items()]
    lines += [f"content-length: {len(body) if length is None else length}", "", ""]
    made = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    made.sendall("\r\n".join(lines).encode() + body)
    return made


def read_until(made: socket.socket, pattern: bytes) -> bytes:
    received = b""
    while not re.search(pattern, received, re.DOTALL):
        data = made.recv(65_536)
        assert data, received
        received += data
    return received


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(max_size=300), min_size=1, max_size=20), st.integers(1, (1 << 32) - 1))
def test_what_is_pushed_in_frames_is_leased_in_frames(server, payloads, correlation):
    head = requests.encode_push(requests.PushHead("mail"))
    batch = bytes(Batch.build(payloads).data)
    kind, _ = answered(server, frame(Type.PUSH, correlation, head + batch))[correlation]
    assert kind == Type.PUSHED

    kind, body = answered(server, lease(correlation, 100))[correlation]
    reply = answers.decode_leased(memoryview(body))
    assert kind == Type.LEASED
    assert [payload for piece in reply.pieces for payload in piece.payloads()] == payloads

    ack = requests.encode(requests.Settle(int(Outcome.ACKED), lease=reply.nonce))
    assert answered(server, frame(Type.SETTLE, correlation, ack)) == {correlation: (Type.OK, b"\xc0")}


def test_a_greeting_is_answered_and_leaves_nothing_behind(server):
    hello = frame(Type.HELLO, 7, requests.encode(requests.Hello(PROTOCOL_VERSION, "me", producer=5, epoch=1)))
    kind, body = answered(server, hello)[7]
    welcome = requests.decode(body, requests.Welcome)

    assert (kind, welcome.protocol, welcome.frame_bytes_max) == (Type.OK, PROTOCOL_VERSION, 100_000 - 4)
    first, second = answered(server, push(1, b"a", 1), push(2, b"a", 1)).values()
    assert first != second  # sequences mean nothing without a producer in the headers


def test_a_push_that_is_sent_again_is_not_stored_again(server):
    first = answered(server, push(1, b"a", 1), penstock_producer="77/1")
    again = answered(server, push(1, b"a", 1), penstock_producer="77/1")

    assert first == again
    assert stored(server) == 1


def test_half_a_frame_is_refused_and_nothing_before_it_is_run(server):
    body = push(1, b"a") + push(2, b"b")
    for cut in range(len(body) // 2 + 1, len(body)):
        response = post(server, body[:cut])
        assert (response.status_code, response.json()["error"]["code"]) == (400, "bad_request")
    assert stored(server) == 0


def test_half_a_body_is_never_run(server):
    body = push(1, b"a") + push(2, b"b")
    with raw(server, body[:-1], length=len(body)):
        server.until(lambda: any(each._receiving for each in server.server._site.connections))
    server.until(lambda: not server.server._site.connections)
    assert stored(server) == 0


@pytest.mark.parametrize("kind", [Type.CANCEL, Type.OK, 23, 99, 1])
def test_a_frame_that_is_no_request_of_the_route_keeps_the_others_from_being_run(server, kind):
    response = post(server, push(1, b"a") + frame(kind, 2) + push(3, b"b"))

    assert (response.status_code, response.json()["error"]["code"]) == (400, "bad_request")
    assert stored(server) == 0


def test_a_request_that_is_refused_is_answered_for_itself(server):
    found = answered(server, push(1, b"a"), frame(Type.SETTLE, 2, b"junk"), push(3, b"b"))

    assert [found[number][0] for number in (1, 2, 3)] == [Type.PLACED, Type.ERROR, Type.PLACED]
    assert requests.decode(found[2][1], ErrorReply).code == "bad_request"


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        ({"penstock_protocol": "1"}, "protocol 1 is not supported"),
        ({"penstock_protocol": "x"}, "penstock-protocol"),
        ({"content_type": "application/json"}, "content-type"),
        ({"penstock_producer": "1"}, "penstock-producer"),
        ({"penstock_producer": "-1/1"}, "penstock-producer"),
    ],
)
def test_headers_that_say_something_else_are_refused(server, headers, text):
    response = post(server, push(1, b"a"), **headers)

    assert response.status_code == 400
    assert text in response.json()["error"]["message"]
    assert stored(server) == 0


def test_what_is_too_large_is_refused(server):
    assert post(server, push(1, bytes(100_000))).status_code == 413
    assert post(server, frame(Type.PING, 1) * (route.FRAMES_MAX + 1)).status_code == 413
    assert post(server, b"").status_code == 400
    assert len(answered(server, *(frame(Type.PING, number) for number in range(1, 1001)))) == 1000


def test_another_name_or_origin_is_refused_here_too(server):
    assert post(server, push(1, b"a"), host="evil.example").status_code == 403
    assert post(server, push(1, b"a"), origin="http://evil.example").status_code == 403
    assert stored(server) == 0


def test_a_client_that_goes_away_takes_its_wait_with_it(server):
    answered(server, push(1, b"first"))
    answered(server, lease(1))
    for _ in range(3):
        waiting = raw(server, lease(1, wait=60))
        server.until(lambda: server.session.shard.waiters)
        waiting.close()
        server.until(lambda: not server.session.shard.waiters)
    server.push("mail", "a")
    reply = answers.decode_leased(memoryview(answered(server, lease(1))[1][1]))

    assert [piece.attempt(0) for piece in reply.pieces] == [1]


def test_answers_leave_as_they_are_ready(server):
    answered(server, push(1, b"first"))
    answered(server, lease(1))
    with raw(server, frame(Type.PING, 1) + lease(2, wait=60)) as made:
        head = read_until(made, b"\r\n\r\n.+\r\n")
        assert b"transfer-encoding: chunked" in head.lower()
        assert frame(Type.PONG, 1) in head
        server.push("mail", "a")
        assert b'"a"' in read_until(made, b"0\r\n\r\n$")


def test_a_client_of_http_1_0_gets_everything_at_once(server):
    answered(server, push(1, b"first"))
    answered(server, lease(1))
    with raw(server, frame(Type.PING, 1) + lease(2, wait=0.05), version="1.0") as made:
        received = b""
        while data := made.recv(65_536):
            received += data
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"content-length: %d" % len(body) in head.lower()
    assert set(frames_in(body)) == {1, 2}


def test_while_nothing_is_ready_pongs_show_that_the_connection_lives():
    server = HttpThread(ping_seconds=0.05)
    answered(server, push(1, b"first"))
    answered(server, lease(1))
    with raw(server, lease(2, wait=60)) as made:
        read_until(made, b"(" + re.escape(frame(Type.PONG, 0)) + b".*){3}")
    server.stop()
