"""One caller per protocol: asks a broker for something as some identity, and returns the codes of the errors it got.

An identity that is let in keeps its connection. One that is not sends its request right behind the login, as somebody
would who hopes that the login is not waited for.
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import grpc
from google.protobuf import json_format
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from penstock.server.grpc.generated import queues_pb2, tasks_pb2
from penstock.wire import requests
from penstock.wire.errors import ErrorReply
from penstock.wire.frames import MEDIA_TYPE, PROTOCOL_VERSION, JsonType, Splitter, Type, frame, json_frame
from tests.access.matrix_rows import Row

SECONDS = 30  # nothing here takes that long
GRPC_SECONDS = 10
REFUSED = ("not_authenticated", "rate_limited")  # answers to a login that fails
MESSAGES: dict[str, Any] = {"Queues": queues_pb2, "Tasks": tasks_pb2}
Codes = list[str]


class Frames:
    """Frames from a socket."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._splitter = Splitter(1 << 25)
        self._frames: list[tuple[int, int, bytes]] = []

    def send(self, data: bytes) -> None:
        with suppress(ConnectionError):
            self._socket.sendall(data)

    def next(self) -> tuple[int, int, bytes] | None:
        """The next frame; None when the broker has closed."""
        while not self._frames:
            try:
                data = self._socket.recv(1 << 16)
            except ConnectionError:
                return None
            if not data:
                return None
            whole, cuts = self._splitter.feed(data)
            self._frames += [(kind, number, whole[start:stop]) for kind, number, start, stop in cuts]
        return self._frames.pop(0)

    def rest(self) -> Iterator[tuple[int, int, bytes]]:
        while (frame := self.next()) is not None:
            yield frame

    def close(self) -> None:
        self._socket.close()


class Tcp:
    """Frames on a connection that begins with HELLO."""

    def __init__(self, port: int, tokens: dict[str, str], strangers: frozenset[str]) -> None:
        self._port = port
        self._tokens = tokens
        self._strangers = strangers
        self._known: dict[str, Frames] = {}
        self._number = 1

    def has(self, row: Row) -> bool:
        return row.frame is not None

    def ask(self, identity: str, row: Row) -> Codes:
        assert row.frame is not None
        kind, body = row.frame
        if identity in self._strangers:
            return self._ask_as_stranger(identity, frame(kind, 2, body))
        frames = self._known.get(identity) or self._logged_in(identity)
        self._number += 1
        frames.send(frame(kind, self._number, body))
        while (answer := frames.next()) is not None:
            if answer[1] == self._number:
                return [requests.decode(answer[2], ErrorReply).code] if answer[0] == Type.ERROR else []
        raise AssertionError("the connection was closed")

    def _hello(self, identity: str) -> bytes:
        return frame(Type.HELLO, 1, requests.encode(requests.Hello(PROTOCOL_VERSION, "test", self._tokens[identity])))

    def _logged_in(self, identity: str) -> Frames:
        frames = self._known[identity] = Frames(self._port)
        frames.send(self._hello(identity))
        answer = frames.next()
        assert answer is not None
        assert answer[0] == Type.OK
        return frames

    def _ask_as_stranger(self, identity: str, request: bytes) -> Codes:
        frames = Frames(self._port)
        frames.send(self._hello(identity) + request)
        codes = []
        for kind, _, body in frames.rest():
            if kind != Type.ERROR:
                return []
            codes.append(requests.decode(body, ErrorReply).code)
        frames.close()
        return codes[:1]

    def close(self) -> None:
        for frames in self._known.values():
            frames.close()


class TcpJson(Tcp):
    """The JSON protocol of tasks, which begins with AUTH."""

    def has(self, row: Row) -> bool:
        return row.json is not None

    def ask(self, identity: str, row: Row) -> Codes:
        assert row.json is not None
        kind, body = row.json
        request = json_frame(kind, json.dumps(body).encode())
        if identity in self._strangers:
            return self._ask_as_stranger(identity, request)
        frames = self._known.get(identity) or self._logged_in(identity)
        frames.send(request)
        answer = frames.next()
        assert answer is not None
        return codes_in(json.loads(answer[2])) if answer[0] == JsonType.NACK else []

    def _hello(self, identity: str) -> bytes:
        return json_frame(JsonType.AUTH, json.dumps({"token": self._tokens[identity]}).encode())

    def _logged_in(self, identity: str) -> Frames:
        frames = self._known[identity] = Frames(self._port)
        frames.send(self._hello(identity))
        answer = frames.next()
        assert answer is not None
        assert answer[0] == JsonType.ACK
        return frames

    def _ask_as_stranger(self, identity: str, request: bytes) -> Codes:
        frames = Frames(self._port)
        frames.send(self._hello(identity) + request)
        codes = []
        for kind, _, body in frames.rest():
            if kind != JsonType.NACK:
                return []
            codes += codes_in(json.loads(body))
        frames.close()
        return codes


