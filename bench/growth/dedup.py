"""Dedup keys: what a push costs beside many that are known."""

from __future__ import annotations

from unittest.mock import patch

from bench.growth.cost import CONSTANT, Setting, Work, cost
from penstock import Message
from penstock.delivery import dedup

BATCH = 1_000


def _push(setting: Setting, first: int, count: int) -> None:
    queue = setting.ps.queue("mail")
    for start in range(first, first + count, BATCH):
        end = min(start + BATCH, first + count)
        queue.push_many([Message(payload=b"", dedup_key=f"order-{number}") for number in range(start, end)])


@cost(
    "dedup: push 1,000 new keys",
    "keys known",
    (70_000, 280_000, 1_120_000),
    (1_000, 8_000),
    exponent_max=CONSTANT,
    repeats=1,
)
def push_beside(setting: Setting, known: int) -> Work:
    """A thousand new keys."""
    _push(setting, 0, known)
    return lambda: _push(setting, known, BATCH)


@cost(
    "dedup: push one new key",
    "keys known, in small runs",
    (1_000, 8_000, 64_000),
    (1_000, 16_000),
    exponent_max=CONSTANT,
)
def push_beside_runs(setting: Setting, known: int) -> Work:
    """One new key, beside as many runs as a checkpoint leaves, whatever the size of a run."""
    for name, number in (("HOT_MAX", 100), ("AT_ONCE_MAX", 200)):
        setting.stack.enter_context(patch.object(dedup, name, number))
    for first in range(0, known, 100):
        _push(setting, first, 100)
    setting.session.checkpoint()
    return lambda: _push(setting, known, 1)
