"""The bytes of one file on a `ForgetfulDisk`: what programs see, what would survive, and the changes in between."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Final

SECTOR_BYTES: Final = 512

Change = Callable[[bytearray], None]


class Inode:
    """A file's bytes: those that programs see, those that would survive, and the changes in between."""

    def __init__(self, survives: bytes = b"") -> None:
        self.live = bytearray(survives)
        self.survives = bytearray(survives)
        self.unsynced: list[Change] = []

    def change(self, *changes: Change) -> None:
        for change in changes:
            change(self.live)
        self.unsynced += changes

    def sync(self) -> None:
        for change in self.unsynced:
            change(self.survives)
        self.unsynced.clear()

    def after_crash(self, rng: random.Random) -> bytes:
        share = rng.choice((0.0, 0.5, 0.9, 1.0))
        for change in self.unsynced:
            if rng.random() < share:
                change(self.survives)
        return bytes(self.survives)


def sectors(data: bytes, position: int) -> list[Change]:
    """One change per sector that a write touches: each may be lost alone."""
    first = SECTOR_BYTES - position % SECTOR_BYTES
    edges = [0, *range(first, len(data), SECTOR_BYTES), len(data)]
    return [writing(data[a:b], position + a) for a, b in pairwise(edges) if a < b]


def writing(data: bytes, position: int) -> Change:
    def write(file: bytearray) -> None:
        if len(file) < position:
            file.extend(bytes(position - len(file)))
        file[position : position + len(data)] = data

    return write


def extending(size: int) -> Change:
    return lambda file: file.extend(bytes(max(0, size - len(file))))


def truncating(size: int) -> Change:
    def truncate(file: bytearray) -> None:
        del file[size:]

    return truncate
