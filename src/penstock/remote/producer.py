"""Numbering pushes, so that a broker knows one that is sent again.

A sequence is under way from when it is taken until the answer is known. The broker remembers the last `producer_window`
of them; half of that may lie between the oldest under way and the newest, so that none is ever forgotten too early.
"""

from __future__ import annotations

import random
import threading
from typing import Final

from penstock import limits

UNDER_WAY_MAX: Final = limits.producer_window // 2


class Producer:
    """An id, an epoch, and the sequences under way. Of one thread, which asks `has_room` before it takes."""

    def __init__(self, id: int, epoch: int) -> None:
        self.id = id
        self.epoch = epoch
        self._next = 1
        self._oldest = 1  # at most the oldest under way: it is looked for only when that makes a difference
        self._under_way: dict[int, None] = {}  # in the order they were taken, which is theirs

    def has_room(self) -> bool:
        """Whether one more sequence may be taken."""
        if self._next - self._oldest < UNDER_WAY_MAX:
            return True
        self._oldest = next(iter(self._under_way), self._next)
        return self._next - self._oldest < UNDER_WAY_MAX

    def room_left(self) -> int:
        """How many more sequences may be taken."""
        self.has_room()
        return UNDER_WAY_MAX - (self._next - self._oldest)

    def take(self) -> int:
        """The next sequence."""
        sequence = self._next
        self._next = sequence + 1
        self._under_way[sequence] = None
        return sequence

    def done(self, sequence: int) -> None:
        """The answer to this one is known, or nobody asks for it any more."""
        self._under_way.pop(sequence, None)


class SharedProducer(Producer):
    """A `Producer` for many threads: `take()` waits for room."""

    def __init__(self, id: int, epoch: int) -> None:
        super().__init__(id, epoch)
        self._changed = threading.Condition()

    def take(self) -> int:
        with self._changed:
            while not self.has_room():
                self._changed.wait()
            return super().take()

    def done(self, sequence: int) -> None:
        with self._changed:
            super().done(sequence)
            self._changed.notify_all()


def nameless(rng: random.Random) -> Producer:
    """A producer that nobody else is."""
    return Producer(rng.getrandbits(62) + 1, 1)
