"""The frames of the TCP protocol, and cutting a stream of bytes into them. docs/formats/tcp.md has the picture.

    length u32 | type u8 | correlation u32 | body          all big-endian; the length counts from the type on

Types below 16 belong to the JSON protocol and have no correlation. A length is checked before anything is kept for it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Final

from penstock.errors import BadRequest

HEAD: Final = struct.Struct(">IBI")
HEAD_BYTES: Final = HEAD.size
LENGTH: Final = struct.Struct(">I")
JSON_HEAD_BYTES: Final = 5  # length and type
BINARY_FROM: Final = 16  # types from here on carry a correlation
PROTOCOL_VERSION: Final = 2
# Over HTTP: frames of requests are the body of a POST to this path, frames of answers the body of its response.
HTTP_PATH: Final = "/api/v1/rpc"
MEDIA_TYPE: Final = "application/vnd.penstock.frames"
SMALL_PIECE_BYTES: Final = 4096  # of a frame that is not whole; smaller ones are put together

Buffer = bytes | memoryview


class Type(IntEnum):
    """What a frame is. Requests are answered by frames with the same correlation."""

    HELLO = 16
    PUSH_ONE = 17
    PUSH = 18
    LEASE = 19
    SETTLE = 20
    EXTEND = 21
    CALL = 22
    PUSH_TYPED = 25
    PING = 26
    CANCEL = 27
    LEASE_QUEUES = 28

    OK = 32
    ERROR = 33
    PUSHED = 34
    LEASED = 35
    PONG = 37
    GOODBYE = 38
    PLACED = 39
    LEASED_QUEUES = 40


class JsonType(IntEnum):
    """What a frame of the JSON protocol of tasks is. Requests are answered in order, with ACK or NACK."""

    SUBMIT_TASK = 1
    CLAIM_TASK = 2
    TASK_RESULT = 3
    HEARTBEAT = 4
    ACK = 5
    NACK = 6
    QUERY_STATUS = 7
    CANCEL_TASK = 8
    LIST_TASKS = 9
    AUTH = 10


# (type, correlation, where its body begins, where it ends)
Cut = tuple[int, int, int, int]


def frame(kind: int, correlation: int, body: bytes = b"") -> bytes:
    """One frame."""
    return HEAD.pack(len(body) + 5, kind, correlation) + body


def json_frame(kind: int, body: bytes) -> bytes:
    """One frame of the JSON protocol."""
    return LENGTH.pack(len(body) + 1) + bytes((kind,)) + body


def frame_head(kind: int, correlation: int, body_bytes: int) -> bytes:
    """The head of a frame whose body is sent beside it."""
    return HEAD.pack(body_bytes + 5, kind, correlation)


class Splitter:
    """Cuts what comes in into frames. What is not whole yet is kept, at most one frame of the greatest length."""

    def __init__(self, frame_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._parts: list[Buffer | bytearray] = []
        self._kept = 0  # bytes in the parts
        self._wanted = 0  # bytes until the frame that has begun is whole, as far as is known

    def feed(self, data: bytes) -> tuple[bytes, list[Cut]]:
        """Bytes and the frames in them; `BadRequest` when they cannot be frames: then the stream is lost."""
        if self._parts:
            self._add(data)
            self._kept += len(data)
            if self._kept < self._wanted:
                return b"", []
            data = b"".join(self._parts)
            self._parts = []
        if len(data) >= HEAD.size:
            length, kind, correlation = HEAD.unpack_from(data)
            if length + 4 == len(data) <= self._frame_bytes_max and kind >= BINARY_FROM:
                return data, [(kind, correlation, HEAD.size, len(data))]  # one frame, as it mostly is
        cuts: list[Cut] = []
        position = self._cut_binary(data, cuts)
        for cut in self._cut(data, position):
            cuts.append(cut)
            position = cut[3]
        if position < len(data):
            self._keep(memoryview(data)[position:])
        return data, cuts

    def allow(self, frame_bytes_max: int) -> None:
        """Take frames of up to this length from now on."""
        self._frame_bytes_max = frame_bytes_max

    @property
    def held_bytes(self) -> int:
        """Of a frame that is not whole yet."""
        return self._kept if self._parts else 0

    def _add(self, data: bytes) -> None:
        # A piece has its price beside its bytes, and a peer may send them one by one.
        if len(data) >= SMALL_PIECE_BYTES:
            self._parts.append(data)
        elif isinstance(self._parts[-1], bytearray):
            self._parts[-1] += data
        else:
            self._parts.append(bytearray(data))

    def _cut_binary(self, data: bytes, cuts: list[Cut]) -> int:
        """The sound frames of the binary protocol at the beginning, which mostly are all; returns where they end."""
        position, end, frame_bytes_max, head_at = 0, len(data), self._frame_bytes_max, HEAD.unpack_from
        last = end - HEAD_BYTES
        while position <= last:
            length, kind, correlation = head_at(data, position)
            stop = position + 4 + length
            if kind < BINARY_FROM or not 5 <= length <= frame_bytes_max or stop > end:
                break
            cuts.append((kind, correlation, position + HEAD_BYTES, stop))
            position = stop
        return position

    def _cut(self, data: bytes, position: int) -> Iterator[Cut]:
        end = len(data)
        while end - position >= JSON_HEAD_BYTES:
            (length,) = LENGTH.unpack_from(data, position)
            kind = data[position + 4]
            self._check(length, kind, data, position)
            stop = position + 4 + length
            if stop > end:
                return
            if kind < BINARY_FROM:
                yield kind, 0, position + JSON_HEAD_BYTES, stop
            else:
                yield kind, HEAD.unpack_from(data, position)[2], position + HEAD.size, stop
            position = stop

    def _check(self, length: int, kind: int, data: bytes, position: int) -> None:
        if length > self._frame_bytes_max:
            first = data[position : position + 4]
            if first in _HTTP_METHODS:
                raise BadRequest("this is HTTP on the TCP port", hint="the HTTP port is 7711 by default")
            if first == b"HTTP":
                raise BadRequest(
                    "the server speaks HTTP, not the TCP protocol",
                    hint="use an http:// URL for an HTTP port; the TCP port is 7710 by default",
                )
            raise BadRequest(f"a frame of {length:,} bytes is over the limit of {self._frame_bytes_max:,}")
        if length < (1 if kind < BINARY_FROM else 5):
            raise BadRequest(f"a frame of type {kind} cannot be {length} bytes long")

    def _keep(self, rest: memoryview) -> None:
        self._parts = [rest]
        self._kept = len(rest)
        self._wanted = JSON_HEAD_BYTES
        if len(rest) >= JSON_HEAD_BYTES:
            self._wanted = 4 + LENGTH.unpack_from(rest)[0]


_HTTP_METHODS: Final = {b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"CONN"}
