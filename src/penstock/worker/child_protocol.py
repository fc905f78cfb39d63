"""The protocol between a worker and the processes that run its tasks: frames of MessagePack, each after its length.

The worker sends one `Hello`, which the process answers when it is ready; then jobs, one at a time. A job is answered
with any number of `Progressed` and one `Done`, each with the number of its run: what a run left behind, such as a
thread, may still send when the next one runs. Arguments and results stay JSON.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import msgspec

from penstock.tasks.endings import RunOutcome

LENGTH: Final = struct.Struct(">I")
FRAME_BYTES_MAX: Final = 64 << 20  # far above the largest result: more is not a frame of ours


class Hello(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Which app, the URL of its broker if not its own, the path of modules, and how logs are written."""

    app: str
    url: str | None
    sys_path: list[str]
    logs: tuple[str, str] | None  # format and level; None leaves it to the app


class Job(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """One run. `run` is a number that no other run of this worker has."""

    run: int
    envelope: bytes  # JSON
    attempt: int
    sure_until: int  # its lease may have expired then, by the monotonic clock of this machine, in µs
    queue: str
    worker: str
    key: str | None
    trace: str | None
    parents: list[bytes]  # JSON of each TaskView


class Progressed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The progress of the job."""

    run: int
    data: bytes  # JSON


class Done(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """How the job ended."""

    run: int
    outcome: RunOutcome
    result: bytes
    error: str
    delay_seconds: float | None


class NotStarted(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The job came too late: its lease may have expired."""

    run: int


class Ready(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The app is loaded."""


class Failed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The app could not be loaded: nothing can be run here."""

    error: str


Frame = Hello | Ready | Job | Progressed | Done | NotStarted | Failed

_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final[msgspec.msgpack.Decoder[Any]] = msgspec.msgpack.Decoder(Frame)


def encode_frame(frame: Frame) -> bytes:
    """A frame with its length."""
    body = _encode(frame)
    return LENGTH.pack(len(body)) + body


def decode_frame(body: bytes) -> Frame:
    """The frame in a body, without its length; raises `ValueError` when there is none."""
    try:
        frame: Frame = _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None
    return frame


class FrameReader:
    """Cuts the bytes that arrive into frames."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are complete now; raises `ValueError` for what cannot be one."""
        self._data += data
        frames: list[Frame] = []
        start = 0
        while len(self._data) - start >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._data, start)
            if length > FRAME_BYTES_MAX:
                raise ValueError(f"a frame of {length} bytes")
            end = start + LENGTH.size + length
            if end > len(self._data):
                break
            frames.append(decode_frame(bytes(self._data[start + LENGTH.size : end])))
            start = end
        del self._data[:start]
        return frames
