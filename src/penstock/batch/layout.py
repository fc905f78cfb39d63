"""The bytes of a batch: where every column lies, and views of the columns. Nothing here checks what is in them.

    magic "PB" | version u8 | compression u8 | columns u32 | count u32 | payload_bytes u32 |
    blob_bytes u32 | reserved u32 | length u32 | crc32c u32                                      32 bytes
    fixed columns        count values each         priority, delay, deliver_at, ttl, max_attempts, content_type
    text columns         validity bitmap · int32 offsets[count + 1] · UTF-8 blob       key, dedup_key, trace
    headers              int32 rows[count + 1] · names: int32 offsets, blob · values: int32 offsets, blob
    payload              int32 offsets[count + 1] · blob, compressed or not

Little-endian. Columns lie in the order of their bits, and only those whose bit is set; the payload is always there
and always last. Every buffer is padded with zeros to a multiple of 8, so all of them lie aligned and Arrow can use
them in place. The CRC covers all bytes but its own four. docs/formats/batch.md has the full account.

`Binary`, `Text` and `Headers` are columns of varying length, as views over bytes that belong to someone else. Offsets
need not begin at 0: a slice of an Arrow array keeps its parent's.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from penstock.errors import BadBatch

Buffer = bytes | memoryview

MAGIC: Final = b"PB"
VERSION: Final = 1

PLAIN: Final = 0
ZSTD: Final = 1

PRIORITY: Final = 1 << 0
DELAY: Final = 1 << 1
DELIVER_AT: Final = 1 << 2
TTL: Final = 1 << 3
MAX_ATTEMPTS: Final = 1 << 4
CONTENT_TYPE: Final = 1 << 5
KEY: Final = 1 << 6
DEDUP_KEY: Final = 1 << 7
TRACE: Final = 1 << 8
HEADERS: Final = 1 << 9
KNOWN: Final = (1 << 10) - 1
DUE: Final = DELAY | DELIVER_AT
PAYLOAD: Final = 1 << 31  # never in the bitmask: names the payload where a column must be named

FIXED: Final[dict[int, np.dtype[np.generic]]] = {
    PRIORITY: np.dtype("<u1"),
    DELAY: np.dtype("<i8"),
    DELIVER_AT: np.dtype("<i8"),
    TTL: np.dtype("<i8"),
    MAX_ATTEMPTS: np.dtype("<u2"),
    CONTENT_TYPE: np.dtype("<u1"),
}
TEXTS: Final = (KEY, DEDUP_KEY, TRACE)
OFFSET: Final = np.dtype("<i4")

NAMES: Final = {
    PRIORITY: "priority",
    DELAY: "delay",
    DELIVER_AT: "deliver_at",
    TTL: "ttl",
    MAX_ATTEMPTS: "max_attempts",
    CONTENT_TYPE: "content_type",
    KEY: "key",
    DEDUP_KEY: "dedup_key",
    TRACE: "trace",
    HEADERS: "headers",
    PAYLOAD: "payload",
}

HEADER: Final = struct.Struct("<2sBBIIIIIII")
HEAD: Final = struct.Struct("<2sBBIIIIII")  # the header up to its CRC
HEADER_BYTES: Final = HEADER.size
SHAPE: Final = struct.Struct("<3xBIIII")  # of the header, what a reader needs: compression to blob_bytes
CRC: Final = struct.Struct("<I")
INT32: Final = struct.Struct("<i")
WORD: Final = struct.Struct("<q")
BOUNDS: Final = struct.Struct("<ii")  # two offsets that follow each other
PADS: Final = tuple(bytes(n) for n in range(8))

_WIDTHS: Final = tuple((flag, dtype.itemsize) for flag, dtype in FIXED.items())


def padded(length: int) -> int:
    """`length` rounded up to a multiple of 8."""
    return (length + 7) & ~7


def bitmap_bytes(count: int) -> int:
    """Length of a validity bitmap, padded."""
    return padded((count + 7) >> 3)


def offsets_bytes(count: int) -> int:
    """Length of the offsets of `count` values, padded."""
    return padded(4 * count + 4)


def flags_of(data: Buffer) -> int:
    """The columns of a batch, without parsing it."""
    return int.from_bytes(data[4:8], "little")


def plain_bytes(data: Buffer) -> tuple[int, int]:
    """The bytes of a batch as if it were not compressed, and the number of its messages."""
    _, _, count, payload_bytes, blob_bytes = SHAPE.unpack_from(data)
    return len(data) - blob_bytes + payload_bytes, count


def column_positions(data: Buffer, count: int, flags: int) -> dict[int, int]:
    """The position of each column that is present, by its bit.

    Positions only grow, so on foreign bytes too this ends; whoever does not trust them compares the end with `length`.
    """
    if not flags:
        return {PAYLOAD: HEADER_BYTES}
    positions: dict[int, int] = {}
    position = HEADER_BYTES
    for flag, width in _WIDTHS:
        if flags & flag:
            positions[flag] = position
            position += padded(width * count)
    for flag in TEXTS:
        if flags & flag:
            positions[flag] = position
            position = _binary_end(data, position + bitmap_bytes(count), count)
    if flags & HEADERS:
        positions[HEADERS] = position
        pairs = _offset(data, position + 4 * count)
        values = _binary_end(data, position + offsets_bytes(count), pairs)
        position = _binary_end(data, values, pairs)
    positions[PAYLOAD] = position
    return positions


def _binary_end(data: Buffer, position: int, count: int) -> int:
    return position + offsets_bytes(count) + padded(_offset(data, position + 4 * count))


def _offset(data: Buffer, position: int) -> int:
    value: int = INT32.unpack_from(data, position)[0]
    if value < 0:
        raise BadBatch(f"an offset at position {position} is negative")
    return value


def seal(
    count: int,
    flags: int,
    columns: Sequence[Buffer],
    payload_offsets: Buffer,
    blob: Buffer,
    compression: int = PLAIN,
    payload_bytes: int | None = None,
) -> bytes:
    """The bytes of a batch from its buffers; `columns` are padded, the payload's two buffers are not."""
    body = [*columns, payload_offsets, PADS[-len(payload_offsets) % 8], blob, PADS[-len(blob) % 8]]
    length = HEADER_BYTES + sum(map(len, body))
    if payload_bytes is None:
        payload_bytes = len(blob)
    head = HEAD.pack(MAGIC, VERSION, compression, flags, count, payload_bytes, len(blob), 0, length)
    crc = crc32c(head)
    for piece in body:
        crc = crc32c(piece, crc)
    return b"".join((head, CRC.pack(crc), *body))


