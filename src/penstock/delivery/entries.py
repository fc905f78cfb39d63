"""What the journal holds: entries, and their bytes.

A frame is a list of entries that happen whole or not at all. Each entry is

    kind u8 | 0 0 0 | length u32 | body, padded with zeros to a multiple of 8

All integers are little-endian. The body of a push is binary, so that its batch lies aligned and is used in place:

    queue u32 | rows u32 | pushed_at i64 | producer u64 | producer_sequence u64 | producer_epoch u32 | parts u32
    parts × ( partition u32 | count u32 | first_offset i64 )
    rows × partition i32, −1 for a refused row, padded to 8    (rows is 0 when all rows go to the one partition)
    batch bytes

Every other body is a MessagePack array: see `records`, whose names are here too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock import limits
from penstock.delivery.records import (
    Answered,
    AttemptsLost,
    Closing,
    GroupDeleted,
    GroupSet,
    IdRun,
    Int64s,
    Leased,
    Note,
    OperationSet,
    Parent,
    PartitionsAdded,
    Produced,
    ProducerSet,
    QueueDeleted,
    QueueSet,
    Record,
    Revived,
    ScheduleFired,
    ScheduleSet,
    Settled,
    SinkCommitted,
    Span,
    TaskFreed,
    TaskHeld,
    TasksNoted,
    TasksPurged,
    Trimmed,
    UniqueTaken,
)
from penstock.errors import TooLarge

if TYPE_CHECKING:
    from penstock.batch import Batch

__all__ = [
    "HEAD",
    "PUSH",
    "PUSH_HEAD",
    "PUSH_ONE",
    "PUSH_ONE_FLAGS",
    "PUSH_PART",
    "Answered",
    "AttemptsLost",
    "Closing",
    "Entry",
    "GroupDeleted",
    "GroupSet",
    "IdRun",
    "Int32s",
    "Int64s",
    "Leased",
    "Note",
    "OperationSet",
    "Parent",
    "Part",
    "PartitionsAdded",
    "Produced",
    "ProducerSet",
    "Push",
    "QueueDeleted",
    "QueueSet",
    "Record",
    "Revived",
    "ScheduleFired",
    "ScheduleSet",
    "Settled",
    "SinkCommitted",
    "Span",
    "TaskFreed",
    "TaskHeld",
    "TasksNoted",
    "TasksPurged",
    "Trimmed",
    "UniqueTaken",
    "decode",
    "decode_push",
    "decode_push_one",
    "decode_pushes",
    "decode_record",
    "encode",
    "encode_apart",
    "encode_push",
    "encode_push_one",
    "entry_bytes",
    "split",
]

Int32s = NDArray[np.int32]
Part = tuple[int, int, int]  # partition, accepted rows, first offset

HEAD: Final = struct.Struct("<BxxxI")
FRAME_BYTES_MAX: Final = limits.frame_bytes_max - limits.KIB  # of all entries; the rest is for heads
PUSH_HEAD: Final = struct.Struct("<IIqQQII")
PUSH_PART: Final = struct.Struct("<IIq")
PUSH_ONE: Final = struct.Struct("<BxxxIIIqQQIIIIq")  # head, push head and one part in one go
PUSH_ONE_FLAGS: Final = struct.Struct("<BxxxIIIqQQIIIIq4xI")  # the same, and the columns of the batch behind it
PUSH: Final = 1


class Push:
    """A batch appended to a queue. `parts` lists (partition, accepted rows, first offset), by partition."""

    __slots__ = ("batch", "columns", "parts", "producer", "pushed_at", "queue", "rows")

    def __init__(
        self,
        queue: int,
        pushed_at: int,
        parts: Sequence[Part],
        batch: bytes | memoryview,
        rows: Int32s | None = None,
        producer: tuple[int, int, int] = (0, 0, 0),
        columns: Batch | None = None,
    ) -> None:
        self.queue = queue
        self.pushed_at = pushed_at
        self.parts = parts
        self.batch = batch
        self.rows = rows  # partition of each row of the batch; None when all rows go to the one partition
        self.producer = producer  # id, epoch, sequence
        self.columns = columns  # the batch, parsed, when whoever made the entry had it

    def rows_by_part(self) -> list[Int64s | None]:
        """For each part the rows of the batch that went to it; None for "all of them"."""
        if self.rows is None:
            return [None]
        order = np.argsort(self.rows, kind="stable")
        refused = int(np.searchsorted(self.rows[order], 0))
        ends = np.cumsum([count for _, count, _ in self.parts]) + refused
        return [order[end - count : end] for end, (_, count, _) in zip(ends.tolist(), self.parts, strict=True)]

    def places(self, count: int) -> tuple[Int32s, Int64s]:
        """Partition and offset of each of the batch's `count` rows; −1 for a refused row."""
        if not self.parts:
            return np.full(count, -1, np.int32), np.full(count, -1, np.int64)
        if self.rows is None:
            ((number, _, first),) = self.parts
            return np.full(count, number, np.int32), np.arange(first, first + count)
        offsets = np.full(count, -1, np.int64)
        _, counts, firsts = np.array(self.parts, np.int64).T
        accepted = np.argsort(self.rows, kind="stable")[int((self.rows < 0).sum()) :]
        starts = np.cumsum(counts) - counts  # of each part among the accepted rows
        offsets[accepted] = np.repeat(firsts - starts, counts) + np.arange(len(accepted))
        return self.rows.astype(np.int32, copy=False), offsets


