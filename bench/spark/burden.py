"""What a scan costs the broker whose history is scanned: CPU seconds of its process per message pushed.

Any job that keeps the cores busy makes a push cost more: it takes caches and memory away from the broker, whatever it
reads. So there is a control, the same scan of another directory with the same messages, of which the broker knows
nothing; what a scan of its own history costs beyond that is what the broker does for it.
"""

from __future__ import annotations

import os
import threading
from itertools import cycle
from pathlib import Path
from statistics import median
from time import perf_counter

import penstock
from bench.measure import Row, Scale, directory
from bench.server.process import Running, broker
from bench.spark.scans import drained, through_source
from bench.spark.setting import QUEUE, fill, spark
from bench.workload import BATCH, lists
from penstock import operations as ops
from tests.support.operations import run_operation

HISTORY = 2_000_000
SECONDS = 4
ROUNDS = 4
SCANS = 5


def pushing_meanwhile(scale: Scale) -> list[Row]:
    """Pushes alone, beside a scan of another directory and beside one of the broker's own history, in turns."""
    spark()  # before the broker is there, which takes a core for itself: Spark would be left with the other
    with broker() as served, penstock.connect(served.url) as ps, directory() as elsewhere:
        other = str(elsewhere / "data")
        with penstock.open(other, durability="os") as nobodys:
            for each in (nobodys, ps):
                fill(each.queue(QUEUE), scale(HISTORY))
                run_operation(each._session, ops.Seal())
        for url in (other, served.url):
            drained(through_source(url))
        asked = asked_by_scans(served)
        alone, control, scanned = [], [], []
        for _ in range(ROUNDS):
            alone.append(cost(served, ps))
            with scanning(other):
                control.append(cost(served, ps))
            with scanning(served.url):
                scanned.append(cost(served, ps))
    return [
        Row(f"CPU of an idle broker for a scan of {scale(HISTORY):,} messages", 1e3 * asked, "ms"),
        Row("CPU of the broker per message pushed", 1e6 * median(alone), "µs"),
        Row("the same beside a scan of a directory that is not its own: more", more(control, alone), "%"),
        Row("the same beside a scan of its history: more", more(scanned, alone), "%", floor=3, ceiling=True),
        Row("a scan of its history against one of the other: more", more(scanned, control), "%"),
    ]


def asked_by_scans(served: Running) -> float:
    """CPU seconds of a broker that has nothing else to do, for each scan: what it is asked, and nothing else."""
    before = cpu_seconds(served.pid)
    for _ in range(SCANS):
        drained(through_source(served.url))
    return (cpu_seconds(served.pid) - before) / SCANS


def more(costs: list[float], than: list[float]) -> float:
    """By how many per cent, in the median of the rounds."""
    return 100 * (median(cost / other for cost, other in zip(costs, than, strict=True)) - 1)


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
