"""Arrivals, workers and waits: the arithmetic of the forecast. Pure NumPy, nothing random.

The wait expected at a time has two parts. What has piled up: arrivals go in, the workers take out as much as they can,
and a message that comes now waits until what is ahead of it is done. And chance: even workers that keep up let some
wait, since neither arrivals nor the work come evenly. That is the 95th percentile of the wait in a queue with random
arrivals and random service times (M/M/c, Erlang's formula C), but no more than could build up within an hour. So the
figures hold for work that is as uneven as chance; bursts from one producer are worse, steady streams are better.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

HOURS_PER_WEEK: Final = 168
HOURS_PER_DAY: Final = 24
# 1970 began on a Thursday; slot 0 is Monday, 0:00 to 1:00 UTC.
_SLOT_OF_EPOCH: Final = 72
WORKERS_MAX: Final = 10_000
_LATE_SHARE: Final = 0.05  # the chance of waiting longer than what is called the wait
_Z95: Final = 1.645
_Z90: Final = 1.282


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """The expected arrivals of each hour of the week."""

    basis: str  # "hour of week", "hour of day" or "mean"
    per_hour: Any  # Floats: messages per hour, by hour of week
    spread: float  # standard deviation of an hour around that, as a share of the mean
    hours: int  # of history

    def rates(self, first_hour: int, count: int) -> Floats:
        """Messages per second expected in `count` hours from `first_hour` on; hours are counted from 1970."""
        slots = (np.arange(first_hour, first_hour + count) + _SLOT_OF_EPOCH) % HOURS_PER_WEEK
        return np.asarray(self.per_hour[slots] / 3600.0)

    @property
    def busy_factor(self) -> float:
        """How much more comes in an hour as busy as one in ten."""
        return 1.0 + _Z90 * self.spread


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """Backlog and waits that follow from arrivals and workers, one value per step."""

    backlog: Any  # Floats: messages
    seconds: Any  # Floats


def profile(first_hour: int, counts: Floats) -> Profile:
    """The profile of a week from whole hours of history without gaps, as fine as there is enough history for."""
    hours = len(counts)
    slots = (np.arange(first_hour, first_hour + hours) + _SLOT_OF_EPOCH) % HOURS_PER_WEEK
    if hours >= HOURS_PER_WEEK:
        basis, period = "hour of week", HOURS_PER_WEEK
    elif hours >= 2 * HOURS_PER_DAY:
        basis, period = "hour of day", HOURS_PER_DAY
    else:
        basis, period = "mean", 1
    slots_of_period = slots % period
    sums = np.bincount(slots_of_period, weights=counts, minlength=period)
    means = sums / np.maximum(np.bincount(slots_of_period, minlength=period), 1)
    per_hour = means[np.arange(HOURS_PER_WEEK) % period]
    mean = float(counts.mean()) if hours else 0.0
    return Profile(
        basis=basis, per_hour=per_hour, spread=_spread(counts, means[slots_of_period], period, mean), hours=hours
    )


def _spread(counts: Floats, fitted: Floats, parameters: int, mean: float) -> float:
    if mean <= 0:
        return 0.0
    freedom = len(counts) - parameters
    # With one week of history every hour fits itself; then all that is known is chance (Poisson).
    variance = float(np.sum((counts - fitted) ** 2)) / freedom if freedom >= HOURS_PER_DAY else mean
    return float(np.sqrt(max(variance, mean)) / mean)


def waits(rates: Floats, workers: int, per_worker: float, backlog: float, step_seconds: float) -> Waits:
    """Backlog and wait at the beginning of every step. `rates` and `per_worker` are messages per second."""
    capacity = workers * per_worker
    # Level over time of a store that cannot fall below nothing, in one go (Lindley).
    level = backlog + np.concatenate([[0.0], np.cumsum((rates - capacity) * step_seconds)[:-1]])
    piled = level - np.minimum(0.0, np.minimum.accumulate(level))
    return Waits(backlog=piled, seconds=piled / capacity + _by_chance(rates, workers, per_worker))


def breach_step(waits: Waits, target_seconds: float) -> int | None:
    """The first step at which the wait is longer than the target; None if there is none."""
    late = np.flatnonzero(waits.seconds > target_seconds)
    return int(late[0]) if len(late) else None


def workers_enough(
    rates: Floats, per_worker: float, backlog: float, step_seconds: float, target_seconds: float
) -> int | None:
    """The fewest workers with which the target holds over the whole time; None if more than `WORKERS_MAX`."""

    def holds(workers: int) -> bool:
        return breach_step(waits(rates, workers, per_worker, backlog, step_seconds), target_seconds) is None

    high = 1
    while not holds(high):
        if high >= WORKERS_MAX:
            return None
        high = min(2 * high, WORKERS_MAX)
    low = high // 2  # not enough, or 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def waiting_chance(workers: int, load: Floats) -> Floats:
    """Erlang C: how likely a message finds all workers busy; `load` is arrivals × service time, below `workers`."""
    blocked = np.ones_like(load)
    for count in range(1, workers + 1):
        blocked = load * blocked / (count + load * blocked)
    used = load / workers
    return np.asarray(blocked / (1 - used * (1 - blocked)))


def _by_chance(rates: Floats, workers: int, per_worker: float) -> Floats:
    """The wait that 5 % exceed although nothing piles up."""
    levels, level_of = np.unique(rates, return_inverse=True)
    capacity = workers * per_worker
    within_an_hour = _Z95 * np.sqrt(2 * levels * 3600.0) / capacity
    is_keeping_up = levels < capacity
    spare = np.where(is_keeping_up, capacity - levels, 1.0)
    chance = waiting_chance(workers, np.where(is_keeping_up, levels, 0.0) / per_worker)
    steady = np.log(np.maximum(chance / _LATE_SHARE, 1.0)) / spare
    return np.asarray(np.where(is_keeping_up, np.minimum(steady, within_an_hour), within_an_hour)[level_of])
