"""Making a damaged directory whole again, in steps each of which may be the last.

1. The marker is written anew.
2. Damaged segment files are replaced by what can be read of them, and the manifest says so.
3. A damaged journal is sealed: every sound frame goes into segments.
4. A checkpoint takes the salvaged state, with what is lost settled as lost.
5. The damaged journal makes room for an empty one that goes on after it.
6. The directory is opened, as a proof and to write into history what was lost.

Everything that is replaced is copied to `damaged/` first. Until step 5 the journal is as it was found, so a repair
that was cut short is simply done again.
"""

from __future__ import annotations

import os
import random

import msgspec

from penstock import limits
from penstock.clock import Clock
from penstock.delivery import snapshot
from penstock.delivery.core import DeliveryState
from penstock.delivery.dedup import run_of
from penstock.delivery.entries import Settled, Span
from penstock.delivery.snapshot import encode_sinks, encode_tasks, take_sinks, take_tasks
from penstock.model import Outcome
from penstock.repair.diagnosis import Diagnosis, Report
from penstock.repair.salvage import Loss, Salvaged
from penstock.shard.checkpoints import DEDUP_PART, HOT, PRODUCERS_PART, QUEUE_PART, SHARD_PART, SINKS_PART, TASKS_PART
from penstock.shard.opening import close_on_disk, open_on_disk
from penstock.shard.shard import Shard
from penstock.storage import compaction, journal_files
from penstock.storage import manifest as manifests
from penstock.storage.aside import Aside
from penstock.storage.checkpoint import CheckpointStore
from penstock.storage.directory import DIRECTORIES, MARKER, write_marker
from penstock.storage.disk import Disk
from penstock.storage.doctor import CheckpointCheck, Examination, SegmentCheck
from penstock.storage.frames import Header
from penstock.storage.manifest import Manifest
from penstock.storage.parquet import SegmentReader
from penstock.storage.schema import MESSAGES, Names
from penstock.storage.segments import SegmentStore

REPORT = "report.json"


def repair(
    disk: Disk,
    found: Diagnosis,
    clock: Clock,
    rng: random.Random,
    *,
    journal_file_bytes: int = limits.journal_file_bytes,
) -> Report:
    """Mend what a diagnosis has found. The caller holds the directory, and has given it back when this returns."""
    examination, salvaged = found.examination, found.salvaged
    aside = Aside(disk, clock.now())
    # First of all, so that what is lost is known even if this process does not live to tell.
    _write_report(aside, found.report())
    if not examination.marker_is_sound:
        aside.keep(MARKER)
        write_marker(disk, examination.shard_id)
    for name in DIRECTORIES:
        disk.make_directory(name)
    _mend_segments(disk, examination.segments, aside)
    journal_is_sound = all(finding.harmless for finding in examination.journal.findings)
    if not journal_is_sound:
        _seal_journal(disk, examination, salvaged)
    _sync_journal(disk, examination)
    _write_checkpoint(disk, examination.checkpoint, salvaged, aside)
    if not journal_is_sound:
        _restart_journal(disk, examination, salvaged, aside, journal_file_bytes)
    report = found.report(kept_in=aside.folder)
    _write_report(aside, report)
    disk.close()
    _prove(disk, salvaged, clock, rng, journal_file_bytes)
    return report


def _write_report(aside: Aside, report: Report) -> None:
    aside.write(REPORT, msgspec.json.format(msgspec.json.encode(report)))


def _mend_segments(disk: Disk, segments: SegmentCheck, aside: Aside) -> None:
    """New files for what can be read of damaged ones; then the manifest; then the damaged ones go."""
    if not segments.findings:
        return
    for name in (manifests.NAME, *manifests.part_files(disk)):
        aside.keep(name)
    for name in segments.unlisted_files:
        aside.move(name)
    manifest = segments.manifest
    for name in segments.damaged_files:
        aside.keep(name)
        manifest = _replace(disk, manifest, segments, name)
    disk.make_directory("segments")
    disk.write_whole(manifests.NAME, manifests.encode(manifest))
    for name in segments.damaged_files:
        if disk.exists(name):
            disk.remove(name)
            disk.sync_directory(os.path.dirname(name))


def _replace(disk: Disk, manifest: Manifest, segments: SegmentCheck, name: str) -> Manifest:
    file, sound = manifest.files[name], segments.sound_extents[name]
    oldest = manifests.queues_with_history(manifest)
    rewritten = compaction.rewrite(disk, SegmentReader(disk), oldest, file, sound) if sound else ([], [])
    written, extents = rewritten if file.table == MESSAGES else ([], [])
    return msgspec.structs.replace(
        manifest,
        files={other: entry for other, entry in manifest.files.items() if other != name}
        | {entry.name: entry for entry in written},
        extents=sorted([*(extent for extent in manifest.extents if extent.file != name), *extents]),
    )


