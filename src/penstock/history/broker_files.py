"""The files of a broker's data directory, fetched from the broker, or read from the disk when it is on this machine.

Each call waits up to `PATIENCE_SECONDS` for a broker that went away; readers then continue where they were. The shard's
id tells whether the same broker came back. Only the broker knows what is durable, wherever the files are read. Files of
segments never change once they exist, so their sizes are remembered.
"""

from __future__ import annotations

import logging
import secrets
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from penstock import limits
from penstock import operations as ops
from penstock.errors import PenstockError, StorageError, Unavailable
from penstock.history.files import LocalFiles
from penstock.history.keys import BrokerKeys, ReaderKeys
from penstock.remote.settings import session, settings
from penstock.replies import HistoryInfo
from penstock.storage import pins
from penstock.storage.block_cache import BlockReader
from penstock.storage.directory import MARKER, read_identity
from penstock.storage.schema import SCHEMAS
from penstock.storage.segment_files import RangedFile, ReadableSegments, location_number

PATIENCE_SECONDS: Final = 60.0
_HINT: Final = "check that the broker is running and the url is right; start it with `penstock serve`"

logger: Final = logging.getLogger("penstock.history")


class BrokerFiles:
    """`Files` of a broker. With `local`, a directory that is visible from this machine is read without the broker."""

    def __init__(self, url: str, *, local: bool = True, **options: Any) -> None:
        connection = settings(url, timeout=PATIENCE_SECONDS, **options)
        self._url = url
        self._session = session(connection)
        self._sizes: dict[str, int] = {}
        self._info = self._fetch_info()
        self.local = self._visible_files() if local else None
        address = connection.addresses[0]
        self.root = Path(f"{address.host}:{address.port}") if self.local is None else self.local.root

    def read(self, name: str, position: int = 0, length: int | None = None) -> bytes:
        if self.local is not None and not location_number(name):
            return self.local.read(name, position, length)
        chunks = []
        left = length if length is not None else 1 << 62
        while left > 0:
            size = min(left, limits.fetch_bytes_max)
            chunk = self._session.execute(ops.Fetch(name, position, size))
            if chunk is None:
                raise FileNotFoundError(f"{self.root / name} does not exist")
            chunks.append(chunk)
            position += len(chunk)
            left -= len(chunk)
            if len(chunk) < size:
                break
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def exists(self, name: str) -> bool:
        if self.local is not None and not location_number(name):
            return self.local.exists(name)
        directory, _, last = name.rpartition("/")
        return (
            name == MARKER
            if not directory
            else any(file == last for file, _ in self._session.execute(ops.ListFiles(directory)))
        )

    def size(self, name: str) -> int:
        if self.local is not None and not location_number(name):
            return self.local.size(name)
        known = self._sizes.get(name)
        if known is not None:
            return known
        directory = name.rpartition("/")[0]
        sizes: dict[str, int] = {
            f"{directory}/{file}": size for file, size in self._session.execute(ops.ListFiles(directory))
        }
        if name not in sizes:
            raise FileNotFoundError(f"{self.root / name} does not exist")
        if directory.rpartition("/")[2] in SCHEMAS:
            self._sizes = sizes
        return sizes[name]

    def list(self, directory: str) -> list[str]:
        if self.local is not None and not location_number(directory):
            return self.local.list(directory)
        return [name for name, _ in self._session.execute(ops.ListFiles(directory))]

    def open_input(self, name: str) -> Any:
        if self.local is not None and not location_number(name):
            return self.local.open_input(name)
        return pa.PythonFile(RangedFile(self.read, name, self.size(name)), mode="r")

    def durable_sequence(self) -> int | None:
        return self._fetch_info().durable_sequence

    def make_durable(self, name: str) -> None:
        """Nothing to do: the broker reports only what is durable."""

    def pin(self, name: str, now: int, files: Iterable[str] | None) -> None:
        with suppress(PenstockError):  # optional: without it a reader looks up again what it needs
            self._session.execute(ops.Pin(name, None if files is None else sorted(files)))

    def unpin(self, name: str) -> None:
        with suppress(PenstockError):
            self._session.execute(ops.Unpin(name))

    def data_keys(self) -> ReaderKeys:
        return BrokerKeys(self._session.execute)

    def segment_files(self) -> ReadableSegments:
        return BrokerSegments(self)

    def close(self) -> None:
        self._session.close()

    def _visible_files(self) -> LocalFiles | None:
        """The directory, if it can be read without the broker: not a copy of it, and not another one of that path."""
        files = local_files(self._info)
        if files is None or self._info.host == socket.gethostname():
            return files
        # On another machine, or in another container, the same path may be the same directory or an old copy of it.
        name = f"probe-{secrets.token_hex(8)}"
        self._session.execute(ops.Pin(name, []))
        try:
            return files if files.exists(f"{pins.DIRECTORY}/{name}.json") else None
        finally:
            self._session.execute(ops.Unpin(name))

    def _fetch_info(self) -> HistoryInfo:
        try:
            info: HistoryInfo = self._session.execute(ops.History())
        except Unavailable as error:
            raise Unavailable(error.message, hint=_HINT) from None
        known = getattr(self, "_info", info)
        if info.identity != known.identity:
            raise StorageError(
                f"{self._url} is another broker now, with other data: {info.directory} on {info.host}",
                hint="restart the job with the url of the broker it started with",
            )
        return info


class BrokerSegments(ReadableSegments):
    """Files at locations, read there; through the broker where this process cannot: it may have no credentials."""

    def __init__(self, files: BrokerFiles) -> None:
        super().__init__(files, cache=None if files.local is None else BlockReader(files.local))
        self._files = files
        self._closed_to_us: set[int] = set()  # numbers of locations

    def read(self, name: str, position: int = 0, length: int | None = None) -> bytes:
        number = location_number(name)
        if number and number not in self._closed_to_us:
            try:
                return super().read(name, position, length)
            except Unavailable as error:
                self._closed_to_us.add(number)
                logger.info("reading segments through the broker: %s", error.message)
        return self._files.read(name, position, length)

    def size(self, name: str) -> int:
        known = self.listed.get(name)
        return self._files.size(name) if known is None else int(known.bytes)


def local_files(info: HistoryInfo) -> LocalFiles | None:
    """The directory of a broker, if there is one of that path on this machine with the same shard's id."""
    try:
        files = LocalFiles(info.directory)
        return files if read_identity(files) == info.identity else None
    except (PenstockError, OSError):
        return None
