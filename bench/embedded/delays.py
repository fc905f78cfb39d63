"""Delayed messages: how fast they come in, and what they cost in memory while they wait."""

from __future__ import annotations

from itertools import cycle, islice

import numpy as np

import penstock
from bench import fresh, raw, workload
from bench.measure import Row, Scale, directory, interleaved, per_second
from bench.memory import Above
from bench.workload import BATCH
from penstock import operations as ops
from penstock.client.handles import Penstock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from tests.support.operations import run_operation

HOUR = 3_600.0
YEAR = 365 * 86_400.0
RAW_TIMERS = "an array of due time and offset"


def rate(scale: Scale) -> list[Row]:
    """A round pushes a fifth of a million, so that the whole is the million that is asked about."""
    count = scale(200)
    frame = workload.frame(BATCH) + bytes(8 * BATCH)
    with directory() as place, penstock.open(place / "data", durability="os") as ps:
        queue = ps.queue("mail")
        file = raw.RawFile(place / "raw")
        source = cycle(workload.delayed(HOUR))

        def push() -> None:
            for messages in islice(source, count):
                queue.push_many(messages)

        value, limit = interleaved(
            lambda: per_second(count * BATCH, push), lambda: per_second(count * BATCH, raw.writes(file, frame, count))
        )
        file.close()
    return [Row("1 M delayed, push_many of 1,000", value, "msg/s", limit, "pwrite of the same bytes", 300_000)]


def memory_of_a_million(scale: Scale) -> list[Row]:
    """A million, all of them soon enough to be in the timer wheel."""
    count = scale(1_000_000)
    value, limit = _memory(count, HOUR), fresh.run(memory_of_timers, count)
    return [Row("1 M delayed within an hour: memory", value, "MB", limit, RAW_TIMERS, 150, ceiling=True)]


def memory_of_a_year(scale: Scale) -> list[Row]:
    """Ten million, most of them too far away to be in the timer wheel."""
    count = scale(10_000_000)
    value, limit = _memory(count, YEAR), fresh.run(memory_of_timers, count)
    return [Row("10 M delayed over a year: memory", value, "MB", limit, RAW_TIMERS, 300, ceiling=True)]


def _memory(count: int, seconds_max: float) -> float:
    with directory() as place:
        found: float = fresh.run(memory_of_delayed, str(place), count, seconds_max)
        return found


def memory_of_delayed(place: str, count: int, seconds_max: float) -> float:
    """Runs in a fresh process: memory once they are pushed and full journal files are sealed."""
    workload.lists()
    above = Above()
    session = Session(place, durability="os")
    queue = Penstock(BlockingSession(session)).queue("mail")
    for table in workload.delayed_tables(count // BATCH, seconds_max):
        queue.push_many(table)
    run_operation(session, ops.Seal())
    return above.megabytes()


def memory_of_timers(count: int) -> float:
    """Runs in a fresh process."""
    above = Above()
    timers = np.arange(2 * count, dtype=np.int64)
    found = above.megabytes()
    del timers
    return found
