"""The state of a damaged data directory, as far as it can be known. Changes nothing on disk.

Recovery applies a history without gaps; this applies one with holes. Three things make up for them:

- Whatever an entry speaks of and the state does not have (a queue, a partition, a group: made in a lost frame) is made
  before the entry is applied, under its own name if that can be found, or as `recovered-<id>`.
- An offset that was used is never given to another message. Where later frames do not tell how far a partition went,
  the damaged frames themselves are asked; where those cannot be read, as many offsets are passed over as the lost
  bytes could have used.
- What no file holds is given up: settled as lost, in every group.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from penstock import limits
from penstock.delivery.core import DeliveryState
from penstock.delivery.entries import Entry, Push, QueueSet, decode
from penstock.delivery.log import Extent, Partition, Queue
from penstock.delivery.recovery import attach_sealed, gaps, give_up, recount
from penstock.delivery.snapshot import QueuePart, decode_shard
from penstock.model import Outcome
from penstock.repair.filling import Filling
from penstock.repair.rebuilding import History, rebuild_dedup, rebuild_queue
from penstock.shard.checkpoints import (
    DEDUP_PART,
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
from penstock.storage.evidence import entries_in
from penstock.units import plural

MESSAGE_BYTES_MIN = 4  # a message takes at least this much of a frame: its place in the column of payloads
QUEUE_BYTES_MIN = 32  # so does the entry that makes a queue
PASSED_IN_ALL_MAX = 16_000_000  # offsets passed over cost a byte each in groups that are behind
PASSED_MIN = 1_000


class Loss(msgspec.Struct, frozen=True):
    """Messages [first_offset, end_offset) of one partition that no file holds."""

    queue: str
    partition: str
    first_offset: int
    end_offset: int
    unsettled: dict[str, int]  # group → how many of them it had still before it
    is_certain: bool = True  # False: offsets passed over, in case lost frames had used them


class Salvaged(msgspec.Struct):
    """What is left. The core is as recovery leaves it: without indexes, and with nothing missing."""

    core: DeliveryState
    losses: list[Loss]
    notes: list[str]
    end_sequence: int


def salvage(disk: Disk, examination: Examination, now: int) -> Salvaged:
    """Put together what an examination has found to be sound."""
    return _Salvage(disk, examination, now).run()


class _Salvage:
    def __init__(self, disk: Disk, examination: Examination, now: int) -> None:
        self._found = examination
        self._manifest = examination.segments.readable
        self._history = History(disk, examination.segments.manifest, examination.journal, self._spares(), now)
        self._core = DeliveryState(now)
        self._core.replaying = True
        self._filling = Filling(self._core, now)
        self._rebuilt: set[int] = set()
        self._notes: list[str] = []
        self._passed: dict[Partition, tuple[int, int]] = {}  # end before a hole, and the end it may have had after it

    def run(self) -> Salvaged:
        self._restore()
        sealed = by_partition(self._manifest.extents)
        self._attach(sealed)
        self._replay()
        self._filling.complete(sealed)
        self._attach(sealed)
        end_sequence = max(self._found.journal.end_sequence, self._found.known_durable + 1)
        self._core.sequence = end_sequence - 1
        return Salvaged(self._core, self._losses(), self._notes + self._filling.notes, end_sequence)

    def _attach(self, sealed: dict[tuple[int, int], list[Extent]]) -> None:
        """Put sealed extents before what the journal brought, in partitions that have none yet."""
        for (queue_id, number), extents in sealed.items():
            queue = self._core.queues.get(queue_id)
            if queue is None or number >= len(queue.partitions):
                continue
            partition = queue.partitions[number]
            if not any(extent.sealed is not None for extent in partition.extents):
                later, partition.extents, partition.firsts = partition.extents, [], []
                attach_sealed(partition, extents)
                for extent in later:
                    partition.learn(extent)
            partition.trim(partition.start)

    # the checkpoint

    def _spares(self) -> dict[int, QueuePart]:
        data = self._found.checkpoint.parts.get(SHARD_PART)
        return {} if data is None else {part.head.id: part for part in decode_shard(data).spares}

    def _restore(self) -> None:
        checkpoint = self._found.checkpoint
        for number in self._lost_queues():
            self._notes.append(rebuild_queue(self._core, self._history, number))
            self._rebuilt.add(number)
        parts = {name: data for name, data in checkpoint.parts.items() if self._belongs(name)}
        restore(self._core, Checkpoint(checkpoint.sequence, parts))
        if PRODUCERS_PART in checkpoint.lost_parts:
            self._notes.append(
                "what producers pushed before the last checkpoint is forgotten: if one of them pushes it again, it is "
                "stored twice"
            )
        if SINKS_PART in checkpoint.lost_parts:
            self._notes.append(
                "what sinks committed before the last checkpoint is forgotten: if one of them commits it again, it is "
                "stored twice"
            )
        if TASKS_PART in checkpoint.lost_parts:
            self._notes.append(
                "schedules, unique keys and tasks that waited for others are forgotten where they are from before the "
                "last checkpoint: set and submit them again"
            )
        lost = {_queue_of(name) for name in checkpoint.lost_parts if name.startswith(DEDUP_PART)}
        for number in sorted(lost - self._rebuilt):
            if number in self._core.queues:
                self._notes.append(rebuild_dedup(self._core.queues[number], self._history))

    def _belongs(self, name: str) -> bool:
        """Whether a part is about a queue that there is."""
        if not name.startswith(DEDUP_PART):
            return True
        return f"{QUEUE_PART}{_queue_of(name)}" in self._found.checkpoint.parts

    def _lost_queues(self) -> list[int]:
        """Queues whose state is in no part that can be read."""
        checkpoint = self._found.checkpoint
        if checkpoint.findings and not checkpoint.parts and not checkpoint.lost_parts:
            return sorted(self._manifest.queues)
        return sorted(_queue_of(name) for name in checkpoint.lost_parts if name.startswith(QUEUE_PART))

    # the journal

    def _replay(self) -> None:
        holes = sorted(self._found.journal.holes, key=lambda hole: hole.first_sequence)
        known = self._found.checkpoint.sequence
        for sequence, data in self._found.journal.replay(0 if self._rebuilt else self._found.needed_after):
            while holes and holes[0].first_sequence < sequence:
                self._pass(holes.pop(0))
            for each in decode(data):
                if sequence > known or each.queue in self._rebuilt:
                    self._filling.prepare(each)
                    self._core.apply([each], sequence)
                elif isinstance(each, Push) and sequence > self._found.needed_after:
                    self._core.learn([each], sequence)
        for hole in holes:
            self._pass(hole)
        if self._found.journal.end_is_lost:
            self._notes.append("the end of the journal is lost; there may have been more in it than anybody knows")
            self._pass_over(limits.journal_file_bytes)

    def _pass(self, hole: Hole) -> None:
        """Frames are gone here. Up to `known_durable` the checkpoint and the segments know how far partitions went."""
        if hole.end_sequence - 1 <= self._found.known_durable:
            return
        self._notes.append(
            f"{hole.file}: whatever {plural(hole.frames, 'frame')} from sequence {hole.first_sequence} on said about "
            "leases and settlements is forgotten; messages settled there may be delivered again"
        )
        entries = entries_in(hole)
        self._filling.hear(entries or [])
        made = {each.queue for each in entries or () if isinstance(each, QueueSet)}
        if entries is None or not all(each.queue in made or self._follows(each) for each in _pushes(entries)):
            self._pass_over(hole.bytes_max)

    def _pass_over(self, lost_bytes: int) -> None:
        """Leave room for whatever lost bytes may have held. A later push tells how much it was."""
        self._core.queue_id_next += lost_bytes // QUEUE_BYTES_MIN
        partitions = _partitions(self._core)
        count = min(lost_bytes // MESSAGE_BYTES_MIN, max(PASSED_MIN, PASSED_IN_ALL_MAX // max(1, len(partitions))))
        for partition in partitions:
            before, reach = self._passed.get(partition, (partition.end, partition.end))
            start = reach if before == partition.end else partition.end
            self._passed[partition] = (partition.end, start + count)

    def _follows(self, push: Push) -> bool:
        """Whether a damaged push goes on where its partitions end, as it must have done; then they end after it."""
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
        before, reach = self._passed.get(partition, (0, 0))
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
    give_up(partition, [(first, end)])
    after = {group.name: _lost_count(group.progress[partition.id].dropped) for group in groups}
    return {name: count - before[name] for name, count in after.items() if count > before[name]}


def _lost_count(dropped: dict[int, int] | None) -> int:
    return (dropped or {}).get(Outcome.LOST, 0)


def _pushes(entries: list[Entry]) -> list[Push]:
    return [each for each in entries if isinstance(each, Push)]


def _partitions(core: DeliveryState) -> list[Partition]:
    return [partition for queue in core.queues.values() for partition in queue.partitions]


def _queue_of(part: str) -> int:
    return int(part.split("-")[1])
