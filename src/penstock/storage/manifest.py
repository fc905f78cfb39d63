"""The manifest: which segment files count, and where every sealed message lies in them.

`segments/manifest.arrow` is an Arrow IPC file with one row per extent. Its schema metadata holds two texts:
`penstock.manifest`, JSON with the files, their sizes and checksums, the names of the queues and how far the journal is
sealed; and `penstock.check`, the CRC32C of the whole manifest, computed with the eight digits as zeros.

A manifest is replaced whole or not at all, so it is the moment at which a seal, a removal or a compaction happens:
files that it names are complete and synced before it is written, files that it no longer names go after.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
from crc32c import crc32c

from penstock.errors import Damaged
from penstock.storage.disk import ReadableDisk
from penstock.storage.extent import Extent
from penstock.storage.schema import FORMAT

NAME: Final = "segments/manifest.arrow"

_META: Final = b"penstock.manifest"
_CHECK: Final = re.compile(rb"crc32c=([0-9a-f]{8})")
_CHECK_EMPTY: Final = b"crc32c=00000000"
_WIDE: Final = {"file": pa.dictionary(pa.int32(), pa.string()), "row_group": pa.int32(), "row": pa.int32()}
_SCHEMA: Final = pa.schema([pa.field(n, _WIDE.get(n, pa.int64()), nullable=False) for n in Extent.__struct_fields__])


class RowGroup(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Bytes of a row group: from the end of the one before it (0 for the first) to `end`."""

    end: int
    crc32c: int
    flags: int = 0  # batch columns that some message in it may have


class EventsOf(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What an events file holds about one queue."""

    queue: int
    rows: int
    settled_last_at: int


class SegmentFile(msgspec.Struct, frozen=True):
    """One Parquet file. The footer lies between the end of the last row group and the end of the file."""

    name: str
    table: str
    rows: int
    bytes: int
    crc32c: int
    first_sequence: int
    end_sequence: int
    row_groups: list[RowGroup]
    footer_crc32c: int
    events: list[EventsOf] = []

    def row_group_bounds(self, index: int) -> tuple[int, int]:
        """First byte and end of a row group."""
        return (self.row_groups[index - 1].end if index else 0), self.row_groups[index].end

    @property
    def footer_position(self) -> int:
        return self.row_groups[-1].end if self.row_groups else 0


class _Meta(msgspec.Struct, frozen=True):
    """The JSON beside the extents."""

    format: int
    sealed_sequence: int
    queues: dict[int, str]
    files: list[SegmentFile]


class Manifest(msgspec.Struct, frozen=True):
    """One state of the sealed segments. Extents are sorted; every file that they name is in `files`."""

    sealed_sequence: int = 0
    queues: dict[int, str] = {}  # the name of every queue that an extent or an events file is about
    files: dict[str, SegmentFile] = {}
    extents: list[Extent] = []


def encode(manifest: Manifest) -> bytes:
    """The bytes of a manifest."""
    meta = _Meta(FORMAT, manifest.sealed_sequence, manifest.queues, list(manifest.files.values()))
    schema = _SCHEMA.with_metadata({_META: msgspec.json.encode(meta), b"penstock.check": _CHECK_EMPTY})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(_rows(manifest.extents, schema))
    data: bytes = sink.getvalue().to_pybytes()
    return data.replace(_CHECK_EMPTY, b"crc32c=%08x" % crc32c(data))


def decode(data: bytes) -> Manifest:
    """The inverse of `encode`; `Damaged` when a single bit is not as it was written."""
    found = set(_CHECK.findall(data))
    if len(found) != 1 or crc32c(_CHECK.sub(_CHECK_EMPTY, data)) != int(found.pop(), 16):
        raise Damaged(f"{NAME} does not match its checksum")
    with pa.ipc.open_file(pa.BufferReader(data)) as reader:
        table = reader.read_all()
    meta = msgspec.json.decode(table.schema.metadata[_META], type=_Meta)
    if meta.format != FORMAT:
        raise Damaged(f"{NAME} has format {meta.format}, not {FORMAT}", hint="it was written by another version")
    files = {file.name: file for file in meta.files}
    return Manifest(meta.sealed_sequence, meta.queues, files, _extents(table))


def read(disk: ReadableDisk) -> Manifest | None:
    """The manifest of a data directory, None when there is none yet. Needs no lock: any process may look."""
    try:
        return decode(disk.read(NAME))
    except FileNotFoundError:
        return None


def _rows(extents: Sequence[Extent], schema: pa.Schema) -> pa.RecordBatch:
    columns: Any = zip(*map(msgspec.structs.astuple, extents), strict=True) if extents else [()] * len(schema)
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


def _extents(table: pa.Table) -> list[Extent]:
    names = table["file"].unify_dictionaries().combine_chunks()
    columns = [table[field.name].to_numpy().tolist() for field in _SCHEMA if field.name != "file"]
    place = Extent.__struct_fields__.index("file")
    dictionary = names.dictionary.to_pylist()
    columns.insert(place, [dictionary[index] for index in names.indices.to_pylist()])
    return list(map(Extent, *columns))
