"""Leasing from many queues with one request, beside leasing from one."""

from __future__ import annotations

from collections.abc import Callable

import penstock
from bench import workload
from bench.measure import Row, Scale, directory, interleaved, per_second
from bench.workload import BATCH

QUEUES = 1_000
BUSY = 10


def over_many(scale: Scale) -> list[Row]:
    """A thousand queues of which ten have work: at least half the rate over one queue."""
    rounds = scale(100) // BUSY * BUSY
    with directory() as place, penstock.open(place, durability="os") as ps:
        for number in range(QUEUES):
            ps.create_queue(f"shop.{number}")
        busy = [ps.queue(f"shop.{number}") for number in range(0, QUEUES, QUEUES // BUSY)]
        ps.lease("shop.*", 1)

        def fill(queues: list[penstock.Queue]) -> None:
            for number, batch in enumerate(workload.cycled(rounds)):
                queues[number % len(queues)].push_many(batch)

        def rate(lease: Callable[[int], penstock.Leased], queues: list[penstock.Queue]) -> float:
            fill(queues)

            def work() -> None:
                left = rounds * BATCH
                while left:
                    leased = lease(BATCH)
                    for delivery in leased:
                        delivery.payload  # noqa: B018 - touching it is the point
                    leased.ack()
                    left -= len(leased)

            return per_second(rounds * BATCH, work)

        many, one = interleaved(
            lambda: rate(lambda count: ps.lease("shop.*", count), busy),  # type: ignore[arg-type, return-value]
            lambda: rate(busy[0].lease, busy[:1]),
        )
    return [
        Row("lease(1000), touch, ack, over 1,000 queues, 10 with work", many, "msg/s", one, "over one queue", one / 2)
    ]
