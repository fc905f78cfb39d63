"""Counting steps: how many calls a piece of work makes, and a lock that ends a hold which makes too many.

A step is a call of a Python or C function. Steps do not depend on the machine, so they stand in for time: an endless
loop, or work that grows with the square of something, fails a test where a stopwatch could not.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Final

from penstock.embedded.session import Session
from penstock.shard.shard import Shard

STEPS_MAX: Final = 20_000  # of one hold of the lock, in tests with some hundred messages


class StepLimit:
    """Counts the steps between `start` and `stop`, and raises an AssertionError at the step that is one too many."""

    def __init__(self, steps_max: int = STEPS_MAX) -> None:
        self.steps_max = steps_max
        self.steps = 0
        self.longest = 0

    def start(self) -> None:
        self.steps = 0
        sys.setprofile(self._step)

    def stop(self) -> None:
        sys.setprofile(None)
        self.longest = max(self.longest, self.steps)

    def _step(self, frame: Any, event: str, argument: Any) -> None:
        if event in {"call", "c_call"}:
            self.steps += 1
            if self.steps > self.steps_max:
                where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                raise AssertionError(f"the lock was held for more than {self.steps_max} steps, at last in {where}")


class CountedLock:
    """A lock whose holds are counted in steps. `inner` is the lock that it stands for."""

    def __init__(self, inner: AbstractContextManager[Any], limit: StepLimit) -> None:
        self.inner = inner
        self.limit = limit

    def __enter__(self) -> None:
        self.inner.__enter__()
        self.limit.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.limit.stop()
        self.inner.__exit__(kind, error, trace)


def limit_steps(session: Session, steps_max: int = STEPS_MAX) -> StepLimit:
    """Have every hold of the lock of a session end within a number of steps. Nobody uses the session yet."""
    limit = StepLimit(steps_max)
    shard: Any = session.shard
    shard.lock = CountedLock(shard.lock, limit)
    return limit


def longest_hold(shard: Shard, work: Callable[[], object]) -> int:
    """The steps of the longest hold of a shard's lock during some work of this thread."""
    holder: Any = shard
    original = holder.lock
    limit = StepLimit(sys.maxsize)
    holder.lock = CountedLock(original if not isinstance(original, CountedLock) else threading.Lock(), limit)
    gc.collect()
    gc.disable()
    try:
        work()
    finally:
        gc.enable()
        holder.lock = original
    return limit.longest
