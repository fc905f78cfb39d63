"""What a lease would hand out next, without effect.

The selection of a lease runs on copies of the indexes that it consumes, and the originals are put back. So whoever
looks sees the order of service as it is, whatever its rules are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.delivery.core import DeliveryState
from penstock.delivery.group import Group
from penstock.delivery.progress import Progress
from penstock.delivery.selection import Selection
from penstock.delivery.serve import serve

GROUP_INDEXES = ("lanes", "order", "deficits", "served_at", "turn", "gate")
PROGRESS_INDEXES = ("cursor", "cursors", "offered", "keys", "parked", "parked_count")


def preview(core: DeliveryState, group: Group, count_max: int, now: int) -> Selection:
    """The messages of one lease, in its order. Rates, and what one consumer may hold, are not looked at.

    May raise `ColumnNotLoaded`.
    """
    selection = Selection(group, now, core.wheel.reached, None)
    with _on_copies(group):
        if group.gate is not None:
            group.gate.recall()
            group.gate.tick(now)
        serve(selection, count_max)
    return selection


@contextmanager
def _on_copies(group: Group) -> Iterator[None]:
    kept = [(group, name, getattr(group, name)) for name in GROUP_INDEXES]
    kept_of_partitions = [
        (progress, name, getattr(progress, name)) for progress in group.progress for name in PROGRESS_INDEXES
    ]
    _copy_group(group)
    for progress in group.progress:
        _copy_progress(progress)
    try:
        yield
    finally:
        for owner, name, value in kept:
            setattr(owner, name, value)
        for progress, name, value in kept_of_partitions:
            setattr(progress, name, value)


def _copy_group(group: Group) -> None:
    group.lanes = {priority: lane.copied() for priority, lane in group.lanes.items()}
    group.order = list(group.order)
    group.deficits = list(group.deficits)
    group.served_at = list(group.served_at)
    if group.gate is not None:
        group.gate = group.gate.copied()


def _copy_progress(progress: Progress) -> None:
    if progress.cursors is not None:
        progress.cursors = dict(progress.cursors)
    if progress.keys is not None:
        progress.keys = dict(progress.keys)
    if progress.parked is not None:
        progress.parked = {key: behind.copy() for key, behind in progress.parked.items()}
