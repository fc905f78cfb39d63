"""The dedup window of a queue: which keys were pushed lately, and where each message went.

Keys are kept as 128-bit hashes. New ones go into a dictionary; when it is full it is frozen into a sorted run, which a
checkpoint writes once. Of a run only the first halves of the hashes need be in memory, side by side: they show that a
key is new. The rest may lie in the mapped file of a checkpoint.

So that there are few runs, neighbours are merged, the smaller first: small ones at once, larger ones by whoever takes a
checkpoint, while the shard goes on. Runs are never altered. A run goes when its newest key is older than the window, or
when the queue holds more than `dedup_keys_max` keys: then the window is as short as memory allows, and `overflowed`
says so. That is why no run has more than a small share of that limit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock import limits
from penstock.batch import layout
from penstock.delivery.entries import Push

if TYPE_CHECKING:
    from penstock.batch import Batch

HOT_MAX: Final = 8_192
AT_ONCE_MAX: Final = 8 * HOT_MAX  # keys that are merged while the shard is held: some milliseconds
RUN_MAX: Final = limits.dedup_keys_max // 16
ENTRY: Final = np.dtype([("high", "<u8"), ("low", "<u8"), ("at", "<i8"), ("offset", "<i8"), ("partition", "<i4")])

_WHOLE: Final = np.dtype((np.void, ENTRY.itemsize))

Records = NDArray[np.void]
Hashes = NDArray[np.uint64]


class DedupRecord(NamedTuple):
    """The partition and offset of the message with a dedup key, and when it was pushed."""

    partition: int
    offset: int
    pushed_at: int


def digest(key: str) -> bytes:
    """The 128-bit hash of a dedup key."""
    return hashlib.blake2b(key.encode(), digest_size=16).digest()


def digests(batch: Batch) -> list[bytes | None]:
    """The hash of each row's key; None for a row without."""
    column = batch.text(layout.DEDUP_KEY)
    if column is None:
        return [None] * batch.count
    keys, present, blake2b = column.values.slices(0, batch.count), column.present().tolist(), hashlib.blake2b
    return [blake2b(key, digest_size=16).digest() if there else None for key, there in zip(keys, present, strict=True)]


class Run:
    """Keys that are sorted by their hashes. `part` names the part of a checkpoint that holds it."""

    __slots__ = ("hashes", "newest_at", "part", "records")

    def __init__(self, records: Records, part: str | None = None) -> None:
        self.hashes: Hashes = np.ascontiguousarray(records["high"])
        self.newest_at = int(records["at"].max(initial=0))
        self.records = records
        self.part = part

    def __len__(self) -> int:
        return len(self.hashes)

    def find(self, needle: Hashes) -> DedupRecord | None:
        """Where a key went; `needle` is its hash as two numbers."""
        (high, low), hashes, position = needle, self.hashes, None
        index = int(hashes.searchsorted(high))
        while index < len(hashes) and hashes[index] == high:
            record = self.records[index]
            if record["low"] == low:
                position = DedupRecord(int(record["partition"]), int(record["offset"]), int(record["at"]))
            index += 1
        return position

    def candidates(self, highs: Hashes) -> list[int]:
        """Which of these are here, by the first halves of their hashes alone."""
        positions = self.hashes.searchsorted(highs)
        positions[positions == len(self.hashes)] = 0
        indexes: list[int] = np.flatnonzero(self.hashes[positions] == highs).tolist()
        return indexes


