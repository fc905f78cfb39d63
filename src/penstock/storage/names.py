"""The names behind the ids in the journal, as a snapshot that a background thread may read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Names(NamedTuple):
    """A queue that is not listed is gone, and with it all that it held."""

    queues: Mapping[int, tuple[str, Mapping[int, str]]]  # queue id → (name, {partition id → name})
    groups: Mapping[tuple[int, int], str]  # (queue id, group id) → name

    def partition(self, queue: int, partition: int) -> str:
        """A partition that was never named is called by its number."""
        return self.queues[queue][1].get(partition) or str(partition)
