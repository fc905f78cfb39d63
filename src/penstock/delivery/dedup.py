"""The dedup window of a queue: which keys were pushed lately, and where each message went.

Keys are kept as 128-bit hashes. New ones go into a dictionary; when it is full it is frozen into a sorted run of
arrays, which a checkpoint writes once. A run goes when its newest key is older than the
window, or when the queue holds more than `dedup_keys_max` keys: then the window is as short as memory allows, and
`overflowed` says so.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock import limits
from penstock.delivery.entries import Push

if TYPE_CHECKING:
    from penstock.batch import Batch

HOT_MAX: Final = 65_536
ENTRY: Final = np.dtype([("high", "<u8"), ("low", "<u8"), ("at", "<i8"), ("offset", "<i8"), ("partition", "<i4")])


class Place(NamedTuple):
    """Where the message of a key went, and when."""

    partition: int
    offset: int
    pushed_at: int


def digest(key: str) -> bytes:
    """The 128-bit hash of a dedup key."""
    return hashlib.blake2b(key.encode(), digest_size=16).digest()


class DedupWindow:
    """See the module's rules."""

    def __init__(self, seconds: float) -> None:
        self.window = round(seconds * 1_000_000)
        self.hot: dict[bytes, Place] = {}
        self.runs: dict[int, NDArray[np.void]] = {}  # by number, oldest first; each sorted by hash, never altered
        self.run_next = 0
        self.overflowed = False

    def __len__(self) -> int:
        return len(self.hot) + sum(map(len, self.runs.values()))

    def find(self, key: bytes, now: int) -> Place | None:
        """Where this key went within the window."""
        place = self.hot.get(key) or self._find_frozen(key)
        return place if place is not None and place.pushed_at > now - self.window else None

    def learn(self, push: Push, batch: Batch) -> None:
        """Apply a push: its accepted keys are known from now on."""
        partitions, offsets = push.places(batch.count)
        for row, key in enumerate(batch.dedup_keys()):
            if key is not None and offsets[row] >= 0:
                self.hot[digest(key)] = Place(int(partitions[row]), int(offsets[row]), push.pushed_at)
        if len(self.hot) >= HOT_MAX:
            self.freeze()
            self.forget(push.pushed_at)

    def freeze(self) -> None:
        """Turn the dictionary into a sorted run."""
        if self.hot:
            self.add_run(run_of(self.hot))
            self.hot = {}

    def add_run(self, run: NDArray[np.void], number: int | None = None) -> None:
        """A run that is newer than all others, or one from a checkpoint under its old number."""
        number = self.run_next if number is None else number
        self.runs[number] = run
        self.run_next = max(self.run_next, number + 1)

    def forget(self, now: int) -> None:
        """Drop runs that the window has left behind, and what is over the limit."""
        for number in [
            number for number, run in self.runs.items() if int(run["at"].max(initial=0)) <= now - self.window
        ]:
            del self.runs[number]
        while self.runs and len(self) > limits.dedup_keys_max:
            del self.runs[min(self.runs)]
            self.overflowed = True

    def drop(self, partition: int, first: int, end: int) -> None:
        """Repair: forget the keys of some messages. Alone in altering runs: a repair writes all parts anew."""
        self.freeze()
        for number, run in self.runs.items():
            gone = (run["partition"] == partition) & (run["offset"] >= first) & (run["offset"] < end)
            self.runs[number] = run[~gone]

    def _find_frozen(self, key: bytes) -> Place | None:
        high, low = int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")
        for run in reversed(self.runs.values()):
            index = int(np.searchsorted(run["high"], np.uint64(high)))
            while index < len(run) and int(run["high"][index]) == high:
                if int(run["low"][index]) == low:
                    found = run[index]
                    return Place(int(found["partition"]), int(found["offset"]), int(found["at"]))
                index += 1
        return None


def run_of(hot: dict[bytes, Place]) -> NDArray[np.void]:
    """The entries of a dictionary as a sorted run."""
    hashes = np.frombuffer(b"".join(hot), np.uint64).reshape(-1, 2)
    run = np.empty(len(hot), ENTRY)
    run["high"], run["low"] = hashes[:, 0], hashes[:, 1]
    run["partition"] = [place.partition for place in hot.values()]
    run["offset"] = [place.offset for place in hot.values()]
    run["at"] = [place.pushed_at for place in hot.values()]
    return run[np.argsort(run["high"], kind="stable")]
