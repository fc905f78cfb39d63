"""Batches on their way into a table: their columns as Arrow and NumPy, payload bytes not copied.

A piece is one batch, or a run of batches of one: those are read with `struct`, because making arrays for every single
message would cost more than all the rest of sealing. Times become absolute here: delay and ttl count from the push.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock import limits
from penstock.batch import Batch, layout
from penstock.delivery.entries import HEAD, PUSH, PUSH_HEAD, PUSH_PART, Push
from penstock.storage.schema import HEADERS

Numbers = NDArray[Any]

TEXTS: Final = {"key": layout.KEY, "dedup_key": layout.DEDUP_KEY, "trace_id": layout.TRACE}
VARIABLE: Final = ("payload", *TEXTS, "headers")  # columns that travel as Arrow arrays
DEFAULTS: Final = {"priority": limits.priority_default}

_NUMBERS: Final = {
    "priority": layout.PRIORITY,
    "content_type": layout.CONTENT_TYPE,
    "max_attempts": layout.MAX_ATTEMPTS,
}
_SINGLE_BATCH: Final = HEAD.size + PUSH_HEAD.size + PUSH_PART.size
_SINGLE: Final = struct.Struct("<" + "".join(part.format[1:] for part in (HEAD, PUSH_HEAD, PUSH_PART, layout.HEADER)))
_WORDS: Final = {1: struct.Struct("<B"), 2: struct.Struct("<H"), 8: struct.Struct("<q")}


class Piece:
    """Some rows: whichever columns are present, named as in the messages table."""

    __slots__ = ("arrays", "count", "numbers")

    def __init__(self, count: int, arrays: dict[str, pa.Array], numbers: dict[str, Numbers]) -> None:
        self.count = count
        self.arrays = arrays  # payload, texts and headers
        self.numbers = numbers  # all others; times are µs with 0 for none


class Pushed:
    """A push on its way into a table: what its entry says, and the header of its batch."""

    __slots__ = (
        "batch",
        "count",
        "flags",
        "parts",
        "payload_bytes",
        "producer",
        "pushed_at",
        "queue",
        "rows",
        "single",
    )

    def __init__(self, push: Push) -> None:
        self.queue = push.queue
        self.pushed_at = push.pushed_at
        self.producer = push.producer[0]
        self.parts = push.parts
        self.rows = push.rows
        self.batch = push.batch
        _, _, compression, self.flags, self.count, self.payload_bytes, *_ = layout.HEADER.unpack_from(push.batch)
        self.single = self.count == 1 and compression == layout.PLAIN


def single_of(frame: memoryview) -> Pushed | None:
    """The push of one message without options that is all of `frame`; None for any other frame.

    Nothing that `decode` and `Pushed` would not find too: but such frames come by the hundred thousand, and here all
    their fields are read at once.
    """
    if len(frame) < _SINGLE.size:
        return None
    kind, length, queue, rows, pushed_at, producer, _, _, parts, *fields = _SINGLE.unpack_from(frame)
    partition, count, first, _, _, compression, flags, messages, payload_bytes, *_ = fields
    if kind != PUSH or parts != 1 or rows or messages != 1 or flags or compression != layout.PLAIN:
        return None
    if HEAD.size + layout.padded(length) != len(frame):
        return None
    pushed = Pushed.__new__(Pushed)
    pushed.queue = queue
    pushed.pushed_at = pushed_at
    pushed.producer = producer
    pushed.parts = ((partition, count, first),)
    pushed.rows = None
    pushed.batch = frame[_SINGLE_BATCH:]
    pushed.flags = 0
    pushed.count = 1
    pushed.payload_bytes = payload_bytes
    pushed.single = True
    return pushed


def pieces(pushed: Sequence[Pushed]) -> Iterator[Piece]:
    """All rows of some pushes, in their order, refused ones included."""
    for single, run in groupby(pushed, lambda item: item.single):
        if single:
            yield _of_singles(list(run))
        else:
            yield from map(_of_batch, run)


def _of_batch(item: Pushed) -> Piece:
    batch = Batch.parse(item.batch, validate=False)
    record = batch.to_arrow()
    arrays = {name: record[name] for name in VARIABLE if name in record.schema.names}
    numbers = {name: values for name, flag in _NUMBERS.items() if (values := batch.fixed(flag)) is not None}
    _add_times(numbers, np.int64(item.pushed_at), batch.delay, batch.deliver_at, batch.ttl)
    return Piece(batch.count, arrays, numbers)


def _of_singles(run: list[Pushed]) -> Piece:
    flags = 0
    for item in run:
        flags |= item.flags
    if not flags:
        return Piece(len(run), {"payload": _plain_payloads(run)}, {})
    places = [layout.places(item.batch, 1, item.flags) for item in run]
    fixed = {flag: _words(run, places, flag) for flag in layout.FIXED if flags & flag}
    numbers = {name: fixed[flag] for name, flag in _NUMBERS.items() if flag in fixed}
    pushed_at = np.fromiter((item.pushed_at for item in run), np.int64, len(run))
    _add_times(numbers, pushed_at, fixed.get(layout.DELAY), fixed.get(layout.DELIVER_AT), fixed.get(layout.TTL))
    arrays = {name: _texts(run, places, flag) for name, flag in TEXTS.items() if flags & flag}
    if flags & layout.HEADERS:
        arrays["headers"] = pa.array([Batch.parse(item.batch, validate=False).headers(0) for item in run], HEADERS)
    return Piece(len(run), {"payload": _payloads(run, places), **arrays}, numbers)


def _add_times(
    numbers: dict[str, Numbers], pushed_at: Any, delay: Numbers | None, deliver_at: Numbers | None, ttl: Numbers | None
) -> None:
    """The same arithmetic as the delivery core's: of two due times the later one counts."""
    if delay is not None:
        numbers["available_at"] = np.where(delay > 0, pushed_at + delay, 0)
    if deliver_at is not None:
        numbers["available_at"] = np.maximum(numbers.get("available_at", 0), deliver_at)
    if ttl is not None:
        numbers["expires_at"] = np.where(ttl > 0, pushed_at + ttl, 0)


