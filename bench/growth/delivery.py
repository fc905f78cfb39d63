"""Looking at messages and handing them out, when there are many of them, of their partitions, or of those who wait."""

from __future__ import annotations

from bench.growth.cost import Cost, Setting, Work
from penstock import Message
from penstock.model import to_datetime


def _half_read(setting: Setting, partitions: int) -> None:
    """Partitions in a segment, each read up to its middle: when the oldest was pushed is in a column of the file."""
    queue = setting.ps.create_queue("mail", partitions="named")
    names = [f"p{number}" for number in range(partitions)]
    queue.push_many([Message(payload=b"x", partition=name) for name in names])
    setting.clock.advance(1)
    queue.push_many([Message(payload=b"x", partition=name) for name in names])
    setting.clock.advance(1)
    queue.push_many([Message(payload=b"x", partition=name) for name in names])
    queue.lease(partitions).ack()
    setting.session.seal()


def stats_of_sealed(setting: Setting, partitions: int) -> Work:
    """The account of a queue."""
    _half_read(setting, partitions)
    return setting.ps.queue("mail").stats


def seek_in_sealed(setting: Setting, partitions: int) -> Work:
    """A group moves to an instant within each segment."""
    began = setting.clock.now()
    _half_read(setting, partitions)
    moment = to_datetime(began + 500_000)
    return lambda: setting.session.seek("mail", "default", moment, None)


COSTS = [
    Cost(
        "stats",
        "sealed partitions",
        stats_of_sealed,
        sizes=(250, 1_000, 4_000),
        steps_at=(60, 480),
        hold_exponent_max=1.15,
    ),
    Cost(
        "seek to a time",
        "sealed partitions",
        seek_in_sealed,
        sizes=(250, 1_000, 4_000),
        steps_at=(60, 480),
        hold_exponent_max=1.15,
    ),
]
