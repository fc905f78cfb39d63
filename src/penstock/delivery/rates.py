"""Rate limits of pushes.

A push is paid for whole, from the bucket of the queue, of the client and of every key in it, or refused: `decide_bill`
says which, and `pay` takes the tokens when the push happens. Duplicates cost nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from penstock.delivery.buckets import Buckets, Rate
from penstock.delivery.entries import Push
from penstock.errors import RateLimited, TooLarge
from penstock.model import QueueOptions

if TYPE_CHECKING:
    from penstock.delivery.log import Queue

QUEUE = "queue"  # the one bucket of a queue
Bill = dict[tuple[Buckets, Hashable], int]  # tokens, by whose bucket


class PushLimits:
    """The buckets that pushes to one queue take from."""

    __slots__ = ("clients", "keys", "queue")

    def __init__(self) -> None:
        self.queue: Buckets | None = None
        self.clients: Buckets | None = None
        self.keys: Buckets | None = None

    @staticmethod
    def renewed(old: PushLimits | None, options: QueueOptions, now: int) -> PushLimits | None:
        """The limits that these options ask for, with the buckets of the old ones."""
        rates = (options.push_per_second, options.client_push_per_second, options.key_push_per_second)
        if rates == (None, None, None):
            return None
        found = old or PushLimits()
        found.queue = renewed(found.queue, rates[0], options.push_burst, now)
        found.clients = renewed(found.clients, rates[1], options.client_push_burst, now)
        found.keys = renewed(found.keys, rates[2], options.key_push_burst, now)
        return found

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
                refusal = f"queue {queue.name!r} takes {getattr(queue.options, option):g} messages a second ({option})"
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
    return TooLarge(f"queue {queue.name!r} never takes {count} messages at once: {name} is {burst}", hint=hint)
