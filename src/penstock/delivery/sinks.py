"""Sinks that may commit a batch again without storing it twice: which batch of each went in last.

A sink has a name and numbers its batches. They come in order, each perhaps more than once; which of them are in follows
from entries, and so survives a restart.

- A batch up to the last one changes nothing.
- A batch too large for one frame is remembered with the files that were staged for it first, and how many of them are
  in. Whoever comes with it again goes on with those, never with others: they may hold the same rows in another order.
- A sink is known by its queue and its name: the same name in another queue, or of another principal, is another sink.
  It belongs to one origin if that is named: where its numbers come from, such as a query. Another one, or a number 0
  after others, means that the count starts over; that is refused unless the commit says `is_reset`.
- A sink that is used once is forgotten after a day, when the next one comes, and of too many the one silent longest.
"""

from __future__ import annotations

from heapq import nsmallest
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from penstock import limits
from penstock.delivery.entries import SinkCommitted
from penstock.errors import InvalidField, SinkConflict
from penstock.model import bare_name, check_name
from penstock.requests import SinkCommit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.delivery.log import Queue

ONCE: Final = round(limits.sink_once_seconds * 1_000_000)
BATCH_END: Final = 1 << 63


class KnownSink(msgspec.Struct, array_like=True, frozen=True):
    """One sink. `staged` lists the files of the batch after the last one while only `done` of them are in."""

    queue: int
    batch: int
    at: int
    origin: str
    is_once: bool
    staged: list[str] = []
    done: int = 0
    unfinished: int = -1  # the batch that `staged` speaks of


class Todo(NamedTuple):
    """What is to be put in next: files of a batch, those before `done` being in already."""

    batch: int
    staged: Sequence[str]
    done: int


class Sinks:
    """All sinks of a shard, by queue and name."""

    def __init__(self) -> None:
        self.known: dict[tuple[int, str], KnownSink] = {}
        self.touched = 0  # sequence of the last frame that changed something here
        self.applied = 0  # replay: the sequence at which a checkpoint took them
        self.look_at = 0  # when to look next for those that are used once

    def find(self, queue: Queue | None, sink: str) -> KnownSink | None:
        """What is known of a sink; nothing when there is no such queue."""
        return None if queue is None else self.known.get((queue.id, sink))

    def todo(self, commit: SinkCommit, queue: Queue | None) -> Todo | None:
        """What a commit has to do, None when it is done already. What an unfinished batch lacks comes first."""
        known = self.find(queue, commit.sink)
        if known is None or self._starts_over(known, commit):
            return Todo(commit.batch, commit.staged, 0)
        if known.staged and commit.batch >= known.unfinished:
            return Todo(known.unfinished, known.staged, known.done)
        return None if commit.batch <= max(known.batch, known.unfinished) else Todo(commit.batch, commit.staged, 0)

    def _starts_over(self, known: KnownSink, commit: SinkCommit) -> bool:
        last = max(known.batch, known.unfinished)
        if commit.origin and known.origin and commit.origin != known.origin:
            what = f"another query has used it up to batch {last}"
        elif commit.batch == 0 and last > 0:
            what = f"it is at batch {last}, and this is batch 0"
        else:
            return False
        if not commit.is_reset:
            raise SinkConflict(f"sink {bare_name(commit.sink)!r}: {what}")
        return True

    def needed(self) -> set[str]:
        """Files that unfinished batches have yet to read."""
        return {name for known in self.known.values() for name in known.staged}

    def apply(self, entry: SinkCommitted, frame: int) -> None:
        """A batch went in, or a part of it."""
        if frame <= self.applied:
            return
        position = entry.queue, entry.sink
        known = self.known.get(position)
        if known is None and (entry.at >= self.look_at or len(self.known) >= limits.sinks_max):
            self._forget(entry.at)
        if entry.done < len(entry.staged):
            before = -1 if known is None or known.batch >= entry.batch else known.batch
            left = (entry.staged, entry.done, entry.batch)
            learnt = KnownSink(entry.queue, before, entry.at, entry.origin, entry.is_once, *left)
        else:
            learnt = KnownSink(entry.queue, entry.batch, entry.at, entry.origin, entry.is_once)
        self.known[position] = learnt
        self.touched = frame

    def _forget(self, now: int) -> None:
        over = [position for position, sink in self.known.items() if sink.is_once and sink.at <= now - ONCE]
        for position in over:
            del self.known[position]
        if len(self.known) >= limits.sinks_max:
            many = 1 + limits.sinks_max // 100  # so that not every newcomer has to look at all
            idle = [position for position, sink in self.known.items() if not sink.staged]
            for position in nsmallest(many, idle, key=lambda position: self.known[position].at):
                del self.known[position]
        self.look_at = now + ONCE // 24


def check_commit(commit: SinkCommit) -> SinkCommit:
    """`commit` itself when it can be stored."""
    check_name(commit.queue)
    for field, text in (("sink", commit.sink), ("origin", commit.origin)):
        if len(text.encode()) > limits.sink_bytes_max:
            raise InvalidField(f"{field}: {len(text.encode()):,} bytes is over the limit of {limits.sink_bytes_max}")
    if not commit.sink:
        raise InvalidField("sink: the name is empty")
    if not 0 <= commit.batch < BATCH_END:
        raise InvalidField(f"batch: {commit.batch} is outside 0 to 2⁶³ − 1")
    if len(commit.staged) > limits.staged_files_max:
        hint = "write fewer partitions: call coalesce() first"
        raise InvalidField(f"staged: {len(commit.staged)} files are over {limits.staged_files_max}", hint=hint)
    if len(set(commit.staged)) < len(commit.staged):
        raise InvalidField("staged: a file appears twice")
    return commit
