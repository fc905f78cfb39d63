"""Staged files: batches of a sink that are stored beside the journal until they are committed.

    staging/<sink>-<task>-<id>      16 hex digits · a number · 32 hex digits, the first 12 of them are ms since 1970

    "PENSTAGE" | partitions_bytes u32 | crc32c of the partitions u32 | partitions, padded to 8 | batch

Partitions are empty, or a MessagePack array: the names that occur, and for each row the index of its own (int32 bytes).
A file holds one batch, is written once, by position, and means nothing until a frame of the journal names it. The
process that stages it need not hold the directory, nor sync the file: the commit does, if it must. A file that no
unfinished batch needs may be removed at any time, and is when its sink commits later ones, or once it is old: the name
says which sink it belongs to and when it was staged.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Final

import msgspec
import numpy as np
from crc32c import crc32c

from penstock import limits
from penstock.batch import Batch
from penstock.batch.layout import Buffer, padded
from penstock.errors import BadBatch, InvalidField, StorageError, TooLarge
from penstock.model import OWNER_SEPARATOR
from penstock.storage.disk import Bytes, Disk

DIRECTORY: Final = "staging"
MAGIC: Final = b"PENSTAGE"
HEAD: Final = struct.Struct("<8sII")

_NAME: Final = re.compile(r"[0-9a-f]{16}-[0-9]{1,9}-[0-9a-f]{32}")
_partitions: Final = msgspec.msgpack.Decoder(tuple[list[str | None], bytes])


def name_for(queue: str, sink: str, task: int, now: int, salt: bytes) -> str:
    """A name that nobody else uses; `salt` is 10 random bytes."""
    return f"{sink_digest(queue, sink)}-{task}-{now // 1000:012x}{salt.hex()}"


def sink_digest(queue: str, sink: str) -> str:
    """The prefix of the names of a sink's files; `sink` as its principal's own (`owned`)."""
    owner, _, name = sink.rpartition(OWNER_SEPARATOR)
    digest = hashlib.blake2b(f"{queue}\0{name}".encode(), digest_size=8).hexdigest()
    return _owned_digest(owner, queue, digest) if owner else digest


def stored_name(owner: str, queue: str, name: str) -> str:
    """The name of the file that a principal calls `name`, for messages of a queue.

    Nobody else's files, and none for another queue, have it. Those of the owner of the broker have the name itself.
    """
    digest, _, rest = check_staged(name).partition("-")
    return f"{_owned_digest(owner, queue, digest)}-{rest}" if owner else name


def _owned_digest(owner: str, queue: str, digest: str) -> str:
    return hashlib.blake2b(f"{owner}\0{queue}\0{digest}".encode(), digest_size=8).hexdigest()


def check_staged(name: str) -> str:
    """`name` itself when it can name a staged file."""
    if _NAME.fullmatch(name) is None:
        raise InvalidField(f"staged: {name!r} is not the name of a staged file")
    return name


def encode_staged(batch: Batch) -> list[Buffer]:
    """The bytes of a file, as two buffers, so that the batch is not copied."""
    partitions = b""
    if batch.partitions is not None:
        index_of = {name: index for index, name in enumerate(dict.fromkeys(batch.partitions))}
        indexes = np.fromiter(map(index_of.__getitem__, batch.partitions), np.int32, batch.count)
        partitions = msgspec.msgpack.encode((list(index_of), indexes.tobytes()))
    head = HEAD.pack(MAGIC, len(partitions), crc32c(partitions)) + partitions
    return [head.ljust(padded(len(head)), b"\0"), batch.data]


def decode_staged(data: bytes) -> Batch:
    """The inverse of `encode_staged`, for bytes of any origin: `BadBatch` when they are not sound."""
    view = memoryview(data)
    if len(view) < HEAD.size or bytes(view[: len(MAGIC)]) != MAGIC:
        raise BadBatch(f"it does not begin with {MAGIC!r}")
    _, length, crc = HEAD.unpack_from(view)
    end = HEAD.size + length
    if crc32c(view[HEAD.size : end]) != crc or any(view[end : padded(end)]):
        raise BadBatch("its partitions do not match their checksum")
    batch = Batch.parse(view[padded(end) :], validate=True)
    if length:
        batch.partitions = _decode_partitions(view[HEAD.size : end], batch.count)
    return batch


def _decode_partitions(data: memoryview, count: int) -> list[str | None]:
    try:
        names, encoded = _partitions.decode(data)
        indexes = np.frombuffer(encoded, np.int32)
    except (msgspec.MsgspecError, ValueError):
        raise BadBatch("its partitions cannot be read") from None
    if len(indexes) != count or ((indexes < 0) | (indexes >= len(names))).any():
        raise BadBatch(f"its partitions are not those of {count} messages")
    return [names[index] for index in indexes.tolist()]


class Staging:
    """The staged files of a data directory. `disk` None: everything is in memory, and nothing can be staged."""

    def __init__(self, disk: Disk | None) -> None:
        self._disk_or_none = disk
        self._room: tuple[int, int] | None = None  # files and bytes that fit for sure, by the last count

    def reserve(self, name: str, position: int, count: int) -> None:
        """Refuse bytes that would exceed the limit for all staged files. For a broker that writes for its clients."""
        path = _path(name)
        size = self._disk.size(path) if self._disk.exists(path) else None
        files, more = int(size is None), max(0, min(position + count, limits.staged_file_bytes_max) - (size or 0))
        if self._room is None or self._room[0] < files or self._room[1] < more:
            self._room = self._counted()  # other processes may have removed some, or staged others
        if self._room[0] < files or self._room[1] < more:
            raise TooLarge(
                f"staged: over {limits.staged_files_total_max:,} files or {limits.staged_bytes_total_max:,} bytes",
                hint="commit or discard what is staged",
            )
        self._room = self._room[0] - files, self._room[1] - more

    def _counted(self) -> tuple[int, int]:
        names, total = self.names(), 0
        for name in names:
            with suppress(FileNotFoundError):  # it went just now
                total += self.size(name)
        return limits.staged_files_total_max - len(names), limits.staged_bytes_total_max - total

    def write(self, name: str, position: int, data: Bytes) -> None:
        """Write bytes to a file, which is created if it is missing; writing the same bytes again does no harm."""
        path = _path(name)
        if not 0 <= position <= limits.staged_file_bytes_max - len(data):
            raise InvalidField(
                f"position: {position} and {len(data)} bytes are outside a file of {limits.staged_file_bytes_max}",
                hint="stage smaller batches",
            )
        self._disk.make_directory(DIRECTORY)
        file = self._disk.open(path, create_bytes=0)
        try:
            file.write_at(data, position)
        finally:
            file.close()

    def read(self, name: str, opened: Callable[[bytes], bytes] = bytes) -> Batch:
        """The batch of a file. `opened` is applied to one that is encrypted: it does not begin as others do."""
        data = self._disk.read(_path(name))
        try:
            return decode_staged(data if data.startswith(MAGIC) else opened(data))
        except BadBatch as error:
            raise BadBatch(f"staged file {name}: {error.message}", hint=error.hint) from None

    def size(self, name: str) -> int:
        """Bytes of a file."""
        return self._disk.size(_path(name))

    def sync(self, names: Iterable[str]) -> None:
        """Make files durable, whichever process wrote them."""
        for name in names:
            file = self._disk.open(_path(name))
            try:
                file.sync()
            finally:
                file.close()
        self._disk.sync_directory(DIRECTORY)

    def remove(self, names: Iterable[str]) -> None:
        """Remove files. A crash may bring them back; then they go when they are old."""
        for name in names:
            with suppress(FileNotFoundError):
                self._disk.remove(_path(name))

    def of_sink(self, queue: str, sink: str) -> list[str]:
        """Every file of a sink, whichever process staged it."""
        return [name for name in self.names() if name.startswith(f"{sink_digest(queue, sink)}-")]

    def sweep(self, now: int, needed: Collection[str]) -> int:
        """Remove files that are old and not needed; returns how many."""
        oldest = now // 1000 - round(limits.staged_seconds * 1000)
        gone = [name for name in self.names() if _made_at_ms(name) < oldest and name not in needed]
        self.remove(gone)
        return len(gone)

    def sweep_before(self, queue: str, sink: str, staged: Collection[str], needed: Collection[str]) -> None:
        """Remove what a sink staged before all of the files `staged` and nobody needs: leftovers of failed attempts.

        Tasks may go on writing for a while after their job has failed, and nobody knows what they staged.
        """
        first = min(map(_made_at_ms, staged), default=0)
        self.remove([name for name in self.of_sink(queue, sink) if _made_at_ms(name) < first and name not in needed])

    def names(self) -> list[str]:
        """Every file."""
        disk = self._disk_or_none
        if disk is None or not disk.exists(DIRECTORY):
            return []
        return [name for name in disk.list(DIRECTORY) if _NAME.fullmatch(name) is not None]

    @property
    def _disk(self) -> Disk:
        if self._disk_or_none is None:
            raise StorageError("nothing can be staged: everything is in memory", hint="give it a data directory")
        return self._disk_or_none


def _path(name: str) -> str:
    return f"{DIRECTORY}/{check_staged(name)}"


def _made_at_ms(name: str) -> int:
    return int(name.rpartition("-")[2][:12], 16)
