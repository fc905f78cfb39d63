"""The timeline of one message among ten million that are sealed, and what asking for it does to pushes.

Pushes come from the event loop of an asyncio program, the questions from threads, as in a broker: both share one
interpreter, so what a question keeps for itself a push has to wait for.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter

import penstock
from bench.measure import Row, Scale, directory
from bench.workload import PAYLOAD_BYTES
from penstock import Penstock
from penstock.batch import Batch

MESSAGES = 10_000_000
PAYLOAD = bytes(PAYLOAD_BYTES)
BATCH = 100_000
LEASE = 1_000
SINGLES = 50_000  # that are acknowledged one by one: an event each
LOOKS = 100
PUSHES = 2_000


def one_message(scale: Scale) -> list[Row]:
    """Warm: the files are in memory, and so is what the statistics say; the message is any of them."""
    count = scale(MESSAGES)
    with directory() as place:
        _fill(place, count)
        with penstock.open(place, durability="os") as ps:
            first = _first_looks(ps)
            milliseconds = _looks(ps)
        calm, asked = asyncio.run(_pushes(place))
    return [
        Row(f"timeline of any of {count:,} sealed messages, median", median(milliseconds), "ms", floor=20.0,
            floor_what="issue 14", ceiling=True),
        Row("the same, 99th of 100", quantiles(milliseconds, n=100)[98], "ms"),
        Row("the first look after opening, among messages acknowledged one by one", first, "ms"),
        Row("push while timelines are asked for, 99th of 100", asked, "ms", raw=calm, raw_what="nobody asks"),
    ]  # fmt: skip


def _fill(place: Path, count: int) -> None:
    batch = Batch.build([PAYLOAD] * BATCH)
    with penstock.open(place, durability="os") as ps:
        queue = ps.create_queue("orders", partitions=4, retention_bytes=None, retention_seconds=None)
        for _ in range(count // BATCH):
            queue.push_many(batch)
            for _ in range(BATCH // LEASE):
                queue.lease(LEASE, consumer="worker").ack()
            ps.seal()
        singles = ps.queue("singles")
        singles.push_many([PAYLOAD] * SINGLES)
        for delivery in singles.lease(SINGLES, consumer="single"):
            delivery.ack()
        ps.seal()


def _first_looks(ps: Penstock) -> float:
    """Nothing is in memory: footers and a full row group of events are read, decompressed and indexed."""
    started = perf_counter()
    events = ps.queue("singles").events(f"singles/0/{SINGLES // 2}")
    assert [event.consumer for event in events] == ["", "single", "single"]
    return (perf_counter() - started) * 1000


def _looks(ps: Penstock) -> list[float]:
    queue, draw = ps.queue("orders"), random.Random(1)
    ends = [lag.end_offset for lag in queue.groups()["default"]]

    def look() -> float:
        partition = draw.randrange(len(ends))
        started = perf_counter()
        events = queue.events(f"orders/{partition}/{draw.randrange(ends[partition])}")
        assert [event.what for event in events] == ["pushed", "leased", "acked"]
        return (perf_counter() - started) * 1000

    for _ in range(LOOKS):
        look()
    return [look() for _ in range(LOOKS)]


async def _pushes(place: Path) -> tuple[float, float]:
    """The 99th of 100 pushes in ms: while nobody asks, and while one question follows the other."""
    async with penstock.aio.open(place, durability="os") as ps:
        queue, draw, is_over = ps.queue("orders"), random.Random(2), asyncio.Event()
        end = (await queue.groups())["default"][0].end_offset

        async def ask() -> None:
            while not is_over.is_set():
                await queue.events(f"orders/0/{draw.randrange(end)}")

        async def push() -> float:
            taken = []
            for _ in range(PUSHES):
                started = perf_counter()
                await queue.push(PAYLOAD)
                taken.append((perf_counter() - started) * 1000)
                await asyncio.sleep(0.0005)
            return quantiles(taken, n=100)[98]

        await push()
        calm = await push()
        asking = asyncio.create_task(ask())
        asked = await push()
        is_over.set()
        await asking
        return calm, asked
