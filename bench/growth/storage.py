"""Upkeep of the files: sealing, compaction, checkpoints, retention."""

from __future__ import annotations

from bench.growth.cost import CONSTANT, Setting, Work, cost
from penstock import Message
from penstock import operations as ops
from tests.support.operations import run_operation

SEALS = 8


def _spread(setting: Setting, partitions: int, queue: str = "mail") -> None:
    """One message in each of many partitions."""
    setting.ps.create_queue(queue, partitions="named", exist_ok=True)
    names = [f"p{number}" for number in range(partitions)]
    setting.ps.queue(queue).push_many([Message(payload=b"x", partition=name) for name in names])


@cost("compaction: rewrite a file", "extents in it", (500, 2_000, 8_000), (600, 4_800))
def compact(setting: Setting, extents: int) -> Work:
    """A file of which most rows are gone, and many extents stay."""
    _spread(setting, extents)
    setting.ps.queue("gone").push_many([b"y"] * (3 * extents))
    run_operation(setting.session, ops.Seal())
    setting.ps.delete_queue("gone")
    return lambda: run_operation(setting.session, ops.Compact())


@cost("sealing", "partitions", (1_000, 4_000, 16_000), (2_000, 8_000))
def seal_partitions(setting: Setting, partitions: int) -> Work:
    """A message in each of many partitions."""
    _spread(setting, partitions)
    return lambda: run_operation(setting.session, ops.Seal())


@cost(
    "sealing 100 messages",
    "extents sealed before",
    (8_000, 32_000, 128_000),
    (800, 12_800),
    exponent_max=CONSTANT,
    repeats=1,
)
def seal_beside(setting: Setting, extents: int) -> Work:
    """A few messages, when much is sealed."""
    for _ in range(SEALS):
        _spread(setting, extents // SEALS, "history")
        run_operation(setting.session, ops.Seal())
    setting.ps.queue("mail").push_many([b"x"] * 100)
    return lambda: run_operation(setting.session, ops.Seal())


@cost("checkpoint of one queue", "untouched queues", (320, 1_280, 5_120), (50, 400))
def checkpoint_untouched(setting: Setting, queues: int) -> Work:
    """Nothing has changed since the last checkpoint but one queue."""
    for number in range(queues):
        setting.ps.create_queue(f"q{number}")
    setting.session.checkpoint()
    setting.ps.queue("q0").push(b"x")
    return setting.session.checkpoint


@cost("retention, nothing to remove", "extents", (800, 3_200, 12_800), (800, 6_400))
def retain_nothing(setting: Setting, extents: int) -> Work:
    """Looking for messages that are old enough, when none is."""
    for _ in range(SEALS):
        _spread(setting, extents // SEALS)
        run_operation(setting.session, ops.Seal())
    keeper = setting.session.keeper
    assert keeper is not None
    return keeper.retain
