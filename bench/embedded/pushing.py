"""Pushing: batches of a thousand and one at a time, beside writing the same bytes without Penstock."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import penstock
from bench import raw, workload
from bench.measure import Row, Scale, directory, interleaved, per_second
from bench.workload import BATCH
from penstock.model import Durability


def pushes_many(queue: penstock.Queue, count: int) -> Callable[[], None]:
    """Batches of a thousand."""
    lists = list(workload.cycled(count))

    def work() -> None:
        for items in lists:
            queue.push_many(items)

    return work


def pushes_one(queue: penstock.Queue, count: int) -> Callable[[], None]:
    """One message per call."""
    payloads = workload.lists()[0]

    def work() -> None:
        for index in range(count):
            queue.push(payloads[index % BATCH])

    return work


def many_os(scale: Scale) -> list[Row]:
    """Nothing is synced; full journal files are sealed meanwhile."""
    value, limit = _beside_writes("os", pushes_many, BATCH, scale(500))
    return [Row("push_many of 1,000, os", value, "msg/s", limit, "pwrite of the same bytes", 2_000_000)]


def many_fsync(scale: Scale) -> list[Row]:
    """Every batch is on the disk before the next is built."""
    value, limit = _beside_writes("fsync", pushes_many, BATCH, scale(300))
    against, floor = "pwrite + fdatasync of the same bytes", "60 % of the raw limit"
    return [Row("push_many of 1,000, fsync", value, "msg/s", limit, against, 0.6 * limit, floor)]


def one_os(scale: Scale) -> list[Row]:
    """The whole cost of a call, since the write is small."""
    value, limit = _beside_writes("os", pushes_one, 1, scale(50_000))
    return [Row("push one at a time, os", value, "msg/s", limit, "pwrite of the same bytes", 100_000)]


def _beside_writes(
    durability: Durability, pushes: Callable[[penstock.Queue, int], Callable[[], None]], size: int, count: int
) -> list[float]:
    """Messages per second of `count` pushes of `size` messages, and of writing the same bytes without Penstock."""
    write = raw.synced_writes if durability == "fsync" else raw.writes
    with directory() as place, penstock.open(place / "data", durability=durability) as ps:
        file = raw.RawFile(place / "raw")
        rates = interleaved(
            lambda: per_second(count * size, pushes(ps.queue("mail"), count)),
            lambda: per_second(count * size, write(file, workload.frame(size), count)),
        )
        file.close()
    return rates


LANES = 64
RAW_ONE = "pwrite + fdatasync each"
RAW_MANY = "64 frames per pwrite + fdatasync"


def runner() -> asyncio.Runner:
    """An event loop, uvloop's when it is there."""
    try:
        import uvloop
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


def by_threads(queue: penstock.Queue, each: int) -> float:
    """All threads start together; the slowest ends it."""
    start = threading.Barrier(LANES + 1)

    def push() -> None:
        work = pushes_one(queue, each)
        start.wait()
        work()

    threads = [threading.Thread(target=push) for _ in range(LANES)]
    for thread in threads:
        thread.start()

    def work() -> None:
        start.wait()
        for thread in threads:
            thread.join()

    return per_second(LANES * each, work)


class Tasks:
    """An asyncio Penstock that stays open between rounds."""

    def __init__(self, path: Path) -> None:
        self._runner = runner()
        self._ps = penstock.aio.open(path, durability="fsync")
        self._runner.run(self._ps.__aenter__())
        self._queue = self._ps.queue("mail")

    def measure(self, each: int) -> float:
        return per_second(LANES * each, lambda: self._runner.run(self._push_all(each)))

    def close(self) -> None:
        self._runner.run(self._ps.close())
        self._runner.close()

    async def _push_all(self, each: int) -> None:
        await asyncio.gather(*(self._push(each) for _ in range(LANES)))

    async def _push(self, count: int) -> None:
        payloads = workload.lists()[0]
        for index in range(count):
            await self._queue.push(payloads[index])


def one_fsync(scale: Scale) -> list[Row]:
    """Three ways, each confirmed by the disk before the call returns."""
    single, each, frame = scale(1_000), scale(200), workload.frame(1)
    with directory() as place, ExitStack() as stack:
        file = raw.RawFile(place / "raw")
        stack.callback(file.close)
        queue = stack.enter_context(penstock.open(place / "threads", durability="fsync")).queue("mail")
        tasks = Tasks(place / "tasks")
        stack.callback(tasks.close)
        one, bare, threads, together, asynchronous = interleaved(
            lambda: per_second(single, pushes_one(queue, single)),
            lambda: per_second(single, raw.synced_writes(file, frame, single)),
            lambda: by_threads(queue, each),
            lambda: per_second(each * LANES, raw.synced_writes(file, frame * LANES, each)),
            lambda: tasks.measure(each),
        )
    unit = "msg/s"
    return [
        Row("push one, fsync, 1 thread", one, unit, bare, RAW_ONE, 0.8 * bare, "80 % of the raw limit"),
        Row("push one, fsync, 64 threads", threads, unit, together, RAW_MANY, 8 * one, "8 × one thread"),
        Row("push one, fsync, 64 asyncio tasks", asynchronous, unit, together, RAW_MANY, 15 * one, "15 × one thread"),
    ]
