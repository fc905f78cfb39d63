"""What crosses between a worker and the processes that run its tasks: frames of MessagePack, with their length before.

The worker sends one `Hello`, which the process answers when it is ready; then jobs, one at a time. A job is answered
with any number of progresses and one `Done`, each with the number of the run that it belongs to: what a run left
behind, a thread say, may still speak when the next one runs. Arguments and results stay the JSON that they are.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import msgspec

from penstock.tasks.endings import RunOutcome

LENGTH: Final = struct.Struct(">I")
FRAME_BYTES_MAX: Final = 64 << 20  # far above a result of the greatest size: more is no frame of ours


class Hello(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Which app, where its tasks are if not where it says, where modules are looked for, and how logs are written."""

    app: str
    url: str | None
    sys_path: list[str]
    logs: tuple[str, str] | None  # format and level; None leaves it to the app


class Job(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """One run. `run` is a number that no other run of this worker has."""

    run: int
    envelope: bytes  # JSON
    attempt: int
    sure_until: int  # its lease may be over then, by the monotonic clock of this machine, in µs
    queue: str
    worker: str
    key: str | None
    trace: str | None
    parents: list[bytes]  # JSON of each TaskView


class Progressed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """How far the job is."""

    run: int
    data: bytes  # JSON


class Done(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """How the job ended."""

    run: int
    outcome: RunOutcome
    result: bytes
    error: str
    delay_seconds: float | None


class NotBegun(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The job came too late: its lease may be over."""

    run: int


class Ready(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The app is loaded."""


class Failed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The app could not be loaded: nothing can be run here."""

    error: str


Word = Hello | Ready | Job | Progressed | Done | NotBegun | Failed

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


class Frames:
    """Bytes as they arrive, cut into frames."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[Word]:
        """The frames that are complete now; raises `ValueError` for what cannot be one."""
        self._data += data
        words: list[Word] = []
        start = 0
        while len(self._data) - start >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._data, start)
            if length > FRAME_BYTES_MAX:
                raise ValueError(f"a frame of {length} bytes")
            end = start + LENGTH.size + length
            if end > len(self._data):
                break
            words.append(_checked(bytes(self._data[start + LENGTH.size : end])))
            start = end
        del self._data[:start]
        return words


def _checked(body: bytes) -> Word:
    try:
        return unpacked(body)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None
