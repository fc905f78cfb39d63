"""The files of roll-ups: `rollups/<tier>-<start>.rollup`, appended to and removed whole.

A file begins with `MAGIC`, whose last byte is the version of the format. After it come frames:
`length u32 | crc32 u32 | slice` (`slices.encode`), little-endian. The first frame that is not whole ends the file: it
was cut by a crash, and is written over by the next append. A file that cannot be read is left alone until it is too old
to be kept.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple, Protocol

from penstock.rollups.slices import Slice, decode, encode
from penstock.rollups.tiers import TIERS, Tier
from penstock.storage.disk import Disk

DIRECTORY: Final = "rollups"
SUFFIX: Final = ".rollup"
MAGIC: Final = b"PSROLL\x00\x01"
_HEAD: Final = struct.Struct("<II")


class Store(Protocol):
    """Where files are kept."""

    def read(self, name: str) -> bytes: ...

    def list(self) -> list[str]: ...

    def write(self, name: str, data: bytes, position: int) -> None:
        """Write at a position, and cut the file behind it. Makes the file if it is not there."""

    def remove(self, name: str) -> None: ...


class MemoryStore:
    """For a shard without a disk."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}

    def read(self, name: str) -> bytes:
        return self._files[name]

    def list(self) -> list[str]:
        return sorted(self._files)

    def write(self, name: str, data: bytes, position: int) -> None:
        self._files[name] = self._files.get(name, b"")[:position] + data

    def remove(self, name: str) -> None:
        del self._files[name]


class DiskStore:
    """On a disk. The directory is made by the first write: a directory that is only read stays as it is."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._is_made = disk.exists(DIRECTORY)

    def read(self, name: str) -> bytes:
        return self._disk.read(f"{DIRECTORY}/{name}")

    def list(self) -> list[str]:
        return self._disk.list(DIRECTORY) if self._is_made else []

    def write(self, name: str, data: bytes, position: int) -> None:
        if not self._is_made:
            self._disk.make_directory(DIRECTORY)
            self._is_made = True
        file = self._disk.open(f"{DIRECTORY}/{name}", create_bytes=0)
        try:
            file.truncate(position)
            file.write_at(data, position)
            file.sync()  # some disks store nothing before it
        finally:
            file.close()

    def remove(self, name: str) -> None:
        self._disk.remove(f"{DIRECTORY}/{name}")


class End(NamedTuple):
    """Where the next frame of a file goes, and the ids whose names it has."""

    name: str
    position: int
    named: set[int]


class RollupFiles:
    """All files of all tiers. One thread at a time may call it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ends: dict[Tier, End] = {}

    def append(self, tier: Tier, slices: list[Slice], names: Mapping[int, str]) -> None:
        """Add slices of one file to it; `names` are those of all queues."""
        name = file_name(tier, slices[0].at)
        end = self._ends.get(tier)
        if end is None or end.name != name:
            end = self._end_of(name)
        named = set(end.named)
        frames = [] if end.position else [MAGIC]
        for part in slices:
            new = {id: names[id] for id in part.ids.tolist() if id in names and id not in named}
            named.update(new)
            frames.append(_frame(encode(part, new)))
        data = b"".join(frames)
        self._store.write(name, data, end.position)
        self._ends[tier] = End(name, end.position + len(data), named)

    def _end_of(self, name: str) -> End:
        """Where a file ends that was begun before; 0 for a new one."""
        position, named = 0, set[int]()
        if name in self._store.list():
            for _, new, after in _frames(self._store.read(name)):
                position = after
                named |= new.keys()
        return End(name, position, named)

    def read(self, tier: Tier, since: int, until: int) -> Iterator[tuple[Slice, dict[int, str]]]:
        """Slices that begin in [since, until), each with the names that its file has up to there."""
        for name in self._names(tier):
            first = _start(name)
            if first >= until or first + tier.file_seconds <= since:
                continue
            names: dict[int, str] = {}
            for part, new, _ in _frames(self._store.read(name)):
                names |= new
                if since <= part.at < until:
                    yield part, names

    def first_at(self, tier: Tier) -> int | None:
        """Where the oldest slice of a tier begins, in seconds since 1970; None when there is none."""
        return self._some_at(self._names(tier), min)

    def last_at(self, tier: Tier) -> int | None:
        """Where the newest slice of a tier begins; None when there is none."""
        return self._some_at(reversed(self._names(tier)), max)

    def _some_at(self, names: Iterable[str], choose: Callable[[list[int]], int]) -> int | None:
        parts = ([part.at for part, _, _ in _frames(self._store.read(name))] for name in names)
        return next((choose(found) for found in parts if found), None)

    def remove_old(self, now: int) -> None:
        """Remove files whose slices are all too old."""
        for tier in TIERS:
            for name in self._names(tier):
                if _start(name) + tier.file_seconds + tier.keep_seconds <= now:
                    self._store.remove(name)

    def _names(self, tier: Tier) -> list[str]:
        return [name for name in self._store.list() if name.startswith(f"{tier.name}-") and _is_ours(name)]


def file_name(tier: Tier, at: int) -> str:
    """The file that a slice belongs to."""
    return f"{tier.name}-{at - at % tier.file_seconds:011d}{SUFFIX}"


def _is_ours(name: str) -> bool:
    return name.endswith(SUFFIX) and name.removesuffix(SUFFIX).partition("-")[2].isdigit()


def _start(name: str) -> int:
    return int(name.removesuffix(SUFFIX).partition("-")[2])


def _frame(data: bytes) -> bytes:
    return _HEAD.pack(len(data), zlib.crc32(data)) + data


def _frames(data: bytes) -> Iterator[tuple[Slice, dict[int, str], int]]:
    """Each slice with its new names, and where its frame ends."""
    if not data.startswith(MAGIC):
        return
    position = len(MAGIC)
    while position + _HEAD.size <= len(data):
        length, checksum = _HEAD.unpack_from(data, position)
        body = data[position + _HEAD.size : position + _HEAD.size + length]
        if len(body) < length or zlib.crc32(body) != checksum:
            return
        position += _HEAD.size + length
        yield *decode(body), position
