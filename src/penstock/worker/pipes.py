"""What crosses between a worker and the processes that run its tasks: frames of MessagePack, with their length before.

The worker sends one `Hello`, which the process answers when it is ready; then jobs, one at a time. A job is answered
with any number of progresses and one `Done`. Arguments and results stay the JSON that they are.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import msgspec

LENGTH: Final = struct.Struct(">I")


class Hello(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Which app, where its tasks are if not where it says, where modules are looked for, and how logs are written."""

    app: str
    url: str | None
    sys_path: list[str]
    logs: tuple[str, str] | None  # format and level; None leaves it to the app


class Job(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """One run."""

    envelope: bytes  # JSON
    attempt: int
    queue: str
    worker: str
    key: str | None
    trace: str | None
    parents: list[bytes]  # JSON of each TaskView


class Progressed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """How far the job is."""

    data: bytes  # JSON


class Done(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """How the job ended."""

    outcome: str
    result: bytes
    error: str
    delay_seconds: float | None


class Ready(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The app is loaded."""


class Failed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The app could not be loaded: nothing can be run here."""

    error: str


Word = Hello | Ready | Job | Progressed | Done | Failed

_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final[msgspec.msgpack.Decoder[Any]] = msgspec.msgpack.Decoder(Word)


def packed(word: Word) -> bytes:
    """A frame."""
    body = _encode(word)
    return LENGTH.pack(len(body)) + body


def unpacked(body: Any) -> Word:
    """What is in a frame, without its length."""
    word: Word = _decoder.decode(body)
    return word
