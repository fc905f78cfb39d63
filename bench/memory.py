"""Resident memory, measured in a fresh process above what it had once it had imported Penstock."""

from __future__ import annotations

import gc
import resource
from pathlib import Path

import penstock  # noqa: F401 - an empty process has imported the package

MB = 1_000_000


def resident_bytes() -> int:
    """What this process holds in memory now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


class Above:
    """Counts from the moment it is made, which must be early in a fresh process."""

    def __init__(self) -> None:
        self._empty = resident_bytes()

    def megabytes(self) -> float:
        gc.collect()
        return (resident_bytes() - self._empty) / MB
