"""One group's progress through one partition: what is leased, waiting, settled.

Nothing here waits, reads a clock or touches a file. Between the low-water mark `base` (every offset under it is
settled) and the highest touched offset there is one byte per offset in `states`; beyond that everything is fresh and
costs nothing. Only retried messages have state of their own (`attempts`, `dues`), and only offsets that came back from
under the low-water mark by a redrive are in `sparse`.

`states` and the counters are the truth and change through `mark_leased`, `settle`, `revive` and `reset` alone, which
apply entries. `cursor`, `cursors`, `offered`, `keys` are indexes over it, rebuilt at open.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock import limits
from penstock.delivery.entries import Int64s, Span
from penstock.delivery.phases import AFTER, COUNTED, DEAD, DROPPABLE, FRESH, LEASABLE, LEASED, READY, SETTLED, WAITING
from penstock.model import Outcome

if TYPE_CHECKING:
    from penstock.delivery.group import Group
    from penstock.delivery.log import Partition
    from penstock.delivery.ranges import Ranges

ACKED: Final = int(Outcome.ACKED)
SNOOZED: Final = int(Outcome.SNOOZED)
_SETTLED_RUN: Final = re.compile(rb"\x04*")
_FRESH_RUN: Final = re.compile(rb"\x00*")
_BYTE: Final = tuple(bytes([n]) for n in range(5))


@dataclass(slots=True, eq=False)
class Attempts:
    """How often a message was tried, and when first; of those, how many attempts were lost with their worker.

    `outcome`, `at` and `error` say how the last delivery ended that left it waiting. The count of a message that was
    only snoozed is 0.
    """

    count: int
    first_at: int
    lost: int = 0
    outcome: int = 0  # 0: not known, as in a directory of an older version
    at: int = 0
    error: str = ""


class Progress:
    """What one group has done of one partition. Offsets are absolute; `states[0]` belongs to offset `base`."""

    __slots__ = (
        "acked",
        "attempts",
        "base",
        "cursor",
        "cursors",
        "dead",
        "dead_offsets",
        "dropped",
        "dues",
        "group",
        "keys",
        "leased",
        "offered",
        "parked",
        "parked_count",
        "partition",
        "sparse",
        "start",
        "states",
        "timer",
        "waiting",
    )

    def __init__(self, group: Group, partition: Partition, start: int) -> None:
        self.group = group
        self.partition = partition
        self.timer = -1
        self.offered = 0  # bit p: the ring of lane p holds this progress
        self.reset(start)

    def reset(self, start: int) -> None:
        """Forget everything and begin at `start`: creation and seek."""
        self.start = start  # the account begins here: end − start is what conservation adds up to
        self.base = start
        self.states = bytearray()
        self.sparse: dict[int, int] | None = None
        self.attempts: dict[int, Attempts] | None = None
        self.dues: dict[int, int] | None = None
        self.dead_offsets: set[int] | None = None
        self.acked = 0
        self.dead = 0
        self.dropped: dict[int, int] | None = None
        self.leased = 0
        self.waiting = 0
        self.keys: dict[int, int] | None = None  # key order: offset held → key hash
        for first, end in self.partition.lost:
            if end > start:
                self.settle(Span(self.partition.id, max(first, start), end - max(first, start)), Outcome.LOST, 0)
        if self.partition.removed:
            self.remove(self.partition.removed.after(start))
        self.reset_indexes()

    def reset_indexes(self) -> None:
        """Start looking from the low-water mark again; the states say what to skip."""
        self.cursor = self.base  # next offset of the default priority to look at
        self.cursors: dict[int, int] | None = None  # the same for every other priority
        self.keys = None
        self.parked: dict[int, deque[int]] | None = None  # key order: key hash → offsets behind the held one
        self.parked_count = 0

    # looking

    def state_of(self, offset: int) -> int:
        """The phase of one offset of this partition."""
        index = offset - self.base
        if index < 0:
            return SETTLED if self.sparse is None else self.sparse.get(offset, SETTLED)
        return self.states[index] if index < len(self.states) else FRESH

    def unsettled_between(self, first: int, end: int) -> int:
        """How many offsets of [first, end) are not settled."""
        sparse = sum(first <= offset < end for offset in self.sparse or ())
        first, end = max(first, self.base) - self.base, max(end, self.base) - self.base
        return sparse + max(0, end - first) - self.states.count(SETTLED, first, end)

    def fresh_run(self, first: int, end: int, count_max: int) -> tuple[int, int]:
        """The first run of fresh offsets in [first, end), at most `count_max` long: (first, end), equal when none."""
        known = self.base + len(self.states)
        if first < known:
            first, end = self._fresh_between(first, known, end)
        until = first + count_max
        if until > end:
            until = end
        return first, until if until > first else first

    def _fresh_between(self, first: int, known: int, end: int) -> tuple[int, int]:
        """The first fresh run among the touched offsets [first, known), or what follows them."""
        # The cursor may be under the low-water mark: what lies between them was settled without being leased.
        index = self.states.find(_BYTE[FRESH], max(0, first - self.base))
        if index < 0:
            return known, end
        match = _FRESH_RUN.match(self.states, index)
        if match is not None and match.end() < len(self.states):
            end = min(end, self.base + match.end())
        return self.base + index, end

    def fresh_mask(self, first: int, end: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Which offsets of [first, end) are fresh."""
        mask = np.zeros(end - first, np.bool_)
        known = self.base + len(self.states)
        low = max(first, self.base)
        if low < min(end, known):
            # A copy: a view would forbid growing the bytearray while the mask lives.
            piece = np.frombuffer(bytes(self.states[low - self.base : end - self.base]), np.uint8)
            mask[low - first : low - first + len(piece)] = piece == FRESH
        if end > max(known, first):
            mask[max(known, first) - first :] = True
        return mask

    def waiting_among(self, offsets: Int64s) -> list[int]:
        """Those of some ascending offsets that nobody has settled or holds."""
        low = int(np.searchsorted(offsets, self.base))
        known = int(np.searchsorted(offsets, self.base + len(self.states)))
        sparse = self.sparse or {}
        under = (
            [offset for offset in offsets[:low].tolist() if sparse.get(offset, SETTLED) in DROPPABLE] if sparse else []
        )
        inside = offsets[low:known]
        if len(inside):
            # A copy: a view would forbid growing the bytearray while it lives.
            states = np.frombuffer(bytes(self.states), np.uint8)[inside - self.base]
            inside = inside[(states != SETTLED) & (states != LEASED)]
        return [*under, *inside.tolist(), *offsets[known:].tolist()]

    def offsets_in(self, phase: int) -> list[int]:
        """The offsets that are in one phase, `FRESH` excepted, ascending."""
        low = sorted(offset for offset, state in (self.sparse or {}).items() if state == phase)
        if _BYTE[phase] not in self.states:
            return low
        # A copy: a view would forbid growing the bytearray while it lives.
        inside = np.flatnonzero(np.frombuffer(bytes(self.states), np.uint8) == phase) + self.base
        return [*low, *inside.tolist()]

    def all_leased(self, offsets: Sequence[int]) -> bool:
        """Whether every one of these is in someone's hands."""
        low = offsets[0] - self.base
        if isinstance(offsets, range) and low >= 0:
            return self.states.count(_BYTE[LEASED], low, low + len(offsets)) == len(offsets)
        if low >= 0:
            inside = np.array(offsets, np.int64) - self.base
            return bool((np.frombuffer(self.states, np.uint8)[inside] == LEASED).all())
        return all(self.state_of(offset) == LEASED for offset in offsets)

    def unsettled(self) -> int:
        """Messages of this partition that the group has not finished."""
        return self.partition.end - self.start - self.acked - self.dead - self.dropped_count()

    def oldest_offset(self) -> int | None:
        """The lowest offset that is not settled, be it one that was brought back; None when all are settled."""
        if self.sparse:
            return min(self.sparse)
        return self.base if self.base < self.partition.end else None

    def dropped_count(self) -> int:
        return sum(self.dropped.values()) if self.dropped else 0

    def floor(self, *, may_redrive: bool) -> int:
        """The lowest offset that this group may still need: retention stops here."""
        floor = self.base
        if self.sparse:
            floor = min(floor, *self.sparse)
        if self.dead_offsets and may_redrive:
            floor = min(floor, *self.dead_offsets)
        return floor

    def attempt_next(self, offset: int) -> int:
        """The number of the delivery that would come next."""
        tried = None if self.attempts is None else self.attempts.get(offset)
        return 1 if tried is None else tried.count + 1

    def lost_of(self, offset: int) -> int:
        """How many attempts were lost with their worker."""
        tried = None if self.attempts is None else self.attempts.get(offset)
        return 0 if tried is None else tried.lost

    # applying entries

    def count_lost(self, span: Span) -> None:
        """The last attempts at these were lost with their worker."""
        attempts = self.attempts or {}
        for offset in span.offset_array().tolist() if attempts else ():
            if offset in attempts:
                attempts[offset].lost += 1

    def mark_leased(self, span: Span) -> None:
        """A lease took these."""
        if self.waiting and (waiting := self._count(span, WAITING)):
            # Only in replay: time made them ready before the lease, and time is not in the journal.
            self.waiting -= waiting
            self._forget_dues(span)
        self.leased += span.count
        self.group.delivered += span.count
        if span.first == self.base + len(self.states) and not span.offsets:
            self.states += _BYTE[LEASED] * span.count
        else:
            self._write(span, LEASED)

    def settle(self, span: Span, outcome: int, leased_at: int, at: int = 0, error: str = "") -> int:
        """End deliveries or waiting messages; returns how many messages were finished by it."""
        if outcome == ACKED and span.first == self.base and span.count == self.leased == len(self.states):
            # All that was touched is leased and acknowledged now: the usual case.
            self.base += span.count
            self.states.clear()
            self.leased = 0
            self.acked += span.count
            if self.attempts:
                self._forget(span)
            return span.count
        after = AFTER[outcome]
        if after == SETTLED:
            return self._finish(span, outcome)
        if outcome in COUNTED:
            self._count_attempts(span, leased_at or at)
        self._uncount(span)
        self._write(span, int(after))
        if after == WAITING:
            self._set_dues(span)
            self._note_ending(span, outcome, leased_at or at, at, error[: limits.retry_error_characters_max])
        return 0

    def _note_ending(self, span: Span, outcome: int, leased_at: int, at: int, error: str) -> None:
        """How the last deliveries of these ended, which wait now. A snooze keeps the error of the failure before it."""
        self.attempts = self.attempts or {}
        for offset in span.offset_array().tolist():
            tried = self.attempts.get(offset)
            if tried is None:
                tried = self.attempts[offset] = Attempts(0, leased_at)
            tried.outcome, tried.at = outcome, at
            if outcome != SNOOZED:
                tried.error = error

    def revive(self, span: Span, was: int = 0) -> int:
        """What died, ended as `was`, or waits for its next attempt comes back: attempts reset, ready at its due time.

        Returns how many messages are unfinished again.
        """
        finished = self._count(span, SETTLED)
        self._uncount(span)
        self._forget(span)
        self._write(span, WAITING)
        self._set_dues(span)
        if was:
            self.dropped = self.dropped or {}
            self.dropped[was] = self.dropped.get(was, 0) - finished
        else:
            self.dead -= finished
        if self.dead_offsets is not None:
            self.dead_offsets.difference_update(span.offset_array().tolist())
        return finished

    def remove(self, ranges: Ranges) -> tuple[int, Int64s]:
        """Compaction removed these: whatever nobody has settled or holds is settled.

        Returns how many messages were finished by it, and those of them that were not fresh.
        """
        finished, touched = 0, np.empty(0, np.int64)
        if self.sparse:
            brought_back = [offset for offset in sorted(self.sparse) if offset in ranges]
            brought_back = [offset for offset in brought_back if self.sparse[offset] != LEASED]
            touched = np.array(brought_back, np.int64)
            if brought_back:
                finished += self._finish(span_of(self.partition.id, brought_back), Outcome.COMPACTED)
        ranges = ranges.after(self.base)
        if ranges and not self.states and int(ranges.firsts[0]) == self.base:
            count = int(ranges.ends[0]) - self.base
            finished += self._finish(Span(self.partition.id, self.base, count), Outcome.COMPACTED)
            ranges = ranges.after(self.base)
        if not ranges:
            return finished, touched
        hit, other = self._settle_ranges(ranges)
        if hit:
            self.dropped = self.dropped or {}
            self.dropped[Outcome.COMPACTED] = self.dropped.get(Outcome.COMPACTED, 0) + hit
        if len(other) and (self.attempts or self.dues):
            self._forget(span_of(self.partition.id, other.tolist()))
        if self.states and self.states[0] == SETTLED:
            self._raise_base()
        return finished + hit, np.concatenate([touched, other])

    def _settle_ranges(self, ranges: Ranges) -> tuple[int, Int64s]:
        """Mark ranges from `base` on as settled; returns how many, and those that were waiting, ready or held a key."""
        low, high = int(ranges.firsts[0]) - self.base, int(ranges.ends[-1]) - self.base
        if high > len(self.states):
            self.states.extend(bytes(high - len(self.states)))
        # A copy: a view would forbid growing the bytearray while somebody, a profiler say, keeps this frame.
        states = np.frombuffer(self.states[low:high], np.uint8)
        hit = ranges.mask(self.base + low, self.base + high)
        hit &= (states != SETTLED) & (states != LEASED)
        self.waiting -= int((hit & (states == WAITING)).sum())
        is_indexed = states != FRESH
        for offset in self.keys or ():
            if 0 <= offset - self.base - low < len(states):
                is_indexed[offset - self.base - low] = True
        other = np.flatnonzero(hit & is_indexed)
        states[hit] = SETTLED
        self.states[low:high] = states.tobytes()
        return int(np.count_nonzero(hit)), other + self.base + low

    def forget_dead(self, start: int) -> None:
        """Retention took what lies under `start`: nothing of it can be redriven."""
        if self.dead_offsets:
            self.dead_offsets = {offset for offset in self.dead_offsets if offset >= start}

    def forget_removed_dead(self, ranges: Ranges) -> None:
        """Compaction took these: what died of them cannot be redriven."""
        if self.dead_offsets:
            self.dead_offsets = {offset for offset in self.dead_offsets if offset not in ranges}

    def release_key(self, offset: int) -> int | None:
        """Key order: `offset` no longer holds its key; returns the parked offset whose turn it is."""
        if self.keys is None or self.parked is None:
            return None
        key = self.keys.pop(offset, None)
        if key is None:
            return None
        behind = self.parked[key]
        while behind:
            following = behind.popleft()
            self.parked_count -= 1
            if self.state_of(following) in LEASABLE:
                self.keys[following] = key
                return following
        del self.parked[key]
        return None

    def become_ready(self, offsets: Iterable[int]) -> None:
        """Their due time came. Time did it, not an entry: after a restart the due time is looked at again."""
        assert self.dues is not None
        for offset in offsets:
            del self.dues[offset]
            self._write_one(offset, READY)
            self.waiting -= 1

    def _finish(self, span: Span, outcome: int) -> int:
        if not self.states and span.first == self.base and not span.offsets:  # nobody has touched them
            finished = span.count
            self.base += finished
        else:
            if self._count(span, LEASED) == span.count:
                finished = span.count
                self.leased -= finished
            else:
                finished = span.count - self._count(span, SETTLED)
                self._uncount(span)
            self._write(span, SETTLED)
        if outcome == Outcome.ACKED:
            self.acked += finished
        elif outcome in DEAD:
            self.dead += finished
            self.dead_offsets = set() if self.dead_offsets is None else self.dead_offsets
            self.dead_offsets.update(span.offset_array().tolist())
        else:
            self.dropped = self.dropped or {}
            self.dropped[outcome] = self.dropped.get(outcome, 0) + finished
        if self.attempts or self.dues:
            self._forget(span)
        if self.states and self.states[0] == SETTLED:
            self._raise_base()
        return finished

    def _raise_base(self) -> None:
        match = _SETTLED_RUN.match(self.states)
        settled = match.end() if match else 0
        self.base += settled
        del self.states[:settled]

    def _forget_dues(self, span: Span) -> None:
        assert self.dues is not None
        for offset in span.offset_array().tolist():
            self.dues.pop(offset, None)

    def _forget(self, span: Span) -> None:
        for offset in span.offset_array().tolist():
            if self.attempts:
                self.attempts.pop(offset, None)
            if self.dues:
                self.dues.pop(offset, None)

    def _count_attempts(self, span: Span, at: int) -> None:
        self.attempts = self.attempts or {}
        for offset in span.offset_array().tolist():
            tried = self.attempts.get(offset)
            if tried is None:
                self.attempts[offset] = Attempts(1, at)
            else:
                tried.count += 1

    def _set_dues(self, span: Span) -> None:
        self.dues = {} if self.dues is None else self.dues
        self.dues.update(zip(span.offset_array().tolist(), span.due_array().tolist(), strict=True))
        self.waiting += span.count

    def _uncount(self, span: Span) -> None:
        """Take the span out of the counters of the phases it leaves."""
        self.leased -= self._count(span, LEASED)
        if self.waiting:
            self.waiting -= self._count(span, WAITING)

    def _count(self, span: Span, phase: int) -> int:
        low = span.first - self.base
        if not span.offsets and low >= 0:
            return self.states.count(_BYTE[phase], low, low + span.count)
        offsets = span.offset_array()
        if int(offsets.min()) >= self.base and int(offsets.max()) < self.base + len(self.states):
            return int((np.frombuffer(self.states, np.uint8)[offsets - self.base] == phase).sum())
        return sum(self.state_of(offset) == phase for offset in offsets.tolist())

    def _write(self, span: Span, phase: int) -> None:
        low = span.first - self.base
        states = self.states
        if not span.offsets and low >= 0:
            high = low + span.count
            if low > len(states):
                states.extend(bytes(low - len(states)))
            states[low:high] = _BYTE[phase] * span.count
            return
        self._write_scattered(span.offset_array(), phase)

    def _write_scattered(self, offsets: Int64s, phase: int) -> None:
        inside = offsets[offsets >= self.base] - self.base
        if len(inside):
            highest = int(inside.max()) + 1
            if highest > len(self.states):
                self.states.extend(bytes(highest - len(self.states)))
            np.frombuffer(self.states, np.uint8)[inside] = phase
        for offset in offsets[offsets < self.base].tolist():
            self._write_one(offset, phase)

    def _write_one(self, offset: int, phase: int) -> None:
        index = offset - self.base
        if index >= 0:
            self.states[index] = phase
        elif phase == SETTLED:
            if self.sparse:
                self.sparse.pop(offset, None)
        else:
            self.sparse = self.sparse or {}
            self.sparse[offset] = phase


def span_of(partition: int, offsets: Sequence[int] | range, attempt: int = 1) -> Span:
    """A span over some offsets, in the shorter of its two forms."""
    if isinstance(offsets, range):
        return Span(partition, offsets.start, len(offsets), attempt)
    count = len(offsets)
    if count == 1:
        return Span(partition, offsets[0], 1, attempt)
    array = np.asarray(offsets, np.int64)
    if bool((np.diff(array) == 1).all()):
        return Span(partition, int(array[0]), count, attempt)
    return Span(partition, int(array[0]), count, attempt, array.tobytes())