def with_ttl_column(data: Buffer, lives: Buffer) -> bytes:
    """The bytes of the same batch with this column of times to live, in place of its own if it has one."""
    magic, version, compression, flags, count, payload_bytes, blob_bytes, reserved, _ = HEAD.unpack_from(data)
    position = HEADER_BYTES
    if flags & (TTL - 1):
        position += sum(padded(width * count) for flag, width in _WIDTHS if flag < TTL and flags & flag)
    view = memoryview(data)
    behind = view[position + len(lives) :] if flags & TTL else view[position:]
    body = b"".join((view[HEADER_BYTES:position], lives, behind))
    length = HEADER_BYTES + len(body)
    head = HEAD.pack(magic, version, compression, flags | TTL, count, payload_bytes, blob_bytes, reserved, length)
    return b"".join((head, CRC.pack(crc32c(body, crc32c(head))), body))


def with_content_types(data: Buffer, kinds: bytes) -> bytes:
    """The bytes of the same batch with this column of content types in place of its own."""
    magic, version, compression, flags, count, payload_bytes, blob_bytes, reserved, length = HEAD.unpack_from(data)
    position = column_positions(data, count, flags)[CONTENT_TYPE]
    view = memoryview(data)
    body = b"".join((view[HEADER_BYTES:position], kinds, view[position + len(kinds) :]))
    head = HEAD.pack(magic, version, compression, flags, count, payload_bytes, blob_bytes, reserved, length)
    return b"".join((head, CRC.pack(crc32c(body, crc32c(head))), body))


def crc_of(data: Buffer) -> int:
    """The CRC that belongs into the header of these bytes."""
    view = memoryview(data)
    return crc32c(view[HEADER_BYTES:], crc32c(view[: HEAD.size]))


Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Bools = NDArray[np.bool_]

