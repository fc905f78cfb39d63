"""Offsets of one partition that are not there any more, as ranges in two arrays: there can be very many.

Ranges are half-open, sorted and apart. A value is never altered: every change makes a new one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.delivery.entries import Int64s

Mask = NDArray[np.bool_]


class Ranges:
    """Ranges of offsets. Range i is [firsts[i], ends[i])."""

    __slots__ = ("ends", "firsts")

    def __init__(self, firsts: Int64s, ends: Int64s) -> None:
        self.firsts = firsts
        self.ends = ends

    @classmethod
    def of_offsets(cls, offsets: Int64s) -> Ranges:
        """The ranges that some ascending offsets make."""
        if not len(offsets):
            return NO_RANGES
        breaks = np.flatnonzero(np.diff(offsets) != 1) + 1
        return cls(offsets[np.append(0, breaks)], offsets[np.append(breaks - 1, len(offsets) - 1)] + 1)

    @classmethod
    def from_bytes(cls, data: bytes) -> Ranges:
        """The inverse of `to_bytes`."""
        pairs = np.frombuffer(data, np.int64).reshape(-1, 2)
        return cls(np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1]))

    def to_bytes(self) -> bytes:
        """Pairs of first and end, int64."""
        return np.stack([self.firsts, self.ends], axis=1).tobytes()

    def __len__(self) -> int:
        return len(self.firsts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self.firsts.tolist(), self.ends.tolist(), strict=True)

    def __contains__(self, offset: int) -> bool:
        index = int(np.searchsorted(self.firsts, offset, "right")) - 1
        return index >= 0 and offset < int(self.ends[index])

    def __or__(self, other: Ranges) -> Ranges:
        """All offsets of both."""
        if not len(self) or not len(other):
            return other if not len(self) else self
        if int(other.firsts[0]) > int(self.ends[-1]):  # the usual case, and much cheaper
            return Ranges(np.append(self.firsts, other.firsts), np.append(self.ends, other.ends))
        firsts, ends = np.concatenate([self.firsts, other.firsts]), np.concatenate([self.ends, other.ends])
        order = np.argsort(firsts, kind="stable")
        firsts, reached = firsts[order], np.maximum.accumulate(ends[order])
        begins = np.append(True, firsts[1:] > reached[:-1])
        last = np.append(np.flatnonzero(begins)[1:] - 1, len(firsts) - 1)
        return Ranges(firsts[begins], reached[last])

    def total(self) -> int:
        """How many offsets are in it."""
        return int((self.ends - self.firsts).sum())

    def within(self, first: int, end: int) -> Ranges:
        """The parts that lie in [first, end)."""
        low = int(np.searchsorted(self.ends, first, "right"))
        high = int(np.searchsorted(self.firsts, end))
        if high <= low:
            return NO_RANGES
        return Ranges(np.maximum(self.firsts[low:high], first), np.minimum(self.ends[low:high], end))

    def after(self, start: int) -> Ranges:
        """The parts from `start` on; itself when that is all."""
        if not len(self) or int(self.firsts[0]) >= start:
            return self
        return self.within(start, max(start, int(self.ends[-1])))

    def count(self, first: int, end: int) -> int:
        """How many offsets of [first, end) are in it."""
        if not len(self):
            return 0
        return self.within(first, end).total()

    def counts_below(self, offsets: Int64s) -> Int64s:
        """For each of some offsets, how many below it are in it."""
        if not len(self):
            return np.zeros(len(offsets), np.int64)
        before = np.append(0, np.cumsum(self.ends - self.firsts))
        index = np.searchsorted(self.firsts, offsets)  # ranges that begin below
        last = np.maximum(index - 1, 0)
        beyond = np.where(index > 0, np.maximum(self.ends[last] - offsets, 0), 0)
        below: Int64s = before[index] - beyond
        return below

    def mask(self, first: int, end: int) -> Mask:
        """For each offset of [first, end) whether it is in it."""
        inside = self.within(first, end)
        edges = np.zeros(end - first + 1, np.int8)
        edges[inside.firsts - first] += 1
        edges[inside.ends - first] -= 1
        return np.cumsum(edges[:-1], dtype=np.int8).view(np.bool_)

    def without(self, offsets: Int64s) -> Ranges:
        """These offsets, without some ascending ones."""
        inside = offsets[[offset in self for offset in offsets.tolist()]] if len(offsets) else offsets
        if not len(inside):
            return self
        firsts = np.concatenate([self.firsts, inside + 1])
        ends = np.concatenate([self.ends, inside])
        firsts.sort()
        ends.sort()
        kept = firsts < ends
        return Ranges(firsts[kept], ends[kept])


NO_RANGES: Final = Ranges(np.empty(0, np.int64), np.empty(0, np.int64))
