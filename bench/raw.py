"""Raw limits: what the same work costs with nothing around it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import crc32c

FILE_BYTES = 64 * 1024 * 1024


class RawFile:
    """Preallocated files like the journal's, written one after the other, without anything else."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._next()

    def write(self, data: bytes) -> None:
        if self._position + len(data) > FILE_BYTES:
            self._next()
        os.pwrite(self._fd, data, self._position)
        self._position += len(data)

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._path.unlink()
            self._fd = -1

    def _next(self) -> None:
        self.close()
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT)
        os.posix_fallocate(self._fd, 0, FILE_BYTES)
        os.fsync(self._fd)
        self._position = 0


def writes(file: RawFile, data: bytes, count: int) -> Callable[[], None]:
    """Bare writes."""

    def work() -> None:
        for _ in range(count):
            file.write(data)

    return work


def synced_writes(file: RawFile, data: bytes, count: int) -> Callable[[], None]:
    """Bare writes, each of them synced."""

    def work() -> None:
        for _ in range(count):
            file.write(data)
            file.sync()

    return work


def cuts(blob: bytes, size: int, count: int) -> Callable[[], None]:
    """Cutting a blob into payloads and looking at each: the least that touching every payload can cost."""

    def work() -> None:
        for _ in range(count):
            for payload in [blob[start : start + size] for start in range(0, len(blob), size)]:
                payload  # noqa: B018 - touching it is the point

    return work


def read_seconds(files: list[Path]) -> float:
    """Reading files and their checksum: the least that opening can cost."""
    started = perf_counter()
    for path in files:
        crc32c.crc32c(path.read_bytes())
    return perf_counter() - started
