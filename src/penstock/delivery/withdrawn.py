"""Tasks that were cancelled while they waited for their parents, kept so that they can be retried.

They have no message in the log that could be brought back: all there is of them was in the entry that held them. Those
of a week are kept, as many as can come back in one frame; the oldest go first. Each knows because of which parent it
was cancelled, so that whoever retries the parent finds them.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock import limits

KEPT: Final = round(limits.task_retention_seconds * 1_000_000)


class Withdrawn(msgspec.Struct, array_like=True, frozen=True):
    """One of them."""

    queue: int
    task_id: bytes
    at: int  # when it was cancelled
    because: bytes  # of which parent; empty when it was for another reason
    policy: int
    batch: bytes
    unique: bytes = b""  # the hash of a key that it gave up


class AllWithdrawn:
    """Those of a shard, the oldest first."""

    def __init__(self) -> None:
        self.known: dict[bytes, Withdrawn] = {}
        self.size = 0  # of their messages, in bytes
        self._because: dict[bytes, dict[bytes, None]] = {}  # parent → those that were cancelled because of it

    def __bool__(self) -> bool:
        return bool(self.known)

    def add(self, each: Withdrawn) -> None:
        """One was cancelled; others may have to go."""
        self.discard(each.task_id)
        self.known[each.task_id] = each
        self.size += len(each.batch)
        if each.because:
            self._because.setdefault(each.because, {})[each.task_id] = None
        while self.known and self._is_too_much(each.at):
            self.discard(next(iter(self.known)))

    def _is_too_much(self, now: int) -> bool:
        first = next(iter(self.known.values()))
        is_full = len(self.known) > limits.tasks_withdrawn_max or self.size > limits.tasks_withdrawn_bytes_max
        return is_full or first.at < now - KEPT

    def discard(self, task_id: bytes) -> None:
        """It is held again, or forgotten."""
        found = self.known.pop(task_id, None)
        if found is None:
            return
        self.size -= len(found.batch)
        siblings = self._because.get(found.because, {})
        siblings.pop(task_id, None)
        if not siblings:
            self._because.pop(found.because, None)

    def drop_queue(self, queue: int) -> bool:
        """A queue is gone, and those that would have come to it; whether there were any."""
        gone = [each.task_id for each in self.known.values() if each.queue == queue]
        for task_id in gone:
            self.discard(task_id)
        return bool(gone)

    def because_of(self, task_id: bytes) -> list[Withdrawn]:
        """Those that were cancelled because of a task, which may itself be one of them."""
        return [self.known[each] for each in self._because.get(task_id, ())]
