"""Object storage that fails, in documented ways, and counts its operations with those of a `ForgetfulDisk`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from penstock.errors import Unavailable
from penstock.storage.disk import Bytes
from tests.support.forgetful import ForgetfulDisk

T = TypeVar("T")


class FaultyObjects:
    """Objects in memory, which survive everything.

    - `is_away`: nothing answers. `is_closed`: everything is refused.
    - `delays`: puts fail, and arrive only with `deliver`.
    - With a disk, puts and removals are operations of that disk: what it crashes at or fails at may be one of them.
    """

    def __init__(self, disk: ForgetfulDisk | None = None) -> None:
        self.disk = disk
        self.stored: dict[str, bytes] = {}
        self.calls: list[tuple[str, str]] = []
        self.is_away = self.is_closed = self.delays = False
        self._late: dict[str, bytes] = {}

    def connect(self, url: str) -> FaultyObjects:
        return self

    def put(self, key: str, data: Bytes) -> None:
        if self.delays:
            self._late[key] = bytes(data)
            raise Unavailable("the request timed out")
        self._changed("put", key, lambda: self.stored.__setitem__(key, bytes(data)))

    def deliver(self) -> None:
        """What was delayed arrives, whatever is there by now."""
        self.stored |= self._late
        self._late.clear()

    def read(self, key: str, position: int, length: int) -> bytes:
        return self._asked("read", key)[position : position + length]

    def size(self, key: str) -> int:
        return len(self._asked("size", key))

    def list(self, prefix: str) -> list[str]:
        self._refuse("list", prefix)
        below = prefix + "/" if prefix else ""
        names = {key.removeprefix(below) for key in self.stored if key.startswith(below)}
        return sorted(name for name in names if "/" not in name)

    def remove(self, key: str) -> None:
        self._asked("remove", key)
        self._changed("removed", key, lambda: self.stored.__delitem__(key))

    def path(self, key: str) -> Path | None:
        return None

    def _asked(self, call: str, key: str) -> bytes:
        self._refuse(call, key)
        if key not in self.stored:
            raise FileNotFoundError(key)
        return self.stored[key]

    def _changed(self, call: str, key: str, change: Callable[[], None]) -> None:
        self._refuse(call, key)
        if self.disk is None:
            change()
            return
        try:
            self.disk._do(change)
        except OSError as error:
            raise Unavailable(f"503: {error}") from error

    def _refuse(self, call: str, key: str) -> None:
        self.calls.append((call, key))
        if self.is_closed:
            raise Unavailable("AWS Error ACCESS_DENIED")
        if self.is_away:
            raise Unavailable("nothing answers")