MANY: Final = 64  # rows from which on a whole column is cheaper than one value at a time


@dataclass(slots=True, eq=False)
class Binary:
    """Value i is `buffer[base + offsets[i] : base + offsets[i + 1]]`."""

    offsets: Int32s
    buffer: Buffer
    base: int = 0

    @classmethod
    def at(cls, data: Buffer, position: int, count: int) -> Binary:
        """The column of `count` values that begins at `position`."""
        offsets = np.frombuffer(data, OFFSET, count + 1, position)
        return cls(offsets, data, position + offsets_bytes(count))

    @classmethod
    def of(cls, array: Any) -> Binary:
        """Over the memory of an Arrow array of binary or string."""
        _, offsets, blob = array.buffers()
        if offsets is None:
            return cls(np.zeros(1, OFFSET), b"")
        bounds = np.frombuffer(offsets, OFFSET, len(array) + 1, 4 * array.offset)
        return cls(bounds, b"" if blob is None else memoryview(blob).cast("B"))

    @property
    def span(self) -> tuple[int, int]:
        """Where the values begin and end in `buffer`."""
        return self.base + int(self.offsets[0]), self.base + int(self.offsets[-1])

    @property
    def blob(self) -> memoryview:
        """All values, end to end."""
        start, end = self.span
        return memoryview(self.buffer)[start:end]

    def lengths(self) -> Int32s:
        return np.diff(self.offsets)

    def get(self, row: int) -> bytes:
        start, end = self.offsets[row : row + 2].tolist()
        return bytes(self.buffer[self.base + start : self.base + end])

    def slices(self, first: int, end: int) -> list[bytes]:
        """The values of rows `first` up to, not including, `end`."""
        offsets, count = self.offsets[first : end + 1], end - first
        if count < MANY:
            return self._sliced(offsets)
        start, stop = int(offsets[0]), int(offsets[-1])
        length = (stop - start) // count
        if length and (offsets[1:] - offsets[:-1] == length).all():
            # All of one length, as they often are: then they are one array, the fastest to turn into objects.
            alike: list[bytes] = np.frombuffer(self.buffer, f"V{length}", count, self.base + start).tolist()
            return alike
        from penstock.batch.arrow import binary_array, objects

        return objects(binary_array(Binary(offsets, self.buffer, self.base)))

    def _sliced(self, offsets: Int32s) -> list[bytes]:
        bounds = offsets.tolist()
        start = bounds[0]
        # Slicing bytes is much faster than copying out of a view, even after this copy.
        blob = bytes(self.buffer[self.base + start : self.base + bounds[-1]])
        left = 0
        return [blob[left : (left := end - start)] for end in bounds[1:]]

    def pick(self, rows: Int64s) -> list[bytes]:
        """The values of some rows, in their order."""
        if len(rows) >= MANY:
            from penstock.batch.arrow import objects, picked

            return objects(picked(self, rows))
        buffer = self.buffer
        starts = (self.offsets[rows] + self.base).tolist()
        ends = (self.offsets[rows + 1] + self.base).tolist()
        return [bytes(buffer[start:end]) for start, end in zip(starts, ends, strict=True)]

    def take(self, rows: Int64s) -> Binary:
        """A column of its own with some of the rows."""
        if len(rows) >= MANY:
            from penstock.batch.arrow import picked

            return Binary.of(picked(self, rows))
        return Binary(offsets_of(self.lengths()[rows]), b"".join(self.pick(rows)))

    def texts(self, first: int, end: int) -> list[str]:
        """The values of rows `first` up to, not including, `end`, as text."""
        return [value.decode() for value in self._sliced(self.offsets[first : end + 1])]

    def rebased(self) -> Int32s:
        """The offsets, beginning at 0."""
        first = self.offsets[0]
        return self.offsets - first if first else self.offsets

    def buffers(self) -> list[Buffer]:
        """As it is stored, padded."""
        return [*pad(self.rebased().astype(OFFSET, copy=False).tobytes()), *pad(self.blob)]


