"""Where a backup set lies: a directory of this machine, or a place that `pyarrow.fs` reaches, such as S3.

A file appears whole or not at all. In a directory it is written under another name, synced and renamed; on object
storage one request puts it there. Should that storage show a part of a file after all, its size tells.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, Protocol

from penstock import limits
from penstock.errors import InvalidField, StorageError
from penstock.storage.disk import TEMPORARY_SUFFIX, ReadableDisk, RealDisk

CHUNK_BYTES: Final = 4 * limits.MIB
_ERRORS: Final = (OSError, ValueError)  # of pyarrow


class Target(Protocol):
    """A place for files. Names use "/"."""

    url: str

    def exists(self, name: str) -> bool:
        """Whether there is a file of this name."""

    def list(self, directory: str) -> dict[str, int]:
        """The files below a directory, with their sizes; none when it does not exist."""

    def read(self, name: str) -> Iterator[bytes]:
        """The bytes of a file, in pieces."""

    def write(self, name: str, pieces: Iterable[bytes]) -> None:
        """Create or replace a file."""

    def link(self, name: str, source: Path) -> bool:
        """Make `name` another name of a local file that will not change; False where that is not possible."""

    def remove(self, name: str) -> None:
        """Remove a file; no error when it is gone."""

    def sync(self) -> None:
        """Return when everything so far survives a power cut."""

    def lock(self) -> None:
        """Keep others from changing the set, where that is possible."""

    def close(self) -> None:
        """Release the lock."""


def open_target(url: str) -> Target:
    """The target at a path or URL. Nothing is created yet."""
    if url.startswith("file://"):
        url = url.removeprefix("file://")
    if "://" not in url:
        if not url:
            raise InvalidField("destination: it is empty", hint="give a directory, or a URL such as s3://bucket/path")
        return DirectoryTarget(Path(url).expanduser())
    from pyarrow import fs

    try:
        filesystem, path = fs.FileSystem.from_uri(url)
    except (*_ERRORS, RuntimeError) as error:
        raise InvalidField(
            f"destination: {url!r} cannot be used: {error}", hint="give a directory, or a URL such as s3://bucket/path"
        ) from None
    return ObjectTarget(filesystem, path, url)


class DirectoryTarget:
    """A directory, for its owner alone."""

    def __init__(self, root: Path) -> None:
        self.url = os.fspath(root)
        self.root = root
        self._disk = RealDisk(root)
        self._changed: set[str] = set()  # directories

    def exists(self, name: str) -> bool:
        return self._disk.exists(name)

    def list(self, directory: str) -> dict[str, int]:
        if not self._disk.exists(directory):
            return {}
        files: dict[str, int] = {}
        for entry in self._disk.list(directory):
            name = f"{directory}/{entry}" if directory else entry
            if (self.root / name).is_dir():
                files |= self.list(name)
            elif not name.endswith(TEMPORARY_SUFFIX):
                files[name] = self._disk.size(name)
        return files

    def read(self, name: str) -> Iterator[bytes]:
        return pieces_of(self._disk, name)

    def write(self, name: str, pieces: Iterable[bytes]) -> None:
        directory = self._directory(name)
        temporary = name + TEMPORARY_SUFFIX
        file = self._disk.open(temporary, create_bytes=0)
        try:
            file.truncate(0)
            position = 0
            for piece in pieces:
                file.write_at(piece, position)
                position += len(piece)
            file.sync()
        finally:
            file.close()
        self._disk.rename(temporary, name)
        self._changed.add(directory)

    def link(self, name: str, source: Path) -> bool:
        directory = self._directory(name)
        if not self._disk.link(source, name):
            return False
        self._changed.add(directory)
        return True

    def remove(self, name: str) -> None:
        if self._disk.exists(name):
            self._disk.remove(name)
            self._changed.add(os.path.dirname(name))

    def sync(self) -> None:
        while self._changed:
            self._disk.sync_directory(self._changed.pop())

    def lock(self) -> None:
        self._disk.make_directory("")
        self._disk.lock()

    def close(self) -> None:
        self._disk.close()

    def _directory(self, name: str) -> str:
        directory = os.path.dirname(name)
        self._disk.make_directory(directory)
        return directory


class ObjectTarget:
    """A place that pyarrow reaches. It has no locks: one process at a time may write to it."""

    def __init__(self, filesystem: Any, path: str, url: str) -> None:
        self.url = url
        self._filesystem = filesystem
        self._path = path.rstrip("/")

    def exists(self, name: str) -> bool:
        from pyarrow import fs

        return bool(self._try(lambda: self._filesystem.get_file_info(self._at(name))).type == fs.FileType.File)

    def list(self, directory: str) -> dict[str, int]:
        from pyarrow import fs

        selector = fs.FileSelector(self._at(directory), recursive=True, allow_not_found=True)
        found = self._try(lambda: self._filesystem.get_file_info(selector))
        return {info.path[len(self._path) + 1 :]: info.size for info in found if info.type == fs.FileType.File}

    def read(self, name: str) -> Iterator[bytes]:
        stream = self._try(lambda: self._filesystem.open_input_stream(self._at(name)))
        with stream:
            while piece := self._try(lambda: stream.read(CHUNK_BYTES)):
                yield piece

    def write(self, name: str, pieces: Iterable[bytes]) -> None:
        self._try(lambda: self._filesystem.create_dir(self._at(os.path.dirname(name)), recursive=True))
        stream = self._try(lambda: self._filesystem.open_output_stream(self._at(name)))
        try:
            for piece in pieces:
                self._try(lambda piece=piece: stream.write(piece))
        except BaseException:
            stream.close()  # which stores what was written
            self.remove(name)
            raise
        self._try(stream.close)

    def link(self, name: str, source: Path) -> bool:
        return False

    def remove(self, name: str) -> None:
        if self.exists(name):
            self._try(lambda: self._filesystem.delete_file(self._at(name)))

    def sync(self) -> None:
        """Nothing to do: what was put there is durable."""

    def lock(self) -> None:
        """There is none."""

    def close(self) -> None:
        """There is no lock."""

    def _at(self, name: str) -> str:
        return f"{self._path}/{name}" if name else self._path

    def _try(self, request: Any) -> Any:
        try:
            return request()
        except FileNotFoundError:
            raise
        except _ERRORS as error:
            raise StorageError(
                f"{self.url}: {error}", hint="check that it exists and that this process may access it"
            ) from None


def pieces_of(disk: ReadableDisk, name: str) -> Iterator[bytes]:
    """The bytes of a file of a disk, in pieces."""
    position = 0
    while piece := disk.read(name, position, CHUNK_BYTES):
        yield piece
        position += len(piece)
