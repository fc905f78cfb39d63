"""What a fault is."""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    """`old` stands in `path` (below src/penstock) exactly once, and becomes `new`."""

    name: str
    what: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]
