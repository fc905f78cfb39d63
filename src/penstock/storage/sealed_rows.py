"""Rows of encrypted queues in the sealed tables. docs/formats/segments.md has the columns.

What users wrote is taken out of such a row and put into its column `sealed`, as MessagePack under AES-256-GCM; the
column `data_key` says with which key. Everything else stays as it is, so that files are planned, counted, compacted and
removed without keys. The key and the dedup key of a message leave keyed hashes behind. A row is bound to its table, its
queue and its place, which compaction does not change.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.batch import layout
from penstock.errors import Damaged
from penstock.seals import ERASED, Seal, Seals
from penstock.storage.schema import EVENTS, MESSAGES, TASKS

DATA_KEY: Final = "data_key"  # id of the data key and salt of the seal, in hex
CONTENT: Final = "sealed"  # number of the row u32, ciphertext, tag
PAYLOAD_BYTES: Final = "payload_bytes"

# Columns that the files of a directory with encrypted queues have besides those of the schema.
EXTRA: Final = {
    MESSAGES: [pa.field(DATA_KEY, pa.string()), pa.field(CONTENT, pa.binary()), pa.field(PAYLOAD_BYTES, pa.int32())],
    EVENTS: [pa.field(DATA_KEY, pa.string()), pa.field(CONTENT, pa.binary())],
    TASKS: [pa.field(DATA_KEY, pa.string()), pa.field(CONTENT, pa.binary())],
}
SECRETS: Final = {
    MESSAGES: ("payload", "key", "dedup_key", "headers"),
    EVENTS: ("error",),
    TASKS: ("args", "kwargs", "result", "progress", "error", "key"),
}
HASHED: Final = {MESSAGES: ("key", "dedup_key"), EVENTS: (), TASKS: ()}
PLACES: Final = {  # what identifies a row
    MESSAGES: ("incarnation", "partition_id", "offset"),
    EVENTS: ("incarnation", "first_offset"),
    TASKS: ("incarnation", "number"),
}

SEALED_FLAGS: Final = layout.HEADERS  # columns of a batch that a sealed row may have: the mark of an erased one

_NUMBER: Final = struct.Struct("<I")
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder().decode


class RowSeals:
    """Seals and opens rows of tables. `encrypted` is the live set of encrypted queues."""

    def __init__(self, seals: Seals, encrypted: AbstractSet[int] = frozenset()) -> None:
        self._seals = seals
        self.encrypted = encrypted

    def concerned(self, table: pa.Table) -> Any:
        """For each row whether its queue is encrypted."""
        queues = pa.array(sorted(self.encrypted), pa.int64())
        return pc.is_in(table["incarnation"], queues).to_numpy()

    def seal(self, kind: str, table: pa.Table) -> pa.Table:
        """The table as it is stored; the same one while there are no encrypted queues."""
        if not self.encrypted:
            return table
        queues = table["incarnation"].to_pylist()
        is_concerned = not self.encrypted.isdisjoint(queues)
        columns = {name: table[name].to_pylist() for name in SECRETS[kind]} if is_concerned else {}
        places = _places(kind, table)
        data_keys: list[str | None] = [None] * len(table)
        contents: list[bytes | None] = [None] * len(table)
        sizes: list[int | None] = [None] * len(table)
        used: dict[int, Seal] = {}
        hashes: dict[int, Any] = {}
        for row, queue in enumerate(queues):
            if queue not in self.encrypted or not columns or all(values[row] is None for values in columns.values()):
                continue
            if queue not in used:
                used[queue], hashes[queue] = self._seals.new(queue), self._seals.hashes(queue)
            seal, number = used[queue], _NUMBER.pack(row)
            content = _encode([values[row] for values in columns.values()])
            contents[row] = number + seal.close(content, places[row], _nonce(number))
            data_keys[row] = f"{seal.id.hex()}.{seal.salt.hex()}"
            if kind == MESSAGES:
                sizes[row] = len(columns["payload"][row])
            for name, values in columns.items():
                values[row] = _left(kind, name, values[row], hashes[queue])
        extra = {DATA_KEY: data_keys, CONTENT: contents, PAYLOAD_BYTES: sizes}
        for name, values in columns.items():
            table = _with(table, name, values)
        for field in EXTRA[kind]:
            table = table.append_column(field, pa.array(extra[field.name], field.type))
        return table

    def open(self, kind: str, table: pa.Table, wanted: Sequence[str]) -> pa.Table:
        """The columns `wanted` as they were; `table` has the columns that `needed` names."""
        is_sealed = pc.is_valid(table[DATA_KEY])
        if self._seals.only is not None:
            queues = pa.array(sorted(self._seals.only), pa.int64())
            is_sealed = pc.and_(is_sealed, pc.is_in(table["incarnation"], queues))
        rows = np.flatnonzero(is_sealed.to_numpy()).tolist()
        secret = [name for name in SECRETS[kind] if name in wanted]
        if rows and secret:
            columns = {name: table[name].to_pylist() for name in secret}
            self._fill(kind, table, rows, columns)
            for name, values in columns.items():
                table = _with(table, name, values)
        return table.select(list(wanted))

    def _fill(self, kind: str, table: pa.Table, rows: list[int], columns: dict[str, list[Any]]) -> None:
        data_keys, contents = table[DATA_KEY].to_pylist(), table[CONTENT].to_pylist()
        places = _places(kind, table)
        indexes = {name: SECRETS[kind].index(name) for name in columns}
        known: dict[str, Seal | None] = {}
        for row in rows:
            text, content = data_keys[row], contents[row]
            if text not in known:
                known[text] = self._known(text)
            seal = known[text]
            if seal is None:
                if "headers" in columns:
                    columns["headers"][row] = [(ERASED, text.partition(".")[0])]
                continue
            number = content[: _NUMBER.size]
            values = _decode(seal.open(content[_NUMBER.size :], places[row], _nonce(number)))
            for name, index in indexes.items():
                columns[name][row] = values[index] if name != "headers" else _pairs(values[index])

    def _known(self, text: str) -> Seal | None:
        try:
            id, salt = map(bytes.fromhex, text.split("."))
        except ValueError:
            raise Damaged(f"{text!r} does not name a data key") from None
        return self._seals.known(id, salt)


def needed(kind: str, wanted: Sequence[str]) -> list[str]:
    """The columns to read so that `RowSeals.open` can give those that are wanted; no more when none is secret."""
    if not set(SECRETS[kind]) & set(wanted):
        return list(wanted)
    return list(dict.fromkeys((*wanted, *PLACES[kind], DATA_KEY, CONTENT)))


def _places(kind: str, table: pa.Table) -> list[bytes]:
    columns = [table[name].fill_null(-1).to_numpy().astype("<i8") for name in PLACES[kind]]
    packed = np.stack(columns, axis=1).tobytes() if len(table) else b""
    width, prefix = 8 * len(columns), kind.encode()
    return [prefix + packed[start : start + width] for start in range(0, len(packed), width)]


def _pairs(headers: list[list[str]] | None) -> list[tuple[str, str]] | None:
    return None if headers is None else [(name, value) for name, value in headers]


def _nonce(number: bytes) -> bytes:
    return number + bytes(8)


def _left(kind: str, name: str, value: Any, hashed: Any) -> Any:
    """What is stored in clear instead of a value."""
    if name == "payload":
        return b""
    return hashed(value.encode()) if value is not None and name in HASHED[kind] else None


def _with(table: pa.Table, name: str, values: list[Any]) -> pa.Table:
    field = table.schema.field(name)
    return table.set_column(table.schema.get_field_index(name), field, pa.array(values, field.type))
