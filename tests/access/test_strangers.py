"""Whoever has not said who they are takes little: 16 KiB, five seconds, 64 connections of an address, and no answer.

And whoever has said so stays that somebody: a connection belongs to one credential, and ends with it.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from penstock import operations as ops
from penstock.broker.broker import Broker
from penstock.broker.logins import STRANGER_BYTES, STRANGERS_MAX
from penstock.errors import InvalidField
from penstock.remote.credentials import current_token
from penstock.server.grpc.generated import queues_pb2 as pb
from penstock.server.grpc.generated import tasks_pb2 as tasks_pb
from penstock.wire import requests
from penstock.wire.errors import ErrorReply
from penstock.wire.frames import MEDIA_TYPE, PROTOCOL_VERSION, JsonType, Type, frame, json_frame
from tests.support.access_callers import Frames, codes_in
from tests.support.grpc_stub import Stub
from tests.support.http import RawClient, request
from tests.support.tls import TlsBroker

SECONDS = 30
PUSH = "/api/v1/queues/mail/messages"
ONE = b'{"messages":[{"payload":1}]}'
PUSH_ONE = frame(Type.PUSH_ONE, 9, requests.encode_push_one(b"mail", 0, b"1"))


@pytest.fixture
def running(tmp_path: Any) -> Iterator[TlsBroker]:
    with TlsBroker(tmp_path, auth="on", grpc_port=0, trusted_proxies=("127.0.0.2",)) as broker:
        yield broker


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("tcp.listener", "http.connection", "websocket.conversation"):
        monkeypatch.setattr(f"penstock.server.{module}.STRANGER_SECONDS", 0.2)


def broker_of(running: TlsBroker) -> Broker:
    assert running.server.broker is not None
    return running.server.broker


def key(running: TlsBroker, name: str, *grants: str) -> str:
    token: str = broker_of(running).session.access.create_key(name, grants)[1]
    return token


def revoke(running: TlsBroker, token: str) -> None:
    broker_of(running).session.access.revoke_key(token.split("_")[1])


def hello(token: str, number: int = 1) -> bytes:
    return frame(Type.HELLO, number, requests.encode(requests.Hello(PROTOCOL_VERSION, "test", token)))


def error_in(answer: tuple[int, int, bytes] | None) -> str:
    assert answer is not None
    assert answer[0] == Type.ERROR, answer
    return requests.decode(answer[2], ErrorReply).code


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def stored(running: TlsBroker) -> list[str]:
    """The queues that somebody has made."""
    return [name for name in broker_of(running).session.run(ops.Queues())[0] if not name.startswith("penstock.")]


# TCP.


@pytest.mark.parametrize(
    "first",
    [
        PUSH_ONE,
        frame(Type.CALL, 1, requests.encode(requests.Call("queues"))),
        frame(Type.PING, 1),
        json_frame(JsonType.LIST_TASKS, b"{}"),
        json_frame(JsonType.SUBMIT_TASK, b'{"task_type":"t","queue":"mail"}'),
        json_frame(JsonType.AUTH, b'{"token":""}'),
        json_frame(JsonType.AUTH, b'{"token":"penstock_a_b"}') + json_frame(JsonType.LIST_TASKS, b"{}"),
        hello("wrong") + PUSH_ONE,
        hello("") + hello("wrong", 2) + PUSH_ONE,
        frame(Type.HELLO, 1, b"\xc1") + PUSH_ONE,
        frame(Type.HELLO, 1, requests.encode(requests.Hello(PROTOCOL_VERSION, challenge="x"))) + PUSH_ONE,
        frame(Type.HELLO, 1, requests.encode(requests.Hello(PROTOCOL_VERSION, answered="x", proof="y"))) + PUSH_ONE,
    ],
    ids=lambda first: f"type {first[4]}, {len(first)} bytes",
)  # fmt: skip
def test_nothing_is_done_on_a_connection_that_has_not_logged_in(running, first):
    frames = Frames(running.port("tcp"))
    frames.send(first)

    answers = list(frames.rest())  # it is closed

    assert not any(number == 9 and kind != Type.ERROR for kind, number, _ in answers)
    assert not any(kind in (Type.PONG, JsonType.ACK) for kind, _, _ in answers)
    assert stored(running) == []
    frames.close()


def test_a_stranger_has_16_kib_of_frames_however_small_they_are(running):
    frames = Frames(running.port("tcp"))
    one = hello("wrong")
    frames.send(one * (2 * STRANGER_BYTES // len(one)))

    answers = list(frames.rest())

    assert len(answers) <= STRANGER_BYTES * 2 // len(one)
    assert error_in(answers[-1]) in ("not_authenticated", "rate_limited")
    frames.close()


def test_a_frame_of_a_stranger_is_refused_by_its_length(running):
    frames = Frames(running.port("tcp"))
    frames.send(hello("x" * STRANGER_BYTES)[:100])

    assert error_in(frames.next()) == "bad_request"
    assert frames.next() is None
    frames.close()


@pytest.mark.parametrize(
    "sent", [b"", hello("x" * 100)[:20], json_frame(JsonType.AUTH, b"{}")[:4]], ids=lambda sent: f"{len(sent)} bytes"
)
def test_a_login_that_does_not_come_is_not_waited_for(running, impatient, sent):
    frames = Frames(running.port("tcp"))
    frames.send(sent)

    assert error_in(frames.next()) == "not_authenticated"
    assert frames.next() is None
    frames.close()


def test_a_connection_stays_whose_it_is(running):
    one, other = key(running, "one", "push:mail"), key(running, "other", "push,consume:mail")
    frames = Frames(running.port("tcp"))
    frames.send(hello(one))
    assert frames.next() is not None

    for again in (hello(other, 2), hello("wrong", 2)):
        frames.send(again)
        assert error_in(frames.next()) in ("bad_request", "not_authenticated")
    frames.send(frame(Type.LEASE, 3, requests.encode(requests.Lease("mail"))))

    assert error_in(frames.next()) == "not_authorised"
    frames.send(hello(one, 4))  # the same once more
    answer = frames.next()
    assert answer is not None
    assert answer[0] == Type.OK
    frames.close()


@pytest.mark.parametrize("is_json_first", [True, False])
def test_auth_and_hello_cannot_be_of_two(running, is_json_first):
    one, other = key(running, "one", "push:mail"), key(running, "other", "read:mail")
    logins = [json_frame(JsonType.AUTH, json.dumps({"token": one}).encode()), hello(other)]
    frames = Frames(running.port("tcp"))
    for login in logins if is_json_first else logins[::-1]:
        frames.send(login)
    first, second = frames.next(), frames.next()

    assert first is not None
    assert first[0] == (JsonType.ACK if is_json_first else Type.OK)
    assert error_in(second) == "bad_request"
    frames.close()


# Connections of one address.


def test_an_address_has_64_connections_that_have_not_logged_in(running):
    token = key(running, "one", "push:mail")
    strangers = [socket.create_connection(("127.0.0.1", running.port("tcp"))) for _ in range(STRANGERS_MAX - 2)]
    with connect(f"ws://127.0.0.1:{running.port('http')}/api/v1/stream", compression=None) as one:
        with connect(f"ws://127.0.0.1:{running.port('http')}/api/v1/stream", compression=None) as two:
            for port in ("tcp", "http"):  # one too many
                with socket.create_connection(("127.0.0.1", running.port(port)), SECONDS) as sock:
                    sock.sendall(hello(token) if port == "tcp" else request("GET", "/livez"))
                    assert b"unavailable" in received(sock)
            said(two, {"type": "auth", "token": token})  # which makes room for one
            frames = Frames(running.port("tcp"))
            frames.send(hello(token))
            answer = frames.next()
            assert answer is not None
            assert answer[0] == Type.OK
            frames.close()
        assert said(one, {"type": "ping"})["type"] == "error"
    for sock in strangers:
        sock.close()


def received(sock: socket.socket) -> bytes:
    data = b""
    while part := sock.recv(1 << 16):
        data += part
    return data


def said(client: ClientConnection, message: dict[str, Any]) -> dict[str, Any]:
    client.send(json.dumps({**message, "id": 1}))
    answer: dict[str, Any] = json.loads(client.recv(SECONDS))
    return answer


# HTTP.


def test_the_token_of_one_request_is_not_that_of_the_next(running):
    token = key(running, "one", "push:mail")
    with RawClient(running.port("http")) as client:
        client.send(request("POST", PUSH, ONE, **bearer(token)) + request("POST", PUSH, ONE))

        assert client.answer().status == 201
        refused = client.answer()
        assert (refused.status, refused.code) == (401, "not_authenticated")
        assert client.rest() == b""
    assert broker_of(running).session.run(ops.Stats("mail"))[0].groups["default"].ready == 1


def test_users_who_share_the_connection_of_a_proxy_stay_apart(running):
    one, other = key(running, "one", "push:mail"), key(running, "other", "read:mail")
    with RawClient(running.port("http")) as client:
        for token, status in ((one, 201), (other, 403), (one, 201), (other, 403)):
            client.send(request("POST", PUSH, ONE, **bearer(token)))
            assert client.answer().status == status
        client.send(request("GET", "/api/v1/me", None, **bearer(other)))
        assert client.answer().json()["name"] == "other"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"authorization": "Basic b3duZXI6b3duZXI="}, 401),
        ({"authorization": "Bearer"}, 401),
        ({"authorization": "Bearer "}, 401),
        ({"authorization": "penstock_a_b"}, 401),
        ({"authorization": "Bearer " + "x" * 9_000}, 401),
        ({"authorization": "Bearer " + "x" * (STRANGER_BYTES + 1)}, 401),
        ({"authorization": "Bearer \xff\xfe"}, 401),
        ({"x-forwarded-user": "owner", "x-penstock-principal": "owner"}, 401),
        ({"cookie": "__Host-penstock=x; penstock_7711=x"}, 401),
    ],
)
def test_what_is_no_token_lets_nobody_in(running, headers, status):
    with RawClient(running.port("http")) as client:
        client.send(request("GET", "/api/v1/queues", None, **headers))

        refused = client.answer()

    assert refused.status == status
    assert "x" * 100 not in refused.body.decode()


def test_two_authorization_headers_are_refused_whichever_is_right(running):
    token = key(running, "one", "monitor:*")
    for first, second in ((token, "wrong"), ("wrong", token), (token, token)):
        with RawClient(running.port("http")) as client:
            lines = f"GET /api/v1/queues HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {first}\r\n"
            client.send(f"{lines}Authorization: Bearer {second}\r\n\r\n".encode())
            refused = client.answer()
            assert (refused.status, refused.code) == (400, "bad_request")


@pytest.mark.parametrize("name", ["token", "access_token", "authorization", "key"])
def test_a_token_in_the_url_is_not_one(running, name):
    token = key(running, "one", "owner")
    for path in (f"/api/v1/queues?{name}={token}", f"{PUSH}?{name}={token}"):
        with RawClient(running.port("http")) as client:
            client.send(request("POST" if path.startswith(PUSH) else "GET", path, ONE))
            assert client.answer().status == 401
    url = f"ws://127.0.0.1:{running.port('http')}/api/v1/stream?{name}={token}"
    with connect(url, compression=None) as client:
        assert codes_in(said(client, {"type": "push", "queue": "mail", "messages": [{"payload": 1}]})) == [
            "not_authenticated"
        ]
    assert stored(running) == []


PATHS = (
    "//api/v1/queues", "/api//v1/queues", "/api/v1//queues", "/API/V1/queues", "/api/v1/queues/", "/./api/v1/queues",
    "/ui/../api/v1/queues", "/ui/%2e%2e/api/v1/queues", "/ui/..%2fapi/v1/queues", "/livez/../api/v1/queues",
    "/livez;/api/v1/queues", "/%61pi/v1/queues", "/api/v1/%71ueues", "/api/v1/queues%00", "/api/v1/sessions/../queues",
    "/api/v1/rpc/../queues", "http://localhost/api/v1/queues", "/docs", "/openapi.json", "/metrics", "/debug/profile",
    "/api/v1/info", "/api/v1/me", "/api/v1/encryption", "/api/v1/health", "/health", "/api/v1/stats",
    "/api/v1/sessions/current",
)  # fmt: skip


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_no_spelling_of_a_path_and_no_method_goes_round_the_login(running, method):
    for path in PATHS:
        with RawClient(running.port("http")) as client:
            client.send(request(method, path, None if method in ("GET", "HEAD") else b"{}", connection="close"))
            status = int(client.rest().split(b" ", 2)[1])
            is_static = path.startswith("/ui/")  # where there is nothing
            assert status in ((404, 405) if is_static else (400, 401, 404)), (method, path, status)
            assert status != 404 or is_static or path not in ROUTED


ROUTED = frozenset(("/docs", "/openapi.json", "/metrics", "/api/v1/info", "/api/v1/me", "/api/v1/encryption"))


def test_half_a_request_of_a_stranger_is_not_waited_for(running, impatient):
    with RawClient(running.port("http")) as client:
        client.send(b"GET /api/v1/queues HTTP/1.1\r\nhost: local")

        assert b" 400 " in client.rest().partition(b"\r\n")[0]


def test_the_body_of_a_stranger_is_small(running):
    headers = {"content_type": MEDIA_TYPE, "penstock_protocol": str(PROTOCOL_VERSION)}
    with RawClient(running.port("http")) as client:
        client.send(request("POST", "/api/v1/rpc", hello("wrong") * STRANGER_BYTES, **headers))
        assert client.answer().status == 413
    with RawClient(running.port("http")) as client:
        client.send(request("POST", "/api/v1/rpc", None, transfer_encoding="chunked", **headers))
        client.send(b"%x\r\n%b\r\n" % (STRANGER_BYTES + 1, b"x" * (STRANGER_BYTES + 1)))
        assert client.answer().status == 413


def test_frames_behind_a_hello_in_one_body_are_not_let_in_by_it(running):
    token = key(running, "one", "push:mail")
    headers = {"content_type": MEDIA_TYPE, "penstock_protocol": str(PROTOCOL_VERSION)}
    for body in (PUSH_ONE, hello(token) + PUSH_ONE, hello("wrong") + PUSH_ONE):
        with RawClient(running.port("http")) as client:
            client.send(request("POST", "/api/v1/rpc", body, **headers))
            answer = client.answer()
            assert answer.status == 401 or b"not_authenticated" in answer.body
    assert stored(running) == []


# WebSocket.


def socket_to(running: TlsBroker, **options: Any) -> Any:
    return connect(f"ws://127.0.0.1:{running.port('http')}/api/v1/stream", compression=None, **options)


def test_a_socket_with_a_key_that_does_not_count_is_not_opened(running):
    token = key(running, "one", "owner")
    revoke(running, token)
    for wrong in (token, "wrong"):
        with pytest.raises(Exception, match="401"), socket_to(running, additional_headers=bearer(wrong)):
            pass


def test_messages_of_a_stranger_are_small_and_few_seconds_are_waited(running, impatient):
    with socket_to(running) as client:
        client.send(json.dumps({"type": "auth", "token": "x" * STRANGER_BYTES}))
        with pytest.raises(ConnectionClosed, match="1009"):
            client.recv(SECONDS)
    with socket_to(running) as client, pytest.raises(ConnectionClosed, match="3000"):
        client.recv(SECONDS)


def test_a_socket_stays_whose_it_is_and_its_streams_end_with_the_key(running):
    one, other = key(running, "one", "consume:mail"), key(running, "other", "read:mail")
    broker_of(running).session.run(ops.CreateQueue("mail"))
    with socket_to(running) as client:
        assert said(client, {"type": "auth", "token": one})["principal"] == "one"
        said(client, {"type": "subscribe", "subscription": "s", "queue": "mail", "credit": 5})
        assert codes_in(said(client, {"type": "auth", "token": other})) == ["bad_request"]

        revoke(running, one)

        with pytest.raises(ConnectionClosed, match="3000"):
            client.recv(SECONDS)


# gRPC.


def test_reflection_says_nothing_and_health_says_only_that(running):
    with grpc.insecure_channel(f"127.0.0.1:{running.port('grpc')}") as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert check(b"", timeout=SECONDS) == b"\x08\x01"  # SERVING
        for name in ("v1", "v1alpha"):
            reflect = channel.stream_stream(f"/grpc.reflection.{name}.ServerReflection/ServerReflectionInfo")
            with pytest.raises(grpc.RpcError, match="UNIMPLEMENTED"):
                list(reflect(iter([b""]), timeout=SECONDS))


def test_two_tokens_in_the_metadata_are_refused(running):
    token = key(running, "one", "monitor:*")
    with grpc.insecure_channel(f"127.0.0.1:{running.port('grpc')}") as channel:
        for tokens in ((token, "wrong"), ("wrong", token)):
            metadata = tuple(("authorization", f"Bearer {each}") for each in tokens)
            with pytest.raises(grpc.RpcError, match="authorization"):
                Stub(channel).ListQueues(pb.ListQueuesRequest(), metadata=metadata, timeout=SECONDS)


def test_a_refusal_arrives_whatever_the_name_in_its_hint(running):
    metadata = (("authorization", f"Bearer {key(running, 'one', 'monitor:mail')}"),)
    request = tasks_pb.ListTasksRequest(filter=tasks_pb.TaskFilter(queue="\0\x7f\r\n•"))
    address = f"127.0.0.1:{running.port('grpc')}"
    with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError, match="PERMISSION_DENIED"):
        Stub(channel, "Tasks").ListTasks(request, metadata=metadata, timeout=SECONDS)


def test_a_call_that_waits_ends_with_its_key(running):
    token = key(running, "one", "consume:mail")
    broker = broker_of(running)
    broker.session.run(ops.CreateQueue("mail"))
    with grpc.insecure_channel(f"127.0.0.1:{running.port('grpc')}") as channel:
        waiting = Stub(channel).Lease.future(
            pb.LeaseRequest(queue="mail", wait_ms=20_000),
            metadata=(("authorization", f"Bearer {token}"),),
            timeout=SECONDS,
        )
        while not broker.waiting:
            pass
        revoke(running, token)
        with pytest.raises(grpc.RpcError, match="UNAUTHENTICATED"):
            waiting.result()


# Grants that change.


def test_a_lease_that_waits_is_refused_once_its_grant_is_gone(running):
    token = key(running, "one", "push,consume:mail")
    broker = broker_of(running)
    broker.session.run(ops.CreateQueue("mail"))
    frames = Frames(running.port("tcp"))
    frames.send(hello(token) + frame(Type.LEASE, 2, requests.encode(requests.Lease("mail", wait_seconds=20.0))))
    assert frames.next() is not None
    while not broker.waiting:
        pass

    broker.session.access.set_user("one", grants=["push:mail"])
    frames.send(frame(Type.PUSH_ONE, 3, requests.encode_push_one(b"mail", 0, b"1")))
    answers = {answer[1]: answer[0] for answer in (frames.next(), frames.next()) if answer is not None}

    assert answers == {2: Type.ERROR, 3: Type.PLACED}
    frames.close()


# Files with tokens.


def test_a_token_file_that_others_may_read_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "key"
    path.write_text("penstock_a_b\n")
    monkeypatch.delenv("PENSTOCK_TOKEN", raising=False)
    monkeypatch.setenv("PENSTOCK_TOKEN_FILE", str(path))

    path.chmod(0o644)
    with pytest.raises(InvalidField, match="other users can read"):
        current_token(None)
    path.chmod(0o600)
    assert current_token(None) == "penstock_a_b"
