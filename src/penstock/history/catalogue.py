"""Queues, partitions and groups as a reader from outside sees them: names and offsets, no delivery state.

It starts from a checkpoint and follows the journal. Everything it learns only grows (ends, starts, names), so that a
checkpoint whose parts were taken at different moments, and frames that it includes already, do no harm.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from penstock.delivery import entries, snapshot
from penstock.model import QueueOptions, queue_options_decode
from penstock.storage.checkpoint import Checkpoint
from penstock.storage.schema import Names

QUEUE_PART = "queue-"


class PartitionView(msgspec.Struct, frozen=True, gc=False):
    """One partition: the offsets [start, end) are kept, and durable."""

    name: str
    id: int
    start: int
    end: int


class QueueView(msgspec.Struct, frozen=True):
    """One queue at one moment."""

    name: str
    incarnation: int
    options: QueueOptions
    partitions: Mapping[str, PartitionView]
    groups: tuple[str, ...]


class _Queue:
    """A queue, as far as is known."""

    def __init__(self, id: int, name: str, options: bytes) -> None:
        self.id = id
        self.name = name
        self.options = options
        self.names: list[str] = []
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.groups: dict[int, str] = {}
        self.view: QueueView | None = None  # as it was handed out last; None when something has changed since

    def add_partitions(self, first: int, names: list[str]) -> None:
        for name in names[max(0, len(self.names) - first) :]:
            self.names.append(name)
            self.starts.append(0)
            self.ends.append(0)

    def seen(self) -> QueueView:
        if self.view is None:
            rows = enumerate(zip(self.names, self.starts, self.ends, strict=True))
            views = {name: PartitionView(name, id, start, end) for id, (name, start, end) in rows}
            options = queue_options_decode(self.options)
            self.view = QueueView(self.name, self.id, options, views, tuple(self.groups.values()))
        return self.view


class Catalogue:
    """All queues. `sequence` is that of the last frame whose changes are known."""

    def __init__(self, checkpoint: Checkpoint | None = None) -> None:
        self.sequence = 0
        self._queues: dict[int, _Queue] = {}
        self._names: Names | None = None
        if checkpoint is not None:
            self.sequence = checkpoint.sequence
            for name, data in checkpoint.parts.items():
                if name.startswith(QUEUE_PART):
                    self._restore(snapshot.decode_queue(data))

    def _restore(self, part: snapshot.QueuePart) -> None:
        queue = self._queues[part.head.id] = _Queue(part.head.id, part.head.name, part.head.options)
        queue.groups = {number: name for number, name, *_ in part.head.groups}
        for piece in part.slices:
            queue.names += piece.names
            queue.starts += np.frombuffer(piece.starts, np.int64).tolist()
            queue.ends += np.frombuffer(piece.ends, np.int64).tolist()

    def pushed(self, queue_id: int, partition: int, end: int) -> None:
        """Messages up to `end` are there."""
        queue = self._queues.get(queue_id)
        if queue is not None and partition < len(queue.ends) and queue.ends[partition] < end:
            queue.ends[partition] = end
            queue.view = None

    def apply(self, entry: entries.Entry) -> None:
        """Learn from an entry of a frame after `sequence`."""
        if isinstance(entry, entries.QueueSet):
            queue = self._queues.get(entry.queue)
            if queue is None:
                self._queues[entry.queue] = _Queue(entry.queue, entry.name, entry.options)
            else:
                queue.options = entry.options
        elif isinstance(entry, entries.QueueDeleted):
            self._queues.pop(entry.queue, None)
        self._apply_to(self._queues.get(entry.queue), entry)

    def _apply_to(self, queue: _Queue | None, entry: entries.Entry) -> None:
        self._names = None
        if queue is None:
            return
        queue.view = None
        if isinstance(entry, entries.PartitionsAdded):
            queue.add_partitions(entry.first, entry.names)
        elif isinstance(entry, entries.GroupSet):
            queue.groups[entry.group] = entry.name
        elif isinstance(entry, entries.GroupDeleted):
            queue.groups.pop(entry.group, None)
        elif isinstance(entry, entries.Trimmed):
            for number, start in entry.starts:
                queue.starts[number] = max(queue.starts[number], start)

    def seen(self) -> dict[str, QueueView]:
        """The queues by name, as they are now."""
        return {queue.name: queue.seen() for queue in self._queues.values()}

    def names(self) -> Names:
        """The names behind the ids in the journal."""
        if self._names is None:
            queues = {queue.id: (queue.name, dict(enumerate(queue.names))) for queue in self._queues.values()}
            groups = {(queue.id, id): name for queue in self._queues.values() for id, name in queue.groups.items()}
            self._names = Names(queues, groups)
        return self._names


STRUCTURE = (
    entries.QueueSet,
    entries.QueueDeleted,
    entries.PartitionsAdded,
    entries.GroupSet,
    entries.GroupDeleted,
    entries.Trimmed,
)
