"""Diagnosing a data directory, and making a damaged one whole again, in steps each of which may be the last.

1. The marker is rewritten.
2. Damaged segment files are replaced by what can be read of them, and the manifest says so.
3. A damaged journal is sealed: every sound frame goes into segments.
4. A checkpoint takes the salvaged state, with what is lost settled as lost.
5. The damaged journal is replaced by an empty one that continues after it.
6. The directory is opened, to check it and to record in history what was lost.

Everything that is replaced is copied to the quarantine first: `damaged/<time>/` in the data directory, under the names
that the files had. Copies are durable before anything happens to the originals, and Penstock never reads or removes
them. Until step 5 the journal is as it was found, so a repair that was cut short is simply done again.
"""

from __future__ import annotations

import os
import random
from typing import Final

import msgspec

from penstock import limits
from penstock.clock import Clock
from penstock.delivery import snapshot
from penstock.delivery.core import DeliveryState
from penstock.delivery.dedup import DedupWindow, run_of
from penstock.delivery.entries import Settled, Span, is_encrypted
from penstock.delivery.snapshot import encode_tasks, take_sinks, take_tasks
from penstock.model import Outcome, to_datetime
from penstock.repair.salvage import Loss, Salvaged, salvage
from penstock.seals import DataKeys, Seals
from penstock.shard.checkpoints import (
    HOT,
    PRODUCERS_PART,
    QUEUE_PART,
    SHARD_PART,
    SINKS_PART,
    TASKS_PART,
    dedup_part,
    encode_run,
    endings_part,
)
from penstock.shard.opening import close_on_disk, open_on_disk
from penstock.shard.sealed_tasks import seal_tasks
from penstock.shard.shard import Shard
from penstock.storage import journal_files
from penstock.storage import manifest as manifests
from penstock.storage.checkpoint import CheckpointStore
from penstock.storage.directory import DIRECTORIES, MARKER, needed_format, write_marker
from penstock.storage.disk import Disk
from penstock.storage.doctor import CheckpointCheck, Examination, Finding, Progress, SegmentCheck, examine
from penstock.storage.frames import Header
from penstock.storage.manifest import Manifest
from penstock.storage.parquet import SegmentReader
from penstock.storage.retention import rewrite
from penstock.storage.schema import MESSAGES, Names
from penstock.storage.sealed_frames import FrameSeals
from penstock.storage.sealed_rows import RowSeals
from penstock.storage.segment_files import SegmentFiles, segment_files
from penstock.storage.segments import SegmentStore


class Checked(msgspec.Struct, frozen=True):
    """How much was examined."""

    journal_files: int
    frames: int
    checkpoint_parts: int
    segment_files: int
    sealed_messages: int


class Report(msgspec.Struct, frozen=True):
    """A diagnosis, and what was done about it, as people and programs read it."""

    directory: str
    is_sound: bool
    findings: list[Finding]
    losses: list[Loss]
    notes: list[str]
    checked: Checked
    is_repaired: bool = False
    kept_in: str | None = None  # the quarantine: copies of everything that the repair replaced


class Diagnosis(msgspec.Struct):
    """What is wrong and what is left."""

    directory: str
    examination: Examination
    salvaged: Salvaged
    seals: Seals | None = None

    @property
    def is_sound(self) -> bool:
        return self.examination.is_sound and not self.salvaged.losses

    def report(self, kept_in: str | None = None) -> Report:
        """As a report; `kept_in` when it has been repaired."""
        salvaged = self.salvaged
        return Report(
            self.directory,
            self.is_sound,
            self.examination.findings,
            salvaged.losses,
            [] if self.is_sound else salvaged.notes,
            self._checked(),
            kept_in is not None,
            kept_in,
        )

    def _checked(self) -> Checked:
        examination = self.examination
        return Checked(
            len(examination.journal.starts),
            sum(len(stretch.positions) for stretch in examination.journal.stretches),
            len(examination.checkpoint.parts),
            len(examination.segments.manifest.files),
            sum(extent.stored_rows for extent in examination.segments.manifest.extents),
        )


def diagnose(
    disk: Disk, now: int, on_progress: Progress = lambda done, total: None, keys: DataKeys | None = None
) -> Diagnosis:
    """Read everything; nothing is changed. The caller holds the directory. To repair encrypted queues takes `keys`."""
    examination = examine(disk, on_progress)
    seals = None if keys is None else Seals(keys, examination.shard_id)
    if seals is not None:
        examination.journal.unseal = FrameSeals(seals).open
    return Diagnosis(str(disk.root), examination, salvage(disk, examination, now, seals), seals)


QUARANTINE: Final = "damaged"


