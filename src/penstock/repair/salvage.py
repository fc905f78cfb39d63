"""The state of a damaged data directory, as far as it can be known. Changes nothing on disk.

Recovery applies a history without gaps; this applies one with holes. Three things make up for them:

- Whatever an entry refers to and the state does not have (a queue, a partition, a group: created in a lost frame) is
  created before the entry is applied, under its own name if that can be found, or as `recovered-<id>`. A queue or group
  that is named again under another id must have been deleted in between, in a frame that is lost.
- An offset that was used is never given to another message. Where later frames do not say how far a partition went,
  the damaged frames themselves do; where those cannot be read, as many offsets are skipped as the lost bytes could
  have used.
- What no file holds is given up: settled as lost, in every group.

Frames that do not match their checksum are never applied. But they are mostly as they were written, so they can say how
many messages are gone and what a queue was called, where nothing else can. What they say is checked against what is
known for sure.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from penstock import limits
from penstock.batch import Batch
from penstock.delivery import entries as kinds
from penstock.delivery.core import DeliveryState
from penstock.delivery.entries import (
    AttemptsLost,
    Compacted,
    Entry,
    GroupDeleted,
    GroupSet,
    Leased,
    PartitionsAdded,
    PauseSet,
    Push,
    QueueDeleted,
    QueueSet,
    Revived,
    Settled,
    Trimmed,
    decode,
)
from penstock.delivery.log import Extent, Partition, Queue
from penstock.delivery.recovery import attach_sealed, gaps, mark_lost, recount
from penstock.delivery.snapshot import QueuePart, decode_shard
from penstock.errors import PenstockError
from penstock.model import DEFAULT_GROUP, Outcome, QueueOptions, check_name, queue_options_decode
from penstock.repair.queue_rebuild import History, rebuild_dedup, rebuild_queue
from penstock.seals import Seals
from penstock.shard.checkpoints import (
    DEDUP_PART,
    ENDINGS_PART,
    PRODUCERS_PART,
    QUEUE_PART,
    SHARD_PART,
    SINKS_PART,
    TASKS_PART,
    restore,
)
from penstock.shard.opening import by_partition
from penstock.storage.checkpoint import Checkpoint
from penstock.storage.disk import Disk
from penstock.storage.doctor import Examination, Hole
from penstock.storage.frames import FRAME, PREFIX
from penstock.units import plural

_UNREADABLE = (struct.error, ValueError, IndexError, TypeError, msgspec.MsgspecError, PenstockError)


def entries_in(hole: Hole) -> list[Entry] | None:
    """The entries of all frames in a hole; None when the frames cannot be separated."""
    if not hole.data:
        return None
    try:
        return [entry for frame in _frames(hole) for entry in _plausible(frame)]
    except _UNREADABLE:
        return None


def _frames(hole: Hole) -> Iterator[memoryview]:
    view = memoryview(hole.data or b"")
    if hole.frames == 1:
        # Everything between two sound frames is this one, whatever its length says.
        yield view[FRAME.size :]
        return
    position = 0
    for expected in range(hole.first_sequence, hole.end_sequence):
        length, _, sequence, _ = FRAME.unpack_from(view, position)
        end = position + PREFIX.size + length
        if sequence != expected or end > len(view):
            raise ValueError("the frames cannot be separated")
        yield view[position + FRAME.size : end]
        position = end


def _plausible(frame: memoryview) -> Iterator[Entry]:
    for entry in decode(frame):
        if isinstance(entry, Push):
            count = Batch.parse(entry.batch, validate=False).count
            accepted = sum(part[1] for part in entry.parts)
            if (entry.rows is None and accepted != count) or accepted > count:
                raise ValueError("a push that does not match its batch")
        yield entry


# These need nothing to exist.
ALONE: Final = (
    PauseSet,
    QueueDeleted, kinds.Closing, kinds.Produced, kinds.ProducerSet, kinds.Answered, kinds.SinkCommitted,
    kinds.TasksNoted, kinds.TaskFreed, kinds.UniqueTaken, kinds.ScheduleSet, kinds.ScheduleFired, kinds.TasksPurged,
    kinds.OperationSet,
)  # fmt: skip


class GapFiller:
    """Creates what lost frames had created: queues, partitions and groups that later entries refer to."""

    def __init__(self, core: DeliveryState, now: int) -> None:
        self._core = core
        self._now = now  # groups that were never used are forgotten, so what is created here counts as used now
        self._queues: dict[int, QueueSet] = {}
        self._groups: dict[tuple[int, int], str] = {}
        self._partitions: dict[tuple[int, int], str] = {}
        self._notes: list[tuple[int, str]] = []

    @property
    def notes(self) -> list[str]:
        """What was created, as far as it is still there."""
        return [note for number, note in self._notes if number in self._core.queues]

    def learn_names(self, entries: Iterable[Entry]) -> None:
        """Remember the names in damaged frames."""
        for entry in entries:
            if isinstance(entry, QueueSet) and _is_plausible(entry):
                self._queues[entry.queue] = entry
            elif isinstance(entry, GroupSet):
                self._groups[entry.queue, entry.group] = entry.name
            elif isinstance(entry, PartitionsAdded):
                self._partitions |= {(entry.queue, entry.first + n): name for n, name in enumerate(entry.names)}

    def prepare(self, entry: Entry) -> None:
        """Create what applying `entry` requires."""
        if isinstance(entry, ALONE):
            return
        if isinstance(entry, QueueSet):
            self._supersede(entry.queue, entry.name)
            return
        queue = self._core.queues.get(entry.queue) or self._make_queue(entry.queue)
        self._make_partitions(queue, _partitions_of(entry))
        if isinstance(entry, GroupSet):
            known = queue.group_ids.get(entry.name, entry.group)
            if known != entry.group:
                self._apply(GroupDeleted(queue.id, known))
        elif isinstance(entry, Leased | Settled | Revived | AttemptsLost):
            self._make_group(queue, entry.group)

    def complete(self, sealed: Mapping[tuple[int, int], Any]) -> None:
        """Create what every queue has, and the partitions that segments know of."""
        for queue in self._core.queues.values():
            numbers = [number for queue_id, number in sealed if queue_id == queue.id]
            self._make_partitions(queue, max(numbers, default=-1) + 1)
            if queue.options.partitions != "named":
                self._make_partitions(queue, queue.options.partitions)
            self._make_group(queue, 0)

    def _make_queue(self, number: int) -> Queue:
        damaged = self._queues.get(number)
        name = f"recovered-{number}" if damaged is None else damaged.name
        options = msgspec.json.encode(QueueOptions()) if damaged is None else damaged.options
        self._supersede(number, name)
        self._apply(QueueSet(number, name, options, False, self._now))
        self._make_group(self._core.queues[number], 0)
        source = "its name and options are unknown; the name is generated, the options are the defaults"
        if damaged is not None:
            source = "name and options are read from the damaged frame"
        self._notes.append((number, f"queue {name!r} was created in a lost frame: {source}"))
        return self._core.queues[number]

    def _supersede(self, number: int, name: str) -> None:
        known = self._core.by_name.get(name)
        if known is not None and known.id != number:
            self._apply(QueueDeleted(known.id))

    def _make_partitions(self, queue: Queue, count: int) -> None:
        have = len(queue.partitions)
        if have >= count:
            return
        names = [self._partitions.get((queue.id, number), str(number)) for number in range(have, count)]
        taken = set(queue.by_name)
        names = [name if name not in taken else f"recovered-{have + n}" for n, name in enumerate(names)]
        self._apply(PartitionsAdded(queue.id, have, names))

    def _make_group(self, queue: Queue, number: int) -> None:
        if number in queue.groups:
            return
        name = DEFAULT_GROUP if number == 0 else self._groups.get((queue.id, number), f"recovered-{number}")
        if name in queue.group_ids:
            name = f"recovered-{number}"
        self._apply(GroupSet(queue.id, number, name, self._now, []))
        if number:
            self._notes.append((queue.id, f"group {name!r} of queue {queue.name!r} was created in a lost frame"))

    def _apply(self, entry: Entry) -> None:
        self._core.apply([entry], self._core.sequence)


def _partitions_of(entry: Entry) -> int:
    """How many partitions an entry requires."""
    if isinstance(entry, Push):
        return max((number for number, _, _ in entry.parts), default=-1) + 1
    if isinstance(entry, PartitionsAdded):
        return entry.first
    if isinstance(entry, GroupSet | Trimmed):
        return max((number for number, _ in entry.starts), default=-1) + 1
    if isinstance(entry, Compacted):
        return entry.partition + 1
    if isinstance(entry, Leased | Settled | Revived | AttemptsLost):
        return max((span.partition for span in entry.spans), default=-1) + 1
    return 0


def _is_plausible(entry: QueueSet) -> bool:
    try:
        check_name(entry.name)
        queue_options_decode(entry.options)
    except (PenstockError, msgspec.MsgspecError):
        return False
    return True


MESSAGE_BYTES_MIN = 4  # a message takes at least this much of a frame: its place in the column of payloads
QUEUE_BYTES_MIN = 32  # so does the entry that makes a queue
SKIPPED_TOTAL_MAX = 16_000_000  # skipped offsets cost a byte each in groups that are behind
SKIPPED_MIN = 1_000


LOST_PARTS = {
    PRODUCERS_PART: "what producers pushed before the last checkpoint is forgotten: if one of them pushes it again, it "
    "is stored twice",
    SINKS_PART: "what sinks committed before the last checkpoint is forgotten: if one of them commits it again, it is "
    "stored twice",
    TASKS_PART: "schedules, unique keys and tasks that waited for others are forgotten where they are from before the "
    "last checkpoint: set and submit them again",
}


class Loss(msgspec.Struct, frozen=True):
    """Messages [first_offset, end_offset) of one partition that no file holds."""

    queue: str
    partition: str
    first_offset: int
    end_offset: int
    unsettled: dict[str, int]  # group → how many of them it had not settled
    is_certain: bool = True  # False: offsets skipped, in case lost frames had used them


class Salvaged(msgspec.Struct):
    """What is left. The core is as recovery leaves it: without indexes, and without gaps."""

    core: DeliveryState
    losses: list[Loss]
    notes: list[str]
    end_sequence: int


def salvage(disk: Disk, examination: Examination, now: int, seals: Seals | None = None) -> Salvaged:
    """Put together what an examination has found to be sound. `seals` open what is encrypted."""
    return _Salvage(disk, examination, now, seals).run()


class _Salvage:
    def __init__(self, disk: Disk, examination: Examination, now: int, seals: Seals | None) -> None:
        self._examination = examination
        self._manifest = examination.segments.readable
        manifest, journal = examination.segments.manifest, examination.journal
        self._history = History(disk, manifest, journal, self._spares(), now, seals)
        self._seals = seals
        self._core = DeliveryState(now)
        self._core.replaying = True
        self._filler = GapFiller(self._core, now)
        self._rebuilt: set[int] = set()
        self._notes: list[str] = []
        self._skipped: dict[Partition, tuple[int, int]] = {}  # end before a hole, and the end it may have had after it

    def run(self) -> Salvaged:
        self._restore()
        sealed = by_partition(self._manifest.extents)
        self._attach(sealed)
        self._replay()
        self._filler.complete(sealed)
        self._attach(sealed)
        end_sequence = max(self._examination.journal.end_sequence, self._examination.known_durable + 1)
        self._core.sequence = end_sequence - 1
        return Salvaged(self._core, self._losses(), self._notes + self._filler.notes, end_sequence)

    def _attach(self, sealed: dict[tuple[int, int], list[Extent]]) -> None:
        """Put sealed extents before those of the journal, in partitions that have none yet."""
        for (queue_id, number), extents in sealed.items():
            queue = self._core.queues.get(queue_id)
            if queue is None or number >= len(queue.partitions):
                continue
            partition = queue.partitions[number]
            if not any(extent.sealed is not None for extent in partition.extents):
                later, partition.extents, partition.firsts = partition.extents, [], []
                attach_sealed(partition, extents)
                for extent in later:
                    partition.replay(extent)
            partition.trim(partition.start)

    # the checkpoint

    def _spares(self) -> dict[int, QueuePart]:
        data = self._examination.checkpoint.parts.get(SHARD_PART)
        return {} if data is None else {part.head.id: part for part in decode_shard(data).spares}

    def _restore(self) -> None:
        checkpoint = self._examination.checkpoint
        for number in self._lost_queues():
            self._notes.append(rebuild_queue(self._core, self._history, number))
            self._rebuilt.add(number)
        parts = {name: data for name, data in checkpoint.parts.items() if self._belongs(name)}
        restore(self._core, Checkpoint(checkpoint.sequence, parts), self._seals)
        self._notes += [note for part, note in LOST_PARTS.items() if part in checkpoint.lost_parts]
        lost = {_queue_of(name) for name in checkpoint.lost_parts if name.startswith(DEDUP_PART)}
        for number in sorted(lost - self._rebuilt):
            if number in self._core.queues:
                self._notes.append(rebuild_dedup(self._core.queues[number], self._history))

    def _belongs(self, name: str) -> bool:
        """Whether a part is about a queue that there is."""
        if not name.startswith((DEDUP_PART, ENDINGS_PART)):
            return True
        return f"{QUEUE_PART}{_queue_of(name)}" in self._examination.checkpoint.parts

    def _lost_queues(self) -> list[int]:
        """Queues whose state is in no part that can be read."""
        checkpoint = self._examination.checkpoint
        if checkpoint.findings and not checkpoint.parts and not checkpoint.lost_parts:
            return sorted(self._manifest.queues)
        return sorted(_queue_of(name) for name in checkpoint.lost_parts if name.startswith(QUEUE_PART))

    # the journal

    def _replay(self) -> None:
        holes = sorted(self._examination.journal.holes, key=lambda hole: hole.first_sequence)
        known = self._examination.checkpoint.sequence
        for sequence, data in self._examination.journal.replay(0 if self._rebuilt else self._examination.needed_after):
            while holes and holes[0].first_sequence < sequence:
                self._skip_hole(holes.pop(0))
            for entry in decode(data):
                if sequence > known or entry.queue in self._rebuilt:
                    self._filler.prepare(entry)
                    self._core.apply([entry], sequence)
                elif isinstance(entry, Push) and sequence > self._examination.needed_after:
                    self._core.replay_pushes([entry], sequence)
        for hole in holes:
            self._skip_hole(hole)
        if self._examination.journal.end_is_lost:
            self._notes.append("the end of the journal is lost; how much it contained is unknown")
            self._skip_offsets(limits.journal_file_bytes)

    def _skip_hole(self, hole: Hole) -> None:
        """Frames are gone here. Up to `known_durable` the checkpoint and the segments know how far partitions went."""
        if hole.end_sequence - 1 <= self._examination.known_durable:
            return
        self._notes.append(
            f"{hole.file}: what {plural(hole.frames, 'frame')} from sequence {hole.first_sequence} on recorded about "
            "leases and settlements is lost; messages settled there may be delivered again"
        )
        entries = entries_in(hole)
        self._filler.learn_names(entries or [])
        created = {entry.queue for entry in entries or () if isinstance(entry, QueueSet)}
        if entries is None or not all(push.queue in created or self._follows(push) for push in _pushes(entries)):
            self._skip_offsets(hole.bytes_max)

    def _skip_offsets(self, lost_bytes: int) -> None:
        """Leave room for whatever lost bytes may have held. A later push says how much it was."""
        self._core.queue_id_next += lost_bytes // QUEUE_BYTES_MIN
        partitions = _partitions(self._core)
        count = min(lost_bytes // MESSAGE_BYTES_MIN, max(SKIPPED_MIN, SKIPPED_TOTAL_MAX // max(1, len(partitions))))
        for partition in partitions:
            before, reach = self._skipped.get(partition, (partition.end, partition.end))
            start = reach if before == partition.end else partition.end
            self._skipped[partition] = (partition.end, start + count)

    def _follows(self, push: Push) -> bool:
        """Whether a damaged push continues where its partitions end, as it must have; then they end after it."""
        queue = self._core.queues.get(push.queue)
        if queue is None or any(
            number < len(queue.partitions) and queue.partitions[number].end != first for number, _, first in push.parts
        ):
            return False
        for number, count, first in push.parts:
            if number < len(queue.partitions):
                queue.partitions[number].end = first + count
        return True

    # the account

    def _losses(self) -> list[Loss]:
        losses: list[Loss] = []
        for queue in self._core.queues.values():
            for partition in queue.partitions:
                losses += self._losses_of(queue, partition)
            for group in queue.groups.values():
                for progress in group.progress:
                    recount(progress)
        return losses

    def _losses_of(self, queue: Queue, partition: Partition) -> Iterator[Loss]:
        touched = [group.progress[partition.id] for group in queue.groups.values()]
        partition.end = max([partition.end, *(progress.base + len(progress.states) for progress in touched)])
        known_end = partition.end
        before, reach = self._skipped.get(partition, (0, 0))
        if before == partition.end:
            partition.end = max(partition.end, reach)
        for first, end in gaps(partition):
            for low, high, is_certain in ((first, min(end, known_end), True), (max(first, known_end), end, False)):
                if low < high:
                    unsettled = _give_up(queue, partition, low, high)
                    self._core.producers.drop(queue.id, partition.id, low, high)
                    yield Loss(queue.name, partition.name, low, high, unsettled, is_certain)


def _give_up(queue: Queue, partition: Partition, first: int, end: int) -> dict[str, int]:
    groups = queue.groups.values()
    before = {group.name: _lost_count(group.progress[partition.id].dropped) for group in groups}
    mark_lost(partition, [(first, end)])
    after = {group.name: _lost_count(group.progress[partition.id].dropped) for group in groups}
    return {name: count - before[name] for name, count in after.items() if count > before[name]}


def _lost_count(dropped: dict[int, int] | None) -> int:
    return (dropped or {}).get(Outcome.LOST, 0)


def _pushes(entries: list[Entry]) -> list[Push]:
    return [entry for entry in entries if isinstance(entry, Push)]


def _partitions(core: DeliveryState) -> list[Partition]:
    return [partition for queue in core.queues.values() for partition in queue.partitions]


def _queue_of(part: str) -> int:
    return int(part.split("-")[1])
