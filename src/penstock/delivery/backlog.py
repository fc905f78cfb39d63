"""A survey of what waits in a group: for each message that is not settled, what holds it up, and its key.

It is taken in slices, so that a large backlog does not hold up everybody else: `survey_slice` looks at some messages
and answers with columns, which `Survey` adds up without the shard. Between two slices work goes on: the counts are
those of a moment that lasts as long as the survey. The reasons are those of `inspection.why`, in the same order.

Where all messages of a partition wait for the same reason, counters are enough, and nothing is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.batch.layout import DUE
from penstock.delivery.core import DeliveryState
from penstock.delivery.entries import Int64s
from penstock.delivery.group import DEFAULT, Group
from penstock.delivery.keys import rebuild_keys
from penstock.delivery.log import Extent
from penstock.delivery.membership import State
from penstock.delivery.phases import FRESH, LEASED, READY, SETTLED, WAITING
from penstock.delivery.progress import Progress
from penstock.delivery.rate_limits import QUEUE

SLICE: Final = 20_000  # messages that are looked at in one hold of the lock
IDLE_US: Final = 60_000_000  # after which a group that nobody leases from has no consumer
CODES: Final = (
    "", "leased", "paused", "retry", "not_due", "window", "held_by_order", "held_by_key", "limited_by_key", "key_rate",
    "queue_rate", "rebalancing", "owned", "no_consumer", "in_line",
)  # fmt: skip
CODE: Final = {name: index for index, name in enumerate(CODES)}
Keys = NDArray[np.uint32]
Codes = NDArray[np.uint8]
Bools = NDArray[np.bool_]


class Place(NamedTuple):
    """Where the next slice begins."""

    partition: int = 0
    offset: int = 0


class Rows(NamedTuple):
    """Messages of one partition that are not settled: columns of one length, the offsets ascending."""

    partition: int
    offsets: Int64s
    codes: Codes
    keys: Keys  # hashes; 0 for none
    is_fresh: Bools  # nobody has looked at it yet
    is_waiting: Bools  # for its next attempt


NO_ROWS: Final = Rows(
    0,
    np.empty(0, np.int64),
    np.empty(0, np.uint8),
    np.empty(0, np.uint32),
    np.empty(0, np.bool_),
    np.empty(0, np.bool_),
)


class Uniform(NamedTuple):
    """Messages of one partition that all wait for the same reason."""

    partition: int
    code: int
    messages: int
    sample: int  # an offset; −1: none


class Slice(NamedTuple):
    """What one hold of the lock has found. `until` has the first instant at which a reason ends by itself, by code."""

    rows: list[Rows]
    uniform: list[Uniform]
    until: dict[int, int]
    next: Place | None  # None: that was all


def survey_slice(
    core: DeliveryState, group: Group, place: Place, now: int, *, with_keys: bool = False, count_max: int = SLICE
) -> Slice:
    """Look at up to `count_max` messages, from a place on. May raise `ColumnNotLoaded`; nothing changes."""
    found = Slice([], [], {}, None)
    looked, number, first = 0, place.partition, place.offset
    full = _full_keys(group)
    while number < len(group.progress):
        progress = group.progress[number]
        if not with_keys and first == 0 and _is_uniform(group, progress):
            _add_uniform(core, group, progress, now, found)
            number, looked = number + 1, looked + 1
        else:
            looker = _Looker(core, group, progress, now, found, full)
            first, seen = looker.look(first, count_max - looked)
            looked += seen + 1
            if first < 0:
                number, first = number + 1, 0
        if looked >= count_max and number < len(group.progress):
            return found._replace(next=Place(number, first))
    return found


def _is_uniform(group: Group, progress: Progress) -> bool:
    """Whether counters say why the messages of a partition wait."""
    if group.is_held:
        return True
    options = group.queue.options
    has_times = group.queue.gated or bool(progress.partition.flags & DUE)
    return not (has_times or group.gate is not None or options.ordering != "none")


def _add_uniform(core: DeliveryState, group: Group, progress: Progress, now: int, found: Slice) -> None:
    rest = progress.unsettled() - progress.leased
    retries = 0 if group.is_held else progress.waiting
    if retries and progress.dues:
        first = min(progress.dues, key=progress.dues.__getitem__)
        found.uniform.append(Uniform(progress.partition.id, CODE["retry"], retries, first))
        _sooner(found.until, CODE["retry"], progress.dues[first])
    rest -= retries
    if rest > 0:
        code, until = _common_code(group, progress, now)
        first, end = progress.fresh_run(progress.cursor, progress.partition.end, 1)
        sample = first if end > first else progress.oldest_offset()
        found.uniform.append(Uniform(progress.partition.id, code, rest, -1 if sample is None else sample))
        _sooner(found.until, code, until)


def _common_code(group: Group, progress: Progress, now: int) -> tuple[int, int]:
    """Why messages wait that nothing of their own holds up, and until when; 0: nobody knows."""
    if group.is_held:
        return CODE["paused"], 0
    buckets = None if group.limits is None else group.limits.queue
    wait = 0 if buckets is None else buckets.wait(QUEUE, 1, now)
    if wait:
        return CODE["queue_rate"], now + wait
    if group.roster is not None and group.roster.seats:
        is_moving = group.roster.slots[progress.partition.id].state is State.REVOKING
        return CODE["rebalancing" if is_moving else "owned"], 0
    return CODE["no_consumer" if has_no_consumer(group, now) else "in_line"], 0


def has_no_consumer(group: Group, now: int) -> bool:
    """Whether nobody leases from a group: nobody ever has, or nobody waits, holds anything or has asked of late."""
    if not group.active_at or group.active_at <= group.queue.created_at:
        return True
    return not (group.waiting or group.leases) and now - group.active_at > IDLE_US


def _sooner(until: dict[int, int], code: int, instant: int) -> None:
    if instant:
        until[code] = min(until.get(code, instant), instant)


def _full_keys(group: Group) -> Keys:
    """Keys with as many in flight as may be. May raise `ColumnNotLoaded`."""
    gate = group.gate
    if gate is None or gate.held_max is None:
        return np.empty(0, np.uint32)
    gate.count_in_flight()
    return np.array([key for key, held in gate.held.items() if held >= gate.held_max], np.uint32)


class _Looker:
    """Looks at messages of one partition, one by one but in columns."""

    def __init__(
        self, core: DeliveryState, group: Group, progress: Progress, now: int, found: Slice, full: Keys
    ) -> None:
        self._group, self._progress, self._found, self._now, self._full = group, progress, found, now, full
        self._partition = progress.partition
        self._options = group.queue.options
        self._reached = max(now, core.wheel.reached)
        self._common, self._common_until = _common_code(group, progress, now)
        if self._options.ordering == "key":
            rebuild_keys(progress)

    def look(self, first: int, room: int) -> tuple[int, int]:
        """Look at messages from an offset on; where to go on, −1 at the end, and how many were looked at."""
        progress, partition = self._progress, self._partition
        looked = 0
        low = sorted(offset for offset in progress.sparse or () if first <= offset < progress.base)[:room]
        for extent, offsets in self._by_extent(np.array(low, np.int64)):
            states = np.array([progress.state_of(offset) for offset in offsets.tolist()], np.uint8)
            self._add(extent, offsets, states)
            looked += len(offsets)
        if looked >= room:
            return low[-1] + 1, looked
        start = max(first, progress.base, partition.start)
        end = min(partition.end, start + room - looked)
        for extent in partition.extents_from(start):
            begin, stop = max(start, extent.first), min(end, extent.end)
            if stop <= begin:
                break
            self._add(extent, np.arange(begin, stop, dtype=np.int64), self._states(begin, stop))
        return (end if end < partition.end else -1), looked + max(0, end - start)

    def _by_extent(self, offsets: Int64s) -> Iterator[tuple[Extent, Int64s]]:
        while len(offsets):
            extent = self._partition.extent_at(int(offsets[0]))
            count = max(1, int(np.searchsorted(offsets, extent.end)))
            if extent.first <= offsets[0] < extent.end:
                yield extent, offsets[:count]
            offsets = offsets[count:]

    def _states(self, first: int, end: int) -> Codes:
        """The phases of [first, end), which is not below the low-water mark."""
        base = self._progress.base
        states = np.full(end - first, FRESH, np.uint8)
        inside = np.frombuffer(bytes(self._progress.states[first - base : end - base]), np.uint8)
        states[: len(inside)] = inside
        return states

    def _add(self, extent: Extent, offsets: Int64s, states: Codes) -> None:
        is_open = states != SETTLED
        if not is_open.any():
            return
        offsets, states = offsets[is_open], states[is_open]
        hashes = extent.key_hashes()
        keys = np.zeros(len(offsets), np.uint32) if hashes is None else hashes[offsets - extent.first]
        codes = self._codes(extent, offsets, states, keys)
        row = Rows(self._partition.id, offsets, codes, keys, states == FRESH, states == WAITING)
        self._found.rows.append(row)

    def _codes(self, extent: Extent, offsets: Int64s, states: Codes, keys: Keys) -> Codes:
        codes = np.full(len(offsets), self._common, np.uint8)
        _sooner(self._found.until, self._common, self._common_until)
        if self._group.is_held:
            codes[states == LEASED] = CODE["leased"]
            return codes
        # The last to be written wins: from the weakest reason to the strongest.
        self._limit(codes, keys)
        self._hold(codes, offsets, keys)
        self._gate(codes, extent, offsets, states)
        is_waiting = states == WAITING
        if is_waiting.any():
            dues = self._progress.dues or {}
            times = [dues[offset] for offset in offsets[is_waiting].tolist() if offset in dues]
            _sooner(self._found.until, CODE["retry"], min(times, default=0))
        codes[is_waiting] = CODE["retry"]
        codes[states == LEASED] = CODE["leased"]
        return codes

    def _limit(self, codes: Codes, keys: Keys) -> None:
        gate = self._group.gate
        if gate is not None and gate.rates is not None:
            waits = {key: gate.wait(key, self._now) for key in np.unique(keys).tolist() if key}
            empty = [key for key, wait in waits.items() if wait]
            if empty:
                codes[np.isin(keys, np.array(empty, np.uint32))] = CODE["key_rate"]
                _sooner(self._found.until, CODE["key_rate"], self._now + min(waits[key] for key in empty))
        if len(self._full):
            codes[np.isin(keys, self._full) & (keys != 0)] = CODE["limited_by_key"]

    def _hold(self, codes: Codes, offsets: Int64s, keys: Keys) -> None:
        progress = self._progress
        if self._options.ordering == "partition":
            first = progress.partition.start if progress.leased else min(progress.dues or (), default=-1)
            if first >= 0:
                codes[offsets > first if not progress.leased else offsets >= first] = CODE["held_by_order"]
        elif self._options.ordering == "key" and progress.parked:
            is_held = np.isin(keys, np.array(list(progress.parked), np.uint32)) & (keys != 0)
            is_held &= ~np.isin(offsets, np.array(list(progress.keys or ()), np.int64))
            codes[is_held] = CODE["held_by_key"]

    def _gate(self, codes: Codes, extent: Extent, offsets: Int64s, states: Codes) -> None:
        dues = np.zeros(len(offsets), np.int64)
        own = extent.dues()
        if own is not None:
            dues = np.where(states == FRESH, own[offsets - extent.first], 0)
        if self._group.queue.gated:
            is_before = self._is_before_the_gate(extent, offsets, states)
            delay = round(self._options.delay_seconds * 1_000_000)
            if delay:
                pushed = extent.pushed_times()[offsets - extent.first]
                dues = np.where(is_before, np.maximum(dues, pushed + delay), dues)
            quiet_at = self._partition.pushed_at + round(self._options.window_seconds * 1_000_000)
            if self._options.window_seconds and quiet_at > self._now:
                codes[is_before] = CODE["window"]
                _sooner(self._found.until, CODE["window"], quiet_at)
        is_early = dues > self._reached
        if is_early.any():
            codes[is_early] = CODE["not_due"]
            _sooner(self._found.until, CODE["not_due"], int(dues[is_early].min()))

    def _is_before_the_gate(self, extent: Extent, offsets: Int64s, states: Codes) -> Bools:
        """Whether the delay and the window of the queue still hold messages back: they do so once."""
        if self._options.ordering == "partition":
            return np.ones(len(offsets), np.bool_)
        progress = self._progress
        cursors = np.full(256, progress.base, np.int64)
        for priority, cursor in (progress.cursors or {}).items():
            cursors[priority] = cursor
        priorities = extent.priorities()
        if priorities is None:
            is_ahead: Bools = offsets >= progress.cursor
        else:
            cursors[DEFAULT] = progress.cursor
            is_ahead = offsets >= cursors[priorities[offsets - extent.first]]
        is_ahead &= states != READY
        return is_ahead


class Tally(msgspec.Struct):
    """Messages with the same reason, and the same key where the reason is about keys."""

    code: str
    key: int  # its hash; 0: none
    count: int
    partition: int
    sample: int  # an offset; −1: none


class Survey:
    """Slices of one group, added up. Nothing here needs the shard."""

    def __init__(self, *, is_key_ordered: bool) -> None:
        self._is_key_ordered = is_key_ordered
        self._rows: list[Rows] = []
        self._uniform: list[Uniform] = []
        self.until: dict[str, int] = {}
        self.examined = 0

    def add(self, part: Slice) -> None:
        self._rows += part.rows
        self._uniform += part.uniform
        self.examined += sum(len(row.offsets) for row in part.rows) + sum(item.messages for item in part.uniform)
        for code, instant in part.until.items():
            name = CODES[code]
            self.until[name] = min(self.until.get(name, instant), instant)

    def tallies(self, keyed: frozenset[str]) -> list[Tally]:
        """How many wait for which reason; for those of `keyed`, for which key. The largest first."""
        found: dict[tuple[int, int], Tally] = {}
        for item in self._uniform:
            _count(found, CODES[item.code], item.code, 0, item.messages, item.partition, item.sample)
        columns = self.columns()
        by_key = np.isin(columns.codes, [CODE[name] for name in keyed])
        groups = (columns.codes.astype(np.int64) << 32) | np.where(by_key, columns.keys, 0)
        values, firsts, counts = np.unique(groups, return_index=True, return_counts=True)
        for value, first, count in zip(values.tolist(), firsts.tolist(), counts.tolist(), strict=True):
            code, where = value >> 32, (int(columns.partitions[first]), int(columns.offsets[first]))
            _count(found, CODES[code], code, value & 0xFFFFFFFF, count, *where)
        found.pop((CODE["leased"], 0), None)  # nobody waits for these
        return sorted(found.values(), key=lambda tally: (-tally.count, tally.code, tally.key))

    def columns(self) -> Columns:
        """All messages that were looked at one by one."""
        rows = [NO_ROWS, *self._rows]
        joined = Columns(
            np.concatenate([np.full(len(row.offsets), row.partition, np.int64) for row in rows]),
            *(np.concatenate([row[index] for row in rows]) for index in range(1, len(Rows._fields))),
        )
        if self._is_key_ordered:
            joined.codes[_is_behind(joined)] = CODE["held_by_key"]
        return joined


class Columns(NamedTuple):
    """`Rows` of several partitions."""

    partitions: Int64s
    offsets: Int64s
    codes: Codes
    keys: Keys
    is_fresh: Bools
    is_waiting: Bools


def _is_behind(columns: Columns) -> Bools:
    """Key order: messages of a key that nobody holds, behind the first of it that nobody has looked at."""
    is_free = columns.is_fresh & (columns.keys != 0)
    where = np.flatnonzero(is_free)
    places = (columns.partitions[where] << 32) | columns.keys[where]
    _, firsts = np.unique(places, return_index=True)
    is_first = np.zeros(len(where), np.bool_)
    is_first[firsts] = True
    is_behind = np.zeros(len(columns.keys), np.bool_)
    is_behind[where[~is_first]] = True
    names = [CODE[name] for name in ("in_line", "no_consumer", "owned", "queue_rate", "key_rate", "rebalancing")]
    return is_behind & np.isin(columns.codes, names)


def _count(
    found: dict[tuple[int, int], Tally], name: str, code: int, key: int, count: int, partition: int, sample: int
) -> None:
    known = found.get((code, key))
    if known is None:
        found[code, key] = Tally(name, key, count, partition, sample)
        return
    known.count += count
    if known.sample < 0:
        known.partition, known.sample = partition, sample