class Quarantine:
    """The folder where one repair keeps what it replaces. It is created with the first file."""

    def __init__(self, disk: Disk, now: int) -> None:
        self._disk = disk
        stamp = to_datetime(now).strftime("%Y%m%dT%H%M%SZ")
        taken = set(disk.list(QUARANTINE)) if disk.exists(QUARANTINE) else set()
        names = [stamp, *(f"{stamp}-{number}" for number in range(2, len(taken) + 3))]
        self.folder = f"{QUARANTINE}/{next(name for name in names if name not in taken)}"

    def keep(self, name: str) -> None:
        """Copy a file, if it is there; the original stays."""
        if self._disk.exists(name):
            self.write(name, self._disk.read(name))

    def move(self, name: str) -> None:
        """Copy a file and remove the original."""
        self.keep(name)
        self._disk.remove(name)
        self._disk.sync_directory(os.path.dirname(name))

    def write(self, name: str, data: bytes) -> None:
        """Add a file of the repair itself."""
        path = f"{self.folder}/{name}"
        levels = path.split("/")[:-1]
        for depth in range(1, len(levels) + 1):
            self._disk.make_directory("/".join(levels[:depth]))
        self._disk.write_whole(path, data)


REPORT = "report.json"


def _is_compacted(core: DeliveryState) -> bool:
    queues = core.queues.values()
    return any(queue.options.compaction != "none" or any(p.removed for p in queue.partitions) for queue in queues)


def repair(
    disk: Disk,
    diagnosis: Diagnosis,
    clock: Clock,
    rng: random.Random,
    *,
    journal_file_bytes: int = limits.journal_file_bytes,
) -> Report:
    """Repair what a diagnosis has found. The caller holds the directory; it is released when this returns."""
    examination, salvaged, seals = diagnosis.examination, diagnosis.salvaged, diagnosis.seals
    if salvaged.core.encrypted and seals is None:
        raise is_encrypted()
    files = segment_files(disk)
    files.begin()
    quarantine = Quarantine(files, clock.now())
    # First of all, so that what is lost is known even if this process dies.
    _write_report(quarantine, diagnosis.report())
    if not examination.marker_is_sound:
        quarantine.keep(MARKER)
        core = salvaged.core
        version = needed_format(
            is_encrypted=bool(core.encrypted), is_located=bool(files.book.locations), is_compacted=_is_compacted(core)
        )
        write_marker(disk, examination.shard_id, version)
    for name in DIRECTORIES:
        disk.make_directory(name)
    _repair_segments(files, examination.segments, quarantine)
    journal_is_sound = all(finding.harmless for finding in examination.journal.findings)
    if not journal_is_sound:
        _seal_journal(files, examination, salvaged, seals)
    _sync_journal(disk, examination)
    _write_checkpoint(disk, examination.checkpoint, salvaged, quarantine, seals)
    if not journal_is_sound:
        _restart_journal(disk, examination, salvaged, quarantine, journal_file_bytes)
    report = diagnosis.report(kept_in=quarantine.folder)
    _write_report(quarantine, report)
    disk.close()
    _reopen(disk, salvaged, clock, rng, journal_file_bytes, None if seals is None else seals.keys)
    return report


def _write_report(quarantine: Quarantine, report: Report) -> None:
    quarantine.write(REPORT, msgspec.json.format(msgspec.json.encode(report)))


def _repair_segments(disk: SegmentFiles, segments: SegmentCheck, quarantine: Quarantine) -> None:
    """Write new files with what can be read of damaged ones, then the manifest, then remove the damaged ones."""
    if not segments.findings:
        return
    for name in (manifests.NAME, *manifests.part_files(disk)):
        quarantine.keep(name)
    for name in segments.unlisted_files:
        quarantine.move(name)
    manifest = segments.manifest
    for name in segments.damaged_files:
        quarantine.keep(name)
        manifest = _replace(disk, manifest, segments, name)
    disk.make_directory("segments")
    disk.add_leftovers(segments.damaged_files)
    disk.write_whole(manifests.NAME, manifests.encode(manifest))
    for name in segments.damaged_files:
        if disk.exists(name):
            disk.remove(name)
            disk.sync_directory(os.path.dirname(name))


def _replace(disk: SegmentFiles, manifest: Manifest, segments: SegmentCheck, name: str) -> Manifest:
    file, sound = manifest.files[name], segments.sound_extents[name]
    oldest = manifests.queues_with_history(manifest)
    rewritten = rewrite(disk, SegmentReader(disk), oldest, file, sound) if sound else ([], [])
    written, extents = rewritten if file.table == MESSAGES else ([], [])
    return msgspec.structs.replace(
        manifest,
        files={other: entry for other, entry in manifest.files.items() if other != name}
        | {entry.name: entry for entry in written},
        extents=sorted([*(extent for extent in manifest.extents if extent.file != name), *extents]),
    )


def _seal_journal(disk: Disk, examination: Examination, salvaged: Salvaged, seals: Seals | None) -> None:
    queues = salvaged.core.queues
    names = Names(
        {id: (queue.name, {p.id: p.name for p in queue.partitions}) for id, queue in queues.items()},
        {(id, group.id): group.name for id, queue in queues.items() for group in queue.groups.values()},
    )
    starts = {(id, p.id): p.start for id, queue in queues.items() for p in queue.partitions}
    row_seals = None if seals is None else RowSeals(seals, salvaged.core.encrypted)
    SegmentStore(disk, row_seals=row_seals).seal(
        examination.journal.replay(), salvaged.end_sequence, names, lambda queue, number: starts.get((queue, number), 0)
    )


