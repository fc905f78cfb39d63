"""Counting: every number comes from the state, and the account of each group adds up."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

from penstock.delivery.group import Group
from penstock.delivery.log import DUE, Extent, ask_each
from penstock.delivery.phases import FRESH, SETTLED
from penstock.delivery.progress import Progress
from penstock.model import GroupStats, Outcome, PartitionLag, to_datetime


def group_stats(group: Group, reached: int) -> GroupStats:
    """One group's account: `ready` is what remains, so `verify` counts it anew from the states.

    Delays up to `reached` have ended. May raise `ColumnNotLoaded`.
    """
    progresses = group.progress
    messages = sum(p.partition.end - p.start for p in progresses)
    leased = sum(p.leased for p in progresses)
    waiting = sum(p.waiting for p in progresses) + sum(ask_each(lambda p: delayed(p, reached), progresses))
    acked, dead = sum(p.acked for p in progresses), sum(p.dead for p in progresses)
    dropped: Counter[str] = Counter()
    for progress in progresses:
        for outcome, count in (progress.dropped or {}).items():
            dropped[Outcome(outcome).name.lower()] += count
    return GroupStats(
        name=group.name,
        messages=messages,
        ready=messages - leased - waiting - acked - dead - dropped.total(),
        leased=leased,
        waiting=waiting,
        acked=acked,
        dead=dead,
        dropped=dropped.total(),
        dropped_by=dict(dropped),
        lag=sum(p.unsettled() for p in progresses),
        oldest_unsettled_at=_oldest(group),
    )


def delayed(progress: Progress, reached: int) -> int:
    """Messages of a partition that are not due yet and that this group has not read. May raise `ColumnNotLoaded`."""
    partition = progress.partition
    if not partition.delayed:
        return 0
    if not (progress.start or partition.start or progress.dropped or progress.dead):
        return partition.delayed  # the group has them all before it
    first = max(progress.base, partition.start)
    return sum(ask_each(lambda e: _delayed_in(progress, e, first, reached), partition.extents_from(first)))


def _delayed_in(progress: Progress, extent: Extent, first: int, reached: int) -> int:
    if not extent.flags & DUE or (extent.sealed is not None and extent.sealed.due_last <= reached):
        return 0
    dues = extent.dues()
    assert dues is not None
    low = max(first, extent.first)
    return int((progress.fresh_mask(low, extent.end) & (dues[low - extent.first :] > reached)).sum())


def lags(group: Group) -> list[PartitionLag]:
    """Where the group stands in each partition."""
    return [
        PartitionLag(p.partition.name, p.partition.start, p.base, p.partition.end, p.unsettled())
        for p in group.progress
    ]


def count_phases(group: Group) -> Counter[int]:
    """Every offset of the group's account by phase, counted anew from the states: what `verify` compares with."""
    counts: Counter[int] = Counter()
    for progress in group.progress:
        known = len(progress.states)
        for phase in range(SETTLED + 1):
            counts[phase] += progress.states.count(phase)
        for state in (progress.sparse or {}).values():
            counts[state] += 1
        counts[SETTLED] += progress.base - progress.start - len(progress.sparse or ())
        counts[FRESH] += progress.partition.end - progress.base - known
    return counts


def _oldest(group: Group) -> datetime | None:
    oldest = ask_each(_oldest_of, group.progress)
    instants = [instant for instant in oldest if instant is not None]
    return to_datetime(min(instants)) if instants else None


def _oldest_of(progress: Progress) -> int | None:
    offset = progress.oldest_offset()
    return None if offset is None else progress.partition.pushed_time(offset)
