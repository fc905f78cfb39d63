"""One moment of a data directory: what is durable, and where it lies."""

from __future__ import annotations

import msgspec

from penstock.errors import QueueNotFound
from penstock.history.catalogue import PartitionView, QueueView
from penstock.history.slices import Wanted
from penstock.history.tail import Rows
from penstock.model import suggestion
from penstock.storage.manifest import Manifest
from penstock.storage.schema import Names

__all__ = ["Moment", "PartitionView", "QueueView", "TailView"]


class TailView(msgspec.Struct, frozen=True):
    """One journal file, as far as it counts: rows as in `tail.PUSH_COLUMNS` and `tail.SETTLE_COLUMNS`."""

    file: str
    pushes: list[Rows]
    settles: list[Rows]
    notes: list[Rows]  # of tasks, as settles


class Moment(msgspec.Struct, frozen=True):
    """Everything up to the frame `sequence`. Nothing that happens later changes it."""

    sequence: int
    queues: dict[str, QueueView]
    manifest: Manifest
    tail: tuple[TailView, ...]
    names: Names

    def queue(self, name: str) -> QueueView:
        """The queue of this name; `QueueNotFound` suggests another."""
        found = self.queues.get(name)
        if found is None:
            hint = suggestion(name, tuple(sorted(self.queues))) if self.queues else "there are no queues yet"
            raise QueueNotFound(f"there is no queue {name!r}", hint=hint)
        return found

    def everything(self, name: str) -> list[Wanted]:
        """All messages of a queue."""
        partitions = self.queue(name).partitions.values()
        return [Wanted(name, each.name, each.start, each.end) for each in partitions if each.end > each.start]
