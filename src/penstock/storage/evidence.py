"""What damaged frames seem to say.

Frames that do not match their checksum are never applied. But they are mostly as they were written, so they can tell
how many messages are gone and what a queue was called, where nothing else can. Whoever uses it checks it against what
is known for sure.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec

from penstock.batch import Batch
from penstock.delivery.entries import Entry, Push, decode
from penstock.errors import PenstockError
from penstock.storage.doctor import Hole
from penstock.storage.frames import FRAME, PREFIX

_UNREADABLE = (struct.error, ValueError, IndexError, TypeError, msgspec.MsgspecError, PenstockError)


def entries_in(hole: Hole) -> list[Entry] | None:
    """The entries of all frames in a hole; None when they cannot be told apart."""
    if not hole.data:
        return None
    try:
        return [entry for frame in _frames(hole) for entry in _sensible(frame)]
    except _UNREADABLE:
        return None


def _frames(hole: Hole) -> Iterator[memoryview]:
    view = memoryview(hole.data or b"")
    if hole.frames == 1:
        # Everything between two sound frames is this one, whatever its length says.
        yield view[FRAME.size :]
        return
    position = 0
    for expected in range(hole.first_sequence, hole.end_sequence):
        length, _, sequence, _ = FRAME.unpack_from(view, position)
        end = position + PREFIX.size + length
        if sequence != expected or end > len(view):
            raise ValueError("the frames cannot be told apart")
        yield view[position + FRAME.size : end]
        position = end


def _sensible(frame: memoryview) -> Iterator[Entry]:
    for entry in decode(frame):
        if isinstance(entry, Push):
            count = Batch.parse(entry.batch, validate=False).count
            accepted = sum(part[1] for part in entry.parts)
            if (entry.rows is None and accepted != count) or accepted > count:
                raise ValueError("a push that does not match its batch")
        yield entry
