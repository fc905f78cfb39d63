"""What a scan costs the broker whose history is scanned: CPU seconds of its process per message pushed."""

from __future__ import annotations

import os
import threading
from itertools import cycle
from pathlib import Path
from statistics import median
from time import perf_counter

import penstock
from bench.measure import Row, Scale
from bench.server.process import Running, broker
from bench.spark.scans import drained, through_source
from bench.spark.setting import QUEUE, fill
from bench.workload import BATCH, lists

HISTORY = 2_000_000
SECONDS = 4
ROUNDS = 4


def pushing_meanwhile(scale: Scale) -> list[Row]:
    """Pushes with and without a scan, in turns."""
    with broker() as served, penstock.connect(served.url) as ps:
        fill(ps.queue(QUEUE), scale(HISTORY))
        ps._session.seal()
        drained(through_source(served.url))
        alone, scanned = [], []
        for _ in range(ROUNDS):
            alone.append(cost(served, ps))
            with scanning(served.url):
                scanned.append(cost(served, ps))
    more = 100 * (median(scanned) / median(alone) - 1)
    what = "CPU of the broker per message pushed while Spark scans: more than without"
    return [
        Row("CPU of the broker per message pushed", 1e6 * median(alone), "µs"),
        Row(what, more, "%", floor=3, ceiling=True),
    ]


class scanning:  # noqa: N801 - used as a context
    """Scans one after the other in the background."""

    def __init__(self, url: str) -> None:
        self._url, self._stop = url, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            drained(through_source(self._url))


def cost(served: Running, ps: penstock.Penstock) -> float:
    """CPU seconds per message, pushed to another queue in batches for a while."""
    payloads, queue, pushed = cycle(lists()), ps.queue("live"), 0
    before, started = cpu_seconds(served.pid), perf_counter()
    while perf_counter() - started < SECONDS:
        queue.push_many(next(payloads))
        pushed += BATCH
    return (cpu_seconds(served.pid) - before) / pushed


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
