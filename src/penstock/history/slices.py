"""What to read of the history, and the slices that the work of reading is divided into.

All of these are small values that can be sent to another process. A slice says where its rows are and, beside that,
which rows they are: files may be sealed or rewritten before they are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from penstock import limits

BYTES_TARGET: Final = 128 * limits.MIB


class OffsetRange(msgspec.Struct, frozen=True):
    """Messages of one partition: the offsets [first, end)."""

    queue: str
    partition: str
    first: int
    end: int


class Limits(msgspec.Struct, frozen=True):
    """Bounds that rows of a slice must keep: `since` ≤ time < `until` in µs, priorities from least to greatest.

    The time is `pushed_at` of messages, `settled_at` of events and `at` of tasks.
    """

    since: int | None = None
    until: int | None = None
    priority_min: int | None = None
    priority_max: int | None = None

    def narrowed(self, first_at: int, last_at: int) -> Limits:
        """These bounds, and no further than from one instant to the other, both included."""
        since = first_at if self.since is None else max(self.since, first_at)
        until = last_at + 1 if self.until is None else min(self.until, last_at + 1)
        return msgspec.structs.replace(self, since=since, until=until)

    def meets(self, first_at: int, last_at: int) -> bool:
        """Whether something between these instants may be within bounds."""
        return (self.since is None or last_at >= self.since) and (self.until is None or first_at < self.until)

    def meets_priority(self, least: int, greatest: int) -> bool:
        """Whether a message of a priority between these may be within bounds."""
        return (self.priority_min is None or greatest >= self.priority_min) and (
            self.priority_max is None or least <= self.priority_max
        )

    @property
    def has_priority(self) -> bool:
        return self.priority_min is not None or self.priority_max is not None


NO_LIMITS: Final = Limits()


class Run(msgspec.Struct, frozen=True, gc=False):
    """Rows of one row group: the offsets [first, first + count) of a partition, from `row` on.

    With gaps, they are among the `stored` rows from `row` on, and are found by their offsets.
    """

    row_group: int
    row: int
    partition: int
    first: int
    count: int
    stored: int = 0

    @property
    def rows(self) -> int:
        """How many there are; with gaps, at most."""
        return min(self.stored, self.count) if self.stored else self.count


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """Some rows of one file."""

    table: str  # messages, events or tasks
    file: str
    rows: int  # without regard to `limits`; for events an estimate
    bytes: int
    is_tail: bool  # of the journal; otherwise of a segment
    limits: Limits = NO_LIMITS
    queues: dict[int, str] = {}  # incarnation → name of the queues that are meant; of messages there is one
    partitions: dict[int, tuple[str, int, int]] = {}  # of messages: partition id → its name, offsets [first, end)
    runs: Sequence[Run] = ()  # of messages in a segment
    start: int = 0  # of a journal file: the bytes [start, end)
    end: int = 0
    sequences: tuple[int, int] = (0, 0)  # of events and tasks: the first and the last frame that they may be from


def pack(slices: Sequence[Slice], bytes_target: int = BYTES_TARGET, count_max: int | None = None) -> list[list[Slice]]:
    """Slices in as many lots as make about `bytes_target` each, in order; at most `count_max` lots."""
    total = sum(part.bytes for part in slices)
    if count_max is not None:
        bytes_target = max(bytes_target, -(-total // count_max))
    lots: list[list[Slice]] = []
    filled = bytes_target
    for part in slices:
        # A slice goes to the next lot when more than half of it would be over.
        if filled + part.bytes // 2 >= bytes_target and not (count_max is not None and len(lots) >= count_max):
            lots.append([])
            filled = 0
        lots[-1].append(part)
        filled += part.bytes
    return lots
