"""An HTTP server on a real socket, its broker on a loop in a thread of its own; and a client that is a socket."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any, NamedTuple, Self, TypeVar

import httpx
import msgspec
import uvloop

from penstock.broker.broker import Broker
from penstock.embedded.session import Session
from penstock.server.http.serve import HttpServer, start_http
from penstock.server.http.site import HttpSettings
from penstock.server.websocket.conversation import WebSockets
from penstock.telemetry.metrics import Metrics

T = TypeVar("T")
SECONDS = 60  # nothing here takes that long


class HttpThread:
    """Serves a session in memory until it is stopped."""

    def __init__(self, session: Session | None = None, *, is_streaming: bool = False, **settings: Any) -> None:
        self.session = session or Session(None)
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="broker", daemon=True)
        self._thread.start()
        self.broker: Broker
        self.server: HttpServer
        self.run(self._start(HttpSettings(port=0, **settings), is_streaming))
        self.port = self.server.port
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=SECONDS, verify=False)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """A coroutine, on the broker's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(SECONDS)

    def until(self, holds: Callable[[], Any]) -> None:
        """Let the server run until something holds there."""

        async def watch() -> None:
            for _ in count():
                if holds():
                    return
                await asyncio.sleep(0)

        self.run(watch())

    def stop(self) -> None:
        self.http.close()
        if self.loop.is_closed():
            return
        self.run(self._stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(SECONDS)
        self.loop.close()
        self.session.close()

    async def _start(self, settings: HttpSettings, is_streaming: bool) -> None:
        self.broker = Broker(self.session)
        stream = WebSockets(self.broker).serve if is_streaming else None
        metrics = Metrics(self.session, self.broker.meter)
        self.server = await start_http(self.broker, settings, metrics=metrics, stream=stream)

    async def _stop(self) -> None:
        await self.server.close()
        await self.broker.drain()
        self.broker.close()

    # short cuts

    def push(self, queue: str, *payloads: Any) -> list[str]:
        body = {"messages": [{"payload": payload} for payload in payloads]}
        response = self.http.post(f"/api/v1/queues/{queue}/messages", json=body)
        assert response.status_code == 201, response.text
        return [result["id"] for result in response.json()["results"]]

    def lease(self, queue: str, **asked: Any) -> list[dict[str, Any]]:
        response = self.http.post(f"/api/v1/queues/{queue}/lease", json={"max": 100, **asked})
        assert response.status_code == 200, response.text
        messages: list[dict[str, Any]] = response.json()["messages"]
        return messages

    def stats(self, queue: str) -> dict[str, Any]:
        group: dict[str, Any] = self.http.get(f"/api/v1/queues/{queue}/stats").json()["groups"]["default"]
        return group

    def connect(self) -> RawClient:
        return RawClient(self.port)


class Answer(NamedTuple):
    """A response as it came."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def code(self) -> str:
        code: str = self.json()["error"]["code"]
        return code


class RawClient:
    """A connection whose bytes the test chooses."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self.socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answer(self) -> Answer:
        """The next response."""
        status = int(self._file.readline().split()[1])
        headers = {}
        while (line := self._file.readline().strip()) != b"":
            name, _, value = line.decode().partition(": ")
            headers[name] = value
        length = int(headers.get("content-length", "0"))
        return Answer(status, headers, self._file.read(length))

    def rest(self) -> bytes:
        """Everything until the server closes."""
        try:
            return self._file.read()
        except ConnectionResetError:
            return b""


def request(method: str, path: str, body: bytes | None = None, **headers: str) -> bytes:
    """The bytes of a request."""
    lines = [f"{method} {path} HTTP/1.1", "host: localhost"]
    if body is not None:
        lines.append(f"content-length: {len(body)}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")
