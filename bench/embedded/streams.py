"""Compaction to the latest message of each key, beside pushes that go on; and stages, with fsync."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from time import perf_counter

import numpy as np
import pyarrow as pa

import penstock
from bench.measure import Row, Scale, directory
from bench.workload import BATCH, lists
from penstock import Message
from penstock.client.handles import Penstock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.model import Freed

MESSAGES, KEYS = 10_000_000, 100_000
PUSHED = 100_000  # in one batch, while the queue is filled
STAGED = 200_000
PUSH_SECONDS = 0.005  # between two pushes


def compaction(scale: Scale) -> list[Row]:
    """All of it sealed first; then one compaction, with pushes to another queue meanwhile and before."""
    count = scale(MESSAGES)
    # Without upkeep, which would compact it before it is measured.
    with directory() as place, Penstock(BlockingSession(Session(place, durability="os", background=False))) as ps:
        queue = ps.create_queue("settings", compaction="latest", compaction_drops_unread=True)
        rng = np.random.default_rng(1)
        payloads = pa.array(lists()[0] * (PUSHED // BATCH), pa.binary())
        for _ in range(count // PUSHED):
            keys = pa.array(np.char.add("key-", rng.integers(0, KEYS, PUSHED).astype(str)))
            queue.push_many(pa.table({"key": keys, "payload": payloads}))
        ps.seal()
        os.sync()  # or the pushes would wait for what was just written
        other = ps.queue("other")
        quiet = _pushing(other, lambda: threading.Event().wait(5))
        found: list[tuple[float, Freed]] = []

        def compact() -> None:
            started = perf_counter()
            freed = queue.compact()
            found.append((perf_counter() - started, freed))

        busy = _pushing(other, compact)
    ((seconds, freed),) = found
    left = count - freed.messages_removed
    return [
        Row(f"compaction of {count:,} messages over {KEYS:,} keys", count / seconds, "msg/s", floor=1_000_000),
        Row("  messages left for each key", left / KEYS, "", floor=1.5, ceiling=True),
        Row("  p99 of a push meanwhile", busy, "ms", quiet, "with nothing else", quiet * 1.2, "+ 20 %", ceiling=True),
    ]


def _pushing(queue: penstock.Queue, work: Callable[[], object]) -> float:
    """The 99th percentile, in ms, of pushes in a thread of their own while `work` is done."""
    times: list[float] = []
    stop = threading.Event()

    def push() -> None:
        while not stop.wait(PUSH_SECONDS):
            started = perf_counter()
            queue.push(b"x" * 100, durability="fsync")
            times.append(perf_counter() - started)

    thread = threading.Thread(target=push)
    thread.start()
    work()
    stop.set()
    thread.join()
    return float(np.percentile(times, 99)) * 1000


def stages(scale: Scale) -> list[Row]:
    """Windows of a sum for a hundred keys, each thousand messages one transaction with fsync."""
    count = scale(STAGED)
    with directory() as place, penstock.open(place) as ps:
        orders = ps.create_queue("orders")
        for first in range(0, count, BATCH):
            orders.push_many(
                [Message(payload={"n": n, "at": n / 1000}, key=f"k{n % 100}") for n in range(first, first + BATCH)]
            )
        windows = (
            ps.stream("orders")
            .filter(lambda order: order["n"] >= 0)
            .tumbling(60, at=lambda order: order["at"])
            .aggregate(0, lambda total, order: total + order["n"])
            .to("totals")
        )
        plain = ps.stream("orders").map(lambda order: {"n": order["n"] + 1}).to("copies")
        rates = []
        for stage in (windows, plain):
            started = perf_counter()
            assert stage.run(idle_seconds=0).messages == count
            rates.append(count / (perf_counter() - started))
    return [
        Row("stage: tumbling windows, batches of 1,000, fsync", rates[0], "msg/s", floor=50_000),
        Row("stage: map, every message sent on, batches of 1,000, fsync", rates[1], "msg/s"),
    ]