def _seal_journal(disk: Disk, examination: Examination, salvaged: Salvaged) -> None:
    queues = salvaged.core.queues
    names = Names(
        {id: (queue.name, {p.id: p.name for p in queue.partitions}) for id, queue in queues.items()},
        {(id, group.id): group.name for id, queue in queues.items() for group in queue.groups.values()},
    )
    starts = {(id, p.id): p.start for id, queue in queues.items() for p in queue.partitions}
    SegmentStore(disk).seal(
        examination.journal.replay(), salvaged.end_sequence, names, lambda queue, number: starts.get((queue, number), 0)
    )


def _sync_journal(disk: Disk, examination: Examination) -> None:
    """What a killed process wrote may be in memory only, and the checkpoint will call it durable."""
    for start in examination.journal.starts[-1:]:
        file = disk.open(journal_files.name_of(start))
        file.sync()
        file.close()


def _write_checkpoint(disk: Disk, check: CheckpointCheck, salvaged: Salvaged, aside: Aside) -> None:
    for name in check.damaged_files:
        if disk.exists(name):
            aside.move(name)
    CheckpointStore(disk).save(salvaged.end_sequence - 1, _parts(salvaged.core))


def _parts(core: DeliveryState) -> dict[str, bytes]:
    parts: dict[str, bytes] = {}
    spares = []
    for queue in core.queues.values():
        firsts = range(0, len(queue.partitions), snapshot.SLICE)
        slices = [snapshot.take_slice(core, queue, first) for first in firsts]
        part = snapshot.QueuePart(snapshot.take_head(queue), slices)
        spares.append(snapshot.spare_of(part))
        parts[f"{QUEUE_PART}{queue.id}"] = snapshot.encode_queue(part)
        if queue.dedup is not None:
            for number, run in queue.dedup.runs.items():
                parts[f"{DEDUP_PART}{queue.id}-{number}"] = run.records.tobytes()
            if queue.dedup.hot:
                parts[f"{DEDUP_PART}{queue.id}-{HOT}"] = run_of(queue.dedup.hot).tobytes()
    if core.producers.known:
        known = snapshot.take_producers(core.producers, core.producers.known, core.sequence)
        parts[PRODUCERS_PART] = snapshot.encode_producers(core.producers.look_at, [known])
    if core.sinks.known:
        parts[SINKS_PART] = encode_sinks(take_sinks(core.sinks, core.sequence))
    if core.tasks:
        parts[TASKS_PART] = encode_tasks(take_tasks(core.tasks, core.sequence))
    return parts | {SHARD_PART: snapshot.encode_shard(core.queue_id_next, spares)}


def _restart_journal(disk: Disk, examination: Examination, salvaged: Salvaged, aside: Aside, file_bytes: int) -> None:
    """Everything up to here is in segments and in the checkpoint."""
    old = [journal_files.name_of(start) for start in examination.journal.starts]
    for name in old:
        aside.keep(name)
    journal_files.remove_leftovers(disk)
    if disk.exists(journal_files.MARK_FILE):
        disk.remove(journal_files.MARK_FILE)  # of the journal that was
    header = Header(examination.shard_id, len(old) + 1, salvaged.end_sequence)
    journal_files.create_file(disk, header, file_bytes)[0].close()
    for name in old:
        if name != journal_files.name_of(salvaged.end_sequence):
            disk.remove(name)
    disk.sync_directory(journal_files.DIRECTORY)


def _prove(disk: Disk, salvaged: Salvaged, clock: Clock, rng: random.Random, file_bytes: int) -> None:
    shard, keeper = open_on_disk(disk, clock, rng, journal_file_bytes=file_bytes)
    with shard.lock:
        shard.check()
        for loss in salvaged.losses:
            _record(shard, loss)
    close_on_disk(shard, keeper, disk)


def _record(shard: Shard, loss: Loss) -> None:
    """Settled already; this is for the events table."""
    queue = shard.core.by_name[loss.queue]
    span = Span(queue.by_name[loss.partition].id, loss.first_offset, loss.end_offset - loss.first_offset)
    now = shard.clock.now()
    for name in loss.unsettled if loss.is_certain else ():
        group = queue.group_ids[name]
        entry = Settled(queue.id, group, int(Outcome.LOST), now, 0, "", "given up by a repair", [span])
        shard.upkeep_commit([entry])
