"""Counters of all queues, taken now and then, and the rates between them. Nothing here waits or prints."""

from __future__ import annotations

from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.errors import QueueNotFound
from penstock.model import DEFAULT_GROUP, DLQ_SUFFIX, GroupStats, QueueStats

if TYPE_CHECKING:
    from penstock import Penstock

HISTORY: Final = 120  # samples that a sparkline may go back

Count = tuple[QueueStats, int]  # an account, and the sum of the end offsets of all partitions


class Row(msgspec.Struct, kw_only=True):
    """One queue at one moment. Counts are those of the default group; lag and oldest of the group furthest behind."""

    name: str
    ready: int
    leased: int
    waiting: int
    dead: int
    lag: int
    oldest_unsettled_at: datetime | None
    bytes_stored: int
    paused: bool
    pushed_per_second: float = 0.0
    settled_per_second: float = 0.0
    history: list[float] = []  # messages pushed per second, oldest first


class Sampler:
    """Remembers the sample before, so that the next one has rates."""

    def __init__(self) -> None:
        self._before: dict[str, Count] = {}
        self._before_seconds = 0.0
        self._histories: dict[str, deque[float]] = {}

    def take(self, counts: list[Count], now_seconds: float) -> list[Row]:
        """A row for each queue; `now_seconds` is monotonic."""
        passed = now_seconds - self._before_seconds
        rows = [self._row(count, passed) for count in counts]
        self._before = {stats.name: (stats, end) for stats, end in counts}
        self._before_seconds = now_seconds
        self._histories = {row.name: self._histories[row.name] for row in rows}
        return rows

    def _row(self, count: Count, passed_seconds: float) -> Row:
        stats, end = count
        history = self._histories.setdefault(stats.name, deque(maxlen=HISTORY))
        row = _row(stats)
        before = self._before.get(stats.name)
        if before is not None and passed_seconds > 0:
            row.pushed_per_second = max(0, end - before[1]) / passed_seconds
            row.settled_per_second = _settled(before, count) / passed_seconds
            history.append(row.pushed_per_second)
        row.history = list(history)
        return row


def _row(stats: QueueStats) -> Row:
    groups = list(stats.groups.values())
    oldest = [group.oldest_unsettled_at for group in groups if group.oldest_unsettled_at is not None]
    return Row(
        name=stats.name,
        ready=stats.ready,
        leased=stats.leased,
        waiting=stats.waiting,
        dead=stats.dead,
        lag=max(group.lag for group in groups),
        oldest_unsettled_at=min(oldest, default=None),
        bytes_stored=stats.bytes_stored,
        paused=stats.paused,
    )


def _settled(before: Count, after: Count) -> int:
    """How many messages groups are done with since: what came, less what more they have before them."""
    came = after[1] - before[1]
    return sum(
        max(0, came + _unsettled(before[0].groups[name]) - _unsettled(group))
        for name, group in after[0].groups.items()
        if name in before[0].groups
    )


def _unsettled(group: GroupStats) -> int:
    return group.ready + group.leased + group.waiting


def counted(ps: Penstock) -> list[Count]:
    """The counters of all queues but those of dead letters."""
    found = []
    for name in ps.queues():
        if name.endswith(DLQ_SUFFIX):
            continue
        try:
            queue = ps.queue(name)
            found.append((queue.stats(), sum(row.end_offset for row in queue.groups()[DEFAULT_GROUP])))
        except QueueNotFound:  # deleted meanwhile
            continue
    return found


KEYS: Final[dict[str, tuple[str, Any]]] = {
    "n": ("name", lambda row: row.name),
    "r": ("ready", lambda row: -row.ready),
    "l": ("lag", lambda row: -row.lag),
    "d": ("dead", lambda row: -row.dead),
    "i": ("in", lambda row: -row.pushed_per_second),
    "o": ("out", lambda row: -row.settled_per_second),
    "a": ("age", lambda row: row.oldest_unsettled_at or datetime.max.replace(tzinfo=UTC)),
}
SORTS: Final = dict(KEYS.values())


def ordered(rows: list[Row], sort: str) -> list[Row]:
    """Rows by a column, the greatest first; names break ties."""
    return sorted(sorted(rows, key=lambda row: row.name), key=SORTS[sort])