def _plain_payloads(run: list[Pushed]) -> pa.Array:
    start = layout.HEADER.size + layout.offsets_bytes(1)
    values = [bytes(item.batch[start : start + item.payload_bytes]) for item in run]
    return pa.array(values, pa.binary())


def _payloads(run: list[Pushed], places: list[dict[int, int]]) -> pa.Array:
    values = []
    for item, place in zip(run, places, strict=True):
        start = place[layout.PAYLOAD] + layout.offsets_bytes(1)
        values.append(bytes(item.batch[start : start + item.payload_bytes]))
    return pa.array(values, pa.binary())


def _words(run: list[Pushed], places: list[dict[int, int]], flag: int) -> Numbers:
    """A column of fixed width; rows of batches without it have its default."""
    dtype = layout.FIXED[flag]
    unpack = _WORDS[dtype.itemsize].unpack_from
    default = DEFAULTS.get(layout.NAMES[flag], 0)
    values = [
        unpack(item.batch, place[flag])[0] if flag in place else default
        for item, place in zip(run, places, strict=True)
    ]
    return np.array(values, dtype)


def _texts(run: list[Pushed], places: list[dict[int, int]], flag: int) -> pa.Array:
    """A column of text: with one row, a word of validity, then the offsets (0, length), then the bytes."""
    values: list[bytes | None] = []
    for item, place in zip(run, places, strict=True):
        data, position = item.batch, place.get(flag, 0)
        if not position or not data[position] & 1:
            values.append(None)
            continue
        position += layout.bitmap_bytes(1)
        length = layout.BOUNDS.unpack_from(data, position)[1]
        position += layout.offsets_bytes(1)
        values.append(bytes(data[position : position + length]))
    return pa.array(values, pa.binary()).view(pa.string())
