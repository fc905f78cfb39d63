"""Keeps the roll-ups: a slice a second, and from them minutes, hours and days.

What is written is complete: an hour is written when it is over. What a broker did not get to, because it was stopped or
killed, the next one makes up for from the minutes on disk (`_catch_up`); so a crash costs at most the seconds since the
last full minute. Slices with the same beginning are added up by whoever reads them: a minute in which a broker was
restarted has two.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Final

from penstock.rollups.files import RollupFiles, Store
from penstock.rollups.sampler import Sampler
from penstock.rollups.slices import Slice, merged
from penstock.rollups.tiers import TIERS, Tier
from penstock.shard.shard import Shard
from penstock.shard.upkeep import Sleeper

SECOND, MINUTE, HOUR, DAY = TIERS
_ROLLED: Final = ((MINUTE, HOUR), (HOUR, DAY))


class Recorder:
    """The roll-ups of one shard. `start` gives it a thread; without one it only answers for what was recorded."""

    def __init__(self, shard: Shard, store: Store) -> None:
        self._shard = shard
        self._files = RollupFiles(store)
        self.sampler = Sampler(shard)
        self.sleeper = Sleeper("recorder", self.tick, shard.is_over)
        self._lock = threading.Lock()
        self._last: int | None = None  # the second of the last look
        self._seconds: list[Slice] = []  # of the minute that is under way
        self._open: dict[Tier, Slice] = {}  # the hour and the day that are under way, up to the last full minute
        self._names: dict[int, str] = {}  # of the rows in `_seconds` and `_open`

    def start(self) -> None:
        self.sleeper.start()

    @property
    def is_recording(self) -> bool:
        return self._last is not None

    def stop(self) -> None:
        """End the thread, and keep what there is of the minute under way."""
        self.sleeper.stop()
        with self._lock:
            if self._seconds:
                self._close_minute()

    def tick(self) -> float:
        """Record the second that is over; returns seconds until the next is."""
        with self._lock:
            now = self._shard.clock.now()
            second = now // 1_000_000
            if self._last is None:
                self._begin(second)
            elif second != self._last:
                self._last = second
                self._record(second - 1)
        return 1.0 - self._shard.clock.now() % 1_000_000 / 1e6 + 0.001

    def _begin(self, second: int) -> None:
        self._catch_up(second)
        self.sampler.look(second, everything=True)  # from here on there are differences
        self._last = second

    def _record(self, at: int) -> None:
        if self._seconds and _of(MINUTE, self._seconds[0].at) != _of(MINUTE, at):
            self._close_minute()
        # The first of a minute has every queue, so that a minute can be read without the one before it.
        self._seconds.append(self.sampler.look(at, everything=not self._seconds))
        self._names |= self.sampler.names

    # rolling up

    def _close_minute(self) -> None:
        seconds, self._seconds = self._seconds, []
        names, self._names = self._names, dict(self.sampler.names)
        minute = merged(_of(MINUTE, seconds[0].at), seconds)
        assert minute is not None
        # First in memory: when the disk is full, the hour still has it.
        over = self._roll_up(HOUR, minute)
        if self._shard.journal.disk_full:
            return
        self._files.append(SECOND, seconds, names)
        self._files.append(MINUTE, [minute], names)
        for tier, part in over:
            self._files.append(tier, [part], names)
        self._files.remove_old(self._shard.clock.now() // 1_000_000)

    def _roll_up(self, tier: Tier, part: Slice) -> list[tuple[Tier, Slice]]:
        """Add a slice to the one of a coarser tier that is under way; those that are over by it."""
        start, over = _of(tier, part.at), []
        under_way = self._open.get(tier)
        if under_way is not None and under_way.at != start:
            over.append((tier, under_way))
            if tier is HOUR:
                over += self._roll_up(DAY, under_way)
            under_way = None
        found = merged(start, [part] if under_way is None else [under_way, part])
        assert found is not None
        self._open[tier] = found
        return over

    def _catch_up(self, now: int) -> None:
        """Roll up what an earlier process left, and take up the hour and the day that are under way."""
        for lower, upper in _ROLLED:
            last = self._files.last_at(upper)
            since = 0 if last is None else last + upper.seconds
            for start, part, names in self._rolled(lower, upper, since):
                if start == _of(upper, now):
                    self._open[upper] = part
                    self._names |= names
                else:
                    self._files.append(upper, [part], names)

    def _rolled(self, lower: Tier, upper: Tier, since: int) -> Iterator[tuple[int, Slice, dict[int, str]]]:
        """The slices of a tier as those of a coarser one, in order."""
        found: dict[int, Slice] = {}
        all_names: dict[int, str] = {}
        for part, names in self._files.read(lower, since, _FOREVER):
            all_names |= names
            start = _of(upper, part.at)
            together = merged(start, [part] if start not in found else [found[start], part])
            assert together is not None
            found[start] = together
        return ((start, found[start], all_names) for start in sorted(found))

    # reading

    def slices(self, tier: Tier, since: int, until: int) -> Iterator[tuple[Slice, Mapping[int, str]]]:
        """Slices that begin in [since, until), those under way included, with the names of their rows."""
        with self._lock:
            for part, names in [*self._files.read(tier, since, until)]:
                yield part, names
            for part in self._under_way(tier):
                if since <= part.at < until:
                    yield part, self._names

    def _under_way(self, tier: Tier) -> list[Slice]:
        if tier is SECOND:
            return list(self._seconds)
        parts = list(self._seconds)
        if tier in (HOUR, DAY):
            parts += [self._open[each] for each in (HOUR, DAY)[: TIERS.index(tier) - 1] if each in self._open]
        by_start: dict[int, list[Slice]] = {}
        for part in parts:
            by_start.setdefault(_of(tier, part.at), []).append(part)
        found = (merged(start, parts) for start, parts in by_start.items())
        return [part for part in found if part is not None]

    def begins_at(self, tier: Tier) -> int | None:
        """Where the history of a tier begins, in seconds since 1970; None when there is none."""
        with self._lock:
            begin = self._files.first_at(tier)
            under_way = [part.at for part in self._under_way(tier)]
            return min([*under_way, *([] if begin is None else [begin])], default=None)


_FOREVER: Final = 1 << 62


def _of(tier: Tier, at: int) -> int:
    """Where the slice begins that an instant belongs to."""
    return at - at % tier.seconds
