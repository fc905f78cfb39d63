"""Leases: who holds what, until when.

A lease is volatile: its nonce, deadline and holder live in memory only, on the monotonic clock. What the journal keeps
of it is that its messages were leased; recovery closes them as interrupted. One lease covers runs of offsets, and is
settled whole in one step; only when its deliveries are settled one by one does it keep a byte for each.

Takes are not watched by the garbage collector: there may be many. Nothing is lost by it, since a lease goes by its
reference count when it is settled, and a shard lets go of all leases when it is closed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

import msgspec

from penstock.delivery.entries import Span
from penstock.delivery.group import Group
from penstock.delivery.phases import LEASED
from penstock.delivery.progress import Progress


class Take(msgspec.Struct, gc=False):
    """Some offsets of one partition in a lease, ascending, with the number of each delivery."""

    progress: Progress
    offsets: Sequence[int]  # a range when they are consecutive
    attempts: int | list[int]  # one number when all are the same
    open: int  # deliveries not settled yet
    done: bytearray | None = None  # 1 for each delivery that was settled on its own

    def index_of(self, offset: int) -> int:
        """Where an offset stands in this take; −1 when it does not."""
        offsets = self.offsets
        if isinstance(offsets, range):
            return offset - offsets.start if offset in offsets else -1
        index = bisect_left(offsets, offset)
        return index if index < len(offsets) and offsets[index] == offset else -1

    def attempt_of(self, index: int) -> int:
        return self.attempts if isinstance(self.attempts, int) else self.attempts[index]

    def is_open(self, index: int) -> bool:
        return self.open > 0 if self.done is None else not self.done[index]

    def open_indexes(self) -> Sequence[int]:
        if self.done is None:
            return range(len(self.offsets) if self.open else 0)
        return [index for index, done in enumerate(self.done) if not done]

    def close(self, indexes: Sequence[int]) -> None:
        """These deliveries are settled."""
        if len(indexes) == self.open:
            self.open = 0
            self.done = None
            return
        if self.done is None:
            self.done = bytearray(len(self.offsets))
        for index in indexes:
            self.done[index] = 1
        self.open -= len(indexes)

    def close_ended(self) -> int:
        """Close the deliveries whose messages are no longer leased; how many."""
        indexes = self.open_indexes()
        progress, offsets = self.progress, self.offsets
        if progress.all_leased(offsets if len(indexes) == len(offsets) else [offsets[index] for index in indexes]):
            return 0
        ended = [index for index in indexes if progress.state_of(offsets[index]) != LEASED]
        self.close(ended)
        return len(ended)


class Lease(msgspec.Struct):
    """The time-limited right of one consumer to settle some deliveries."""

    nonce: int
    group: Group
    consumer: str
    at: int  # wall time, for the events table
    deadline: int  # monotonic
    takes: list[Take]
    count: int  # deliveries not settled yet
    spans: list[Span] = []  # the takes as the journal has them
    is_whole: bool = True  # nothing of it was settled on its own
    change_count: int = 0  # of the group when it was leased
    member: str = ""  # of the group, when a member leased it

    def find(self, partition: str, offset: int) -> tuple[Take, int] | None:
        """The take and index of one delivery of this lease."""
        for take in self.takes:
            if take.progress.partition.name == partition:
                index = take.index_of(offset)
                if index >= 0:
                    return take, index
        return None

    def open_takes(self) -> Iterator[tuple[Take, Sequence[int]]]:
        for take in self.takes:
            if take.open:
                yield take, take.open_indexes()
