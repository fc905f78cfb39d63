"""Dedup keys: what a push costs beside many that are known."""

from __future__ import annotations

from bench.growth.cost import CONSTANT, Cost, Setting, Work
from penstock import Message

BATCH = 1_000


def _push(setting: Setting, first: int, count: int) -> None:
    queue = setting.ps.queue("mail")
    for start in range(first, first + count, BATCH):
        end = min(start + BATCH, first + count)
        queue.push_many([Message(payload=b"", dedup_key=f"order-{number}") for number in range(start, end)])


def push_beside(setting: Setting, known: int) -> Work:
    """A thousand new keys."""
    _push(setting, 0, known)
    return lambda: _push(setting, known, BATCH)


COSTS = [
    Cost(
        "dedup: push 1,000 new keys",
        "keys known",
        push_beside,
        sizes=(70_000, 280_000, 1_120_000),
        steps_at=(1_000, 8_000),
        exponent_max=CONSTANT,
        repeats=1,
    ),
]
