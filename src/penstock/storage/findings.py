"""What an examination has to say about a file."""

from __future__ import annotations

import msgspec


class Finding(msgspec.Struct, frozen=True):
    """One thing about one file, in plain words. What is harmless needs no repair."""

    file: str  # name below the data directory
    what: str
    position: int | None = None  # in bytes
    harmless: bool = False
