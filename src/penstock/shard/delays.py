"""Fetching the delays that are due next into the timer wheel, from wherever the messages are.

The due times of a whole queue are read while no lock is held; see `delivery/timers.py` for why they are not in memory.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.delivery import timers
from penstock.delivery.entries import FOREVER, Int64s
from penstock.delivery.log import Extent, Partition, Queue
from penstock.shard.shard import Shard


def fetch_delays(shard: Shard, queue: Queue, after: int, *, opening: bool = False) -> None:
    """Put the share that is due first after an instant into the wheel."""
    with shard.locked():
        extents = [(shard.core.owner_of(p), p, extent) for p, extent in timers.delayed_extents(queue)]
        horizon_before, queue.horizon = queue.horizon, FOREVER  # what is pushed meanwhile goes into the wheel at once
    try:
        delays, horizon = timers.nearest_delays(after, _due_columns(shard, extents, after, opening=opening))
    except BaseException:
        with shard.lock:
            queue.horizon = horizon_before  # what the wheel holds beyond it fires twice at worst, which does no harm
        raise
    with shard.locked():
        shard.changing = True
        timers.add_delays(shard.core, queue, delays, horizon)
        shard.changing = False


def _due_columns(
    shard: Shard, extents: list[tuple[int, Partition, Extent]], after: int, *, opening: bool
) -> Iterator[tuple[int, int, Int64s]]:
    for owner, partition, extent in extents:
        if extent.sealed is not None and extent.sealed.due_last <= after:
            continue
        dues = shard.column(extent, "available_at") if extent.sealed is not None else extent.dues()
        assert dues is not None
        if opening:
            partition.delayed += int((dues > after).sum())
        yield owner, extent.first, dues
