"""Looks at a data directory from outside: marker, journal, checkpoint, segments; every byte, and nothing is changed.

The examination answers what is sound and what is not, file by file. What that means for queues and messages is up to
`penstock.repair`, which knows the rules of delivery and mends it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec

from penstock.errors import Damaged, NotADataDirectory
from penstock.storage.checkpoint import MANIFEST
from penstock.storage.checkpoint_check import CheckpointCheck, check_checkpoint
from penstock.storage.directory import MARKER, read_marker
from penstock.storage.disk import Disk
from penstock.storage.findings import Finding
from penstock.storage.journal_check import JournalCheck, check_journal, read_headers, require, require_length
from penstock.storage.journal_files import RESERVE, read_mark
from penstock.storage.manifest import DIRECTORIES
from penstock.storage.segment_check import SegmentCheck, check_segments

FOLDERS = ("journal", *DIRECTORIES)

Progress = Callable[[int, int], None]  # bytes checked so far, bytes in all


class Examination(msgspec.Struct):
    """Everything that can be said about a data directory without understanding what is in it."""

    shard_id: bytes
    marker_is_sound: bool
    journal: JournalCheck
    checkpoint: CheckpointCheck
    segments: SegmentCheck
    findings: list[Finding]  # all of them, in the order of the parts above

    @property
    def is_sound(self) -> bool:
        return all(finding.harmless for finding in self.findings)

    @property
    def known_durable(self) -> int:
        """The checkpoint and the segments know what was up to here."""
        return max(self.checkpoint.sequence, self.segments.manifest.sealed_sequence)

    @property
    def needed_after(self) -> int:
        """Frames after this one are needed from the journal; those before it are in the segments and the checkpoint."""
        return min(self.checkpoint.sequence, self.segments.manifest.sealed_sequence)


def examine(disk: Disk, on_progress: Progress = lambda done, total: None) -> Examination:
    """Read everything. The caller holds the directory, or knows that nobody does."""
    meter = _Meter(disk, on_progress)
    shard_id, marker = _check_marker(disk)
    journal = check_journal(disk, shard_id, meter.add)
    checkpoint = check_checkpoint(disk, is_needed=journal.first_sequence > 1)
    segments = check_segments(disk, _sealed_by(journal, checkpoint), meter.over(disk))
    if MANIFEST in checkpoint.damaged_files and journal.starts:
        # Parts of several checkpoints: frames that are no longer in the journal are in all of them.
        checkpoint.sequence = max(checkpoint.sequence, journal.first_sequence - 1)
    examination = Examination(shard_id, not marker, journal, checkpoint, segments, [])
    mark = read_mark(disk)
    require(journal, examination.needed_after, max(examination.known_durable, mark.durable_sequence))
    require_length(disk, journal, mark)
    missing = _missing_checkpoint(examination)
    checkpoint.findings += missing
    examination.findings = [*marker, *journal.findings, *checkpoint.findings, *segments.findings]
    return examination


def require_data_directory(disk: Disk) -> None:
    """Refuse a path that holds no data directory at all."""
    path = disk.root
    if not path.exists():
        raise FileNotFoundError(f"there is nothing at {path}")
    if not path.is_dir():
        raise NotADataDirectory(f"{path} is a file")
    if not disk.exists(MARKER) and not read_headers(disk):
        raise FileNotFoundError(f"there is no data directory at {path}")


def _check_marker(disk: Disk) -> tuple[bytes, list[Finding]]:
    """The shard id, from the marker or else from the headers of the journal."""
    headers = [header.shard_id for header in read_headers(disk).values() if header is not None]
    likely = Counter(headers).most_common(1)[0][0] if headers else None
    try:
        shard_id = read_marker(disk)
    except FileNotFoundError:
        what = "the marker is missing; the journal says which shard this is"
    except Damaged:
        what = "the marker cannot be read; the journal says which shard this is"
    else:
        if likely is None or shard_id in headers:
            return shard_id, []
        what = f"the marker names shard {shard_id.hex()}, and every journal file belongs to {likely.hex()}"
    if likely is None:
        hint = "put a copy of the directory back; without a shard id nothing in the journal can be checked"
        raise Damaged(f"{disk.root / MARKER} cannot be read, and no journal file has a sound header", hint=hint)
    return likely, [Finding(MARKER, what, 0)]


def _sealed_by(journal: JournalCheck, checkpoint: CheckpointCheck) -> int:
    """How far the journal must have been sealed, since it is gone."""
    return journal.first_sequence - 1 if journal.starts else checkpoint.sequence


def _missing_checkpoint(examination: Examination) -> list[Finding]:
    checkpoint, sealed = examination.checkpoint, examination.segments.manifest.sealed_sequence
    if checkpoint.parts or checkpoint.lost_parts or not sealed or examination.journal.first_sequence == 1:
        return []
    return [Finding(MANIFEST, "there is no checkpoint, and there has been one")]


class _Meter:
    """Progress over journal and segments together."""

    def __init__(self, disk: Disk, on_progress: Progress) -> None:
        folders = [name for name in FOLDERS if disk.exists(name)]
        names = [f"{folder}/{name}" for folder in folders for name in disk.list(folder)]
        self._total = sum(disk.size(name) for name in names if name != RESERVE)
        self._done = 0
        self._tell = on_progress

    def add(self, count: int) -> None:
        self._done += count
        self._tell(self._done, max(self._done, self._total))

    def over(self, disk: Disk) -> Progress:
        """The same as a callback that counts from nothing."""
        before = self._done
        return lambda done, total: self._tell(before + done, max(before + total, self._total))
