"""Keys: order within a key, and limits of each key.

Key order: of the messages of one key at most one is in flight. A message takes its key when it is leased, and keeps it
until it is settled, through retries, releases and restarts. `Progress.keys` says which offset holds which key.
`Progress.parked` has, for every key that is held, the offsets that wait for their turn, ascending. Messages that wait
for a due time are in no line: when they are due they are offered again, and get in line then.

Limits: a message of a key that has used up its rate, or has as many in flight as it may, is passed over without holding
up others: it is parked in the line of its key. Whenever the key may go on, the first of its line (by priority, then by
offset) is offered again. So for every key with a line one of these holds: as many are in flight as may be, and the end
of one wakes the line; its bucket is empty, and a due time wakes it; or one of the line is offered already, and its
leaving the lane wakes it. Keys are compared by their hash. Limits are not in the journal: after a restart nothing is
in flight, buckets are full, and lines form again.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from penstock import limits
from penstock.delivery.entries import Span
from penstock.delivery.phases import LEASABLE, LEASED, READY, WAITING
from penstock.delivery.progress import Progress
from penstock.delivery.rate_limits import Buckets

if TYPE_CHECKING:
    from penstock.delivery.group import Group

MessagePosition = tuple[int, int]  # partition, offset
Parked = tuple[int, int, int]  # −priority, offset, partition: the order in which a line moves up


def rebuild_keys(progress: Progress) -> None:
    """After a restart or a seek: who holds a key follows from the states.

    May raise `ColumnNotLoaded`; then nothing changed.
    """
    if progress.keys is not None:
        return
    keys: dict[int, int] = {}
    parked: dict[int, deque[int]] = {}
    unfinished = (offset for phase in (LEASED, WAITING, READY) for offset in progress.offsets_in(phase))
    # A retry goes before a dead letter that was brought back: its attempts say that it had the key first.
    touched = sorted(unfinished, key=lambda offset: (progress.attempt_next(offset) == 1, offset))
    partition = progress.partition
    hashes = partition.queue.key_hashes([(partition.id, offset) for offset in touched])
    for offset, key in zip(touched, hashes, strict=True):
        if key and key not in parked:
            keys[offset] = key
            parked[key] = deque()
    progress.keys, progress.parked = keys, parked


def is_its_turn(progress: Progress, offset: int) -> bool:
    """Whether a message that came back may be leased; if not it is parked.

    May raise `ColumnNotLoaded`; then nothing changed.
    """
    rebuild_keys(progress)
    keys, parked = progress.keys, progress.parked
    assert keys is not None
    assert parked is not None
    if offset in keys or progress.state_of(offset) not in LEASABLE:
        return True
    key = progress.partition.key_hash(offset)
    if key and key in parked:
        if offset not in parked[key]:
            insort(parked[key], offset)
            progress.parked_count += 1
        return False
    if key:
        keys[offset] = key
        parked[key] = deque()
    return True


class KeyGate:
    """The limits of each key on the way to the consumers of a group. `rates` or `held_max` None: no such limit."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self.rates: Buckets | None = None
        self.held_max: int | None = None
        self.held: dict[int, int] = {}  # key → messages in flight
        self._holders: dict[MessagePosition, int] | None = None  # in flight → key; None: not known yet
        self._lines: dict[int, list[Parked]] = {}  # key → heap of those that wait
        self._parked_count = 0
        self._offered: dict[MessagePosition, int] = {}  # offered from a line → key
        self._outstanding: set[int] = set()  # keys of these
        self._due: list[tuple[int, int]] = []  # heap of (when the bucket has a token, key)
        self._timed: set[int] = set()  # keys in it
        self._blocked: set[Progress] = set()  # partitions that are not read on while too much is parked

    def copied(self) -> KeyGate:
        """A gate in the same state, of which nothing is shared."""
        copy = KeyGate(self._group)
        copy.rates = None if self.rates is None else self.rates.copied()
        copy.held_max, copy.held = self.held_max, dict(self.held)
        copy._holders = None if self._holders is None else dict(self._holders)
        copy._lines = {key: list(line) for key, line in self._lines.items()}
        copy._parked_count = self._parked_count
        copy._offered, copy._outstanding = dict(self._offered), set(self._outstanding)
        copy._due, copy._timed = list(self._due), set(self._timed)
        copy._blocked = set(self._blocked)
        return copy

    def set_limits(self, rates: Buckets | None, held_max: int | None, now: int) -> None:
        """New limits hold at once, for what is in flight and in line already."""
        self.rates = rates
        if self.held_max is None or held_max is None:
            self.held, self._holders = {}, None
        self.held_max = held_max
        self._due, self._timed = [], set()
        for key in list(self._lines):
            self.advance_line(key, now)

    def open(self) -> None:
        """There are no limits any more: all who wait are offered again."""
        for priority, offset, partition in sorted(item for line in self._lines.values() for item in line):
            self._group.offer_retry(self._group.progress[partition], offset, -priority)
        for progress in self._blocked:
            self._group.offer_all(progress)

    def count_in_flight(self) -> None:
        """Count what was in flight before the limit was. May raise `ColumnNotLoaded`; then nothing changed."""
        if self.held_max is None or self._holders is not None:
            return
        leased = [(p.partition.id, offset) for p in self._group.progress for offset in p.offsets_in(LEASED)]
        keys = self._group.queue.key_hashes(leased)
        self._holders = {position: key for position, key in zip(leased, keys, strict=True) if key}
        for key in self._holders.values():
            self.held[key] = self.held.get(key, 0) + 1

    def admit(self, progress: Progress, offset: int, priority: int, key: int, now: int) -> bool:
        """Whether a message may be leased, which must happen then; if not it is parked."""
        self._take_back((progress.partition.id, offset))
        if not key:
            return True
        item = (-priority, offset, progress.partition.id)
        line = self._lines.get(key)
        if not self.has_room(key) or self.wait(key, now) or (line and line[0] < item):
            heappush(self._lines.setdefault(key, []), item)
            self._parked_count += 1
            self.advance_line(key, now)
            return False
        if self.rates is not None:
            self.rates.take(key, 1, now)
        if self.held_max is not None:
            assert self._holders is not None
            self._holders[progress.partition.id, offset] = key
            self.held[key] = self.held.get(key, 0) + 1
        self.advance_line(key, now)
        return True

    def dismiss(self, progress: Progress, offset: int, now: int) -> None:
        """An offer that came to nothing: the message is no longer available."""
        key = self._take_back((progress.partition.id, offset))
        if key is not None:
            self.advance_line(key, now)

    def settled(self, progress: Progress, span: Span, now: int) -> None:
        """Deliveries ended, one way or another."""
        if not self._holders:
            return
        number = progress.partition.id
        if span.count <= len(self._holders):
            offsets = span.offset_array().tolist()
        else:
            offsets = [offset for partition, offset in self._holders if partition == number]
        for offset in offsets:
            if progress.state_of(offset) != LEASED:
                self._release((number, offset), now)

    def forget(self, progress: Progress, now: int) -> None:
        """The group moves within a partition: nothing of it is in flight or in line."""
        number = progress.partition.id
        for position in [position for position in self._offered if position[0] == number]:
            self._take_back(position)
        for key, line in list(self._lines.items()):
            self._lines[key] = sorted(item for item in line if item[2] != number)
        self._lines = {key: line for key, line in self._lines.items() if line}
        self._parked_count = sum(map(len, self._lines.values()))
        self._blocked.discard(progress)
        for position in [position for position in self._holders or () if position[0] == number]:
            self._release(position, now)
        for key in list(self._lines):
            self.advance_line(key, now)

    def tick(self, now: int) -> None:
        """Stir the lines of keys whose buckets have a token now."""
        while self._due and self._due[0][0] <= now:
            _, key = heappop(self._due)
            self._timed.discard(key)
            self.advance_line(key, now)

    def next_at(self) -> int | None:
        """When the next bucket of a key that is waited for has a token."""
        return self._due[0][0] if self._due else None

    def is_full(self) -> bool:
        """Whether as much is parked as may be."""
        return self._parked_count >= limits.parked_messages_max

    def block(self, progress: Progress) -> None:
        """Offer this partition again when the gate is no longer full."""
        self._blocked.add(progress)

    def has_room(self, key: int) -> bool:
        """Whether one more message of this key may be in flight."""
        return self.held_max is None or self.held.get(key, 0) < self.held_max

    def wait(self, key: int, now: int) -> int:
        """µs until the bucket of this key has a token."""
        return 0 if self.rates is None else self.rates.wait(key, 1, now)

    def advance_line(self, key: int, now: int) -> None:
        """Offer the first of a line if its key may go on now; else set the timer that tries again."""
        line = self._lines.get(key)
        if not line or key in self._outstanding or not self.has_room(key):
            return
        wait = self.wait(key, now)
        if wait:
            if key not in self._timed:
                self._timed.add(key)
                heappush(self._due, (now + wait, key))
            return
        priority, offset, partition = heappop(line)
        if not line:
            del self._lines[key]
        self._offered[partition, offset] = key
        self._outstanding.add(key)
        self._group.offer_retry(self._group.progress[partition], offset, -priority)
        self._parked_count -= 1
        if self._blocked and not self.is_full():
            for progress in self._blocked:
                self._group.offer_all(progress)
            self._blocked.clear()

    def _take_back(self, position: MessagePosition) -> int | None:
        key = self._offered.pop(position, None)
        if key is not None:
            self._outstanding.discard(key)
        return key

    def _release(self, position: MessagePosition, now: int) -> None:
        key = self._holders.pop(position, None) if self._holders is not None else None
        if key is None:
            return
        self.held[key] -= 1
        if not self.held[key]:
            del self.held[key]
        self.advance_line(key, now)
