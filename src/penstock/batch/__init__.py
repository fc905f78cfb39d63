"""The batch: the unit in which messages are pushed, stored, kept in memory and handed out.

A batch is immutable. Its bytes travel and are stored as they are; columns are views over them, made when first
needed. `parse(validate=True)` is for bytes that come in from outside; everywhere else they are trusted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from penstock import limits
from penstock.batch import fields, layout
from penstock.batch.check import check, check_header
from penstock.batch.fields import (
    Field,
    Partitions,
    check_batch_bytes,
    check_count,
    decompress,
    payloads_of,
    seal_columns,
    seal_fields,
)
from penstock.batch.layout import (
    BOUNDS,
    HEADER_BYTES,
    PAYLOAD,
    SHAPE,
    Binary,
    Buffer,
    Headers,
    Int64s,
    Text,
    pad,
)
from penstock.batch.small import (
    Alike,
    alike_of,
    encode_one,
    encode_one_task,
    encode_one_with,
    encode_plain,
    one_with_ttl,
    typed_one,
)
from penstock.errors import InvalidField
from penstock.model import ContentType, Message

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "Alike",
    "Batch",
    "alike_of",
    "encode_one",
    "encode_one_task",
    "encode_one_with",
    "encode_plain",
    "join",
    "one_with_ttl",
    "typed_one",
]

Column = NDArray[Any]
DEFAULTS: Final = {layout.PRIORITY: limits.priority_default}  # of all others it is 0


def encode_items(items: Sequence[Any], *, small: bool) -> tuple[bytes, Partitions | None]:
    """The batch of these items, and the partition that each one names. `small`: compress payloads if it pays."""
    check_count(len(items))
    kinds = list(map(type, items))
    if kinds.count(bytes) == len(items):
        return seal_fields([], items, small=True) if small or not items else encode_plain(items), None
    if Message in kinds:
        messages = [item if type(item) is Message else Message(payload=item) for item in items]
        return _encode_messages(messages, small), fields.partitions([message.partition for message in messages])
    contents, content_types = payloads_of(items)
    return seal_fields([fields.fixed(layout.CONTENT_TYPE, content_types)], contents, small=small), None


def _encode_messages(messages: list[Message], small: bool) -> bytes:
    contents, kinds = payloads_of([message.payload for message in messages])
    columns = [
        fields.priorities([message.priority for message in messages]),
        fields.delays([message.delay for message in messages]),
        fields.deliver_ats([message.deliver_at for message in messages]),
        fields.ttls([message.ttl for message in messages]),
        fields.max_attempts([message.max_attempts for message in messages]),
        fields.content_types([message.content_type for message in messages], kinds),
        fields.texts(layout.KEY, [message.key for message in messages]),
        fields.texts(layout.DEDUP_KEY, [message.dedup_key for message in messages]),
        fields.texts(layout.TRACE, [message.trace for message in messages]),
        fields.headers([message.headers for message in messages]),
    ]
    return seal_fields(columns, contents, small=small)


class Batch:
    """Messages in columns. Make one with `build`, `parse` or `from_arrow`."""

    __slots__ = (
        "_blob_bytes",
        "_cache",
        "_data",
        "_positions",
        "compressed",
        "count",
        "flags",
        "partitions",
        "payload_bytes",
    )

    count: int
    flags: int  # the bits of the columns that are present
    payload_bytes: int  # of all payloads, before compression
    compressed: bool
    partitions: Partitions | None  # the partition that each message names; travels beside the bytes, never in them
    _data: Buffer | None  # None: not encoded yet
    _cache: dict[int, Any] | None  # columns by their bit; None until one is needed: many batches hold one message

    def __init__(self, data: Buffer, partitions: Partitions | None = None) -> None:
        compression, self.flags, self.count, self.payload_bytes, self._blob_bytes = SHAPE.unpack_from(data)
        self.compressed = compression != layout.PLAIN
        self.partitions = partitions
        self._data = data
        self._positions: dict[int, int] | None = None
        self._cache = None

    @classmethod
    def build(cls, items: Any, *, compress: bool = False) -> Batch:
        """The batch of a producer's items: bytes, text, JSON values, `Message`s; or of a table; or a batch itself."""
        if isinstance(items, Batch):
            return items
        if hasattr(items, "__arrow_c_stream__") or hasattr(items, "__arrow_c_array__"):
            from penstock.batch.arrow import build_from_table

            return build_from_table(items, compress=compress)
        if isinstance(items, bytes | bytearray | memoryview | str | Mapping) or not isinstance(items, Iterable):
            hint = "pass a list of messages, or push() a single one"
            raise InvalidField(f"items: a {type(items).__name__} is not a list of messages", hint=hint)
        if not isinstance(items, Sequence):
            items = list(items)
        data, partitions = encode_items(items, small=compress)
        return cls(data, partitions)

    @classmethod
    def parse(cls, data: Buffer, *, validate: bool, is_stored: bool = False) -> Batch:
        """A batch over its bytes, which are not copied. `validate`: refuse with `BadBatch` what is not sound.

        One that `is_stored` may have marks that nobody pushes.
        """
        if not validate:
            return cls(data)
        check_header(data)
        batch = cls(data)
        check(batch, data, is_stored=is_stored)
        return batch

    @classmethod
    def from_arrow(cls, table: pa.Table | pa.RecordBatch) -> Batch:
        """A batch over Arrow columns that Penstock wrote; see `build` for a producer's table."""
        from penstock.batch.arrow import from_arrow

        return from_arrow(table)

    def to_arrow(self) -> pa.RecordBatch:
        """The columns that are present and the payload, as Arrow; payload bytes are not copied unless compressed."""
        from penstock.batch.arrow import to_arrow

        return to_arrow(self)

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        names = [name for flag, name in layout.NAMES.items() if self.flags & flag]
        return f"<Batch of {self.count}: {', '.join([*names, 'payload'])}, {self.payload_bytes:,} payload bytes>"

    @property
    def data(self) -> Buffer:
        """The bytes, as they travel and are stored."""
        if self._data is None:
            self._data = self.encode()
        return self._data

    @property
    def nbytes(self) -> int:
        return len(self.data)

    # The columns. Absent ones are None; units are those of the layout: µs, 0 for none.

    @property
    def priority(self) -> NDArray[np.uint8] | None:
        return self.fixed(layout.PRIORITY)

    @property
    def delay(self) -> Int64s | None:
        return self.fixed(layout.DELAY)

    @property
    def deliver_at(self) -> Int64s | None:
        return self.fixed(layout.DELIVER_AT)

    @property
    def ttl(self) -> Int64s | None:
        return self.fixed(layout.TTL)

    @property
    def max_attempts(self) -> NDArray[np.uint16] | None:
        return self.fixed(layout.MAX_ATTEMPTS)

    @property
    def content_type(self) -> NDArray[np.uint8] | None:
        return self.fixed(layout.CONTENT_TYPE)

    def fixed(self, flag: int) -> Column | None:
        """The column of fixed width that `flag` names."""
        return cast("Column", self.column(flag)) if self.flags & flag else None

    def text(self, flag: int) -> Text | None:
        """The column of text that `flag` names."""
        return cast(Text, self.column(flag)) if self.flags & flag else None

    def headers_column(self) -> Headers | None:
        return cast(Headers, self.column(layout.HEADERS)) if self.flags & layout.HEADERS else None

    def payload_column(self) -> Binary:
        return cast(Binary, self.column(PAYLOAD))

    # One message.

    def payload(self, row: int) -> bytes:
        if not 0 <= row < self.count:
            raise IndexError(f"row {row} of a batch of {self.count}")
        if self.compressed or self._data is None:
            return self.payload_column().get(row)
        data = self._data
        position = self.positions()[PAYLOAD] if self.flags else HEADER_BYTES
        start, end = BOUNDS.unpack_from(data, position + 4 * row)
        blob = position + layout.offsets_bytes(self.count)
        return bytes(data[blob + start : blob + end])

    def key(self, row: int) -> str | None:
        return self._text_of(layout.KEY, row)

    def dedup_key(self, row: int) -> str | None:
        return self._text_of(layout.DEDUP_KEY, row)

    def trace(self, row: int) -> str | None:
        return self._text_of(layout.TRACE, row)

    def headers(self, row: int) -> dict[str, str] | None:
        column = self.headers_column()
        return None if column is None else column.get(row)

    def content_type_of(self, row: int) -> ContentType:
        column = self.content_type
        return ContentType.BYTES if column is None else ContentType(int(column[row]))

    # Many messages.

    def payloads(self, rows: slice | Int64s | None = None) -> list[bytes]:
        """The payloads of all rows, a slice of them, or some."""
        column = self.payload_column()
        if rows is None:
            return column.slices(0, self.count)
        if not isinstance(rows, slice):
            return column.pick(rows)
        first, end, step = rows.indices(self.count)
        return column.slices(first, max(first, end)) if step == 1 else column.pick(np.arange(first, end, step))

    def keys(self) -> list[str | None]:
        return self.texts(layout.KEY)

    def dedup_keys(self) -> list[str | None]:
        return self.texts(layout.DEDUP_KEY)

    def key_hashes(self) -> NDArray[np.uint32] | None:
        """CRC32C of every key; 0 stands for no key, so a key whose CRC is 0 gets 1."""
        column = self.text(layout.KEY)
        if column is None:
            return None
        values = column.values.slices(0, self.count)
        hashes = np.fromiter(map(crc32c, values), np.uint32, self.count)
        hashes[hashes == 0] = 1
        hashes[~column.present()] = 0
        return hashes

    def take(self, rows: Int64s) -> Batch:
        """A batch of its own with some of the rows, in that order, never compressed."""
        columns = _buffers(self.flags, lambda flag: self._taken(flag, rows))
        data = seal_columns(self.flags, columns, self.payload_column().take(rows))
        partitions = None if self.partitions is None else [self.partitions[row] for row in rows.tolist()]
        return Batch(data, partitions)

    def with_ttl(self, micros: int) -> Batch:
        """A batch of these messages in which those without a time to live have this one."""
        own, data = self.ttl, self.data
        lives = layout.WORD.pack(micros) * self.count if own is None else np.where(own > 0, own, micros).tobytes()
        data = layout.with_ttl_column(data, lives)
        _, _, _, payload_bytes, blob_bytes = SHAPE.unpack_from(data)
        check_batch_bytes(len(data) - blob_bytes + payload_bytes)
        return Batch(data, self.partitions)

    def with_trace(self, trace: str) -> Batch:
        """A batch of these messages in which those without a trace have this one."""
        flags, traces = self.flags | layout.TRACE, [own or trace for own in self.texts(layout.TRACE)]
        columns = [
            fields.texts(flag, traces) if flag == layout.TRACE else _column([self], flag)
            for flag in layout.NAMES
            if flags & flag
        ]
        return Batch(seal_fields(columns, _payloads(self)), self.partitions)

    def positions(self) -> dict[int, int]:
        """The position of each column in the bytes."""
        if self._positions is None:
            self._positions = layout.column_positions(self.data, self.count, self.flags)
        return self._positions

    def _taken(self, flag: int, rows: Int64s) -> Any:
        column = self.column(flag)
        return column[rows] if flag in layout.FIXED else column.take(rows)

    def _text_of(self, flag: int, row: int) -> str | None:
        column = self.text(flag)
        return None if column is None else column.get(row)

    def texts(self, flag: int) -> list[str | None]:
        """The column of text that `flag` names; None for what is not set."""
        column = self.text(flag)
        return [None] * self.count if column is None else column.to_list()

    def column(self, flag: int) -> Any:
        """A column that is present, or the payload."""
        if self._cache is None:
            self._cache = {}
        column = self._cache.get(flag)
        if column is None:
            column = self._cache[flag] = self._load(flag)
        return column

    def _load(self, flag: int) -> Any:
        """A view of one column."""
        position = self.positions()[flag]
        data = self.data
        if flag in layout.FIXED:
            return np.frombuffer(data, layout.FIXED[flag], self.count, position)
        if flag == layout.HEADERS:
            return Headers.at(data, position, self.count)
        if flag != PAYLOAD:
            return Text.at(data, position, self.count)
        column = Binary.at(data, position, self.count)
        if not self.compressed:
            return column
        blob = memoryview(data)[column.base : column.base + self._blob_bytes]
        return Binary(column.offsets, decompress(blob, self.payload_bytes))

    def encode(self, *, compress: bool = False) -> bytes:
        """The bytes, made from the columns."""
        columns = _buffers(self.flags, self.column)
        return seal_columns(self.flags, columns, self.payload_column(), small=compress)


