"""Upkeep of the files: sealing, compaction, checkpoints, retention."""

from __future__ import annotations

from bench.growth.cost import CONSTANT, Cost, Setting, Work
from penstock import Message
from penstock import operations as ops
from tests.support.operations import run_operation

SEALS = 8


def _spread(setting: Setting, partitions: int, queue: str = "mail") -> None:
    """One message in each of many partitions."""
    setting.ps.create_queue(queue, partitions="named", exist_ok=True)
    names = [f"p{number}" for number in range(partitions)]
    setting.ps.queue(queue).push_many([Message(payload=b"x", partition=name) for name in names])


def compact(setting: Setting, extents: int) -> Work:
    """A file of which most rows are gone, and many extents stay."""
    _spread(setting, extents)
    setting.ps.queue("gone").push_many([b"y"] * (3 * extents))
    run_operation(setting.session, ops.Seal())
    setting.ps.delete_queue("gone")
    return lambda: run_operation(setting.session, ops.Compact())


def seal_partitions(setting: Setting, partitions: int) -> Work:
    """A message in each of many partitions."""
    _spread(setting, partitions)
    return lambda: run_operation(setting.session, ops.Seal())


def seal_beside(setting: Setting, extents: int) -> Work:
    """A few messages, when much is sealed."""
    for _ in range(SEALS):
        _spread(setting, extents // SEALS, "history")
        run_operation(setting.session, ops.Seal())
    setting.ps.queue("mail").push_many([b"x"] * 100)
    return lambda: run_operation(setting.session, ops.Seal())


def checkpoint_untouched(setting: Setting, queues: int) -> Work:
    """Nothing has changed since the last checkpoint but one queue."""
    for number in range(queues):
        setting.ps.create_queue(f"q{number}")
    setting.session.checkpoint()
    setting.ps.queue("q0").push(b"x")
    return setting.session.checkpoint


def retain_nothing(setting: Setting, extents: int) -> Work:
    """Looking for messages that are old enough, when none is."""
    for _ in range(SEALS):
        _spread(setting, extents // SEALS)
        run_operation(setting.session, ops.Seal())
    keeper = setting.session.keeper
    assert keeper is not None
    return keeper.retain


COSTS = [
    Cost("compaction: rewrite a file", "extents in it", compact, sizes=(500, 2_000, 8_000), steps_at=(600, 4_800)),
    Cost("sealing", "partitions", seal_partitions, sizes=(1_000, 4_000, 16_000), steps_at=(2_000, 8_000)),
    Cost(
        "sealing 100 messages",
        "extents sealed before",
        seal_beside,
        sizes=(8_000, 32_000, 128_000),
        steps_at=(800, 12_800),
        exponent_max=CONSTANT,
        repeats=1,
    ),
    Cost(
        "checkpoint of one queue",
        "untouched queues",
        checkpoint_untouched,
        sizes=(320, 1_280, 5_120),
        steps_at=(50, 400),
    ),
    Cost("retention, nothing to remove", "extents", retain_nothing, sizes=(800, 3_200, 12_800), steps_at=(800, 6_400)),
]
