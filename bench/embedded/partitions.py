"""A hundred thousand named partitions with one message each, against a hundred with as many messages."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from time import perf_counter

import penstock
from bench import fresh, workload
from bench.measure import Row, Scale, directory, interleaved
from bench.memory import Above
from bench.workload import BATCH

MANY = 100_000
FEW = 100
SIZES = (1, 100, 1_000)


def names(partitions: int, messages: int) -> list[str]:
    """The partition of each message, in turn."""
    return [f"customer-{index % partitions:06d}" for index in range(messages)]


def fill(queue: penstock.Queue, partitions: int, messages: int) -> None:
    """Push messages, spread over partitions."""
    payloads = workload.lists()[0]
    chosen = names(partitions, messages)
    for start in range(0, messages, BATCH):
        part = zip(payloads, chosen[start : start + BATCH], strict=False)
        queue.push_many([penstock.Message(payload=payload, partition=name) for payload, name in part])


def memory(scale: Scale) -> list[Row]:
    """Beside a dict of the same."""
    count = scale(MANY)
    with directory() as place:
        value = fresh.run(memory_of_partitions, str(place), count)
    limit = fresh.run(memory_of_names, count)
    what = "100,000 named partitions, one message each: memory"
    return [Row(what, value, "MB", limit, "a dict of the names and payloads", 150, ceiling=True)]


def memory_of_partitions(place: str, count: int) -> float:
    """Runs in a fresh process."""
    workload.lists()
    above = Above()
    queue = penstock.open(place, durability="os").create_queue("mail", partitions="named")
    fill(queue, count, count)
    return above.megabytes()


def memory_of_names(count: int) -> float:
    """Runs in a fresh process."""
    above = Above()
    kept = {name: bytes(workload.PAYLOAD_BYTES) for name in names(count, count)}
    found = above.megabytes()
    del kept
    return found


def rates(scale: Scale) -> list[Row]:
    """Leasing only is timed; between rounds what was acknowledged is pushed again."""
    count = scale(MANY)
    with directory() as place, ExitStack() as stack:
        many = opened(stack, place / "many", count, count)
        few = opened(stack, place / "few", FEW, count)
        return [row for size in SIZES for row in compared(size, many, few, count)]


def opened(stack: ExitStack, path: Path, partitions: int, messages: int) -> Callable[[int, int], tuple[float, float]]:
    """A measurement of leasing from some partitions."""
    ps = stack.enter_context(penstock.open(path, durability="os"))
    queue = ps.create_queue("mail", partitions="named")
    fill(queue, partitions, messages)

    def measure(size: int, count: int) -> tuple[float, float]:
        found = timed(queue, size, count)
        fill(queue, partitions, messages - queue.stats().groups["default"].ready)
        return found

    return measure


def timed(queue: penstock.Queue, size: int, count: int) -> tuple[float, float]:
    """Messages per second leased, and leased and acknowledged."""
    leasing = settling = 0.0
    leased_count = 0
    for _ in range(count):
        started = perf_counter()
        leased = queue.lease(size)
        between = perf_counter()
        leased.ack()
        settling += perf_counter() - between
        leasing += between - started
        leased_count += len(leased)
    return leased_count / leasing, leased_count / (leasing + settling)


def compared(
    size: int,
    many: Callable[[int, int], tuple[float, float]],
    few: Callable[[int, int], tuple[float, float]],
    messages: int,
) -> list[Row]:
    """Many partitions against few, for one size of lease."""
    count = min(2_000, messages // size // 2)
    acked: dict[str, list[float]] = {"many": [], "few": []}

    def measure(name: str, of: Callable[[int, int], tuple[float, float]]) -> float:
        leased, settled = of(size, count)
        acked[name].append(settled)
        return leased

    value, limit = interleaved(lambda: measure("many", many), lambda: measure("few", few), rounds=3)
    both, both_limit = (median(acked[name][1:]) for name in ("many", "few"))  # the first round is the warm-up
    against = "100 partitions"
    return [
        Row(f"100,000 partitions: lease({size})", value, "msg/s", limit, against, 0.5 * limit, "50 % of 100"),
        Row(f"100,000 partitions: lease({size}) + ack", both, "msg/s", both_limit, against),
    ]
