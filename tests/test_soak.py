"""A broker at work for a while, with kills, cut connections and paused queues: it keeps its promises and its size."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytest

import penstock
from tests.support import client_load
from tests.support.broker_process import Served
from tests.support.broker_restarts import Restarting
from tests.support.client_load import JOBS, Crowd
from tests.support.dose import dose
from tests.support.recorded import Record, problems

SECONDS = 60


class Wire:
    """A proxy between clients and a broker that comes and goes; all of its connections can be cut at once."""

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


SEEDS = dose(ci=1, nightly=60)
ROUNDS = dose(ci=4, nightly=40)
OPERATIONS = 1500  # of a round, in all
# What may come and go; what is lost for good in every round is more than that in the end.
SPARE_FILES, SPARE_THREADS, SPARE_BYTES = 60, 10, 150 << 20


class Size(NamedTuple):
    """What a broker takes from its machine."""

    files: int
    threads: int
    bytes: int


def size_of(served: Served) -> Size:
    process = Path(f"/proc/{served.process.pid}")
    status = dict(line.split(":", 1) for line in (process / "status").read_text(encoding="ascii").splitlines())
    return Size(len(os.listdir(process / "fd")), int(status["Threads"]), int(status["VmRSS"].split()[0]) * 1024)


def trouble(ps: penstock.Penstock, wire: Wire, record: Record) -> None:
    """One round: work, cut wires, work, a pause, work."""
    record.until(more=OPERATIONS // 3)
    wire.cut()
    record.until(more=OPERATIONS // 3)
    ps.queue(JOBS).pause()
    record.until(more=OPERATIONS // 10)
    ps.queue(JOBS).resume()
    record.until(more=OPERATIONS // 3)
    with record.doing("watcher", "stats", drained=False) as row:
        row.result = ps.queue(JOBS).stats()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_broker_in_trouble_keeps_its_promises_and_its_size(tmp_path, seed):
    rng = random.Random(seed)
    record = client_load.record()
    with Restarting(tmp_path, rng) as broker, Wire(broker) as wire:
        client_load.prepare(broker.url)
        people = Crowd(wire, record)
        people.start()
        first: Size | None = None
        with penstock.connect(broker.url, timeout=60) as ps:
            for number in range(ROUNDS):
                trouble(ps, wire, record)
                now = size_of(broker.served)
                first = first or now
                assert now.files <= first.files + SPARE_FILES
                assert now.threads <= first.threads + SPARE_THREADS
                assert now.bytes <= first.bytes + SPARE_BYTES
                if number == 0 or rng.random() < 0.1:
                    broker.kill()
                    broker.start()
                    first = None
        people.stop()
        broker.kill()
        broker.start()
        client_load.drain(broker.url, record)
        assert broker.stop() == 0

    assert problems(record.history, client_load.one_result) == []