def _sync_journal(disk: Disk, examination: Examination) -> None:
    """What a killed process wrote may be in memory only, and the checkpoint will call it durable."""
    for start in examination.journal.starts[-1:]:
        file = disk.open(journal_files.name_of(start))
        file.sync()
        file.close()


def _write_checkpoint(
    disk: Disk, check: CheckpointCheck, salvaged: Salvaged, quarantine: Quarantine, seals: Seals | None
) -> None:
    for name in check.damaged_files:
        if disk.exists(name):
            quarantine.move(name)
    CheckpointStore(disk).save(salvaged.end_sequence - 1, _parts(salvaged.core, seals))


def _parts(core: DeliveryState, seals: Seals | None) -> dict[str, bytes]:
    parts: dict[str, bytes] = {}
    spares = []
    for queue in core.queues.values():
        firsts = range(0, len(queue.partitions), snapshot.SLICE)
        slices = [snapshot.take_slice(core, queue, first) for first in firsts]
        part = snapshot.QueuePart(snapshot.take_head(queue), slices)
        spares.append(snapshot.spare_of(part))
        parts[f"{QUEUE_PART}{queue.id}"] = snapshot.encode_part(part)
        own_seals = seals if queue.id in core.encrypted else None
        endings = [ended for first in firsts for ended in snapshot.take_endings(queue, first)]
        if endings:
            parts |= endings_part(queue.id, endings, own_seals)
        if queue.dedup is not None:
            parts |= _dedup_parts(queue.id, queue.dedup, own_seals)
    if core.producers.known:
        known = snapshot.take_producers(core.producers, core.producers.known, core.sequence)
        parts[PRODUCERS_PART] = snapshot.encode_part(snapshot.ProducersPart(core.producers.look_at, [known]))
    if core.sinks.known:
        parts[SINKS_PART] = snapshot.encode_part(take_sinks(core.sinks, core.sequence))
    if core.tasks:
        taken = take_tasks(core.tasks, core.sequence)
        if seals is not None:
            numbers = {name: queue.id for name, queue in core.by_name.items()}
            taken = seal_tasks(taken, seals, core.encrypted, numbers.get)
        parts[TASKS_PART] = encode_tasks(taken)
    return parts | {
        SHARD_PART: snapshot.encode_part(snapshot.ShardPart(core.queue_id_next, spares, core.pauses.kept(core)))
    }


def _dedup_parts(queue: int, window: DedupWindow, seals: Seals | None) -> dict[str, bytes]:
    runs = {str(number): run.records for number, run in window.runs.items()}
    if window.hot:
        runs[HOT] = run_of(window.hot)
    names = {run: dedup_part(queue, run, is_sealed=seals is not None) for run in runs}
    return {names[run]: encode_run(records, names[run], queue, seals) for run, records in runs.items()}


def _restart_journal(
    disk: Disk, examination: Examination, salvaged: Salvaged, quarantine: Quarantine, file_bytes: int
) -> None:
    """Replace the journal: everything up to here is in segments and in the checkpoint."""
    old = [journal_files.name_of(start) for start in examination.journal.starts]
    for name in old:
        quarantine.keep(name)
    journal_files.remove_leftovers(disk)
    if disk.exists(journal_files.MARK_FILE):
        disk.remove(journal_files.MARK_FILE)  # of the old journal
    header = Header(examination.shard_id, len(old) + 1, salvaged.end_sequence)
    journal_files.create_file(disk, header, file_bytes)[0].close()
    for name in old:
        if name != journal_files.name_of(salvaged.end_sequence):
            disk.remove(name)
    disk.sync_directory(journal_files.DIRECTORY)


def _reopen(
    disk: Disk, salvaged: Salvaged, clock: Clock, rng: random.Random, file_bytes: int, keys: DataKeys | None
) -> None:
    shard, keeper = open_on_disk(disk, clock, rng, journal_file_bytes=file_bytes, open_keys=lambda disk, shard_id: keys)
    with shard.locked():
        for loss in salvaged.losses:
            _record(shard, loss)
    close_on_disk(shard, keeper, disk)


def _record(shard: Shard, loss: Loss) -> None:
    """Record a loss in the events table; the state has it already."""
    queue = shard.core.by_name[loss.queue]
    span = Span(queue.by_name[loss.partition].id, loss.first_offset, loss.end_offset - loss.first_offset)
    now = shard.clock.now()
    for name in loss.unsettled if loss.is_certain else ():
        group = queue.group_ids[name]
        entry = Settled(queue.id, group, int(Outcome.LOST), now, 0, "", "could not be repaired", [span])
        shard.upkeep_commit([entry])