@dataclass(slots=True, eq=False)
class Text:
    """Strings that may be missing. `validity` is an Arrow bitmap whose first row is bit 0; None: all are present."""

    values: Binary
    validity: Bytes | None

    @classmethod
    def at(cls, data: Buffer, position: int, count: int) -> Text:
        """The column of `count` values that begins at `position`."""
        validity = np.frombuffer(data, np.uint8, (count + 7) >> 3, position)
        return cls(Binary.at(data, position + bitmap_bytes(count), count), validity)

    @classmethod
    def of(cls, array: Any) -> Text:
        """Over the memory of an Arrow array of string."""
        if not array.null_count:
            return cls(Binary.of(array), None)
        present = array.is_valid().to_numpy(zero_copy_only=False)
        # Arrow lets a null have bytes behind it; ours never do.
        return cls(Binary.of(array.fill_null("")), bitmap(present))

    def __len__(self) -> int:
        return len(self.values.offsets) - 1

    def get(self, row: int) -> str | None:
        if self.validity is not None and not self.validity[row >> 3] >> (row & 7) & 1:
            return None
        return self.values.get(row).decode()

    def present(self) -> Bools:
        if self.validity is None:
            return np.ones(len(self), np.bool_)
        return np.unpackbits(self.validity, count=len(self), bitorder="little").view(np.bool_)

    def to_list(self) -> list[str | None]:
        if len(self) >= MANY:
            from penstock.batch.arrow import objects, text_array

            return objects(text_array(self.values, self.validity))
        texts, present = self.values.texts(0, len(self)), self.present().tolist()
        return [text if there else None for text, there in zip(texts, present, strict=True)]

    def take(self, rows: Int64s) -> Text:
        return Text(self.values.take(rows), bitmap(self.present()[rows]))

    def buffers(self) -> list[Buffer]:
        """As it is stored, padded."""
        return [*pad(bitmap(self.present()).tobytes()), *self.values.buffers()]


@dataclass(slots=True, eq=False)
class Headers:
    """Row i has the pairs rows[i] up to, not including, rows[i + 1] of `names` and `values`."""

    rows: Int32s
    names: Binary
    values: Binary

    @classmethod
    def at(cls, data: Buffer, position: int, count: int) -> Headers:
        """The column of `count` rows that begins at `position`."""
        rows = np.frombuffer(data, OFFSET, count + 1, position)
        names = Binary.at(data, position + offsets_bytes(count), int(rows[-1]))
        values = Binary.at(data, names.base + padded(int(names.offsets[-1])), int(rows[-1]))
        return cls(rows, names, values)

    def get(self, row: int) -> dict[str, str] | None:
        first, end = self.rows[row : row + 2].tolist()
        if first == end:
            return None
        return dict(zip(self.names.texts(first, end), self.values.texts(first, end), strict=True))

    def take(self, rows: Int64s) -> Headers:
        counts = np.diff(self.rows)[rows]
        offsets = offsets_of(counts)
        # Pair j of the new column comes from the first pair of its row plus its place within that row.
        pairs = np.arange(offsets[-1]) + np.repeat(self.rows[rows] - offsets[:-1], counts)
        return Headers(offsets, self.names.take(pairs), self.values.take(pairs))

    def lengths(self) -> Int32s:
        """Bytes of all names and values of each row."""
        names, values = self.names.offsets[self.rows], self.values.offsets[self.rows]
        return np.diff(names) + np.diff(values)

    def buffers(self) -> list[Buffer]:
        """As it is stored, padded."""
        first, end = int(self.rows[0]), int(self.rows[-1])
        names = Binary(self.names.offsets[first : end + 1], self.names.buffer, self.names.base)
        values = Binary(self.values.offsets[first : end + 1], self.values.buffer, self.values.base)
        rows = (self.rows - first).astype(OFFSET, copy=False).tobytes()
        return [*pad(rows), *names.buffers(), *values.buffers()]


def offsets_of(lengths: NDArray[np.integer]) -> Int32s:
    """Offsets of values with these lengths."""
    offsets = np.zeros(len(lengths) + 1, OFFSET)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def bitmap(present: Bools) -> Bytes:
    """One bit per row, the first row lowest, as Arrow has it."""
    return np.packbits(present, bitorder="little")


def pad(buffer: Buffer) -> tuple[Buffer, Buffer]:
    """A buffer and the zeros that follow it."""
    return buffer, PADS[-len(buffer) % 8]
