"""A cache on the local disk of what lies elsewhere: blocks of files that never change.

    <directory>/<file, with dots for slashes>.<number of the block>     bytes, then their CRC32C u32 and length u32

Bounded by bytes; the block that was used least recently goes first. Nothing is synced, since everything can be fetched
again: a block that does not match its checksum, whatever a crash left of it, is removed and counts as missing. A reader
reads a block whole, so one that is removed meanwhile does no harm.
"""

from __future__ import annotations

import logging
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Final

from crc32c import crc32c

from penstock import limits
from penstock.errors import PenstockError
from penstock.storage.disk import TEMPORARY_SUFFIX, Bytes, Disk, ReadableDisk, free_bytes_min

DIRECTORY: Final = "cache"

_TRAILER: Final = struct.Struct("<II")
logger: Final = logging.getLogger("penstock.storage")

Fetch = Callable[[int, int], bytes]  # position and length


class BlockReader:
    """Reads a cache that another process may own: nothing is kept and nothing is removed."""

    def __init__(self, disk: ReadableDisk, directory: str = DIRECTORY) -> None:
        self._readable = disk
        self._directory = directory

    def read(self, name: str, position: int, length: int, fetch: Fetch) -> bytes:
        """Bytes of a file: cached blocks, and what is missing by `fetch`, in as few calls as possible."""
        if length <= 0:
            return b""
        size = limits.segment_block_bytes
        first, end = position // size, -(-(position + length) // size)
        cached = {number: self._block(name, number) for number in range(first, end)}
        blocks: dict[int, Bytes] = {number: block for number, block in cached.items() if block is not None}
        for start, stop in _runs([number for number in range(first, end) if number not in blocks]):
            data = memoryview(fetch(start * size, (stop - start) * size))
            for number in range(start, stop):
                blocks[number] = data[(number - start) * size : (number - start + 1) * size]
                self.keep(name, number, blocks[number])
        whole = b"".join(blocks[number] for number in range(first, end))
        return whole[position - first * size : position - first * size + length]

    def keep(self, name: str, number: int, block: Bytes) -> None:
        """Nothing is kept."""

    def _block(self, name: str, number: int) -> bytes | None:
        try:
            return _checked(self._readable.read(self._path(name, number)), name, number)
        except (PenstockError, OSError):
            return None

    def _path(self, name: str, number: int) -> str:
        return f"{self._directory}/{_key(name)}.{number:08d}"


class BlockCache(BlockReader):
    """A cache of this process, at most `bytes_max` in size. Safe to use from several threads."""

    def __init__(self, disk: Disk, bytes_max: int, directory: str = DIRECTORY) -> None:
        super().__init__(disk, directory)
        self._disk = disk
        self.bytes_max = bytes_max
        self.bytes = 0
        self.hits = self.misses = 0
        self._sizes: OrderedDict[tuple[str, int], int] = OrderedDict()
        self._lock = threading.Lock()
        self._temporary = count()
        self._warned = False
        disk.make_directory(directory)
        self._scan()
        self._evict()

    def keep(self, name: str, number: int, block: Bytes) -> None:
        """Keep a block; where that does not go well, it is fetched again some day."""
        size = len(block) + _TRAILER.size
        if size > self.bytes_max or not block:
            return
        path = self._path(name, number)
        try:
            if self._disk.free_bytes() < 2 * free_bytes_min(self._disk):
                return  # what is left belongs to the journal
            self._write(path, b"".join((block, _TRAILER.pack(_crc(name, number, block), len(block)))))
        except (PenstockError, OSError) as error:
            if not self._warned:
                logger.warning("the cache of segments cannot be written: %s", error)
            self._warned = True
            return
        with self._lock:
            self.bytes += size - self._sizes.pop((_key(name), number), 0)
            self._sizes[_key(name), number] = size
        self._evict()

    def fill(self, name: str, data: Bytes) -> None:
        """Keep all blocks of a file."""
        view, size = memoryview(data), limits.segment_block_bytes
        for number in range(-(-len(view) // size)):
            self.keep(name, number, view[number * size : (number + 1) * size])

    def drop(self, is_gone: Callable[[str], bool]) -> None:
        """Remove the blocks of files that are gone; they are known by their keys: see `key_of`."""
        with self._lock:
            gone = [entry for entry in self._sizes if is_gone(entry[0])]
        for entry in gone:
            self._remove(entry)

    def _block(self, name: str, number: int) -> bytes | None:
        entry = (_key(name), number)
        with self._lock:
            if entry not in self._sizes:
                self.misses += 1
                return None
            self._sizes.move_to_end(entry)
        block = super()._block(name, number)
        if block is None:
            self.misses += 1
            self._remove(entry)
        else:
            self.hits += 1
        return block

    def _write(self, path: str, data: bytes) -> None:
        temporary = f"{path}.{next(self._temporary)}{TEMPORARY_SUFFIX}"
        try:
            file = self._disk.open(temporary, create_bytes=0)
            try:
                file.write_at(data, 0)
            finally:
                file.close()
            self._disk.rename(temporary, path)
        except BaseException:
            with suppress(PenstockError, OSError):
                self._disk.remove(temporary)
            raise

    def _evict(self) -> None:
        while True:
            with self._lock:
                if self.bytes <= self.bytes_max or not self._sizes:
                    return
                entry = next(iter(self._sizes))
            self._remove(entry)

    def _remove(self, entry: tuple[str, int]) -> None:
        with self._lock:
            self.bytes -= self._sizes.pop(entry, 0)
        with suppress(PenstockError, OSError):
            self._disk.remove(f"{self._directory}/{entry[0]}.{entry[1]:08d}")

    def _scan(self) -> None:
        """What an earlier process left. Names sort by age, so the oldest go first."""
        for file in self._disk.list(self._directory):
            key, _, number = file.rpartition(".")
            path = f"{self._directory}/{file}"
            if not number.isdecimal():
                with suppress(PenstockError, OSError):
                    self._disk.remove(path)
                continue
            with suppress(OSError):
                self._sizes[key, int(number)] = self._disk.size(path)
        self.bytes = sum(self._sizes.values())


def key_of(name: str) -> str:
    """The key under which blocks of a file are kept."""
    return _key(name)


def _key(name: str) -> str:
    return name.removeprefix("segments/").replace("/", ".")


def _crc(name: str, number: int, block: Bytes) -> int:
    """Of the bytes and of whose they are: a block in the place of another is found out."""
    return int(crc32c(block, crc32c(f"{_key(name)}.{number}".encode())))


def _checked(stored: bytes, name: str, number: int) -> bytes | None:
    if len(stored) < _TRAILER.size:
        return None
    block = stored[: -_TRAILER.size]
    crc, length = _TRAILER.unpack(stored[-_TRAILER.size :])
    return block if length == len(block) and crc == _crc(name, number, block) else None


def _runs(numbers: list[int]) -> list[tuple[int, int]]:
    """Consecutive numbers as half-open ranges."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number:
            runs[-1] = (runs[-1][0], number + 1)
        else:
            runs.append((number, number + 1))
    return runs
