"""How growth is measured: processor time at three sizes, or steps of the interpreter at two."""

from __future__ import annotations

import gc
import math
import sys
from pathlib import Path
from time import process_time, thread_time
from types import FrameType
from typing import Any, NamedTuple, Self

from bench.growth.cost import Cost, Setting
from bench.measure import Row, Scale, directory


class Price(NamedTuple):
    """Of the work, and of its longest hold of the lock: seconds, or steps."""

    work: float
    hold: float


class Steps:
    """Counts the steps of this thread while it is open: lines that are run, and each turn of a comprehension."""

    def __init__(self) -> None:
        self.count = 0

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        self.count += 1
        return self._trace

    def __enter__(self) -> Self:
        gc.collect()
        gc.disable()  # it runs when it likes, and so would the finalizers that it calls
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(self._before)
        gc.enable()


def counted(cost: Cost, size: int, path: Path) -> Price:
    """What it costs at a size, in steps."""
    steps = Steps()
    setting = Setting(path, lambda: float(steps.count))
    try:
        work = cost.prepare(setting, size)
        setting.begin()
        with steps:
            work()
        return Price(steps.count, setting.longest_hold)
    finally:
        setting.close()


def timed(cost: Cost, size: int) -> Price:
    """What it costs at a size, in seconds of the processor: a machine that is busy otherwise does not count."""
    with directory() as path:
        setting = Setting(path, thread_time)
        try:
            work = cost.prepare(setting, size)
            gc.collect()
            setting.begin()
            began = process_time()
            work()
            return Price(process_time() - began, setting.longest_hold)
        finally:
            setting.close()


def exponent(sizes: tuple[int, ...], prices: list[float]) -> float:
    """The slope of the line through the points, both axes logarithmic."""
    xs = [math.log(size) for size in sizes]
    ys = [math.log(max(price, 1e-9)) for price in prices]
    x_mean, y_mean = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True)) / sum((x - x_mean) ** 2 for x in xs)


def rows_of(cost: Cost, scale: Scale) -> list[Row]:
    """The exponent beside the times, and the longest hold beside all of its own."""
    sizes = tuple(scale(size) for size in cost.sizes)
    found = [[timed(cost, size) for _ in range(cost.repeats)] for size in sizes]
    works = [min(price.work for price in prices) for prices in found]
    holds = [min(price.hold for price in prices) for prices in found]
    of = " / ".join(f"{size:,}" for size in sizes)
    return [
        Row(
            f"{cost.name}, {of} {cost.grows}: {_times(works)}",
            exponent(sizes, works),
            "exponent",
            floor=cost.exponent_max,
            ceiling=True,
        ),
        Row(
            f"{cost.name}: the longest hold of the lock, {_times(holds)}",
            1e3 * max(holds),
            "ms",
            floor=cost.hold_ms_max,
            ceiling=True,
        ),
    ]


def _times(seconds: list[float]) -> str:
    return " / ".join(f"{1e3 * each:,.2f} ms" for each in seconds)
