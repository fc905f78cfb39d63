"""The data keys with which a reader of history opens what is encrypted: asked for when something turns out to be.

In a directory they are unwrapped with the master key that the environment of this process names. A broker gives those
of the queues that are read to whoever may read them. They are held by this process alone: neither options nor plans nor
pickles have them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from penstock import operations as ops
from penstock.access.encryption import KeyRing, wrapper_of
from penstock.clock import SystemClock
from penstock.delivery.entries import is_encrypted
from penstock.errors import StorageError
from penstock.seals import DataKey, DataKeys
from penstock.storage.disk import ReadableDisk


class ReaderKeys:
    """`DataKeys` for reading: nothing is sealed with them. `names` are the queues that are read at the moment."""

    names: Collection[str] = ()

    def current(self, queue: int) -> DataKey:
        raise StorageError("history is read-only", hint="this is a bug in Penstock; please report it")

    def root(self, queue: int) -> bytes | None:
        raise StorageError("history is read-only", hint="this is a bug in Penstock; please report it")

    def find(self, id: bytes) -> DataKey | None:
        raise is_encrypted()


class DirectoryKeys(ReaderKeys):
    """Those of a directory on this machine."""

    def __init__(self, disk: ReadableDisk) -> None:
        self._disk = disk
        self._ring: DataKeys | None = None

    def find(self, id: bytes) -> DataKey | None:
        if self._ring is None:
            wrapper = wrapper_of()
            if wrapper is None:
                raise is_encrypted()
            self._ring = KeyRing(self._disk, wrapper, SystemClock())
        return self._ring.find(id)


class BrokerKeys(ReaderKeys):
    """Those that a broker gives away; `execute` asks it."""

    def __init__(self, execute: Callable[[ops.GetDataKeys], Any]) -> None:
        self._execute = execute
        self._known: dict[bytes, bytes] = {}

    def find(self, id: bytes) -> DataKey | None:
        if id not in self._known:
            for name in self.names:
                self._known |= dict(self._execute(ops.GetDataKeys(name)).keys)
        if id not in self._known:
            raise StorageError(f"the broker does not know data key {id.hex()}")
        secret = self._known[id]
        return DataKey(id, secret) if secret else None
