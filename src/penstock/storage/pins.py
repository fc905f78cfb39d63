"""Pins: a reader outside the shard keeps segment files from being removed while it reads them.

A pin is `segments/pins/<name>.json`: `{"heartbeat_at": µs, "files": [names] or null}`; null holds every file. Its
reader renews it well within `limits.segment_pin_seconds`; an older one does not count and is removed. To read what a
manifest lists: pin everything, then read the manifest, then narrow the pin to its files. In that order no file can be
removed in between.

Pins only delay removal; they never decide what is needed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

import msgspec

from penstock import limits
from penstock.model import check_name
from penstock.storage.disk import Disk

DIRECTORY: Final = "segments/pins"

logger: Final = logging.getLogger("penstock.storage")


class Pin(msgspec.Struct, frozen=True):
    """What one reader holds."""

    heartbeat_at: int
    files: list[str] | None = None


class Held(msgspec.Struct, frozen=True):
    """What all live pins hold together."""

    everything: bool = False
    files: frozenset[str] = frozenset()

    def __contains__(self, file: str) -> bool:
        return self.everything or file in self.files


def hold(disk: Disk, name: str, now: int, files: Iterable[str] | None = None) -> None:
    """Take a pin, renew it, or change what it holds."""
    pin = Pin(now, None if files is None else sorted(files))
    disk.write_whole(_path(name), msgspec.json.encode(pin))


def release(disk: Disk, name: str) -> None:
    """Remove a pin; no error when it is gone already."""
    try:
        disk.remove(_path(name))
    except FileNotFoundError:
        return


def is_held(disk: Disk, name: str) -> bool:
    """Whether there is a pin of this name."""
    return disk.exists(_path(name))


def count(disk: Disk) -> int:
    """How many pins there are, live or not."""
    return len(disk.list(DIRECTORY))


def held(disk: Disk, now: int) -> Held:
    """What is pinned now. Pins that were not renewed in time are removed."""
    files: set[str] = set()
    everything = False
    for entry in disk.list(DIRECTORY):
        if not entry.endswith(".json"):
            continue
        pin = _read(disk, f"{DIRECTORY}/{entry}")
        if pin is None:
            continue
        if pin.heartbeat_at < now - round(limits.segment_pin_seconds * 1_000_000):
            logger.warning("pin %s was not renewed in time and was removed", entry)
            release(disk, entry.removesuffix(".json"))
            continue
        everything = everything or pin.files is None
        files.update(pin.files or ())
    return Held(everything, frozenset(files))


def _read(disk: Disk, path: str) -> Pin | None:
    try:
        return msgspec.json.decode(disk.read(path), type=Pin)
    except FileNotFoundError:
        return None  # released just now
    except msgspec.DecodeError as error:
        logger.warning("pin %s cannot be read and is ignored: %s", path, error)
        return None


def _path(name: str) -> str:
    return f"{DIRECTORY}/{check_name(name, 'pin')}.json"
