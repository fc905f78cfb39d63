"""Every frame of every journal file: which are sound, which are gone, and where.

Opening stops at the first damaged frame. This goes on behind it and finds everything that is still sound. What is
missing between sound frames is a hole: frames whose numbers we know and whose contents we do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import zip_longest

import msgspec

from penstock import limits
from penstock.errors import Damaged
from penstock.storage import journal_files
from penstock.storage.disk import Disk
from penstock.storage.findings import Finding
from penstock.storage.frames import HEADER_BYTES, Header, Scan, Verdict, decode_header, scan, seed_of
from penstock.storage.journal_files import Mark
from penstock.units import plural

Progress = Callable[[int], None]  # bytes just checked


class Hole(msgspec.Struct, frozen=True):
    """Frames [first_sequence, end_sequence) that cannot be read. `data` is what lies in their place."""

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
    end_is_lost: bool = False  # there may have been more frames, and nothing tells how many
    findings: list[Finding] = []

    @property
    def end_sequence(self) -> int:
        """The sequence that would come next; 1 for an empty journal."""
        ends = [found.end_sequence for found in self.stretches] + [hole.end_sequence for hole in self.holes]
        return max([*ends, *self.starts[-1:]], default=1)

    @property
    def first_sequence(self) -> int:
        return self.starts[0] if self.starts else 1

    def replay(self, after: int = 0) -> Iterator[tuple[int, memoryview]]:
        """(sequence, entries) of every sound frame over `after`."""
        for found in self.stretches:
            yield from found.frames(after)


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


def check_journal(disk: Disk, shard_id: bytes, on_progress: Progress = lambda count: None) -> JournalCheck:
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


def require(check: JournalCheck, after: int, known_durable: int) -> None:
    """Add what is missing at both ends: frames over `after` must be there, and those up to `known_durable`."""
    if check.starts and check.first_sequence > after + 1:
        hole = Hole(journal_files.name_of(after + 1), after + 1, check.first_sequence)
        check.holes.insert(0, hole)
        check.findings.insert(0, Finding(hole.file, f"the file is missing, and {_frames(hole)} with it"))
    if not check.starts and known_durable:
        check.findings.append(Finding(journal_files.DIRECTORY, "there are no journal files, and there have been some"))
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
    """Add that the last file is shorter than it was made."""
    if not check.starts or check.end_is_lost:
        return
    start = check.starts[-1]
    name = journal_files.name_of(start)
    ends = [found.end_position for found in check.stretches if found.first_sequence >= start]
    size = disk.size(name)
    if mark.is_cut(start, size, max(ends, default=HEADER_BYTES)):
        check.end_is_lost = True
        check.findings = [finding for finding in check.findings if not finding.harmless]
        what = f"the file has {size:,} bytes and had {mark.file_bytes:,}: its end is gone"
        check.findings.append(Finding(name, f"{what}, and nothing tells how many frames were in it"))


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
        found = scan(data, seed, sequence, end_sequence=end, position=position)
        if found.positions:
            check.stretches.append(found)
        if found.verdict is Verdict.TORN:
            check.findings.append(_torn(name, found, len(data)))
        if found.verdict is not Verdict.DAMAGED:
            return
        resume = found.resume_position or len(data)
        sequence = found.resume_sequence or end or found.end_sequence
        if sequence > found.end_sequence:
            hole = Hole(name, found.end_sequence, sequence, found.end_position, data[found.end_position : resume])
            check.holes.append(hole)
            check.findings.append(_damaged(hole, is_last=found.resume_position is None))
        else:
            check.findings.append(Finding(name, "bytes that are not a frame follow the last frame", found.end_position))
        if found.resume_position is None:
            return
        position = resume


def _torn(name: str, found: Scan, size: int) -> Finding:
    what = (
        f"a torn tail: what follows the frame of sequence {found.end_sequence - 1} was never confirmed to anyone, "
        "and is cut when the directory is opened"
    )
    return Finding(name, what, found.end_position, harmless=True)


def _damaged(hole: Hole, *, is_last: bool) -> Finding:
    follows = f"sound frames go on with sequence {hole.end_sequence}"
    if is_last:
        follows = "no sound frame follows in this file"
    return Finding(hole.file, f"{_frames(hole)} {_were(hole)} damaged; {follows}", hole.position)


def _frames(hole: Hole) -> str:
    if hole.frames == 1:
        return f"the frame of sequence {hole.first_sequence}"
    return f"{plural(hole.frames, 'frame')}, sequences {hole.first_sequence} to {hole.end_sequence - 1}"


def _were(hole: Hole) -> str:
    return "is" if hole.frames == 1 else "are"
