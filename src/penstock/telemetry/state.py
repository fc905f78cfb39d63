"""The state of a shard in numbers, read while it works.

Nothing here takes the shard's lock. Every number is one that the state keeps, read as it is at the moment; numbers that
belong together may be apart by what happened in between. Lists are copied before they are walked, and the walk pauses
every so often: a hundred thousand partitions must not keep the event loop from its interpreter.

Two numbers are estimates where the exact one would mean reading a file: the age of a message in a segment is that of
the first in its row group, and delays count for a group as they count for the partition.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from penstock import limits
from penstock.delivery.group import Group
from penstock.delivery.log import Queue
from penstock.delivery.progress import Progress
from penstock.model import Outcome
from penstock.shard.shard import Shard
from penstock.telemetry.meter import OTHERS

STEPS_MAX: Final = 256  # partitions between two pauses: a fraction of a millisecond
PAUSE_SECONDS: Final = 0.0002
OUTCOMES: Final = {int(outcome): outcome.name.lower() for outcome in Outcome}


class GroupRow(NamedTuple):
    """One group, or several under a shared name."""

    ready: int = 0
    leased: int = 0
    delayed: int = 0
    dead: int = 0
    lag: int = 0
    oldest_at: int = 0  # µs; 0 when everything is settled
    outcomes: tuple[int, ...] = ()


class Pace:
    """Lets go of the interpreter every `STEPS_MAX` steps."""

    def __init__(self) -> None:
        self._steps = 0

    def step(self) -> None:
        self._steps += 1
        if self._steps >= STEPS_MAX:
            self._steps = 0
            time.sleep(PAUSE_SECONDS)


def group_rows(shard: Shard) -> dict[tuple[str, str], GroupRow]:
    """A row for every group of the oldest queues, and one for all groups of the others together.

    The oldest, because they stay the oldest: a counter must not move from one series to another.
    """
    pace = Pace()
    queues = list(shard.core.queues.values())
    queues.sort(key=lambda queue: queue.id)
    rows: dict[tuple[str, str], GroupRow] = {}
    for queue, group in islice(_groups(queues), limits.metrics_series_max):
        rows[queue.name, group.name] = group_row(group, pace)
    others = [group_row(group, pace) for _, group in islice(_groups(queues), limits.metrics_series_max, None)]
    if others:
        rows[OTHERS, OTHERS] = _together(others)
    return rows


def _groups(queues: list[Queue]) -> Iterator[tuple[Queue, Group]]:
    return ((queue, group) for queue in queues for group in list(queue.groups.values()))


def group_row(group: Group, pace: Pace) -> GroupRow:
    """The numbers of one group, summed over its partitions."""
    ready = leased = delayed = dead = lag = oldest_at = 0
    for progress in list(group.progress):
        pace.step()
        partition = progress.partition
        left = progress.unsettled()
        waiting = progress.waiting + min(partition.delayed, left)
        leased += progress.leased
        delayed += waiting
        dead += progress.dead
        lag += left
        ready += max(0, left - progress.leased - waiting)
        if left > 0:
            at = _oldest_at(progress)
            oldest_at = min(oldest_at, at) if oldest_at else at
    return GroupRow(ready, leased, delayed, dead, lag, oldest_at, tuple(group.outcomes))


def _oldest_at(progress: Progress) -> int:
    partition = progress.partition
    extents, firsts = partition.extents, partition.firsts
    if len(extents) != len(firsts) or not extents:
        return partition.pushed_at  # a change is under way
    oldest = min(progress.base, *list(progress.sparse or ()), partition.end)
    place = max(0, partition.place_of(max(oldest, partition.start)))
    return extents[min(place, len(extents) - 1)].pushed_at


def _together(rows: list[GroupRow]) -> GroupRow:
    ready, leased, delayed, dead, lag = (sum(column) for column in zip(*(row[:5] for row in rows), strict=True))
    instants = [row.oldest_at for row in rows if row.oldest_at]
    outcomes = tuple(map(sum, zip(*(row.outcomes for row in rows), strict=True)))
    return GroupRow(ready, leased, delayed, dead, lag, min(instants, default=0), outcomes)
