"""Pushes, in the order of the journal, as one sorted table of messages.

What is the same for all rows that a push brought to one partition (a part) is kept per part and repeated; only the
columns of the batches themselves are touched row by row, and only when a push spread its rows over partitions. Nothing
here makes an object per message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.model import CONTENT_TYPE_NAMES
from penstock.storage.names import Names
from penstock.storage.pieces import DEFAULTS, VARIABLE, Numbers, Piece, Pushed, pieces
from penstock.storage.schema import MESSAGES, SCHEMAS, TIME

Int64s = NDArray[np.int64]
Keep = Callable[[int, int], int]  # (queue, partition) → the offset below which messages are no longer needed

_CONTENT_TYPES: Final = pa.array([CONTENT_TYPE_NAMES[kind] for kind in sorted(CONTENT_TYPE_NAMES)])


class Gathered(NamedTuple):
    """A messages table, and for each row the batch columns that it may have."""

    table: pa.Table
    flags: Int64s


class _Parts:
    """Everything that is the same for all rows of one part, one value per part, sorted by rank.

    The rank is the place of a partition in the order of the table: by the queue's name, its id, the partition's id.
    """

    def __init__(self, pushed: Sequence[Pushed], names: Names) -> None:
        places: list[tuple[int, int]] = []
        rows: list[tuple[int, int, int, int, int]] = []
        for item in pushed:
            for partition, count, first in item.parts:
                places.append((item.queue, partition))
                rows.append((first, count, item.pushed_at, item.producer, item.flags))
        self.places = sorted(set(places), key=lambda place: (names.queues[place[0]][0], *place))
        self.rank_of = {place: rank for rank, place in enumerate(self.places)}
        ranks = np.fromiter(map(self.rank_of.__getitem__, places), np.int64, len(places))
        # A producer's id is any 64 bits; the table has signed integers only.
        columns = np.fromiter(chain.from_iterable(rows), np.uint64, 5 * len(rows)).view(np.int64).reshape(-1, 5)
        self.order = np.argsort(ranks, kind="stable")
        self.ranks = ranks[self.order]
        self.first, self.count, self.pushed_at, self.producer, self.flags = (
            np.ascontiguousarray(column) for column in columns[self.order].T
        )
        self.queue, self.partition = np.array(self.places, np.int64).reshape(-1, 2)[self.ranks].T

    def repeat(self, values: Numbers) -> Numbers:
        """A value per part as a value per row."""
        return np.repeat(values, self.count)

    def offsets(self) -> Int64s:
        ends = np.cumsum(self.count)
        return self.repeat(self.first - ends + self.count) + np.arange(ends[-1] if len(ends) else 0)


def gather(pushed: Sequence[Pushed], names: Names, keep: Keep) -> Gathered:
    """The table of all rows that were accepted and are still needed."""
    parts = _Parts(pushed, names)
    if all(item.rows is None for item in pushed):
        # Every push is one part, so sorting the parts sorts the rows.
        columns = _columns(list(pieces([pushed[index] for index in parts.order.tolist()])), None)
    else:
        columns = _columns(list(pieces(pushed)), _permutation(pushed, parts))
    columns |= _part_columns(parts, names)
    table = pa.table([columns[name] for name in SCHEMAS[MESSAGES].names], schema=_schema(columns))
    return _needed(table, parts, keep)


def _permutation(pushed: Sequence[Pushed], parts: _Parts) -> Int64s:
    """Which row of the pieces comes at each place of the table; refused rows come nowhere."""
    ranks = np.concatenate([_row_ranks(item, parts) for item in pushed])
    if len(parts.places) < np.iinfo(np.int16).max:
        ranks = ranks.astype(np.int16)  # sorted by radix, several times faster
    order = np.argsort(ranks, kind="stable")
    return order[np.searchsorted(ranks[order], 0) :]


def _row_ranks(item: Pushed, parts: _Parts) -> Int64s:
    if item.rows is None:
        return np.full(item.count, parts.rank_of[item.queue, item.parts[0][0]], np.int64)
    ids = np.sort(np.array([-1, *(part[0] for part in item.parts)]))
    ranks = np.array([-1, *(parts.rank_of[item.queue, partition] for partition in ids[1:].tolist())])
    row_ranks: Int64s = ranks[np.searchsorted(ids, item.rows)]
    return row_ranks


def _columns(found: list[Piece], permutation: Int64s | None) -> dict[str, Any]:
    """The columns that come from the batches."""
    rows = sum(piece.count for piece in found) if permutation is None else len(permutation)
    columns: dict[str, Any] = {name: _array(found, name, permutation, rows) for name in VARIABLE}
    for name, finish in _FINISH.items():
        columns[name] = finish(_numbers(found, name, permutation, rows))
    return columns


def _array(found: list[Piece], name: str, permutation: Int64s | None, rows: int) -> Any:
    kind = SCHEMAS[MESSAGES].field(name).type
    if not any(name in piece.arrays for piece in found):
        return pa.nulls(rows, kind)
    chunks = [piece.arrays[name] if name in piece.arrays else pa.nulls(piece.count, kind) for piece in found]
    column = pa.chunked_array(chunks, kind)
    return column if permutation is None else column.combine_chunks().take(pa.array(permutation))


def _numbers(found: list[Piece], name: str, permutation: Int64s | None, rows: int) -> Numbers:
    default = DEFAULTS.get(name, 0)
    if not any(name in piece.numbers for piece in found):
        return np.full(rows, default)
    chunks = [piece.numbers[name] if name in piece.numbers else np.full(piece.count, default) for piece in found]
    values = np.concatenate(chunks)
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
    queues = [names.queues[queue][0] for queue, _ in parts.places]
    partitions = [names.partition(queue, partition) for queue, partition in parts.places]
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


def _needed(table: pa.Table, parts: _Parts, keep: Keep) -> Gathered:
    flags = parts.repeat(parts.flags)
    starts = np.array([keep(queue, partition) for queue, partition in parts.places], np.int64)
    if (parts.first >= starts[parts.ranks]).all():
        return Gathered(table, flags)
    needed = table["offset"].to_numpy() >= parts.repeat(starts[parts.ranks])
    return Gathered(table.filter(pa.array(needed)), flags[needed])
