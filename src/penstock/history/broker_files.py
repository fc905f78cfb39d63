"""The files of a broker's data directory, fetched from the broker, or read from the disk where that is this machine's.

A broker that goes away is waited for, up to `patience_seconds` for each call: readers go on where they were. It must be
the same one that comes back: the shard's id says so. What is durable only the broker can say, wherever the files are
read. Files of segments never change once they are there, so that their sizes are remembered.
"""

from __future__ import annotations

import io
import secrets
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from penstock import limits
from penstock import operations as ops
from penstock.clock import Clock
from penstock.errors import InvalidField, PenstockError, StorageError, Unavailable
from penstock.history.files import LocalFiles
from penstock.remote.dialling import session
from penstock.remote.settings import settings
from penstock.replies import HistoryInfo
from penstock.storage import pins
from penstock.storage.directory import MARKER, read_marker
from penstock.storage.manifest import DIRECTORIES

PATIENCE_SECONDS: Final = 60.0
_HINT: Final = "is the broker running, and is this its penstock:// url? start it with `penstock serve`, then run again"
_SEALED: Final = DIRECTORIES


class BrokerFiles:
    """See the module's rules. With `local`, a directory that can be seen from here is read without the broker."""

    def __init__(
        self,
        url: str,
        *,
        local: bool = True,
        patience_seconds: float = PATIENCE_SECONDS,
        clock: Clock | None = None,
        **options: Any,
    ) -> None:
        wanted = settings(url, timeout=patience_seconds, clock=clock, **options)
        if wanted.addresses[0].scheme != "penstock":
            raise InvalidField(f"url: history is not read over HTTP: {url!r}", hint="give the broker's penstock:// url")
        self._url = url
        self._session = session(wanted)
        self._sizes: dict[str, int] = {}
        self._info = self._ask_history()
        self.local = self._seen_from_here() if local else None
        address = wanted.addresses[0]
        self.root = Path(f"{address.host}:{address.port}") if self.local is None else self.local.root

    def read(self, name: str, position: int = 0, length: int | None = None) -> bytes:
        if self.local is not None:
            return self.local.read(name, position, length)
        pieces = []
        left = length if length is not None else 1 << 62
        while left > 0:
            wanted = min(left, limits.fetch_bytes_max)
            piece = self._session.execute(ops.Fetch(name, position, wanted))
            if piece is None:
                raise FileNotFoundError(f"{self.root / name} is not there")
            pieces.append(piece)
            position += len(piece)
            left -= len(piece)
            if len(piece) < wanted:
                break
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def exists(self, name: str) -> bool:
        if self.local is not None:
            return self.local.exists(name)
        directory, _, last = name.rpartition("/")
        return (
            name == MARKER
            if not directory
            else any(each == last for each, _ in self._session.execute(ops.ListFiles(directory)))
        )

    def size(self, name: str) -> int:
        if self.local is not None:
            return self.local.size(name)
        known = self._sizes.get(name)
        if known is not None:
            return known
        directory = name.rpartition("/")[0]
        sizes: dict[str, int] = {
            f"{directory}/{each}": size for each, size in self._session.execute(ops.ListFiles(directory))
        }
        if name not in sizes:
            raise FileNotFoundError(f"{self.root / name} is not there")
        if directory in _SEALED:
            self._sizes = sizes
        return sizes[name]

    def list(self, directory: str) -> list[str]:
        if self.local is not None:
            return self.local.list(directory)
        return [name for name, _ in self._session.execute(ops.ListFiles(directory))]

    def open_input(self, name: str) -> Any:
        if self.local is not None:
            return self.local.open_input(name)
        return pa.PythonFile(_Fetched(self, name), mode="r")

    def durable_sequence(self) -> int | None:
        return self._ask_history().durable_sequence

    def make_durable(self, name: str) -> None:
        """What the broker calls durable is."""

    def pin(self, name: str, now: int, files: Iterable[str] | None) -> None:
        with suppress(PenstockError):  # a courtesy: without it a reader looks again for what it needs
            self._session.execute(ops.Pin(name, None if files is None else sorted(files)))

    def unpin(self, name: str) -> None:
        with suppress(PenstockError):
            self._session.execute(ops.Unpin(name))

    def close(self) -> None:
        self._session.close()

    def _seen_from_here(self) -> LocalFiles | None:
        """The directory, if it can be read without the broker: not a copy of it, and not another one of its name."""
        found = local_files(self._info)
        if found is None or self._info.host == socket.gethostname():
            return found
        # On another machine, or in another container, the same path may be the same directory or an old copy of it.
        name = f"probe-{secrets.token_hex(8)}"
        self._session.execute(ops.Pin(name, []))
        try:
            return found if found.exists(f"{pins.DIRECTORY}/{name}.json") else None
        finally:
            self._session.execute(ops.Unpin(name))

    def _ask_history(self) -> HistoryInfo:
        try:
            told: HistoryInfo = self._session.execute(ops.History())
        except Unavailable as error:
            raise Unavailable(error.message, hint=_HINT) from None
        known = getattr(self, "_info", told)
        if told.shard_id != known.shard_id:
            raise StorageError(
                f"{self._url} is another broker now, with other data: {told.directory} on {told.host}",
                hint="start the job again, with the url of the broker that it began with",
            )
        return told


class _Fetched(io.RawIOBase):
    """A file of a broker as pyarrow reads it: by position, from any thread that holds it."""

    def __init__(self, files: BrokerFiles, name: str) -> None:
        super().__init__()
        self._files = files
        self._name = name
        self._position = 0
        self._size = files.size(name)
        self._kept = (0, b"")  # what was fetched last: a row group is read for its checksum, then column by column

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, position: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = start + position
        return self._position

    def read(self, length: int | None = -1) -> bytes:
        end = self._size if length is None or length < 0 else min(self._size, self._position + length)
        start, kept = self._kept
        if not start <= self._position <= end <= start + len(kept):
            start, kept = self._position, self._files.read(self._name, self._position, end - self._position)
            self._kept = (start, kept)
        data = kept[self._position - start : end - start]
        self._position += len(data)
        return data


def local_files(info: HistoryInfo) -> LocalFiles | None:
    """The directory that a broker speaks of, if there is one of that path here with the same shard's id."""
    try:
        found = LocalFiles(info.directory)
        return found if read_marker(found).hex() == info.shard_id else None
    except (PenstockError, OSError):
        return None
