"""Five priorities at random, a million waiting."""

from __future__ import annotations

from itertools import cycle, islice

import penstock
from bench import workload
from bench.embedded.leasing import RAW_CUTS, fill, rate_of_cuts, rate_of_leases
from bench.measure import Row, Scale, directory, interleaved
from bench.workload import BATCH


def five_at_random(scale: Scale) -> list[Row]:
    """Every round leases a tenth of the backlog and pushes as much again."""
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
