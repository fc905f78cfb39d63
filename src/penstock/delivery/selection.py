"""What a selection has gathered so far."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from penstock.delivery.group import Group
from penstock.delivery.leases import Take
from penstock.delivery.log import ColumnNotLoaded
from penstock.delivery.progress import Progress


class Selection(msgspec.Struct):
    """Takes for a lease, and messages found expired on the way."""

    group: Group
    now: int
    reached: int  # delays up to this instant have ended
    only: Collection[Progress] | None
    takes: list[Take] = []
    count: int = 0
    expired: list[tuple[Progress, list[int]]] = []
    gates: dict[Progress, int] = {}  # when the queue's delay or window lets more of a partition be read
    wakes: list[tuple[int, Progress]] = []  # partitions to offer again at an instant
    _claimed: set[tuple[int, int]] | None = None

    def add(self, take: Take) -> None:
        self.takes.append(take)
        self.count += take.open

    def claim(self, progress: Progress, offset: int, phases: tuple[int, ...]) -> bool:
        """Whether a returned message is still to be had; an index may name it twice."""
        if progress.state_of(offset) not in phases:
            return False
        self._claimed = set() if self._claimed is None else self._claimed
        mark = (progress.partition.id, offset)
        if mark in self._claimed:
            return False
        self._claimed.add(mark)
        return True

    def is_free(self, progress: Progress, offset: int, phases: tuple[int, ...]) -> bool:
        """Whether `claim` would say yes."""
        is_claimed = self._claimed is not None and (progress.partition.id, offset) in self._claimed
        return not is_claimed and progress.state_of(offset) in phases

    def without_expired(self, progress: Progress, offsets: list[int]) -> list[int]:
        """Those that have not expired; the others are noted."""
        alive: list[int] = []
        gone: list[int] = []
        for offset in offsets:
            extent = progress.partition.extent_at(offset)
            try:
                expiries = extent.expiries()
            except ColumnNotLoaded:
                # Deliver rather than wait: the upkeep finds it if it comes back once more.
                expiries = None
            expires_at = 0 if expiries is None else int(expiries[offset - extent.first])
            (gone if 0 < expires_at <= self.now else alive).append(offset)
        if gone:
            self.expired.append((progress, gone))
        return alive
