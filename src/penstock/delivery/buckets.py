"""Token buckets, counted exactly.

A bucket fills at a steady rate up to its burst; what is done takes tokens out of it. Levels are integers of a
millionth of a millionth of a token, and the rate is an integer of millionths of a token per second, so that what
flows in during a number of µs is exact, and so is the time until a bucket has enough.

Buckets are volatile: after a restart all of them are full. A full bucket is the same as none, so those of keys and
clients that have gone quiet are forgotten.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, NamedTuple

from penstock import limits

TOKEN: Final = 10**12
SWEEP_MIN: Final = 1_024  # buckets before it is worth looking for full ones


class Rate(NamedTuple):
    """How fast a bucket fills, and how far."""

    refill: int  # parts of a token per µs
    capacity: int

    @classmethod
    def of(cls, per_second: float, burst: int | None) -> Rate:
        """A burst of None is one second's worth, at least one token."""
        refill = max(1, round(per_second * 1_000_000))
        return cls(refill, max(TOKEN, refill * 1_000_000) if burst is None else burst * TOKEN)

    @property
    def burst(self) -> int:
        """The most tokens that can be taken at once."""
        return self.capacity // TOKEN


class Buckets:
    """The buckets of all who share one rate, each its own. Time is in µs and an argument."""

    __slots__ = ("_levels", "_sweep_at", "rate")

    def __init__(self, rate: Rate) -> None:
        self.rate = rate
        self._levels: dict[Hashable, tuple[int, int]] = {}  # level, and when it was that
        self._sweep_at = SWEEP_MIN

    def __len__(self) -> int:
        return len(self._levels)

    def copied(self) -> Buckets:
        copy = Buckets(self.rate)
        copy._levels, copy._sweep_at = dict(self._levels), self._sweep_at
        return copy

    def available(self, who: Hashable, now: int) -> int:
        """Whole tokens that can be taken now."""
        return self._level(who, now) // TOKEN

    def wait(self, who: Hashable, count: int, now: int) -> int:
        """µs until there are `count` tokens, 0 when there are. Nobody may wait for more than the burst."""
        missing = count * TOKEN - self._level(who, now)
        return -(-missing // self.rate.refill) if missing > 0 else 0

    def take(self, who: Hashable, count: int, now: int) -> None:
        """Take tokens that are there."""
        self._levels[who] = (self._level(who, now) - count * TOKEN, now)
        if len(self._levels) >= self._sweep_at:
            self._sweep(now)

    def set_rate(self, rate: Rate, now: int) -> None:
        """From now on buckets fill at another rate; what has flowed in stays, as far as the new burst holds it."""
        if rate != self.rate:
            levels = {who: (min(self._level(who, now), rate.capacity), now) for who in self._levels}
            self.rate, self._levels = rate, levels

    def _level(self, who: Hashable, now: int) -> int:
        known = self._levels.get(who)
        if known is None:
            return self.rate.capacity
        level, since = known
        return min(self.rate.capacity, level + (now - since) * self.rate.refill)

    def _sweep(self, now: int) -> None:
        """Forget full buckets. When too many are left, the fullest go too: memory is bounded, whoever asks."""
        levels = {who: (self._level(who, now), now) for who in self._levels}
        kept = {who: known for who, known in levels.items() if known[0] < self.rate.capacity}
        if len(kept) > limits.buckets_max:
            emptiest = sorted(kept, key=lambda who: kept[who][0])[: limits.buckets_max // 2]
            kept = {who: kept[who] for who in emptiest}
        self._levels = kept
        self._sweep_at = max(SWEEP_MIN, 2 * len(kept))
