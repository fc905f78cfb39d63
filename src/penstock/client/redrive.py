"""Redriving with an edit: dead letters are listed, changed here, and replaced by the changed ones, a chunk at a time.

Everything is edited before anything is changed, so an edit that fails changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

import msgspec

from penstock import limits
from penstock.batch import Batch
from penstock.model import Message, MessageId
from penstock.requests import LetterFilter

PAGE: Final = 1_000
Edit = Callable[[Message], Message]
Chunk = tuple[list[MessageId], Batch]


def next_page(wanted: LetterFilter, found: list[Message]) -> LetterFilter | None:
    """What to list next, after `found`; None at the limit. An answer holds what fits: only an empty one is the last."""
    left = wanted.limit - len(found)
    if left <= 0:
        return None
    start = found[-1].id.offset + 1 if found and found[-1].id is not None else wanted.from_offset
    return msgspec.structs.replace(wanted, limit=min(PAGE, left), from_offset=start)


def edited(letters: list[Message], edit: Edit, per_second: float | None) -> list[Chunk]:
    """The messages that take the place of the letters, in chunks of one frame each."""
    gap_seconds = 0.0 if per_second is None else 1 / per_second
    changed = [
        replace(edit(letter), id=None, partition=None, dedup_key=None, delay=index * gap_seconds)
        for index, letter in enumerate(letters)
    ]
    ids = [letter.id for letter in letters if letter.id is not None]
    return [(ids[first:end], Batch.build(changed[first:end])) for first, end in _chunks(changed)]


def _chunks(messages: list[Message]) -> Iterator[tuple[int, int]]:
    """Ranges of messages that fit into a batch with room to spare."""
    first, size = 0, 0
    for index, message in enumerate(messages):
        size += len(message.payload) if isinstance(message.payload, bytes | str) else 0
        if index > first and (index - first >= PAGE or size > limits.batch_bytes_max // 2):
            yield first, index
            first, size = index, 0
    if messages:
        yield first, len(messages)
