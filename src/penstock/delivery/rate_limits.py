"""Token buckets, counted exactly, and the rate limits of pushes.

A bucket fills at a steady rate up to its burst; what is done takes tokens out of it. Levels are integers of a
millionth of a millionth of a token, and the rate is an integer of millionths of a token per second, so that what
flows in during a number of µs is exact, and so is the time until a bucket has enough. Buckets are volatile: after a
restart all of them are full. A full bucket is the same as none, so those of keys and clients that have gone quiet are
forgotten.

A push is paid for whole, from the bucket of the queue, of the client and of every key in it, or refused: `decide_bill`
says which, and `pay` takes the tokens when the push happens. Duplicates cost nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from penstock import limits
from penstock.delivery.entries import Push
from penstock.errors import RateLimited, TooLarge
from penstock.model import QueueOptions

if TYPE_CHECKING:
    from penstock.delivery.log import Queue


TOKEN: Final = 10**12
SWEEP_MIN: Final = 1_024  # buckets before it is worth looking for full ones

QUEUE = "queue"  # the one bucket of a queue


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
        """Forget full buckets. When too many are left, the fullest go too: memory is bounded."""
        levels = {who: (self._level(who, now), now) for who in self._levels}
        kept = {who: known for who, known in levels.items() if known[0] < self.rate.capacity}
        if len(kept) > limits.buckets_max:
            emptiest = sorted(kept, key=lambda who: kept[who][0])[: limits.buckets_max // 2]
            kept = {who: kept[who] for who in emptiest}
        self._levels = kept
        self._sweep_at = max(SWEEP_MIN, 2 * len(kept))


Bill = dict[tuple[Buckets, Hashable], int]  # tokens, by whose bucket


# limits of pushes


@dataclass(slots=True, eq=False)
class PushLimits:
    """The buckets that pushes to one queue take from."""

    queue: Buckets | None = None
    clients: Buckets | None = None
    keys: Buckets | None = None

    @staticmethod
    def renewed(old: PushLimits | None, options: QueueOptions, now: int) -> PushLimits | None:
        """The limits of these options, with the buckets of the old ones."""
        rates = (options.push_per_second, options.client_push_per_second, options.key_push_per_second)
        if rates == (None, None, None):
            return None
        limits = old or PushLimits()
        limits.queue = renewed(limits.queue, rates[0], options.push_burst, now)
        limits.clients = renewed(limits.clients, rates[1], options.client_push_burst, now)
        limits.keys = renewed(limits.keys, rates[2], options.key_push_burst, now)
        return limits

    def costs(self, push: Push, client: str) -> Iterator[tuple[Buckets, Hashable, int, str]]:
        """What the messages of a push take, duplicates excepted: (buckets, whose, tokens, option)."""
        count = sum(count for _, count, _ in push.parts)
        if self.queue is not None:
            yield self.queue, QUEUE, count, "push_per_second"
        if self.clients is not None:
            yield self.clients, client, count, "client_push_per_second"
        hashes = push.columns.key_hashes() if self.keys is not None and push.columns is not None else None
        if self.keys is not None and hashes is not None:
            keys, counts = np.unique(hashes if push.rows is None else hashes[push.rows >= 0], return_counts=True)
            for key, many in zip(keys.tolist(), counts.tolist(), strict=True):
                if key:
                    yield self.keys, key, many, "key_push_per_second"


def renewed(old: Buckets | None, per_second: float | None, burst: int | None, now: int) -> Buckets | None:
    """Buckets of this rate, with what was in the old ones."""
    if per_second is None:
        return None
    rate = Rate.of(per_second, burst)
    if old is None:
        return Buckets(rate)
    old.set_rate(rate, now)
    return old


def decide_bill(pushes: Iterable[tuple[Queue, Push]], client: str, now: int) -> Bill:
    """What these pushes cost together; refused when it is not in the buckets."""
    bill: Bill = {}
    wait, refusal = 0, ""
    for queue, push in pushes:
        if queue.push_limits is None or not push.parts:
            continue
        for buckets, whose, count, option in queue.push_limits.costs(push, client):
            total = bill[buckets, whose] = bill.get((buckets, whose), 0) + count
            if total > buckets.rate.burst:
                raise _never(queue, option, total, buckets.rate.burst)
            needed = buckets.wait(whose, total, now)
            if needed > wait:
                wait = needed
                refusal = (
                    f"queue {queue.name!r} accepts {getattr(queue.options, option):g} messages per second ({option})"
                )
    if wait:
        raise RateLimited(refusal, retry_after_seconds=wait / 1_000_000)
    return bill


def pay(bill: Bill, now: int) -> None:
    """Take what was decided."""
    for (buckets, whose), total in bill.items():
        buckets.take(whose, total, now)


def _never(queue: Queue, option: str, count: int, burst: int) -> TooLarge:
    name = option.replace("per_second", "burst")
    hint = f"push at most {burst} at once, or raise {name}"
    return TooLarge(f"queue {queue.name!r} never accepts {count} messages at once: {name} is {burst}", hint=hint)
