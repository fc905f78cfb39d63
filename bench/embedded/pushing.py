"""Pushing: batches of a thousand and one at a time, beside writing the same bytes without Penstock."""

from __future__ import annotations

from collections.abc import Callable

import penstock
from bench import raw, workload
from bench.measure import Row, Scale, directory, interleaved, per_second
from bench.workload import BATCH


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
    count = scale(500)
    with directory() as place, penstock.open(place / "data", durability="os") as ps:
        file = raw.RawFile(place / "raw")
        value, limit = interleaved(
            lambda: per_second(count * BATCH, pushes_many(ps.queue("mail"), count)),
            lambda: per_second(count * BATCH, raw.writes(file, workload.frame(BATCH), count)),
        )
        file.close()
    return [Row("push_many of 1,000, os", value, "msg/s", limit, "pwrite of the same bytes", 2_000_000)]


def many_fsync(scale: Scale) -> list[Row]:
    """Every batch is on the disk before the next is built."""
    count = scale(300)
    with directory() as place, penstock.open(place / "data", durability="fsync") as ps:
        file = raw.RawFile(place / "raw")
        value, limit = interleaved(
            lambda: per_second(count * BATCH, pushes_many(ps.queue("mail"), count)),
            lambda: per_second(count * BATCH, raw.synced_writes(file, workload.frame(BATCH), count)),
        )
        file.close()
    return [
        Row(
            "push_many of 1,000, fsync",
            value,
            "msg/s",
            limit,
            "pwrite + fdatasync of the same bytes",
            0.6 * limit,
            "60 % of the raw limit",
        )
    ]


def one_os(scale: Scale) -> list[Row]:
    """The whole cost of a call, since the write is small."""
    count = scale(50_000)
    with directory() as place, penstock.open(place / "data", durability="os") as ps:
        file = raw.RawFile(place / "raw")
        value, limit = interleaved(
            lambda: per_second(count, pushes_one(ps.queue("mail"), count)),
            lambda: per_second(count, raw.writes(file, workload.frame(1), count)),
        )
        file.close()
    return [Row("push one at a time, os", value, "msg/s", limit, "pwrite of the same bytes", 100_000)]
