"""How a figure is measured: warm-up, several rounds, the median; what is compared takes turns within a round.

A noisy machine slows everything that runs in the same second, so a figure and its raw limit are never measured one
after the other as a whole.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import NamedTuple

ROUNDS = 5
Measurement = Callable[[], float]


class Row(NamedTuple):
    """One line of the table. `floor` is in the same unit as `value`; `ceiling` says that less is better."""

    what: str
    value: float
    unit: str
    raw: float | None = None
    raw_what: str = ""
    floor: float | None = None
    floor_what: str = ""
    ceiling: bool = False

    @property
    def ratio(self) -> float | None:
        return self.value / self.raw if self.raw else None

    @property
    def passed(self) -> bool | None:
        """None when nothing is asked."""
        if self.floor is None:
            return None
        return self.value < self.floor if self.ceiling else self.value >= self.floor


class Scale(NamedTuple):
    """Sizes of a run; a quick one takes a tenth."""

    quick: bool = False

    def __call__(self, count: int) -> int:
        return max(1, count // 10) if self.quick else count


def per_second(count: int, work: Callable[[], object]) -> float:
    """The rate of doing `count` things at once. The collector rests meanwhile, as timeit has it."""
    gc.collect()
    gc.disable()
    try:
        started = perf_counter()
        work()
        return count / (perf_counter() - started)
    finally:
        gc.enable()


def interleaved(*measurements: Measurement, rounds: int = ROUNDS) -> list[float]:
    """The median of each, after one round that does not count."""
    found = [[measure() for measure in measurements] for _ in range(rounds + 1)][1:]
    return [median(column) for column in zip(*found, strict=True)]


def rounds_of(*measurements: Measurement, rounds: int) -> list[list[float]]:
    """What each found in every round, after one that does not count: for machines where others work too."""
    found = [[measure() for measure in measurements] for _ in range(rounds + 1)][1:]
    return [list(column) for column in zip(*found, strict=True)]


def spread(values: Sequence[float], raw: Sequence[float]) -> str:
    """Between which bounds the ratio is in most rounds."""
    ratios = sorted(value / limit for value, limit in zip(values, raw, strict=True))
    tenth = len(ratios) // 10
    return f"{ratios[tenth]:.2f} to {ratios[-1 - tenth]:.2f}"


@contextmanager
def directory() -> Iterator[Path]:
    """A place on the disk that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        yield Path(name)