class DedupWindow:
    """The keys of one queue that were pushed within its window."""

    def __init__(self, seconds: float) -> None:
        self.window = round(seconds * 1_000_000)
        self.hot: dict[bytes, DedupRecord] = {}
        self.runs: dict[int, Run] = {}  # by number, oldest first
        self.run_next = 0
        self.overflowed = False

    def __len__(self) -> int:
        return len(self.hot) + sum(map(len, self.runs.values()))

    # looking

    def find(self, key: bytes, now: int) -> DedupRecord | None:
        """Where this key went within the window."""
        position = self.hot.get(key)
        if position is None and self.runs:
            needle = np.frombuffer(key, np.uint64)
            for run in reversed(self.runs.values()):
                position = run.find(needle)
                if position is not None:
                    break
        return position if position is not None and position.pushed_at > now - self.window else None

    def find_all(self, keys: Sequence[bytes | None], now: int) -> list[DedupRecord | None]:
        """Where each of many keys went within the window: every run is searched once."""
        hot = self.hot
        positions = [None if key is None else hot.get(key) for key in keys]
        if self.runs:
            self._find_frozen(keys, positions)
        oldest = now - self.window
        return [position if position is not None and position[2] > oldest else None for position in positions]

    def _find_frozen(self, keys: Sequence[bytes | None], positions: list[DedupRecord | None]) -> None:
        """Fill in places of keys that have none yet."""
        rows = [row for row, key in enumerate(keys) if key is not None and positions[row] is None]
        needles = np.frombuffer(b"".join([keys[row] or b"" for row in rows]), np.uint64).reshape(-1, 2)
        order = np.argsort(needles[:, 0])  # neighbours are looked for one after the other, in memory that is near
        highs = needles[order, 0]
        for run in reversed(self.runs.values()):
            for candidate in run.candidates(highs):
                index = int(order[candidate])
                if positions[rows[index]] is None:
                    positions[rows[index]] = run.find(needles[index])

    # learning

    def apply(self, push: Push, batch: Batch) -> None:
        """Apply a push: its accepted keys are known from now on."""
        partitions, offsets = push.positions(batch.count)
        at, hot = push.pushed_at, self.hot
        for key, partition, offset in zip(digests(batch), partitions.tolist(), offsets.tolist(), strict=True):
            if key is not None and offset >= 0:
                hot[key] = DedupRecord(partition, offset, at)
        if len(hot) >= HOT_MAX:
            self.freeze()
            self.forget(at)
            while (pair := self.mergeable(AT_ONCE_MAX)) is not None:
                self.merge(pair, merged(self.runs[pair[0]], self.runs[pair[1]], at - self.window))

    def freeze(self) -> None:
        """Turn the dictionary into a sorted run."""
        if self.hot:
            self.add_run(Run(run_of(self.hot)))
            self.hot = {}

    def add_run(self, run: Run, number: int | None = None) -> None:
        """A run that is newer than all others, or one from a checkpoint under its old number."""
        number = self.run_next if number is None else number
        self.runs[number] = run
        self.run_next = max(self.run_next, number + 1)

    # merging and forgetting

    def mergeable(self, keys_max: int = RUN_MAX) -> tuple[int, int] | None:
        """Two neighbours, older and newer, that should be one; the latest such."""
        for newer, older in pairwise(reversed(self.runs)):
            sizes = len(self.runs[older]), len(self.runs[newer])
            if sizes[0] < 2 * sizes[1] and sum(sizes) <= keys_max:
                return older, newer
        return None

    def merge(self, pair: tuple[int, int], run: Run) -> None:
        """Put what was merged in the place of a pair, under the newer one's number: numbers stay in order of age."""
        older, newer = pair
        if run:
            self.runs[newer] = run  # before the older one goes: interrupted in between, no key is missing
        else:
            del self.runs[newer]
        del self.runs[older]

    def forget(self, now: int) -> None:
        """Drop runs that the window has left behind, and what is over the limit."""
        for number in [number for number, run in self.runs.items() if run.newest_at <= now - self.window]:
            del self.runs[number]
        while self.runs and len(self) > limits.dedup_keys_max:
            del self.runs[min(self.runs)]
            self.overflowed = True

    def drop(self, partition: int, first: int, end: int) -> None:
        """Repair: forget the keys of some messages."""
        self.freeze()
        for number, run in self.runs.items():
            records = run.records
            gone = (records["partition"] == partition) & (records["offset"] >= first) & (records["offset"] < end)
            if gone.any():
                self.runs[number] = Run(records[~gone])


def run_of(hot: dict[bytes, DedupRecord]) -> Records:
    """The entries of a dictionary as a sorted run."""
    hashes = np.frombuffer(b"".join(hot), np.uint64).reshape(-1, 2)
    positions = np.fromiter(chain.from_iterable(hot.values()), np.int64, 3 * len(hot)).reshape(-1, 3)
    order = np.argsort(hashes[:, 0], kind="stable")
    run = np.empty(len(hot), ENTRY)
    run["high"], run["low"] = hashes[order].T
    run["partition"], run["offset"], run["at"] = positions[order].T
    return run


def merged(older: Run, newer: Run, left_behind_at: int) -> Run:
    """One run of two; of a key that both have the newer place, and none that the window has left behind."""
    records = np.concatenate([older.records.view(_WHOLE), newer.records.view(_WHOLE)])
    hashes = np.concatenate([older.hashes, newer.hashes])
    # Two sorted halves: this only merges. `take` copies whole records, which an index does field by field.
    order = np.argsort(hashes, kind="stable")
    run, hashes = records.take(order).view(ENTRY), hashes.take(order)
    twins = np.flatnonzero(hashes[1:] == hashes[:-1])
    replaced = twins[run["low"][twins] == run["low"][twins + 1]]
    gone = run["at"] <= left_behind_at
    gone[replaced] = True
    return Run(run[~gone] if gone.any() else run)
