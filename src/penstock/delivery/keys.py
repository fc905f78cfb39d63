"""Key order: of the messages of one key at most one is in flight.

A message takes hold of its key when it is leased, and keeps it until it is settled, through retries, releases and
restarts. `Progress.keys` says which offset holds which key. `Progress.parked` has, for every key that is held, the
offsets that wait for their turn, ascending. Messages that wait for a due time stand in no line: when they are due they
are offered again, and get in line then.
"""

from __future__ import annotations

from bisect import insort
from collections import deque

import numpy as np

from penstock.delivery.log import Partition, ask_each
from penstock.delivery.phases import FRESH, READY, SETTLED
from penstock.delivery.progress import Progress


def recall(progress: Progress) -> None:
    """After a restart or a seek: who holds a key follows from the states.

    May raise `ColumnNotLoaded`; then nothing changed.
    """
    if progress.keys is not None:
        return
    keys: dict[int, int] = {}
    parked: dict[int, deque[int]] = {}
    # A retry goes before a dead letter that was brought back: its attempts say that it had the key first.
    touched = sorted(_touched(progress), key=lambda offset: (progress.attempt_next(offset) == 1, offset))
    hashes = ask_each(lambda offset: key_of(progress.partition, offset), touched)
    for offset, key in zip(touched, hashes, strict=True):
        if key and key not in parked:
            keys[offset] = key
            parked[key] = deque()
    progress.keys, progress.parked = keys, parked


def is_its_turn(progress: Progress, offset: int) -> bool:
    """Whether a message that came back may be leased; if not it is parked.

    May raise `ColumnNotLoaded`; then nothing changed.
    """
    recall(progress)
    keys, parked = progress.keys, progress.parked
    assert keys is not None
    assert parked is not None
    if offset in keys or progress.state_of(offset) not in (FRESH, READY):
        return True
    key = key_of(progress.partition, offset)
    if key and key in parked:
        if offset not in parked[key]:
            insort(parked[key], offset)
            progress.parked_count += 1
        return False
    if key:
        keys[offset] = key
        parked[key] = deque()
    return True


def key_of(partition: Partition, offset: int) -> int:
    """The hash of a message's key, 0 when it has none. May raise `ColumnNotLoaded`."""
    extent = partition.extent_at(offset)
    hashes = extent.key_hashes()
    return 0 if hashes is None else int(hashes[offset - extent.first])


def _touched(progress: Progress) -> list[int]:
    """Offsets that were leased or brought back, and are not settled."""
    states = np.frombuffer(bytes(progress.states), np.uint8)
    inside = np.flatnonzero((states != FRESH) & (states != SETTLED)) + progress.base
    return [*(progress.sparse or ()), *inside.tolist()]
