"""Messages into Parquet files, on the executors: record batches in, files out, with an account of each.

A file holds one queue and one day and is sorted by partition and offset, so it is put together in memory; how much of
that is needed at most is set here. A file is synced before it is told of, under a name that nobody else uses: what a
task that failed has left is never mistaken for something.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c
from numpy.typing import NDArray

from penstock import limits
from penstock.errors import StorageError
from penstock.spark.pipelines.archiving.manifest import DAY, File, Part, date_of
from penstock.storage.schema import FORMAT, MESSAGES, SCHEMAS, WRITING

COLUMNS: Final = SCHEMAS[MESSAGES].names
FILE_BYTES: Final = 256 * limits.MIB  # in memory, of one file; and of all that a task has not written yet
GROUP_BYTES: Final = 32 * limits.MIB  # in memory, of one row group
COMPRESSION_LEVEL: Final = 1
RUN_ROWS_MIN: Final = 256  # shorter runs, on average, are sorted row by row

Key = tuple[int, int]  # incarnation and day


def write_files(batches: Iterable[pa.RecordBatch], stage: Path, bytes_max: int = FILE_BYTES) -> Iterator[File]:
    """Write all messages of some batches to files in `stage`; `path` of each is its name there."""
    pending: dict[Key, list[pa.RecordBatch]] = {}
    bytes_of: dict[Key, int] = {}
    for batch in batches:
        for key, piece in _split(batch):
            pending.setdefault(key, []).append(piece)
            bytes_of[key] = bytes_of.get(key, 0) + piece.nbytes
        while sum(bytes_of.values()) > bytes_max:
            fullest = max(bytes_of, key=lambda key: bytes_of[key])
            del bytes_of[fullest]
            yield write_file(pa.Table.from_batches(pending.pop(fullest)), stage)
    for pieces in pending.values():
        yield write_file(pa.Table.from_batches(pieces), stage)


def _split(batch: pa.RecordBatch) -> Iterator[tuple[Key, pa.RecordBatch]]:
    """The batch in pieces that each belong to one queue and one day."""
    if batch.num_rows == 0:
        return
    incarnations = batch.column("incarnation").to_numpy()
    days = batch.column("pushed_at").cast(pa.int64()).to_numpy() // DAY
    breaks = np.flatnonzero((np.diff(incarnations) != 0) | (np.diff(days) != 0)) + 1
    firsts = [0, *breaks.tolist(), batch.num_rows]
    for first, end in pairwise(firsts):
        yield (int(incarnations[first]), int(days[first])), batch.slice(first, end - first)


def write_file(table: pa.Table, stage: Path) -> File:
    """One file with all rows of a table, which are of one queue and one day."""
    table = in_order(table)
    data = _encoded(table)
    name = f"{uuid.uuid4().hex}.staged"  # it is no file of the archive until it is in its place
    stage.mkdir(parents=True, exist_ok=True)
    with (stage / name).open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return File(
        path=name,
        queue=table["queue"][0].as_py(),
        incarnation=table["incarnation"][0].as_py(),
        date=date_of(table["pushed_at"].cast(pa.int64())[0].as_py()),
        rows=table.num_rows,
        bytes=len(data),
        raw_bytes=table.nbytes,
        crc32c=crc32c(data),
        parts=parts_of(table),
    )


def in_order(table: pa.Table) -> pa.Table:
    """The rows sorted by partition and offset."""
    partitions, offsets = table["partition_id"].to_numpy(), table["offset"].to_numpy()
    is_next = _rising(partitions, offsets)
    if is_next.all():
        return table
    # The log gives runs of a partition, in order: to put those in order copies nothing.
    firsts = np.flatnonzero(np.concatenate([[True], ~is_next | (np.diff(partitions) != 0)]))
    if len(firsts) * RUN_ROWS_MIN <= len(table):
        ends = np.append(firsts[1:], len(table))
        order = np.lexsort((offsets[firsts], partitions[firsts]))
        pieces = zip(firsts[order].tolist(), ends[order].tolist(), strict=True)
        moved = pa.concat_tables([table.slice(first, end - first) for first, end in pieces])
        if _rising(moved["partition_id"].to_numpy(), moved["offset"].to_numpy()).all():
            return moved
    return table.combine_chunks().take(np.lexsort((offsets, partitions)))


def _rising(partitions: NDArray[np.int32], offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each row comes after the one before it."""
    steps = np.diff(partitions)
    found: NDArray[np.bool_] = (steps > 0) | ((steps == 0) & (np.diff(offsets) > 0))
    return found


def parts_of(table: pa.Table) -> list[Part]:
    """What a sorted table holds of each partition."""
    partitions, offsets = table["partition_id"].to_numpy(), table["offset"].to_numpy()
    breaks = (np.flatnonzero(np.diff(partitions)) + 1).tolist()
    if (np.diff(offsets)[np.diff(partitions) == 0] <= 0).any():
        hint = "run `penstock verify` on the data directory"
        raise StorageError("an offset was read twice from the log", hint=hint)
    return [
        Part(table["partition"][first].as_py(), int(offsets[first]), int(offsets[end - 1]) + 1, end - first)
        for first, end in zip([0, *breaks], [*breaks, table.num_rows], strict=True)
    ]


def _encoded(table: pa.Table) -> memoryview:
    sink = pa.BufferOutputStream()
    rows = max(1, GROUP_BYTES * table.num_rows // max(1, table.nbytes))
    writing: dict[str, Any] = WRITING[MESSAGES]
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression="zstd",
        compression_level=COMPRESSION_LEVEL,
        write_page_checksum=True,
        write_page_index=True,
        store_schema=False,
        **writing,
    ) as writer:
        writer.add_key_value_metadata({"penstock.format": str(FORMAT), "penstock.table": MESSAGES})
        writer.write_table(table, row_group_size=rows)
    return memoryview(sink.getvalue()).cast("B")
