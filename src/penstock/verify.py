"""Does everything add up? Every checksum, every message, every group's account. Nothing is changed.

The state is recovered from the files as opening would do it, and then counted: each offset between the start and the
end of a partition must lie in exactly one place that can be read, and for each group

    end − start = ready + leased + waiting + acked + dead + dropped

where the left side comes from the log and the right side from the state of every offset. A lease that a
killed process left open counts as leased: only opening ends it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import msgspec

from penstock.batch import Batch
from penstock.batch.layout import DUE
from penstock.delivery.core import DeliveryState
from penstock.delivery.entries import Int64s, decode_pushes
from penstock.delivery.group import Group
from penstock.delivery.inspection import count_phases
from penstock.delivery.log import Extent, Partition
from penstock.delivery.phases import FRESH, LEASED, READY, SETTLED, WAITING
from penstock.delivery.progress import Progress
from penstock.errors import PenstockError
from penstock.model import Outcome
from penstock.shard.opening import recover
from penstock.storage.checkpoint import Checkpoint
from penstock.storage.disk import Disk
from penstock.storage.doctor import Examination, examine
from penstock.storage.doctor import Progress as OnProgress
from penstock.storage.manifest import Manifest
from penstock.storage.parquet import SegmentReader, read_column
from penstock.storage.segment_files import segment_files


class Account(msgspec.Struct, frozen=True):
    """One group's account of one queue."""

    queue: str
    group: str
    messages: int
    ready: int
    leased: int
    waiting: int
    acked: int
    dead: int
    dropped: int
    dropped_by: dict[str, int]


class Verification(msgspec.Struct):
    """What was checked, and what is wrong: nothing, unless `problems` says so."""

    directory: str
    files: int = 0
    frames: int = 0
    sealed_messages: int = 0
    journal_messages: int = 0
    problems: list[str] = []
    notes: list[str] = []
    accounts: list[Account] = []


def verify(disk: Disk, now: int, on_progress: OnProgress = lambda done, total: None) -> Verification:
    """Read everything and count everything. The caller holds the directory."""
    examination = examine(disk, on_progress)
    verification = _summary(str(disk.root), examination)
    if verification.problems:
        return verification
    checkpoint = examination.checkpoint
    state = Checkpoint(checkpoint.sequence, checkpoint.parts) if checkpoint.parts else None
    manifest = examination.segments.manifest
    core = recover(examination.journal.replay, manifest, state, now)
    verification.problems += _bad_batches(examination)
    reader = SegmentReader(segment_files(disk))
    for _, queue in sorted(core.by_name.items()):
        for partition in queue.partitions:
            verification.problems += _misplaced(partition)
        for group in queue.groups.values():
            verification.problems += _miscounted(group)
            verification.accounts.append(_account(group, reader, manifest, now))
    verification.journal_messages = _in_journal(core)
    return verification


def _summary(directory: str, examination: Examination) -> Verification:
    journal, segments = examination.journal, examination.segments.manifest
    files = len(journal.starts) + len(examination.checkpoint.parts) + len(segments.files) + 2
    return Verification(
        directory,
        files,
        frames=sum(len(stretch.positions) for stretch in journal.stretches),
        sealed_messages=sum(extent.stored_rows for extent in segments.extents),
        problems=[f"{finding.file}: {finding.what}" for finding in examination.findings if not finding.harmless],
        notes=[f"{finding.file}: {finding.what}" for finding in examination.findings if finding.harmless],
    )


def _bad_batches(examination: Examination) -> Iterator[str]:
    """Batches that are not valid, although they were checked when they came in and their frames are sound."""
    for sequence, data in examination.journal.replay():
        for push in decode_pushes(data):
            try:
                Batch.parse(push.batch, validate=True, is_stored=True)
            except PenstockError as error:
                yield f"the batch in the frame of sequence {sequence} is damaged: {error.message}"


def _misplaced(partition: Partition) -> Iterator[str]:
    """Offsets that lie nowhere, or in two places."""
    where = f"queue {partition.queue.name!r}, partition {partition.name!r}"
    known = sorted([*((extent.first, extent.end) for extent in partition.extents), *partition.lost])
    for (_, end), (first, _) in pairwise(known):
        if end > max(first, partition.start):
            yield f"{where}: offsets {first} to {end - 1} are in two places"
    position = partition.start
    # An extent may span offsets that compaction removed: those are in two ranges, and in one place.
    for first, end in sorted([*known, *partition.removed]):
        if first > position:
            yield f"{where}: offsets {position} to {first - 1} are in no file"
        position = max(position, end)
    if position != partition.end:
        yield f"{where}: the last offset in a file is {position - 1}, and the partition ends at {partition.end}"


def _miscounted(group: Group) -> Iterator[str]:
    """Counters that differ from the states."""
    where = f"queue {group.queue.name!r}, group {group.name!r}"
    counts = count_phases(group)
    rows = group.progress
    expected = {
        "messages": (sum(counts.values()), sum(row.partition.end - row.start for row in rows)),
        "leased": (counts[LEASED], sum(row.leased for row in rows)),
        "waiting": (counts[WAITING], sum(row.waiting for row in rows)),
        "settled": (counts[SETTLED], sum(row.acked + row.dead + row.dropped_count() for row in rows)),
    }
    for name, (counted, kept) in expected.items():
        if counted != kept:
            yield f"{where}: {counted:,} {name} by the states, {kept:,} by the counters"
    if counts[FRESH] < 0:
        yield f"{where}: it refers to messages that the partition does not have"


def _account(group: Group, reader: SegmentReader, manifest: Manifest, now: int) -> Account:
    counts = count_phases(group)
    rows = group.progress
    dropped: dict[str, int] = {}
    for row in rows:
        for outcome, count in (row.dropped or {}).items():
            name = Outcome(outcome).name.lower()
            dropped[name] = dropped.get(name, 0) + count
    delayed = sum(_delayed(row, reader, manifest, now) for row in rows)
    return Account(
        group.queue.name,
        group.name,
        messages=sum(row.partition.end - row.start for row in rows),
        ready=counts[FRESH] + counts[READY] - delayed,
        leased=counts[LEASED],
        waiting=counts[WAITING] + delayed,
        acked=sum(row.acked for row in rows),
        dead=sum(row.dead for row in rows),
        dropped=sum(dropped.values()),
        dropped_by=dropped,
    )


def _delayed(progress: Progress, reader: SegmentReader, manifest: Manifest, now: int) -> int:
    """How many messages were never delivered and are not due yet."""
    first = max(progress.base, progress.partition.start)
    count = 0
    for extent in progress.partition.extents_from(first):
        if extent.flags & DUE:
            low = max(first, extent.first)
            due = _dues(extent, reader, manifest)[low - extent.first :] > now
            count += int((progress.fresh_mask(low, extent.end) & due).sum())
    return count


def _dues(extent: Extent, reader: SegmentReader, manifest: Manifest) -> Int64s:
    if extent.sealed is not None:
        sealed = extent.sealed
        column = read_column(reader, manifest.files[sealed.file], sealed.row_group, "available_at")
        return column[sealed.row : sealed.row + sealed.count]
    dues = extent.dues()
    assert dues is not None
    return dues


def _in_journal(core: DeliveryState) -> int:
    return sum(
        extent.end - extent.first
        for queue in core.queues.values()
        for partition in queue.partitions
        for extent in partition.extents
        if extent.sealed is None
    )
