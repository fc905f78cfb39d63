"""Timers: a hierarchical wheel over arrays, and the delays beyond its horizon.

Due times go in, owners and offsets come out. Level 0 of the wheel has 256 slots of one tick (1.024 ms); each of the
five levels above it has 64 slots, each as wide as the whole level below; what lies beyond about nine years waits in a
list of its own. A slot holds array chunks, or tuples for single timers, so a million timers are a few arrays. Adding is
O(1) per chunk; a timer is moved down at most five times. A timer never fires early: its tick is rounded up, and
`advance(now)` fires whole ticks that have passed. `reached` is the instant up to which everything has fired.

The wheel holds at most about `timers_near_max` delays of a queue: those due first. Later ones cost nothing; they are in
the extents, in memory or in segments. Before the horizon is reached, the due times of all extents are read again and
the next share is put into the wheel. So ten million messages delayed over a year take the memory of one share.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from penstock import limits
from penstock.batch.layout import DUE
from penstock.delivery.entries import FOREVER, Int64s

if TYPE_CHECKING:
    from penstock.delivery.core import DeliveryState
    from penstock.delivery.log import Extent, Partition, Queue

TICK_BITS: Final = 10
LEVEL_BITS: Final = (8, 6, 6, 6, 6, 6)
SHIFTS: Final = tuple(sum(LEVEL_BITS[:level]) for level in range(len(LEVEL_BITS)))
SPANS: Final = tuple(1 << (shift + bits) for shift, bits in zip(SHIFTS, LEVEL_BITS, strict=True))
CHUNKS_MAX: Final = 64  # a slot's chunks are joined when there are more

TIMER: Final = np.dtype([("due", "<i8"), ("offset", "<i8"), ("owner", "<i4")])
Timers = NDArray[np.void]


@dataclass(slots=True, eq=False)
class Slot:
    """Timers of one slot, unsorted."""

    singles: list[tuple[int, int, int]] = field(default_factory=list)
    chunks: list[Timers] = field(default_factory=list)

    def add(self, timers: Timers) -> None:
        self.chunks.append(timers)
        if len(self.chunks) > CHUNKS_MAX:
            self.chunks = [np.concatenate(self.chunks)]

    def timers(self) -> Timers:
        chunks = list(self.chunks)
        if self.singles:
            chunks.append(np.array(self.singles, TIMER))
        return np.concatenate(chunks) if chunks else np.empty(0, TIMER)


class TimerWheel:
    """Timers by the instant at which they are due. All instants are µs."""

    def __init__(self, now: int) -> None:
        self.tick = now >> TICK_BITS  # every tick up to and including this one has fired
        self.count = 0
        self._slots: list[dict[int, Slot]] = [{} for _ in LEVEL_BITS]
        self._beyond = Slot()

    @property
    def reached(self) -> int:
        """Everything due at or before this instant has fired."""
        return self.tick << TICK_BITS

    def add(self, due: int, owner: int, offset: int) -> None:
        """One timer."""
        self.count += 1
        self._slot(-(-due >> TICK_BITS)).singles.append((due, offset, owner))

    def add_many(self, dues: Int64s, owner: int, offsets: Int64s) -> None:
        """Many timers of one owner."""
        timers = np.empty(len(dues), TIMER)
        timers["due"], timers["offset"], timers["owner"] = dues, offsets, owner
        self.put(timers)

    def put(self, timers: Timers) -> None:
        """Timers made elsewhere."""
        self.count += len(timers)
        self._position(timers)

    def dues_of(self, owners: set[int]) -> Int64s:
        """Due times of all timers of some owners."""
        numbers = np.array(sorted(owners), np.int32)
        dues = [timers["due"][np.isin(timers["owner"], numbers)] for timers in map(Slot.timers, self._all_slots())]
        return np.concatenate(dues)

    def next_at(self) -> int | None:
        """No timer fires before this instant; None when there is none."""
        if self.count == 0:
            return None
        starts = [(min(slots) << shift) << TICK_BITS for slots, shift in zip(self._slots, SHIFTS, strict=True) if slots]
        return min(starts) if starts else (self.tick + SPANS[-1]) << TICK_BITS

    def advance(self, now: int) -> list[tuple[int, Int64s]]:
        """Fire what is due: (owner, offsets in due order), owners in the order of their first timer."""
        target = now >> TICK_BITS
        if target <= self.tick:
            return []
        if not self.count:
            self.tick = target
            return []
        due = self._collect(target)
        self.tick = target
        if not due:
            return []
        fired = np.concatenate(due)
        if not len(fired):
            return []
        fired = fired[np.lexsort((fired["offset"], fired["due"]))]
        self.count -= len(fired)
        return _by_owner(fired)

    def drop_after(self, instant: int, owners: set[int]) -> int:
        """Forget the timers of some owners that are due after an instant; returns how many."""
        dropped = 0
        numbers = np.array(sorted(owners), np.int32)
        for slot in self._all_slots():
            timers = slot.timers()
            keep = (timers["due"] <= instant) | ~np.isin(timers["owner"], numbers)
            slot.singles, slot.chunks = [], [timers[keep]]
            dropped += int((~keep).sum())
        self.count -= dropped
        return dropped

    def _all_slots(self) -> list[Slot]:
        return [slot for slots in self._slots for slot in slots.values()] + [self._beyond]

    def _collect(self, target: int) -> list[Timers]:
        """Empty every slot that begins by `target`; put back what is not due yet."""
        due: list[Timers] = []
        back: list[Timers] = []
        for slots, shift in zip(self._slots, SHIFTS, strict=True):
            for index in [index for index in slots if index << shift <= target]:
                timers = slots.pop(index).timers()
                now = -(-timers["due"] >> TICK_BITS) <= target
                due.append(timers[now])
                back.append(timers[~now])
        if (self.tick >> SHIFTS[-1]) != (target >> SHIFTS[-1]):
            back.append(self._beyond.timers())
            self._beyond = Slot()
        self.tick = target
        for timers in back:
            if len(timers):
                self._position(timers)
        return due

    def _position(self, timers: Timers) -> None:
        ticks = np.maximum(-(-timers["due"] >> TICK_BITS), self.tick + 1)
        level = np.searchsorted(np.array(SPANS), ticks - self.tick, side="right")
        for number in np.unique(level).tolist():
            chosen = level == number
            if number == len(SPANS):
                self._beyond.add(timers[chosen])
            else:
                self._spread(timers[chosen], ticks[chosen] >> SHIFTS[number], self._slots[number])

    def _spread(self, timers: Timers, indexes: Int64s, slots: dict[int, Slot]) -> None:
        order = np.argsort(indexes, kind="stable")
        timers, indexes = timers[order], indexes[order]
        for start, end in _runs(indexes):
            slots.setdefault(int(indexes[start]), Slot()).add(timers[start:end].copy())

    def _slot(self, tick: int) -> Slot:
        tick = max(tick, self.tick + 1)
        for slots, shift, span in zip(self._slots, SHIFTS, SPANS, strict=True):
            if tick - self.tick < span:
                return slots.setdefault(tick >> shift, Slot())
        return self._beyond


def _runs(values: NDArray[np.integer]) -> Iterator[tuple[int, int]]:
    """Where the runs of equal values begin and end."""
    return pairwise([0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)])


def _by_owner(fired: Timers) -> list[tuple[int, Int64s]]:
    owners = fired["owner"]
    if bool((owners == owners[0]).all()):
        return [(int(owners[0]), fired["offset"].copy())]
    order = np.argsort(owners, kind="stable")
    grouped = fired[order]
    runs = sorted((int(order[start]), start, end) for start, end in _runs(grouped["owner"]))
    return [(int(grouped["owner"][start]), grouped["offset"][start:end].copy()) for _, start, end in runs]


MARGIN: Final = 60_000_000  # µs before the horizon at which the next share is fetched


# delays beyond the horizon


def has_too_many_delays(queue: Queue) -> bool:
    """Whether the wheel holds twice the share of this queue."""
    return queue.near > 2 * limits.timers_near_max


def drop_far_delays(core: DeliveryState, queue: Queue) -> None:
    """Keep the share that is due first; the rest is read again later."""
    owners = _owners(queue)
    dues = core.wheel.dues_of(owners)
    queue.horizon = int(np.partition(dues, limits.timers_near_max)[limits.timers_near_max])
    queue.near -= core.wheel.drop_after(queue.horizon, owners)


def needs_delays(queue: Queue, now: int) -> bool:
    """Whether the next share must be fetched now."""
    return queue.horizon < FOREVER and now + MARGIN > queue.horizon


def delayed_extents(queue: Queue) -> Iterator[tuple[Partition, Extent]]:
    """Extents that may hold delays; a sealed one says when its last is due."""
    for partition in queue.partitions:
        if partition.flags & DUE:
            for extent in partition.extents:
                if extent.flags & DUE:
                    yield partition, extent


def nearest_delays(after: int, columns: Iterable[tuple[int, int, Int64s]]) -> tuple[Timers, int]:
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


def add_delays(core: DeliveryState, queue: Queue, timers: Timers, horizon: int) -> None:
    """Put a share into the wheel; what was pushed meanwhile and lies beyond it goes out again."""
    if horizon < FOREVER:
        queue.near -= core.wheel.drop_after(horizon, _owners(queue))
    queue.near += len(timers)
    queue.horizon = horizon
    core.wheel.put(timers)


def _owners(queue: Queue) -> set[int]:
    return {partition.timer for partition in queue.partitions if partition.timer >= 0}
