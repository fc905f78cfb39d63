"""The numbers of one group, summed over its partitions, as they are at the moment.

No lock is taken: each number is read as it is, and numbers that belong together may be apart by what happened in
between. Lists are copied before they are walked, and the walk pauses every so often: a hundred thousand partitions must
not keep the event loop from its interpreter. Two numbers are estimates where the exact one would mean reading a file:
the age of a message in a segment is that of the first in its row group, and delays count for a group as for the
partition.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from penstock.delivery.group import Group
    from penstock.delivery.progress import Progress

STEPS_MAX: Final = 256  # partitions between two pauses: a fraction of a millisecond
PAUSE_SECONDS: Final = 0.0002


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
    """Yields the interpreter every `STEPS_MAX` steps."""

    def __init__(self) -> None:
        self._steps = 0

    def step(self) -> None:
        self._steps += 1
        if self._steps >= STEPS_MAX:
            self._steps = 0
            time.sleep(PAUSE_SECONDS)


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
    place = max(0, partition.extent_index(max(oldest, partition.start)))
    return extents[min(place, len(extents) - 1)].pushed_at
