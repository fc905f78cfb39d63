"""Leasing and acknowledging, beside cutting the same bytes into payloads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import cycle, islice
from typing import Any

import penstock
from bench import raw, workload
from bench.measure import Row, Scale, directory, interleaved, per_second
from bench.workload import BATCH, PAYLOAD_BYTES
from penstock import operations as ops
from penstock.client.handles import Penstock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from tests.support.operations import run_operation

RAW_CUTS = "cutting a blob, touching each"


def fill(queue: penstock.Queue, batches: Iterable[Any]) -> None:
    """Push them all. Every push builds a new batch, so nothing is shared with another or parsed before."""
    for batch in batches:
        queue.push_many(batch)


def leases(queue: penstock.Queue, count: int, size: int = BATCH) -> Callable[[], None]:
    """Lease, look at every payload, acknowledge."""

    def work() -> None:
        for _ in range(count):
            leased = queue.lease(size)
            for delivery in leased:
                delivery.payload  # noqa: B018 - touching it is the point
            leased.ack()

    return work


def rate_of_leases(queue: penstock.Queue, count: int, size: int = BATCH) -> float:
    """Messages per second; the queue must hold enough of them."""
    before = queue.stats().groups["default"].acked if size == BATCH else 0
    rate = per_second(count * size, leases(queue, count, size))
    assert size != BATCH or queue.stats().groups["default"].acked == before + count * size, "the queue ran dry"
    return rate


def rate_of_cuts(count: int) -> float:
    """The raw limit of touching payloads."""
    blob = b"".join(workload.lists()[0])
    return per_second(count * BATCH, raw.cuts(blob, PAYLOAD_BYTES, count))


def from_the_tail(scale: Scale) -> list[Row]:
    """Filled again before each round, so that what is leased has not been sealed yet."""
    count = scale(200)
    with directory() as place, penstock.open(place, durability="os") as ps:
        queue = ps.queue("mail")

        def measure() -> float:
            fill(queue, workload.cycled(count))
            return rate_of_leases(queue, count)

        value, limit = interleaved(measure, lambda: rate_of_cuts(count))
    return [Row("lease(1000), touch, ack, from the tail", value, "msg/s", limit, RAW_CUTS, 1_000_000)]


def from_segments(scale: Scale) -> list[Row]:
    """Everything sealed first; every row group is read from its file once."""
    count = scale(300)
    with directory() as place:
        session = Session(place, durability="os")
        with Penstock(BlockingSession(session)) as ps:
            queue = ps.queue("mail")

            def measure() -> float:
                fill(queue, workload.cycled(count))
                run_operation(session, ops.Seal())
                return rate_of_leases(queue, count)

            value, limit = interleaved(measure, lambda: rate_of_cuts(count))
    return [Row("lease(1000), touch, ack, from segments", value, "msg/s", limit, RAW_CUTS, 400_000)]


def one_at_a_time(scale: Scale) -> list[Row]:
    """Beside the two small writes that it makes."""
    count = scale(20_000)
    with directory() as place, penstock.open(place / "data", durability="os") as ps:
        queue = ps.queue("mail")
        file = raw.RawFile(place / "raw")

        def measure() -> float:
            fill(queue, workload.cycled(max(1, count // BATCH)))
            return rate_of_leases(queue, count, 1)

        value, limit = interleaved(
            measure, lambda: per_second(count, raw.writes(file, b"\x55" * workload.FRAME_BYTES, 2 * count))
        )
        file.close()
    return [Row("lease(1), touch, ack, os", value, "msg/s", limit, "two pwrites of a small frame", 40_000)]


def five_priorities(scale: Scale) -> list[Row]:
    """A million waiting, priorities at random; every round leases a tenth of them and pushes as many again."""
    waiting, count = scale(1_000_000) // BATCH, scale(100)
    with directory() as place, penstock.open(place, durability="os") as ps:
        queue = ps.queue("mail")
        source = cycle(workload.prioritised())
        fill(queue, islice(source, waiting))

        def measure() -> float:
            rate = rate_of_leases(queue, count)
            fill(queue, islice(source, count))
            return rate

        value, limit = interleaved(measure, lambda: rate_of_cuts(count))
    what = "five priorities, 1 M waiting, lease(1000), touch, ack"
    return [Row(what, value, "msg/s", limit, RAW_CUTS, 250_000)]
