"""A wire between clients and a broker that comes and goes; everything on it can be cut at once."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Any, Self

from tests.support.restarting import Restarting

SECONDS = 60


class Wire:
    """Stands where the broker would: `url`, `port` and `up` are what a client needs to know."""

    def __init__(self, broker: Restarting) -> None:
        self.up = broker.up
        self._broker = broker
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server
        self._thread = threading.Thread(target=self._loop.run_forever, name="wire", daemon=True)

    @property
    def port(self) -> int:
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def url(self) -> str:
        return f"penstock://127.0.0.1:{self.port}"

    def cut(self) -> int:
        """End every connection without a farewell; how many ends there were."""

        async def cut() -> int:
            found = list(self._writers)
            for writer in found:
                writer.transport.abort()
            return len(found)

        return int(self._run(cut()))

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._serve, "127.0.0.1", 0))
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(SECONDS)
        self._loop.close()

    async def _close(self) -> None:
        self._server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(SECONDS)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._broker.port)
        except OSError:
            self._end(writer)
            return
        self._writers.add(far_writer)
        try:
            await asyncio.gather(_pass_on(reader, far_writer), _pass_on(far_reader, writer))
        finally:
            self._end(writer)
            self._end(far_writer)

    def _end(self, writer: asyncio.StreamWriter) -> None:
        self._writers.discard(writer)
        writer.transport.abort()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()
