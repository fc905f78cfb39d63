"""The account of a group, made to add up again from the states.

Entries that are applied after a hole may count what was counted before it. The states are right whatever was lost:
each is what the last entry about it said.
"""

from __future__ import annotations

from penstock.delivery.phases import LEASED, SETTLED, WAITING
from penstock.delivery.progress import Progress


def recount(progress: Progress) -> None:
    """Make the counters follow the states."""
    sparse = progress.sparse or {}
    states = list(sparse.values())
    progress.leased = progress.states.count(LEASED) + states.count(LEASED)
    progress.waiting = progress.states.count(WAITING) + states.count(WAITING)
    progress.dues = {
        offset: due for offset, due in (progress.dues or {}).items() if progress.state_of(offset) == WAITING
    }
    settled = progress.base - progress.start - len(sparse) + progress.states.count(SETTLED)
    progress.dead_offsets = {o for o in progress.dead_offsets or () if progress.state_of(o) == SETTLED} or None
    progress.dead = len(progress.dead_offsets or ())
    progress.dropped = _at_most(progress.dropped or {}, settled - progress.dead)
    progress.acked = settled - progress.dead - progress.dropped_count()


def _at_most(dropped: dict[int, int], room: int) -> dict[int, int]:
    kept: dict[int, int] = {}
    for outcome, count in dropped.items():
        kept[outcome] = min(count, room - sum(kept.values()))
    return {outcome: count for outcome, count in kept.items() if count > 0}
