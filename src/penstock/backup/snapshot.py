"""One consistent moment of a data directory: which files it consists of, and where to read them.

Of a directory that is in use, checkpoint parts and journal files are removed when newer ones take their place. So they
are held: hard-linked into `backup/` in the data directory, or copied to a temporary directory where the store is no
directory. Segment files are pinned instead. Holding is quick; the storekeeper rests only that long, and pushes never
wait. The journal is cut behind the frame that the moment ends with.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from crc32c import crc32c

from penstock.backup.targets import pieces_of
from penstock.errors import StorageError
from penstock.model_audit import ANCHOR_FILE
from penstock.storage import checkpoint, journal_files, manifest, staging
from penstock.storage.directory import Marker, read_whole_marker
from penstock.storage.disk import Disk, ReadableDisk, RealDisk
from penstock.storage.frames import HEADER_BYTES, position_after, seed_of
from penstock.storage.segment_files import ReadableSegments, is_located

if TYPE_CHECKING:
    from penstock.shard.shard import Shard
    from penstock.shard.upkeep import Storekeeper

HOLDING: Final = "backup"  # in the data directory, while a backup runs
TRIES_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class Source:
    """A file of a moment: its name in the data directory, and what to read for it."""

    name: str
    disk: ReadableDisk
    at: str
    size: int
    crc32c: int | None = None  # None: it is not known before it is read
    data: bytes | None = None  # None: it is read from the disk
    tag: int | None = None  # what tells it from others of its name and size; None: the checksum does

    def pieces(self) -> Iterator[bytes]:
        """Its bytes."""
        return pieces_of(self.disk, self.at) if self.data is None else iter((self.data,))


@dataclass(slots=True)
class Snapshot:
    """One moment of a data directory."""

    marker: Marker
    taken_at: int
    sequence: int
    sources: list[Source] = field(default_factory=list)

    @property
    def shard(self) -> str:
        return self.marker.shard

    @property
    def incarnation(self) -> str:
        return self.marker.identity

    @property
    def directory_format(self) -> int:
        return self.marker.format

    @property
    def segments(self) -> list[str]:
        """The segment files in it."""
        return [source.at for source in self.sources if source.at.endswith(".parquet")]


def in_memory(disk: ReadableDisk, name: str, data: bytes) -> Source:
    """A file with these bytes."""
    return Source(name, disk, name, len(data), crc32c(data), data)


class Holding:
    """Holds files that the data directory may remove. `disk` is where they are."""

    def __init__(self, disk: Disk) -> None:
        self._source = disk
        self._temporary: str | None = None
        if isinstance(disk, RealDisk):
            clear_holding(disk)
            root = disk.root / HOLDING
        else:
            self._temporary = tempfile.mkdtemp(prefix="penstock-backup-")
            root = Path(self._temporary)
        self.disk = RealDisk(root, mode=0o700)
        self.disk.make_directory("")

    def take_part(self, part: Source) -> Source:
        """Hold a part of a checkpoint."""
        held = self.take(part.name)
        return replace(held, crc32c=part.crc32c, tag=part.tag)

    def take(self, name: str) -> Source:
        """Hold a file that will not change any more."""
        at = name.replace("/", "~")
        if self._temporary is not None or not self.disk.link(self._source.root / name, at):
            file = self.disk.open(at, create_bytes=0)
            try:
                position = 0
                for piece in pieces_of(self._source, name):
                    file.write_at(piece, position)
                    position += len(piece)
            finally:
                file.close()
        return Source(name, self.disk, at, self.disk.size(at))

    def release(self) -> None:
        """Hold nothing any more."""
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
        else:
            clear_holding(self._source)


def clear_holding(disk: Disk) -> None:
    """Remove what a process that died in a backup was holding."""
    if isinstance(disk, RealDisk):
        shutil.rmtree(disk.root / HOLDING, ignore_errors=True)


def snapshot_in_use(
    shard: Shard, keeper: Storekeeper, disk: Disk, holding: Holding, pin: Callable[[Snapshot], object]
) -> Snapshot:
    """The present moment of a shard that goes on working. `pin` keeps the segments in it from going."""
    with keeper.resting():
        staged, sequence, taken_at = _hold_staged(shard, disk, holding)
        shard.commit.wait(sequence)
        snapshot = Snapshot(read_whole_marker(disk), taken_at, sequence, staged)
        seed = seed_of(bytes.fromhex(snapshot.shard))
        needed_after = min(_checkpoint_sequence(disk), _sealed_sequence(disk))
        snapshot.sources += _journal(disk, holding, seed, needed_after, sequence)
        snapshot.sources += [holding.take_part(part) for part in _checkpoint_files(disk)]
        snapshot.sources += [in_memory(disk, name, disk.read(name)) for name in _small_files(disk)]
        snapshot.sources += _segments(disk)
        pin(snapshot)
        return snapshot


def snapshot_of(disk: Disk, now: int) -> Snapshot:
    """The moment of a directory that the caller has locked, and that nobody changes."""
    marker = read_whole_marker(disk)
    shard_id = bytes.fromhex(marker.shard)
    snapshot = Snapshot(marker, now, 0)
    starts = journal_files.first_sequences(disk)
    for start in starts:
        name = journal_files.name_of(start)
        snapshot.sources.append(Source(name, disk, name, disk.size(name)))
    if starts:
        # A torn tail is no part of it: the sound frames before it end where `Scan` says.
        scan_name = journal_files.name_of(starts[-1])
        scan = journal_files.require_sound(disk, journal_files.scan_file(disk, starts[-1], shard_id))
        snapshot.sequence = scan.end_sequence - 1
        snapshot.sources[-1] = in_memory(disk, scan_name, bytes(scan.data[: scan.end_position]))
    staged = [f"{staging.DIRECTORY}/{name}" for name in staging.Staging(disk).names()]
    for name in [*_small_files(disk), *staged]:
        snapshot.sources.append(Source(name, disk, name, disk.size(name)))
    snapshot.sources += _checkpoint_files(disk)
    snapshot.sources += _segments(disk)
    return snapshot


def _hold_staged(shard: Shard, disk: Disk, holding: Holding) -> tuple[list[Source], int, int]:
    """The staged files that unfinished batches of sinks need, the sequence at which they do, and the time.

    A batch that is finished meanwhile takes its files along. So they are held first, and the moment is one at which
    those held are all that are needed.
    """
    held: dict[str, Source] = {}
    for _ in range(TRIES_MAX):
        with shard.locked():
            needed = set(shard.core.sinks.needed())
            sequence, now = shard.core.sequence, shard.clock.now()
        if needed <= held.keys():
            return [held[name] for name in sorted(needed)], sequence, now
        for name in needed - held.keys():
            with suppress(FileNotFoundError):
                held[name] = holding.take(f"{staging.DIRECTORY}/{name}")
    raise StorageError("sinks commit faster than a backup can follow", hint="take it again in a moment")


def _journal(disk: Disk, holding: Holding, seed: int, needed_after: int, sequence: int) -> Iterator[Source]:
    """The journal files that hold frames over `needed_after`, up to `sequence`."""
    starts = journal_files.first_sequences(disk)
    for start, following in zip(starts, [*starts[1:], None], strict=True):
        name = journal_files.name_of(start)
        if start > sequence + 1 or (following is not None and following <= min(needed_after, sequence) + 1):
            continue
        if following is not None and following <= sequence + 1:
            yield holding.take(name)
        else:
            data = memoryview(disk.read(name))
            end = position_after(data, seed, start, sequence) if start <= sequence else HEADER_BYTES
            yield in_memory(disk, name, bytes(data[:end]))


def _checkpoint_sequence(disk: Disk) -> int:
    stored = checkpoint.read(disk)
    return 0 if stored is None else stored.sequence


def _sealed_sequence(disk: Disk) -> int:
    root = manifest.read_root(disk)
    return 0 if root is None else root.sealed_sequence


def _checkpoint_files(disk: Disk) -> list[Source]:
    """The parts of the last checkpoint, where the directory has them."""
    # The checksum of a file that ends with the checksum of the rest is the same for all: the part's own tells them.
    return [Source(name, disk, name, size, crc, tag=tag) for name, size, tag, crc in checkpoint.stored_files(disk)]


def _small_files(disk: Disk) -> list[str]:
    """The manifest of the checkpoint, and the anchor of the audit log."""
    return [name for name in (checkpoint.MANIFEST, ANCHOR_FILE) if disk.exists(name)]


def _segments(disk: Disk) -> list[Source]:
    """The segment files, and the manifest that names them.

    Files at other locations come along, as files of the data directory, so that the moment needs nothing else.
    """
    found = manifest.read(disk)
    if found is None:
        return []
    names = {name: _local_name(name) for name in found.files}
    files = ReadableSegments(disk) if any(is_located(name) for name in names) else disk
    sources = [Source(names[name], files, name, file.bytes, file.crc32c) for name, file in sorted(found.files.items())]
    return [*sources, *_manifests(disk, found, names)]


def _manifests(disk: Disk, found: manifest.Manifest, names: dict[str, str]) -> list[Source]:
    if all(name == local for name, local in names.items()):
        root = manifest.read_root(disk)
        assert root is not None
        stored = [manifest.NAME, *(part.file for part in root.parts)]
        return [in_memory(disk, name, disk.read(name)) for name in stored]
    local = msgspec.structs.replace(
        found,
        files={names[name]: msgspec.structs.replace(file, name=names[name]) for name, file in found.files.items()},
        extents=sorted(msgspec.structs.replace(extent, file=names[extent.file]) for extent in found.extents),
    )
    return [in_memory(disk, manifest.NAME, manifest.encode(local))]


def _local_name(name: str) -> str:
    """The name that a segment file has, or would have, in the data directory."""
    return re.sub(r"^segments/at-\d+/", "segments/", name)