class Http:
    """JSON over HTTP; a connection for each identity, which is kept alive."""

    def __init__(self, port: int, tokens: dict[str, str], strangers: frozenset[str]) -> None:
        self._port = port
        self._tokens = tokens
        self._connections: dict[str, http.client.HTTPConnection] = {}

    def has(self, row: Row) -> bool:
        return row.http is not None

    def ask(self, identity: str, row: Row) -> Codes:
        assert row.http is not None
        method, path, body = row.http
        url = path[1:] if path.startswith("//") else f"/api/v1{path}"
        data = None if body is None else json.dumps(body).encode()
        status, answer = self.exchange(identity, method, url, data, {"content-type": "application/json"})
        if status < 400:
            return []
        codes = codes_in(json.loads(answer))
        assert (status == 401) == ("not_authenticated" in codes), answer
        assert (status == 403) == ("not_authorised" in codes), answer
        return codes

    def exchange(
        self, identity: str, method: str, url: str, body: bytes | None, headers: dict[str, str]
    ) -> tuple[int, bytes]:
        connection = self._connections.get(identity)
        if connection is None:
            connection = self._connections[identity] = http.client.HTTPConnection("127.0.0.1", self._port, SECONDS)
        token = self._tokens[identity]
        if token:
            headers = {**headers, "authorization": f"Bearer {token}"}
        connection.request(method, url, body, headers)
        response = connection.getresponse()
        return response.status, response.read()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()


class HttpFrames(Http):
    """Frames over HTTP."""

    def has(self, row: Row) -> bool:
        return row.frame is not None

    def ask(self, identity: str, row: Row) -> Codes:
        assert row.frame is not None
        kind, body = row.frame
        headers = {"content-type": MEDIA_TYPE, "penstock-protocol": str(PROTOCOL_VERSION)}
        status, data = self.exchange(identity, "POST", "/api/v1/rpc", frame(kind, 1, body), headers)
        if status != 200:
            return codes_in(json.loads(data))
        whole, cuts = Splitter(1 << 25).feed(data)
        answers = [(cut[0], whole[cut[2] : cut[3]]) for cut in cuts if cut[1] == 1]
        assert len(answers) == 1
        return [requests.decode(answers[0][1], ErrorReply).code] if answers[0][0] == Type.ERROR else []


class WebSocket:
    """JSON messages; the first says who it is."""

    def __init__(self, port: int, tokens: dict[str, str], strangers: frozenset[str]) -> None:
        self._url = f"ws://127.0.0.1:{port}/api/v1/stream"
        self._tokens = tokens
        self._strangers = strangers
        self._known: dict[str, ClientConnection] = {}
        self._stack = ExitStack()
        self._number = 0

    def has(self, row: Row) -> bool:
        return row.websocket is not None

    def ask(self, identity: str, row: Row) -> Codes:
        assert row.websocket is not None
        if identity in self._strangers:
            with connect(self._url, compression=None) as stranger:
                if self._tokens[identity]:
                    refused = self._said(stranger, {"type": "auth", "token": self._tokens[identity]})
                    if not set(refused).intersection(REFUSED):
                        return []
                return self._said(stranger, row.websocket)
        socket = self._known.get(identity)
        if socket is None:
            socket = self._known[identity] = self._stack.enter_context(connect(self._url, compression=None))
            assert self._said(socket, {"type": "auth", "token": self._tokens[identity]}) == []
        codes = self._said(socket, row.websocket)
        if "subscription" in row.websocket and not codes:
            self._said(socket, {"type": "unsubscribe", "subscription": row.websocket["subscription"]})
        return codes

    def _said(self, socket: ClientConnection, message: dict[str, Any]) -> Codes:
        self._number += 1
        with suppress(ConnectionClosed):
            socket.send(json.dumps({**message, "id": self._number}))
            while True:
                answer = json.loads(socket.recv(SECONDS))
                if answer.get("id") == self._number:
                    return codes_in(answer)
        return ["not_authenticated"]  # it was shown the door

    def close(self) -> None:
        self._stack.close()


class Grpc:
    """gRPC, with the token in the metadata of each call."""

    def __init__(self, port: int, tokens: dict[str, str], strangers: frozenset[str]) -> None:
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self._tokens = tokens

    def has(self, row: Row) -> bool:
        return row.grpc is not None

    def ask(self, identity: str, row: Row) -> Codes:
        assert row.grpc is not None
        name, fields = row.grpc
        service, _, method = name.partition(".")
        declared = MESSAGES[service].DESCRIPTOR.services_by_name[service].methods_by_name[method]
        request = json_format.ParseDict(fields, getattr(MESSAGES[service], declared.input_type.name)())
        response: Any = getattr(MESSAGES[service], declared.output_type.name)
        kind = f"{_kind(declared.client_streaming)}_{_kind(declared.server_streaming)}"
        stub = getattr(self._channel, kind)(
            f"/penstock.v1.{service}/{method}", lambda message: message.SerializeToString(), response.FromString
        )
        token = self._tokens[identity]
        options = {
            "metadata": (("authorization", f"Bearer {token}"),) if token else (),
            "timeout": GRPC_SECONDS,
        }
        try:
            if not declared.server_streaming:
                return codes_in(json_format.MessageToDict(stub(request, **options), preserving_proto_field_name=True))
            call = stub(iter([request]) if declared.client_streaming else request, **options)
            next(call, None)
            call.cancel()
        except grpc.RpcError as error:
            return [dict(error.trailing_metadata()).get("penstock-code") or str(error)]
        return []

    def close(self) -> None:
        self._channel.close()


def _kind(is_stream: bool) -> str:
    return "stream" if is_stream else "unary"


CALLERS: dict[str, Any] = {
    "tcp": Tcp,
    "tcp-json": TcpJson,
    "http": Http,
    "rpc": HttpFrames,
    "websocket": WebSocket,
    "grpc": Grpc,
}


def codes_in(value: Any) -> Codes:
    """The codes of all errors in an answer, however deep."""
    if isinstance(value, dict):
        own = [value["code"]] if isinstance(value.get("code"), str) and "message" in value else []
        own += [value["error_code"]] if value.get("error_code") else []
        return own + [code for part in value.values() for code in codes_in(part)]
    return [code for part in value for code in codes_in(part)] if isinstance(value, list) else []
