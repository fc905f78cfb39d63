"""What the namespaces have staged, and may stage.

A file belongs to the namespace of the queue that it was staged for. Which one that is, its name does not say, so it is
remembered: by file while the process lives, by sink in a small document for files that were staged before. A document
that cannot be read, or was never written, means that such files count for nobody until they are gone.
"""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import suppress
from typing import Final

import msgspec

from penstock import limits
from penstock.errors import QueueFull
from penstock.storage.disk import Disk
from penstock.storage.staging import DIRECTORY, Staging

FILE: Final = "staging/namespaces.json"
SINK_LENGTH: Final = 16  # of the digest that a name begins with


class StagedQuotas:
    """Counts the staged bytes of namespaces. Safe to use from several threads."""

    def __init__(self, disk: Disk | None, staging: Staging) -> None:
        self._disk = disk
        self._staging = staging
        self._lock = threading.Lock()
        self._by_file: dict[str, str] = {}
        self._by_sink = _load(disk)
        self._rooms: dict[str, tuple[int, int]] = {}  # a namespace's quota, and the bytes that fit for sure

    def reserve(self, namespace: str, bytes_max: int | None, name: str, position: int, count: int) -> None:
        """Refuse bytes that would exceed what a namespace may stage; remember whose file it is."""
        with self._lock:
            if bytes_max is not None:
                self._take(namespace, bytes_max, max(0, position + count - self._size(name)))
            self._by_file[name] = namespace
            if len(self._by_file) > limits.staged_files_total_max:
                self._forget_removed()
            if name[:SINK_LENGTH] not in self._by_sink:
                self._remember(name[:SINK_LENGTH], namespace)

    def used(self) -> Counter[str]:
        """Bytes that are staged, by namespace."""
        total: Counter[str] = Counter()
        for name in self._staging.names():
            owner = self._by_file.get(name) or self._by_sink.get(name[:SINK_LENGTH])
            if owner is not None:
                total[owner] += self._size(name)
        return total

    def _take(self, namespace: str, bytes_max: int, more: int) -> None:
        known_max, room = self._rooms.get(namespace, (None, 0))
        if known_max != bytes_max or room < more:  # what was staged may be gone since the last count
            self._forget_removed()
            room = bytes_max - self.used()[namespace]
        if room < more:
            raise QueueFull(
                f"namespace {namespace!r} has {bytes_max - room:,} of {bytes_max:,} staged bytes and needs "
                f"{more:,} more: quota 'staged_bytes'",
                hint="commit or discard what is staged, or raise the quota with `penstock namespace create`",
            )
        self._rooms[namespace] = bytes_max, room - more

    def _size(self, name: str) -> int:
        with suppress(FileNotFoundError):
            return self._staging.size(name)
        return 0

    def _forget_removed(self) -> None:
        present = set(self._staging.names())
        self._by_file = {name: namespace for name, namespace in self._by_file.items() if name in present}

    def _remember(self, sink: str, namespace: str) -> None:
        present = {name[:SINK_LENGTH] for name in self._staging.names()}
        kept = {known: owner for known, owner in self._by_sink.items() if known in present}
        self._by_sink = {**kept, sink: namespace}
        if self._disk is not None:
            self._disk.make_directory(DIRECTORY)
            self._disk.write_whole(FILE, msgspec.json.encode(self._by_sink))


def _load(disk: Disk | None) -> dict[str, str]:
    if disk is None or not disk.exists(FILE):
        return {}
    with suppress(msgspec.MsgspecError):
        return msgspec.json.decode(disk.read(FILE), type=dict[str, str])
    return {}
