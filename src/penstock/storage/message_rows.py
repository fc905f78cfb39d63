"""The messages table of a stretch of the journal: pushes in the order of the journal become one sorted table.

A chunk is the rows of one batch, or of a run of batches of one message: those are read with `struct`, because making
arrays for every single message would cost more than all the rest of sealing. Payload bytes are not copied. Times become
absolute here: delay and ttl count from the push.

What all rows that a push brought to one partition (a part) have in common is kept per part and repeated; only the
columns of the batches themselves are touched row by row, and only when a push spread its rows over partitions. Nothing
here makes an object per message.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, groupby
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock import limits
from penstock.batch import Batch, layout
from penstock.delivery.entries import HEAD, PUSH, PUSH_HEAD, PUSH_PART, Push
from penstock.model import CONTENT_TYPE_NAMES
from penstock.storage.schema import HEADERS, MESSAGES, SCHEMAS, TIME, Names

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


class Chunk(msgspec.Struct):
    """Some rows: those columns that are present, named as in the messages table."""

    count: int
    arrays: dict[str, pa.Array]  # payload, texts and headers
    numbers: dict[str, Numbers]  # all others; times are µs with 0 for none


class PushedBatch(msgspec.Struct):
    """A push to be put into a table: what its entry says, and the header of its batch."""

    queue: int
    pushed_at: int
    producer: int
    parts: Sequence[tuple[int, int, int]]
    rows: Any  # the partition of each row where they differ; None when all are in one
    batch: Any
    flags: int
    count: int
    payload_bytes: int
    single: bool


def pushed_batch(push: Push) -> PushedBatch:
    """The batch of a decoded push."""
    _, _, compression, flags, count, size, *_ = layout.HEADER.unpack_from(push.batch)
    single = count == 1 and compression == layout.PLAIN
    entry = push.queue, push.pushed_at, push.producer[0], push.parts, push.rows, push.batch
    return PushedBatch(*entry, flags, count, size, single)


def single_push(frame: memoryview) -> PushedBatch | None:
    """The push of one message without options that is all of `frame`; None for any other frame.

    `decode` and `pushed_batch` would find the same, but such frames come by the hundred thousand, and here all their
    fields are read at once.
    """
    if len(frame) < _SINGLE.size:
        return None
    kind, length, queue, rows, pushed_at, producer, _, _, parts, *fields = _SINGLE.unpack_from(frame)
    partition, count, first, _, _, compression, flags, messages, payload_bytes, *_ = fields
    if kind != PUSH or parts != 1 or rows or messages != 1 or flags or compression != layout.PLAIN:
        return None
    if HEAD.size + layout.padded(length) != len(frame):
        return None
    parts_of_one = ((partition, count, first),)
    batch = frame[_SINGLE_BATCH:]
    return PushedBatch(queue, pushed_at, producer, parts_of_one, None, batch, 0, 1, payload_bytes, True)


def to_chunks(pushed: Sequence[PushedBatch]) -> Iterator[Chunk]:
    """All rows of some pushes, in order, refused ones included."""
    for single, run in groupby(pushed, lambda item: item.single):
        if single:
            yield _of_singles(list(run))
        else:
            yield from map(_of_batch, run)


def _of_batch(item: PushedBatch) -> Chunk:
    batch = Batch.parse(item.batch, validate=False)
    record = batch.to_arrow()
    arrays = {name: record[name] for name in VARIABLE if name in record.schema.names}
    numbers = {name: values for name, flag in _NUMBERS.items() if (values := batch.fixed(flag)) is not None}
    _add_times(numbers, np.int64(item.pushed_at), batch.delay, batch.deliver_at, batch.ttl)
    return Chunk(batch.count, arrays, numbers)


def _of_singles(run: list[PushedBatch]) -> Chunk:
    flags = 0
    for item in run:
        flags |= item.flags
    if not flags:
        return Chunk(len(run), {"payload": _plain_payloads(run)}, {})
    positions = [layout.column_positions(item.batch, 1, item.flags) for item in run]
    fixed = {flag: _words(run, positions, flag) for flag in layout.FIXED if flags & flag}
    numbers = {name: fixed[flag] for name, flag in _NUMBERS.items() if flag in fixed}
    pushed_at = np.fromiter((item.pushed_at for item in run), np.int64, len(run))
    _add_times(numbers, pushed_at, fixed.get(layout.DELAY), fixed.get(layout.DELIVER_AT), fixed.get(layout.TTL))
    arrays = {name: _texts(run, positions, flag) for name, flag in TEXTS.items() if flags & flag}
    if flags & layout.HEADERS:
        arrays["headers"] = pa.array([Batch.parse(item.batch, validate=False).headers(0) for item in run], HEADERS)
    return Chunk(len(run), {"payload": _payloads(run, positions), **arrays}, numbers)


def _add_times(
    numbers: dict[str, Numbers], pushed_at: Any, delay: Numbers | None, deliver_at: Numbers | None, ttl: Numbers | None
) -> None:
    """Add the absolute times, as the delivery core computes them: of two due times the later one counts."""
    if delay is not None:
        numbers["available_at"] = np.where(delay > 0, pushed_at + delay, 0)
    if deliver_at is not None:
        numbers["available_at"] = np.maximum(numbers.get("available_at", 0), deliver_at)
    if ttl is not None:
        numbers["expires_at"] = np.where(ttl > 0, pushed_at + ttl, 0)


def _plain_payloads(run: list[PushedBatch]) -> pa.Array:
    start = layout.HEADER.size + layout.offsets_bytes(1)
    values = [bytes(item.batch[start : start + item.payload_bytes]) for item in run]
    return pa.array(values, pa.binary())


def _payloads(run: list[PushedBatch], positions: list[dict[int, int]]) -> pa.Array:
    values = []
    for item, position in zip(run, positions, strict=True):
        start = position[layout.PAYLOAD] + layout.offsets_bytes(1)
        values.append(bytes(item.batch[start : start + item.payload_bytes]))
    return pa.array(values, pa.binary())


def _words(run: list[PushedBatch], positions: list[dict[int, int]], flag: int) -> Numbers:
    """A column of fixed width; rows of batches without it have its default."""
    dtype = layout.FIXED[flag]
    unpack = _WORDS[dtype.itemsize].unpack_from
    default = DEFAULTS.get(layout.NAMES[flag], 0)
    values = [
        unpack(item.batch, position[flag])[0] if flag in position else default
        for item, position in zip(run, positions, strict=True)
    ]
    return np.array(values, dtype)


def _texts(run: list[PushedBatch], positions: list[dict[int, int]], flag: int) -> pa.Array:
    """A column of text: with one row, a word of validity, then the offsets (0, length), then the bytes."""
    values: list[bytes | None] = []
    for item, columns in zip(run, positions, strict=True):
        data, position = item.batch, columns.get(flag, 0)
        if not position or not data[position] & 1:
            values.append(None)
            continue
        position += layout.bitmap_bytes(1)
        length = layout.BOUNDS.unpack_from(data, position)[1]
        position += layout.offsets_bytes(1)
        values.append(bytes(data[position : position + length]))
    return pa.array(values, pa.binary()).view(pa.string())


Int64s = NDArray[np.int64]
Keep = Callable[[int, int], int]  # (queue, partition) → the offset below which messages are no longer needed

_CONTENT_TYPES: Final = pa.array([CONTENT_TYPE_NAMES[kind] for kind in sorted(CONTENT_TYPE_NAMES)])


class MessageTable(NamedTuple):
    """A messages table, and for each row the batch columns that it may have."""

    table: pa.Table
    flags: Int64s


class _Parts:
    """Everything that is the same for all rows of one part, one value per part, sorted by rank.

    The rank is the index of a partition in the order of the table: by the queue's name, its id, the partition's id.
    """

    def __init__(self, pushed: Sequence[PushedBatch], names: Names) -> None:
        positions: list[tuple[int, int]] = []
        rows: list[tuple[int, int, int, int, int]] = []
        for item in pushed:
            for partition, count, first in item.parts:
                positions.append((item.queue, partition))
                rows.append((first, count, item.pushed_at, item.producer, item.flags))
        self.positions = sorted(set(positions), key=lambda position: (names.queues[position[0]][0], *position))
        self.rank_of = {position: rank for rank, position in enumerate(self.positions)}
        ranks = np.fromiter(map(self.rank_of.__getitem__, positions), np.int64, len(positions))
        # A producer's id is any 64 bits; the table has signed integers only.
        columns = np.fromiter(chain.from_iterable(rows), np.uint64, 5 * len(rows)).view(np.int64).reshape(-1, 5)
        self.order = np.argsort(ranks, kind="stable")
        self.ranks = ranks[self.order]
        self.first, self.count, self.pushed_at, self.producer, self.flags = (
            np.ascontiguousarray(column) for column in columns[self.order].T
        )
        self.queue, self.partition = np.array(self.positions, np.int64).reshape(-1, 2)[self.ranks].T

    def repeat(self, values: Numbers) -> Numbers:
        """A value per part as a value per row."""
        return np.repeat(values, self.count)

    def offsets(self) -> Int64s:
        ends = np.cumsum(self.count)
        return self.repeat(self.first - ends + self.count) + np.arange(ends[-1] if len(ends) else 0)


def message_table(pushed: Sequence[PushedBatch], names: Names, keep: Keep) -> MessageTable:
    """The table of all rows that were accepted and are still needed."""
    parts = _Parts(pushed, names)
    if all(item.rows is None for item in pushed):
        # Every push is one part, so sorting the parts sorts the rows.
        columns = _columns(list(to_chunks([pushed[index] for index in parts.order.tolist()])), None)
    else:
        columns = _columns(list(to_chunks(pushed)), _permutation(pushed, parts))
    columns |= _part_columns(parts, names)
    table = pa.table([columns[name] for name in SCHEMAS[MESSAGES].names], schema=_schema(columns))
    return _needed(table, parts, keep)


def _permutation(pushed: Sequence[PushedBatch], parts: _Parts) -> Int64s:
    """Which row of the chunks comes at each row of the table; refused rows are left out."""
    ranks = np.concatenate([_row_ranks(item, parts) for item in pushed])
    if len(parts.positions) < np.iinfo(np.int16).max:
        ranks = ranks.astype(np.int16)  # sorted by radix, several times faster
    order = np.argsort(ranks, kind="stable")
    return order[np.searchsorted(ranks[order], 0) :]


def _row_ranks(item: PushedBatch, parts: _Parts) -> Int64s:
    if item.rows is None:
        return np.full(item.count, parts.rank_of[item.queue, item.parts[0][0]], np.int64)
    ids = np.sort(np.array([-1, *(part[0] for part in item.parts)]))
    ranks = np.array([-1, *(parts.rank_of[item.queue, partition] for partition in ids[1:].tolist())])
    row_ranks: Int64s = ranks[np.searchsorted(ids, item.rows)]
    return row_ranks


def _columns(chunks: list[Chunk], permutation: Int64s | None) -> dict[str, Any]:
    """The columns that come from the batches."""
    rows = sum(chunk.count for chunk in chunks) if permutation is None else len(permutation)
    columns: dict[str, Any] = {name: _array(chunks, name, permutation, rows) for name in VARIABLE}
    for name, finish in _FINISH.items():
        columns[name] = finish(_numbers(chunks, name, permutation, rows))
    return columns


def _array(chunks: list[Chunk], name: str, permutation: Int64s | None, rows: int) -> Any:
    kind = SCHEMAS[MESSAGES].field(name).type
    if not any(name in chunk.arrays for chunk in chunks):
        return pa.nulls(rows, kind)
    arrays = [chunk.arrays[name] if name in chunk.arrays else pa.nulls(chunk.count, kind) for chunk in chunks]
    column = pa.chunked_array(arrays, kind)
    return column if permutation is None else column.combine_chunks().take(pa.array(permutation))


def _numbers(chunks: list[Chunk], name: str, permutation: Int64s | None, rows: int) -> Numbers:
    default = DEFAULTS.get(name, 0)
    if not any(name in chunk.numbers for chunk in chunks):
        return np.full(rows, default)
    arrays = [chunk.numbers[name] if name in chunk.numbers else np.full(chunk.count, default) for chunk in chunks]
    values = np.concatenate(arrays)
    return values if permutation is None else values[permutation]


def _nullable(kind: pa.DataType) -> Callable[[Numbers], pa.Array]:
    """Zeros become nulls."""

    def finish(values: Numbers) -> pa.Array:
        if not values.any():
            return pa.nulls(len(values), kind)
        integers = pa.int64() if kind == TIME else kind
        return pa.array(values, integers, mask=values == 0).view(kind)

    return finish


_FINISH: Final[dict[str, Callable[[Numbers], pa.Array]]] = {
    "available_at": _nullable(TIME),
    "expires_at": _nullable(TIME),
    "priority": lambda values: pa.array(values.astype(np.int16)),
    "content_type": lambda values: pa.DictionaryArray.from_arrays(values.astype(np.int8), _CONTENT_TYPES),
    "max_attempts": _nullable(pa.int32()),
}


def _part_columns(parts: _Parts, names: Names) -> dict[str, Any]:
    """The columns that come from the journal's entries."""
    queues = [names.queues[queue][0] for queue, _ in parts.positions]
    partitions = [names.partition(queue, partition) for queue, partition in parts.positions]
    ranks = parts.repeat(parts.ranks.astype(np.int32))
    return {
        "queue": _dictionary(ranks, queues),
        "incarnation": pa.array(parts.repeat(parts.queue)),
        "partition": _dictionary(ranks, partitions),
        "partition_id": pa.array(parts.repeat(parts.partition.astype(np.int32))),
        "offset": pa.array(parts.offsets()),
        "pushed_at": pa.array(parts.repeat(parts.pushed_at)).view(TIME),
        "producer": _nullable(pa.int64())(parts.repeat(parts.producer)),
    }


def _dictionary(ranks: Numbers, values: list[str]) -> pa.Array:
    """A text per rank as a dictionary column, each text once."""
    distinct = list(dict.fromkeys(values))
    code_of = {text: code for code, text in enumerate(distinct)}
    codes = np.fromiter((code_of[text] for text in values), np.int32, len(values))
    return pa.DictionaryArray.from_arrays(codes[ranks], pa.array(distinct, pa.string()))


def _schema(columns: dict[str, Any]) -> pa.Schema:
    """The schema of the messages table, with a dictionary where the column has one."""
    fields = [field.with_type(columns[field.name].type) for field in SCHEMAS[MESSAGES]]
    return pa.schema(fields)


def _needed(table: pa.Table, parts: _Parts, keep: Keep) -> MessageTable:
    flags = parts.repeat(parts.flags)
    starts = np.array([keep(queue, partition) for queue, partition in parts.positions], np.int64)
    if (parts.first >= starts[parts.ranks]).all():
        return MessageTable(table, flags)
    needed = table["offset"].to_numpy() >= parts.repeat(starts[parts.ranks])
    return MessageTable(table.filter(pa.array(needed)), flags[needed])
