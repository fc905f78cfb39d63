"""Examines a data directory from outside: marker, journal, checkpoint, segments; every byte, and nothing is changed.

The examination says what is sound and what is not, file by file. What that means for queues and messages is up to
`penstock.repair`, which knows the rules of delivery and repairs it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest
from typing import Final

import msgspec

from penstock import limits
from penstock.errors import Damaged, NotADataDirectory
from penstock.storage import journal_files, segment_audit
from penstock.storage import manifest as manifests
from penstock.storage.checkpoint import DIRECTORY, MANIFEST, Checkpoint, CheckpointStore, read_part_alone
from penstock.storage.directory import MARKER, read_marker
from penstock.storage.disk import Disk
from penstock.storage.extents import Extent
from penstock.storage.frames import HEADER_BYTES, Header, Scan, Verdict, decode_header, scan, seed_of
from penstock.storage.journal_files import RESERVE, Mark, read_mark
from penstock.storage.manifest import DIRECTORIES, Manifest, SegmentFile
from penstock.storage.parquet import SegmentReader
from penstock.storage.schema import EVENT_TIMES, EVENTS, TASKS
from penstock.storage.sealed_frames import shell_frame
from penstock.storage.segment_audit import RebuiltManifest, rebuild_manifest
from penstock.storage.segment_files import segment_files
from penstock.units import plural


class Finding(msgspec.Struct, frozen=True):
    """One observation about one file. What is harmless needs no repair."""

    file: str  # name below the data directory
    what: str
    position: int | None = None  # in bytes
    harmless: bool = False


OnRead = Callable[[int], None]  # bytes just checked


class Hole(msgspec.Struct, frozen=True):
    """Frames [first_sequence, end_sequence) that cannot be read. `data` has the bytes in their place."""

    file: str
    first_sequence: int
    end_sequence: int
    position: int | None = None
    data: bytes | None = None  # None when there is not even a damaged file

    @property
    def frames(self) -> int:
        return self.end_sequence - self.first_sequence

    @property
    def bytes_max(self) -> int:
        """How many bytes the frames can have had."""
        return limits.journal_file_bytes if self.data is None else len(self.data)


class JournalCheck(msgspec.Struct):
    """What is left of a journal, in order."""

    starts: list[int] = []
    stretches: list[Scan] = []  # sound frames without a gap
    holes: list[Hole] = []
    end_is_lost: bool = False  # there may have been more frames, and nobody knows how many
    findings: list[Finding] = []
    unseal: Callable[[memoryview], memoryview] = shell_frame  # without keys, what is in clear of encrypted queues

    @property
    def end_sequence(self) -> int:
        """The sequence that would come next; 1 for an empty journal."""
        ends = [stretch.end_sequence for stretch in self.stretches] + [hole.end_sequence for hole in self.holes]
        return max([*ends, *self.starts[-1:]], default=1)

    @property
    def first_sequence(self) -> int:
        return self.starts[0] if self.starts else 1

    def replay(self, after: int = 0) -> Iterator[tuple[int, memoryview]]:
        """(sequence, entries) of every sound frame over `after`."""
        for stretch in self.stretches:
            yield from ((sequence, self.unseal(frame)) for sequence, frame in stretch.frames(after))


def read_headers(disk: Disk) -> dict[int, Header | None]:
    """The header of each file by its first sequence; None where it is damaged."""
    headers: dict[int, Header | None] = {}
    for start in journal_files.first_sequences(disk) if disk.exists(journal_files.DIRECTORY) else []:
        name = journal_files.name_of(start)
        try:
            headers[start] = decode_header(disk.read(name, 0, HEADER_BYTES), name)
        except Damaged:
            headers[start] = None
    return headers


def check_journal(disk: Disk, shard_id: bytes, on_progress: OnRead = lambda count: None) -> JournalCheck:
    """Read all of it."""
    headers = read_headers(disk)
    starts = sorted(headers)
    check = JournalCheck(starts)
    for start, end in zip_longest(starts, starts[1:]):
        name = journal_files.name_of(start)
        data = disk.read(name)
        check.findings += _check_header(name, headers[start], start, shard_id)
        _check_frames(check, name, data, seed_of(shard_id), start, end)
        on_progress(len(data))
    return check


def require_frames(check: JournalCheck, after: int, known_durable: int) -> None:
    """Report what is missing at both ends: frames over `after` must be there, and those up to `known_durable`."""
    if check.starts and check.first_sequence > after + 1:
        hole = Hole(journal_files.name_of(after + 1), after + 1, check.first_sequence)
        check.holes.insert(0, hole)
        check.findings.insert(0, Finding(hole.file, f"the file is missing, and {_frames(hole)} with it"))
    if not check.starts and known_durable:
        check.findings.append(Finding(journal_files.DIRECTORY, "there are no journal files, but there have been some"))
    if check.end_sequence <= known_durable:
        name = journal_files.name_of(check.starts[-1] if check.starts else after + 1)
        hole = Hole(name, max(check.end_sequence, after + 1), known_durable + 1)
        check.holes.append(hole)
        check.end_is_lost = True
        if check.starts:
            # What looks like a torn tail was durable: a checkpoint or the segments say so.
            check.findings = [finding for finding in check.findings if not finding.harmless]
            check.findings.append(Finding(name, f"the file ends too early: {_frames(hole)} {_were(hole)} gone"))


def require_length(disk: Disk, check: JournalCheck, mark: Mark) -> None:
    """Report a last file that is shorter than it was created."""
    if not check.starts or check.end_is_lost:
        return
    start = check.starts[-1]
    name = journal_files.name_of(start)
    ends = [stretch.end_position for stretch in check.stretches if stretch.first_sequence >= start]
    size = disk.size(name)
    if mark.is_cut(start, size, max(ends, default=HEADER_BYTES)):
        check.end_is_lost = True
        check.findings = [finding for finding in check.findings if not finding.harmless]
        what = f"the file has {size:,} bytes and had {mark.file_bytes:,}: its end is gone"
        check.findings.append(Finding(name, f"{what}; how many frames it contained is unknown"))


def _check_header(name: str, header: Header | None, start: int, shard_id: bytes) -> Iterator[Finding]:
    if header is None:
        yield Finding(name, "the header does not match its checksum; its frames can be read without it", 0)
    elif header.shard_id != shard_id:
        yield Finding(name, f"the file belongs to another shard, {header.shard_id.hex()}", 0)
    elif header.first_sequence != start:
        yield Finding(name, f"the header says that the file starts with sequence {header.first_sequence}", 0)


def _check_frames(check: JournalCheck, name: str, data: bytes, seed: int, start: int, end: int | None) -> None:
    """Sound stretches and holes of one file; `end` is where the next one starts."""
    sequence, position = start, HEADER_BYTES
    while True:
        stretch = scan(data, seed, sequence, end_sequence=end, position=position)
        if stretch.positions:
            check.stretches.append(stretch)
        if stretch.verdict is Verdict.TORN:
            check.findings.append(_torn(name, stretch))
        if stretch.verdict is not Verdict.DAMAGED:
            return
        resume = stretch.resume_position or len(data)
        sequence = stretch.resume_sequence or end or stretch.end_sequence
        if sequence > stretch.end_sequence:
            hole = Hole(name, stretch.end_sequence, sequence, stretch.end_position, data[stretch.end_position : resume])
            check.holes.append(hole)
            check.findings.append(_damaged(hole, is_last=stretch.resume_position is None))
        else:
            check.findings.append(
                Finding(name, "bytes that are not a frame follow the last frame", stretch.end_position)
            )
        if stretch.resume_position is None:
            return
        position = resume


def _torn(name: str, stretch: Scan) -> Finding:
    what = (
        f"a torn tail: what follows the frame of sequence {stretch.end_sequence - 1} was never confirmed to anyone, "
        "and is cut when the directory is opened"
    )
    return Finding(name, what, stretch.end_position, harmless=True)


def _damaged(hole: Hole, *, is_last: bool) -> Finding:
    follows = f"intact frames continue with sequence {hole.end_sequence}"
    if is_last:
        follows = "no intact frame follows in this file"
    return Finding(hole.file, f"{_frames(hole)} {_were(hole)} damaged; {follows}", hole.position)


def _frames(hole: Hole) -> str:
    if hole.frames == 1:
        return f"the frame of sequence {hole.first_sequence}"
    return f"{plural(hole.frames, 'frame')}, sequences {hole.first_sequence} to {hole.end_sequence - 1}"


def _were(hole: Hole) -> str:
    return "is" if hole.frames == 1 else "are"


_PART_FILE: Final = re.compile(r"(?P<part>.+)-(?P<sequence>\d{20})(?:\.(?P<attempt>\d+))?\.part")


class CheckpointCheck(msgspec.Struct):
    """What is left of a checkpoint. `sequence` 0 and no parts when there is none."""

    sequence: int = 0
    parts: dict[str, bytes] = {}
    lost_parts: list[str] = []
    damaged_files: list[str] = []
    findings: list[Finding] = []


def check_checkpoint(disk: Disk, *, is_needed: bool) -> CheckpointCheck:
    """Read all of it. It is needed once the beginning of the journal was removed: before, there may be none."""
    if not disk.exists(DIRECTORY):
        return CheckpointCheck()
    try:
        store = CheckpointStore(disk)
    except Damaged:
        return _without_manifest(disk, "the manifest does not match its checksum; the parts are read one by one")
    checkpoint = store.load()
    if checkpoint is not None:
        return _with_manifest(checkpoint, store.part_files())
    if is_needed and _part_files(disk):
        return _without_manifest(disk, "the manifest is missing; the parts are read one by one")
    return CheckpointCheck()


def _with_manifest(checkpoint: Checkpoint, part_files: Mapping[str, str]) -> CheckpointCheck:
    check = CheckpointCheck(checkpoint.sequence)
    for name, file in part_files.items():
        try:
            check.parts[name] = checkpoint.parts[name]
        except Damaged as error:
            check.lost_parts.append(name)
            check.damaged_files.append(file)
            check.findings.append(Finding(file, f"the part {error.message.partition(file)[2].strip()}"))
    return check


def _without_manifest(disk: Disk, what: str) -> CheckpointCheck:
    check = CheckpointCheck(damaged_files=[MANIFEST], findings=[Finding(MANIFEST, what)])
    sequences = []
    for name, candidates in _part_files(disk).items():
        for sequence, _, file in sorted(candidates, reverse=True):
            data = read_part_alone(disk.read(file))
            if data is not None:
                check.parts[name] = data
                sequences.append(sequence)
                break
            check.damaged_files.append(file)
            check.findings.append(Finding(file, "the part does not match its checksum"))
        else:
            check.lost_parts.append(name)
    check.sequence = min(sequences, default=0)
    return check


def _part_files(disk: Disk) -> dict[str, list[tuple[int, int, str]]]:
    """(sequence, attempt, file) of every file of each part."""
    files: dict[str, list[tuple[int, int, str]]] = {}
    for file in disk.list(DIRECTORY):
        match = _PART_FILE.fullmatch(file)
        if match:
            part_file = (int(match["sequence"]), int(match["attempt"] or 0), f"{DIRECTORY}/{file}")
            files.setdefault(match["part"], []).append(part_file)
    return files


_ABOUT = {EVENTS: "deliveries", TASKS: "tasks"}


class SegmentCheck(msgspec.Struct):
    """What is left of the segments. `manifest` names what could be read, once the damaged files are dropped."""

    manifest: Manifest = Manifest()
    damaged_files: list[str] = []
    sound_extents: dict[str, list[Extent]] = {}  # damaged file → extents in it that can be read
    unlisted_files: list[str] = []  # only when the manifest was rebuilt: files that it does not name
    findings: list[Finding] = []

    @property
    def readable(self) -> Manifest:
        """The manifest with nothing in it that cannot be read."""
        sound = {extent for extents in self.sound_extents.values() for extent in extents}
        extents = [
            extent for extent in self.manifest.extents if extent.file not in self.sound_extents or extent in sound
        ]
        return msgspec.structs.replace(self.manifest, extents=extents)


def check_segments(disk: Disk, sealed_sequence: int, on_progress: segment_audit.Progress | None = None) -> SegmentCheck:
    """Read all of it. `sealed_sequence` is used only when the manifest cannot be."""
    if not disk.exists("segments"):
        return SegmentCheck()
    files = segment_files(disk)
    try:
        manifest = manifests.read(files)
    except Damaged:
        return _of_rebuilt(rebuild_manifest(files, sealed_sequence), "the manifest does not match its checksum")
    if manifest is None:
        has_files = files.book.locations or any(disk.list(name) for name in DIRECTORIES if disk.exists(name))
        if not sealed_sequence and not has_files:
            return SegmentCheck()
        what = "the manifest is missing, and there are segment files that it should name"
        return _of_rebuilt(rebuild_manifest(files, sealed_sequence), what)
    check = SegmentCheck(manifest)
    for problem in segment_audit.verify(files, manifest, on_progress):
        _add_problem(check, files, manifest.files[problem.file], problem)
    return check


def _of_rebuilt(rebuilt: RebuiltManifest, what: str) -> SegmentCheck:
    check = SegmentCheck(rebuilt.manifest, unlisted_files=rebuilt.unlisted)
    check.findings.append(Finding(manifests.NAME, f"{what}; it can be rebuilt from the files"))
    check.findings += [
        Finding(name, f"the file cannot be read: {reason}") for name, reason in rebuilt.unreadable.items()
    ]
    return check


def _add_problem(check: SegmentCheck, disk: Disk, file: SegmentFile, problem: segment_audit.Problem) -> None:
    if file.name in check.damaged_files:
        return
    groups = readable_row_groups(disk, file)
    sound = [extent for extent in problem.extents if extent.row_group in groups]
    check.damaged_files.append(file.name)
    check.sound_extents[file.name] = sound
    check.findings.append(
        Finding(file.name, f"{problem.message}; {_describe_damage(file, problem, len(groups), sound)}")
    )


def _describe_damage(file: SegmentFile, problem: segment_audit.Problem, groups: int, sound: list[Extent]) -> str:
    if file.table in EVENT_TIMES:
        return f"it contains history of {_ABOUT[file.table]}, no messages"
    gone = sum(extent.stored_rows for extent in problem.extents) - sum(extent.stored_rows for extent in sound)
    return f"{groups:,} of {plural(len(file.row_groups), 'row group')} can be read, {plural(gone, 'message')} cannot"


def readable_row_groups(disk: Disk, file: SegmentFile) -> set[int]:
    """The row groups of a file that match all of their checksums."""
    reader = SegmentReader(disk)
    readable = set()
    for row_group in range(len(file.row_groups)):
        try:
            reader.stored(file, row_group)
        except (Damaged, FileNotFoundError):
            continue
        readable.add(row_group)
    return readable


FOLDERS = ("journal", *DIRECTORIES)

Progress = Callable[[int, int], None]  # bytes checked so far, bytes in all


class Examination(msgspec.Struct):
    """The state of the files of a data directory, whatever their contents mean."""

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
        """The last sequence that the checkpoint or the segments cover."""
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
    require_frames(journal, examination.needed_after, max(examination.known_durable, mark.durable_sequence))
    require_length(disk, journal, mark)
    missing = _missing_checkpoint(examination)
    checkpoint.findings += missing
    examination.findings = [*marker, *journal.findings, *checkpoint.findings, *segments.findings]
    return examination


def require_data_directory(disk: Disk) -> None:
    """Refuse a path that holds no data directory."""
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
        what = "the marker is missing; the journal identifies the shard"
    except Damaged:
        what = "the marker cannot be read; the journal identifies the shard"
    else:
        if likely is None or shard_id in headers:
            return shard_id, []
        what = f"the marker names shard {shard_id.hex()}, and every journal file belongs to {likely.hex()}"
    if likely is None:
        hint = "restore a copy of the directory; without a shard id the journal cannot be checked"
        raise Damaged(f"{disk.root / MARKER} cannot be read, and no journal file has an intact header", hint=hint)
    return likely, [Finding(MARKER, what, 0)]


def _sealed_by(journal: JournalCheck, checkpoint: CheckpointCheck) -> int:
    """How far the journal must have been sealed, since those frames are gone."""
    return journal.first_sequence - 1 if journal.starts else checkpoint.sequence


def _missing_checkpoint(examination: Examination) -> list[Finding]:
    checkpoint, sealed = examination.checkpoint, examination.segments.manifest.sealed_sequence
    if checkpoint.parts or checkpoint.lost_parts or not sealed or examination.journal.first_sequence == 1:
        return []
    return [Finding(MANIFEST, "there is no checkpoint, but there has been one")]


class _Meter:
    """Progress over journal and segments together."""

    def __init__(self, disk: Disk, on_progress: Progress) -> None:
        folders = [name for name in FOLDERS if disk.exists(name)]
        names = [f"{folder}/{name}" for folder in folders for name in disk.list(folder)]
        self._total = sum(disk.size(name) for name in names if name != RESERVE)
        self._done = 0
        self._on_progress = on_progress

    def add(self, count: int) -> None:
        self._done += count
        self._on_progress(self._done, max(self._done, self._total))

    def over(self, disk: Disk) -> Progress:
        """A callback for segments, which counts from 0."""
        before = self._done
        return lambda done, total: self._on_progress(before + done, max(before + total, self._total))