Entry = Push | Record

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Record)
_KINDS: Final[dict[type, int]] = {kind: kind.__struct_config__.tag for kind in Record.__args__}
_PADS: Final = tuple(bytes(n) for n in range(8))


def encode_push_one(queue: int, pushed_at: int, partition: int, offset: int, batch: bytes) -> bytes:
    """The bytes of a frame that pushes one batch of one message: `encode([Push(…)])`, shorter."""
    length = PUSH_HEAD.size + PUSH_PART.size + len(batch)
    return PUSH_ONE.pack(PUSH, length, queue, 0, pushed_at, 0, 0, 0, 1, partition, 1, offset) + batch


def encode_apart(entries: Sequence[Entry]) -> tuple[bytes, bytes | memoryview]:
    """The bytes of one frame's entries, and by itself the batch of a push that comes last: it need not be copied."""
    last = entries[-1]
    if type(last) is not Push:
        return encode(entries), b""
    push = encode_push(last)
    batch = push.pop()
    head = b"".join(push)
    pieces = _pieces(entries[:-1]) if len(entries) > 1 else []
    size = len(head) + len(batch)
    if pieces or size > FRAME_BYTES_MAX:
        _check_frame(size + sum(map(len, pieces)))
    return b"".join([*pieces, HEAD.pack(PUSH, size), head]), batch


def encode(entries: Sequence[Entry]) -> bytes:
    """The bytes of one frame's entries."""
    if len(entries) == 1 and type(entries[0]) is not Push:
        body = _encoder.encode(entries[0])
        size = len(body)
        if size > FRAME_BYTES_MAX:
            _check_frame(size)
        return HEAD.pack(_KINDS[type(entries[0])], size) + body + _PADS[-size % 8]
    data = b"".join(_pieces(entries))
    _check_frame(len(data))
    return data


def _check_frame(size: int) -> None:
    """Refused while nothing has changed: no decision may ask for this, and if one does, it is not to stop the shard."""
    if size > FRAME_BYTES_MAX:
        raise TooLarge(f"a frame cannot hold {size:,} bytes", hint="do less at a time")


