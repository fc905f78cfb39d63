"""Operations on queues and on dead letters."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.requests import LetterFilter
from penstock.wire.calls.arguments import Arguments, OfQueue


class Queues(Arguments):
    """The names of all queues."""


class CreateQueue(OfQueue):
    """Make a queue."""

    name: str
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    exist_ok: bool = False


class UpdateQueue(OfQueue):
    """Change options of a queue."""

    name: str
    changes: dict[str, Any]


class DeleteQueue(OfQueue):
    """The queue, its messages and its dead letters."""

    name: str


class Options(OfQueue):
    """The options of a queue."""

    name: str


class Stats(Arguments):
    """The account of a queue and of its groups."""

    queue: str


class Pause(OfQueue):
    """Hand nothing out, or go on."""

    name: str
    paused: bool = True


class Purge(OfQueue):
    """Drop everything unsettled."""

    name: str


# dead letters


class DeadLetters(Arguments):
    """Dead letters that nobody has dealt with."""

    queue: str
    filter: LetterFilter = LetterFilter()


class Redrive(Arguments):
    """Send dead letters back to where they died; `rate` messages per second when given."""

    queue: str
    filter: LetterFilter = LetterFilter()
    rate: float | None = None


class ReplaceLetters(Arguments):
    """Edited messages in, the dead letters they come from settled, in one go."""

    queue: str
    ids: list[str]
    batch: bytes


class PurgeDeadLetters(Arguments):
    """Throw all dead letters of a queue away."""

    queue: str
