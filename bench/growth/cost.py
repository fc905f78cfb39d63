"""What a cost is: something that grows, work that is done beside it, and how fast its price may rise.

It is measured as processor time at three sizes, or as steps of the interpreter at two.
"""

from __future__ import annotations

import gc
import math
import random
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from time import process_time, thread_time
from types import FrameType
from typing import Any, NamedTuple, Self

from bench.measure import Row, Scale, directory
from penstock.client.handles import Penstock
from penstock.clock import ManualClock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session

Work = Callable[[], object]
Prepare = Callable[["Setting", int], Work]
CONSTANT, LINEAR = 0.35, 1.15  # exponents, with room for what does not grow, for logarithms and for the weather


class Cost(NamedTuple):
    """`prepare` makes as many as it is told, and answers with the work whose price is asked for."""

    name: str
    grows: str  # what there is more and more of
    prepare: Prepare
    sizes: tuple[int, int, int]  # measured by the clock
    steps_at: tuple[int, int]  # counted in steps
    exponent_max: float = LINEAR
    hold_exponent_max: float = CONSTANT  # of the longest hold of the lock, in steps
    hold_ms_max: float | None = 50.0
    repeats: int = 3


COSTS: dict[str, Cost] = {}


def cost(
    name: str, grows: str, sizes: tuple[int, int, int], steps_at: tuple[int, int], **limits: Any
) -> Callable[[Prepare], Prepare]:
    """Decorator: declare the cost of the work that a function prepares; for the fields see `Cost`."""

    def declare(prepare: Prepare) -> Prepare:
        COSTS[name] = Cost(name, grows, prepare, sizes, steps_at, **limits)
        return prepare

    return declare


class WatchedLock:
    """Stands in for the lock of a shard and remembers the longest hold, by the gauge that it is given."""

    def __init__(self, lock: Any, gauge: Callable[[], float]) -> None:
        self._lock = lock
        self._gauge = gauge
        self._since = 0.0
        self.longest = 0.0

    def __enter__(self) -> None:
        self._lock.acquire()
        self._since = self._gauge()

    def __exit__(self, *error: object) -> None:
        self.longest = max(self.longest, self._gauge() - self._since)
        self._lock.release()


class Setting:
    """A shard in a directory of its own, without threads, with a clock that is moved by hand; opened when asked for."""

    def __init__(self, path: Path, gauge: Callable[[], float]) -> None:
        self.path = path
        self.clock = ManualClock()
        self.rng = random.Random(1)
        self.stack = ExitStack()  # for what has to be ended afterwards
        self._gauge = gauge
        self._session: Session | None = None
        self._lock: WatchedLock | None = None

    @property
    def session(self) -> Session:
        if self._session is None:
            self._session = self.opened()
        return self._session

    def opened(self, **options: Any) -> Session:
        """A session with options of its own; the first one that is opened is `session`, and its lock is watched."""
        given = {"durability": "os", "clock": self.clock, "rng": self.rng, "background": False, **options}
        session = Session(self.path, **given)
        self.stack.callback(session.close)
        if self._session is None:
            self._session = session
            self._lock = WatchedLock(session.shard.lock, self._gauge)
            session.shard.lock = self._lock  # type: ignore[assignment]  # nobody uses more of a lock
        return session

    @property
    def ps(self) -> Penstock:
        return Penstock(BlockingSession(self.session))

    def begin(self) -> None:
        """What comes now counts."""
        if self._lock is not None:
            self._lock.longest = 0.0

    @property
    def longest_hold(self) -> float:
        return 0.0 if self._lock is None else self._lock.longest

    def close(self) -> None:
        self.stack.close()


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
