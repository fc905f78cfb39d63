"""Checkpoints: a manifest of immutable parts.

    checkpoints/manifest.json                     sequence, and for each part its file, length and crc32c
    checkpoints/<part>-<20 digits>.part           the part's bytes, then their crc32c u32

A part's file is written once and never again. The manifest is swapped whole, after the parts it names are durable, so
a crash leaves the old checkpoint or the new one, never a mix. Files that no manifest names are removed afterwards.
The caller saves a sequence only once it is durable in the journal.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from crc32c import crc32c

from penstock.errors import Damaged
from penstock.storage.disk import Bytes, Disk, ReadableDisk

DIRECTORY: Final = "checkpoints"
MANIFEST: Final = f"{DIRECTORY}/manifest.json"
FORMAT: Final = 1

AnyBytes = TypeVar("AnyBytes", bytes, memoryview)

_TRAILER: Final = struct.Struct("<I")
_PART_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")


class Part(msgspec.Struct, frozen=True):
    """The file of a part: `length` without the trailer."""

    file: str
    length: int
    crc32c: int


class Manifest(msgspec.Struct, frozen=True):
    """What manifest.json holds. Its own checksum is taken while the field is 0."""

    format: int
    sequence: int
    parts: dict[str, Part]
    crc32c: int = 0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state at `sequence`. Parts are read and verified when they are used, or mapped if possible."""

    sequence: int
    parts: Mapping[str, bytes]
    mapped: Callable[[str], Bytes] | None = None

    def view(self, name: str) -> Bytes:
        """A part whose bytes are kept, so that mapping it saves memory."""
        return self.parts[name] if self.mapped is None else self.mapped(name)


class CheckpointStore:
    """The checkpoints of one data directory. One thread at a time may save."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._manifest = _read_manifest(disk)

    def load(self) -> Checkpoint | None:
        """The latest checkpoint, or None when there is none. `Damaged` names the file that cannot be trusted."""
        checkpoint = _checkpoint(self._disk, self._manifest)
        return None if checkpoint is None else replace(checkpoint, mapped=self.mapped)

    def mapped(self, name: str) -> memoryview:
        """A part of the latest checkpoint, mapped; it may be used although its file is removed."""
        assert self._manifest is not None
        return _read_part(self._disk.root, self._manifest.parts[name], self._disk.map)

    def part_files(self) -> dict[str, str]:
        """The file of each part of the latest checkpoint."""
        return {} if self._manifest is None else {name: part.file for name, part in self._manifest.parts.items()}

    def save(self, sequence: int, parts: Mapping[str, bytes], keep: Collection[str] = ()) -> None:
        """Make `parts`, and those of the last checkpoint named in `keep`, the checkpoint at `sequence`."""
        known = {} if self._manifest is None else self._manifest.parts
        listed = {name: known[name] for name in keep if name not in parts}
        taken = set(self._disk.list(DIRECTORY))
        for name, data in parts.items():
            listed[name] = self._write_part(_free_name(name, sequence, taken), data)
        self._disk.sync_directory(DIRECTORY)
        # Sorted: what is restored in another order behaves the same, but not to the byte.
        manifest = Manifest(FORMAT, sequence, dict(sorted(listed.items())))
        self._disk.write_whole(MANIFEST, _encode(manifest))
        self._manifest = manifest
        self._remove_unnamed()

    def _write_part(self, file_name: str, data: bytes) -> Part:
        crc = crc32c(data)
        name = f"{DIRECTORY}/{file_name}"
        file = self._disk.open(name, create_bytes=len(data) + _TRAILER.size)
        try:
            file.write_at(data, 0)
            file.write_at(_TRAILER.pack(crc), len(data))
            file.sync()
        finally:
            file.close()
        return Part(name, len(data), crc)

    def _remove_unnamed(self) -> None:
        assert self._manifest is not None
        named = {part.file for part in self._manifest.parts.values()} | {MANIFEST}
        for name in self._disk.list(DIRECTORY):
            if f"{DIRECTORY}/{name}" not in named:
                self._disk.remove(f"{DIRECTORY}/{name}")


class _Parts(Mapping[str, bytes]):
    """Parts by name, read when they are used."""

    def __init__(self, disk: ReadableDisk, parts: dict[str, Part]) -> None:
        self._disk = disk
        self._parts = parts

    def __getitem__(self, name: str) -> bytes:
        return _read_part(self._disk.root, self._parts[name], self._disk.read)

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


def _read_part(root: Path, part: Part, read: Callable[[str], AnyBytes]) -> AnyBytes:
    path = root / part.file
    try:
        data = read(part.file)
    except FileNotFoundError:
        raise Damaged(f"{path} is missing") from None
    if len(data) != part.length + _TRAILER.size:
        raise Damaged(f"{path} has {len(data)} bytes instead of {part.length + _TRAILER.size}")
    if data[part.length :] != _TRAILER.pack(part.crc32c) or crc32c(data[: part.length]) != part.crc32c:
        raise Damaged(f"{path} does not match its checksum")
    return data[: part.length]


def read(disk: ReadableDisk) -> Checkpoint | None:
    """The latest checkpoint of a directory that another process may hold: read its parts soon, they may be removed."""
    return _checkpoint(disk, _read_manifest(disk))


def stored_files(disk: ReadableDisk) -> list[tuple[str, int, int, int]]:
    """Of each part of the latest checkpoint: its file, the size of the file, and the checksums of part and file."""
    manifest = _read_manifest(disk)
    parts = () if manifest is None else manifest.parts.values()
    return sorted(
        (part.file, part.length + _TRAILER.size, part.crc32c, crc32c(_TRAILER.pack(part.crc32c), part.crc32c))
        for part in parts
    )


def _checkpoint(disk: ReadableDisk, manifest: Manifest | None) -> Checkpoint | None:
    return None if manifest is None else Checkpoint(manifest.sequence, _Parts(disk, manifest.parts))


def _read_manifest(disk: ReadableDisk) -> Manifest | None:
    if not disk.exists(MANIFEST):
        return None
    path = disk.root / MANIFEST
    try:
        manifest = msgspec.json.decode(disk.read(MANIFEST), type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise Damaged(f"{path} cannot be read") from None
    if _encode(manifest) != msgspec.json.encode(manifest):
        raise Damaged(f"{path} does not match its checksum")
    return manifest


def read_part_alone(data: bytes) -> bytes | None:
    """A part, checked only against the checksum in its own file; None when that does not match."""
    part, trailer = data[: -_TRAILER.size], data[-_TRAILER.size :]
    return part if len(data) >= _TRAILER.size and trailer == _TRAILER.pack(crc32c(part)) else None


def _encode(manifest: Manifest) -> bytes:
    bare = msgspec.structs.replace(manifest, crc32c=0)
    return msgspec.json.encode(msgspec.structs.replace(bare, crc32c=crc32c(msgspec.json.encode(bare))))


def _free_name(part: str, sequence: int, taken: set[str]) -> str:
    """A file name that no checkpoint, not even a half-made one, uses."""
    if not _PART_NAME.match(part):
        raise ValueError(f"{part!r} cannot name a part")
    name = f"{part}-{sequence:020d}.part"
    attempt = 1
    while name in taken:
        name = f"{part}-{sequence:020d}.{attempt}.part"
        attempt += 1
    taken.add(name)
    return name
