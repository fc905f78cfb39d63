"""How long an event loop is held: the processor time of its own thread in each callback, which no neighbour adds to.

A full collection of garbage is not counted: it looks through everything that other tests left in this process.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from asyncio import events
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from penstock.access.authenticator import Authenticator
from penstock.broker.broker import Broker
from penstock.embedded.session import Session
from penstock.server.grpc import start_grpc
from penstock.server.grpc.service import GrpcServer
from penstock.server.http.serve import HttpServer, start_http
from penstock.server.http.site import HttpSettings
from penstock.server.tcp.listener import TcpServer, start_tcp
from penstock.server.websocket.conversation import WebSockets
from penstock.telemetry.metrics import Metrics

T = TypeVar("T")
SECONDS = 100  # nothing here takes that long


class Watched:
    """A broker on every port, on a loop in a thread of its own, each of whose callbacks is timed."""

    broker: Broker
    http: HttpServer
    tcp: TcpServer
    grpc: GrpcServer

    def __init__(self, session: Session, authenticator: Authenticator | None = None, **settings: Any) -> None:
        self.session = session
        self._authenticator = authenticator
        self.longest = 0.0
        self.culprit = ""
        self._collecting_since = 0.0
        self._collected_seconds = 0.0  # of the callback that runs
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="broker", daemon=True)
        self._thread.start()
        self.run(self._start(settings))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(SECONDS)

    def until(self, holds: Callable[[], bool]) -> None:
        """Let it run until something holds."""

        async def watch() -> None:
            while not holds():  # noqa: ASYNC110 - there is nothing that would tell
                await asyncio.sleep(0)

        self.run(watch())

    def forget(self) -> None:
        self.longest, self.culprit = 0.0, ""

    def timed(self, handle: Any, original: Any) -> None:
        if threading.current_thread() is not self._thread:
            original(handle)
            return
        began, self._collected_seconds = time.thread_time(), 0.0
        original(handle)
        seconds = time.thread_time() - began - self._collected_seconds
        if seconds > self.longest:
            self.longest, self.culprit = seconds, repr(handle)[:200]

    def collected(self, phase: str, info: dict[str, int]) -> None:
        """Called by the collector, on whichever thread set it off."""
        if info["generation"] == 2 and threading.current_thread() is self._thread:
            if phase == "start":
                self._collecting_since = time.thread_time()
            else:
                self._collected_seconds += time.thread_time() - self._collecting_since

    async def _start(self, settings: dict[str, Any]) -> None:
        self.broker = Broker(self.session, authenticator=self._authenticator)
        metrics = Metrics(self.session, self.broker.meter)
        sockets = WebSockets(self.broker)
        self.http = await start_http(
            self.broker, HttpSettings(port=0, **settings), metrics=metrics, stream=sockets.serve
        )
        self.tcp = await start_tcp(self.broker, "127.0.0.1", 0)
        self.grpc = await start_grpc(self.broker, "127.0.0.1", 0)

    def stop(self) -> None:
        self.run(self._stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(SECONDS)
        self.loop.close()

    async def _stop(self) -> None:
        await self.grpc.close()
        await self.http.close()
        await self.tcp.close()
        await self.broker.drain()
        self.broker.close()


@contextmanager
def watched(session: Session, authenticator: Authenticator | None = None, **settings: Any) -> Iterator[Watched]:
    """A watched broker for a while."""
    original = events.Handle._run
    made = Watched(session, authenticator, **settings)

    def run(handle: Any) -> None:
        made.timed(handle, original)

    events.Handle._run = run  # type: ignore[assignment]
    gc.callbacks.append(made.collected)
    try:
        yield made
    finally:
        gc.callbacks.remove(made.collected)
        events.Handle._run = original  # type: ignore[method-assign]
        made.stop()
