"""Delays beyond the wheel's horizon.

The timer wheel of a queue holds at most about `timers_near_max` delays: those due first. Later ones cost nothing; they
stand in the extents, in memory or in segments. Before the horizon is reached, the due times of all extents are looked
at again and the next share is put into the wheel. So ten million messages delayed over a year take the memory of one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np

from penstock import limits
from penstock.delivery.core import DeliveryState
from penstock.delivery.entries import Int64s
from penstock.delivery.log import DUE, FOREVER, Extent, Partition, Queue
from penstock.delivery.timers import TIMER, Timers

MARGIN: Final = 60_000_000  # µs before the horizon at which the next share is fetched


def crowded(queue: Queue) -> bool:
    """Whether the wheel holds twice the share of this queue."""
    return queue.near > 2 * limits.timers_near_max


def shrink(core: DeliveryState, queue: Queue) -> None:
    """Keep the share that is due first; the rest is read again later."""
    owners = _owners(queue)
    dues = core.wheel.dues_of(owners)
    queue.horizon = int(np.partition(dues, limits.timers_near_max)[limits.timers_near_max])
    queue.near -= core.wheel.drop_after(queue.horizon, owners)


def is_short(queue: Queue, now: int) -> bool:
    """Whether the next share must be fetched now."""
    return queue.horizon < FOREVER and now + MARGIN > queue.horizon


def delayed_extents(queue: Queue) -> Iterator[tuple[Partition, Extent]]:
    """Extents that may hold delays; a sealed one says when its last is due."""
    for partition in queue.partitions:
        if partition.flags & DUE:
            for extent in partition.extents:
                if extent.flags & DUE:
                    yield partition, extent


def gather(after: int, columns: Iterable[tuple[int, int, Int64s]]) -> tuple[Timers, int]:
    """The first share of the delays due after an instant, and the horizon it reaches.

    `columns` gives (owner, first offset, due times) per extent, one at a time, so that no more than two shares are ever
    in memory.
    """
    kept: list[Timers] = []
    count = 0
    horizon = FOREVER
    for owner, first, dues in columns:
        rows = np.flatnonzero((dues > after) & (dues <= horizon))
        timers = np.empty(len(rows), TIMER)
        timers["due"], timers["offset"], timers["owner"] = dues[rows], rows + first, owner
        kept.append(timers)
        count += len(rows)
        if count > 2 * limits.timers_near_max:
            kept, horizon = _nearest(kept)
            count = len(kept[0])
    if count > limits.timers_near_max:
        kept, horizon = _nearest(kept)
    return (np.concatenate(kept) if kept else np.empty(0, TIMER)), horizon


def _nearest(timers: list[Timers]) -> tuple[list[Timers], int]:
    everything = np.concatenate(timers)
    horizon = int(np.partition(everything["due"], limits.timers_near_max)[limits.timers_near_max])
    return [everything[everything["due"] <= horizon]], horizon


def install(core: DeliveryState, queue: Queue, timers: Timers, horizon: int) -> None:
    """Put a share into the wheel; what was pushed meanwhile and lies beyond it goes out again."""
    if horizon < FOREVER:
        queue.near -= core.wheel.drop_after(horizon, _owners(queue))
    queue.near += len(timers)
    queue.horizon = horizon
    core.wheel.put(timers)


def _owners(queue: Queue) -> set[int]:
    return {partition.timer for partition in queue.partitions if partition.timer >= 0}