def _buffers(flags: int, column: Any) -> list[Buffer]:
    """All columns but the payload, as they are stored."""
    buffers: list[Buffer] = []
    for flag in layout.NAMES:
        if not flags & flag:
            continue
        if flag in layout.FIXED:
            buffers += pad(column(flag).astype(layout.FIXED[flag], copy=False).tobytes())
        else:
            buffers += column(flag).buffers()
    return buffers


def join(batches: Sequence[Batch]) -> Batch:
    """A batch of its own with the rows of all of them, never compressed. None of them names partitions."""
    if len(batches) == 1:
        return batches[0]
    flags = 0
    for batch in batches:
        flags |= batch.flags
    columns = [_column(batches, flag) for flag in layout.NAMES if flags & flag]
    return Batch(seal_fields(columns, [payload for batch in batches for payload in _payloads(batch)]))


def _column(batches: Sequence[Batch], flag: int) -> Field:
    if flag in layout.FIXED:
        default = DEFAULTS.get(flag, 0)
        numbers: list[Any] = [
            [default] * batch.count if (column := batch.fixed(flag)) is None else column for batch in batches
        ]
        return fields.fixed(flag, np.concatenate(numbers))
    if flag == layout.HEADERS:
        return fields.headers([batch.headers(row) for batch in batches for row in range(batch.count)])
    return fields.texts(flag, [text for batch in batches for text in _texts(batch, flag)])


def _texts(batch: Batch, flag: int) -> list[str | None]:
    column = batch.text(flag)
    if column is None:
        return [None] * batch.count
    return [column.get(0)] if batch.count == 1 else column.to_list()


def _payloads(batch: Batch) -> list[bytes]:
    return [batch.payload(0)] if batch.count == 1 else batch.payloads()
