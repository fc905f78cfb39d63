"""Descriptors that forks of this process must not keep.

A fork that lives on would hold them open, so that their other ends never see the end of this process. Whatever is
registered here is closed in every fork at its start; this process's own copies are not touched.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final, Protocol
from weakref import WeakSet


class Closeable(Protocol):
    """A socket or a file. `close` closes the descriptor and does nothing else."""

    def close(self) -> object: ...


_held: Final[WeakSet[Closeable]] = WeakSet()


def close_in_forks(held: Closeable) -> None:
    """Close it in every fork of this process, for as long as this process has it."""
    _held.add(held)


def _close_all() -> None:
    for held in list(_held):
        with suppress(OSError):
            held.close()


os.register_at_fork(after_in_child=_close_all)