def _pieces(entries: Sequence[Entry]) -> list[Any]:
    pieces: list[Any] = []
    for entry in entries:
        parts = encode_push(entry) if isinstance(entry, Push) else [_encoder.encode(entry)]
        length = sum(map(len, parts))
        pieces.append(HEAD.pack(PUSH if isinstance(entry, Push) else _KINDS[type(entry)], length))
        pieces += parts
        pieces.append(_PADS[-length % 8])
    return pieces


def entry_bytes(each: Entry) -> int:
    """How much of a frame an entry takes, to a few bytes; a batch is not copied for it."""
    if not isinstance(each, Push):
        return HEAD.size + len(_encoder.encode(each))
    rows = 0 if each.rows is None else 4 * len(each.rows)
    return HEAD.size + PUSH_HEAD.size + PUSH_PART.size * len(each.parts) + rows + len(each.batch)


def encode_push(push: Push) -> list[Any]:
    """The body of a push, in pieces, so that the batch is copied only once."""
    producer, epoch, sequence = push.producer
    rows = 0 if push.rows is None else len(push.rows)
    head = PUSH_HEAD.pack(push.queue, rows, push.pushed_at, producer, sequence, epoch, len(push.parts))
    pieces: list[Any] = [head, *(PUSH_PART.pack(part, count, first) for part, count, first in push.parts)]
    if push.rows is not None:
        column = push.rows.astype(np.int32, copy=False).tobytes()
        pieces += [column, _PADS[-len(column) % 8]]
    pieces.append(push.batch)
    return pieces


def decode(data: memoryview) -> Iterator[Entry]:
    """Entries of one frame. The frame's checksum has been verified: what is here, we wrote."""
    position = 0
    end = len(data)
    while position < end:
        kind, length = HEAD.unpack_from(data, position)
        position += HEAD.size
        body = data[position : position + length]
        yield decode_push(body) if kind == PUSH else _decoder.decode(body)
        position += length + -length % 8


def decode_push_one(data: memoryview) -> tuple[int, int, int, int, bytes] | None:
    """(queue, pushed_at, partition, offset, batch) of a frame that pushes one message of nobody, without options."""
    if len(data) < PUSH_ONE_FLAGS.size:
        return None
    (kind, length, queue, rows, pushed_at, producer, _, _, parts, partition, count, offset, flags) = (
        PUSH_ONE_FLAGS.unpack_from(data)
    )
    if kind != PUSH or rows or producer or flags or parts != 1 or count != 1 or HEAD.size + length != len(data):
        return None
    return queue, pushed_at, partition, offset, bytes(data[PUSH_ONE.size :])


def decode_pushes(data: memoryview) -> Iterator[Push]:
    """Only the pushes of one frame."""
    position = 0
    while position < len(data):
        kind, length = HEAD.unpack_from(data, position)
        position += HEAD.size
        if kind == PUSH:
            yield decode_push(data[position : position + length])
        position += length + -length % 8


def split(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """(kind, body) of each entry of one frame, for those who want only some of them."""
    position = 0
    while position < len(data):
        kind, length = HEAD.unpack_from(data, position)
        position += HEAD.size
        yield kind, data[position : position + length]
        position += length + -length % 8


def decode_record(body: memoryview) -> Record:
    """The entry that a body of any kind but a push holds."""
    record: Record = _decoder.decode(body)
    return record


def decode_push(body: memoryview) -> Push:
    """The inverse of `encode_push`; the batch is a view into `body`."""
    queue, row_count, pushed_at, producer, sequence, epoch, part_count = PUSH_HEAD.unpack_from(body)
    position = PUSH_HEAD.size
    parts = [
        (part, count, first)
        for part, count, first in PUSH_PART.iter_unpack(body[position : position + part_count * PUSH_PART.size])
    ]
    position += part_count * PUSH_PART.size
    rows = None
    if row_count:
        rows = np.frombuffer(body, np.int32, row_count, position)
        position += row_count * 4 + row_count % 2 * 4
    return Push(queue, pushed_at, parts, body[position:], rows, (producer, epoch, sequence))
