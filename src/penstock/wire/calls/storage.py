"""Operations on the broker itself, on its stored files, and of sinks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import msgspec

from penstock.wire.calls.arguments import Arguments


class Seal(Arguments):
    """Write everything so far to the Parquet history now."""


class Compact(Arguments):
    """Apply retention now."""


class InitProducer(Arguments):
    """The id and the next epoch of a named producer; whoever had the one before is fenced."""

    checked_names: ClassVar[Mapping[str, str]] = {"name": "producer"}

    name: str


class Info(Arguments):
    """Who answers here."""


class ServerInfo(msgspec.Struct, frozen=True):
    """What a broker says about itself."""

    version: str
    durability: str
    queues: int


# stored files, for readers of history


class History(Arguments):
    """Where the stored files are, and up to which sequence the journal is durable."""


class ListFiles(Arguments):
    """Names and sizes in one of the directories."""

    directory: str


class Fetch(Arguments):
    """A piece of a stored file."""

    name: str
    position: int
    length: int


class Pin(Arguments):
    """Keep segment files from going while they are read; renewed by doing it again."""

    name: str
    files: list[str] | None = None


class Unpin(Arguments):
    """Let them go."""

    name: str


# sinks; the queue is the one that the messages are for: who may push there may do this


class Stage(Arguments):
    """Bytes of a staged file; the same again do no harm."""

    queue: str
    name: str
    position: int
    data: bytes


class DiscardStaged(Arguments):
    """Staged files that will not be committed."""

    queue: str
    names: list[str]


class CommitSink(Arguments):
    """The next part of a batch. Known by its number: asked again, what is in stays as it is."""

    queue: str
    sink: str
    batch: int
    staged: list[str]
    origin: str = ""
    is_reset: bool = False
    is_once: bool = False


class SinkStateOf(Arguments):
    """How far a sink is."""

    queue: str
    sink: str
