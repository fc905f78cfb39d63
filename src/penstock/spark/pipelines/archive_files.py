"""Files of an archive, written and joined by Spark's executors.

A file holds one queue and one day, sorted by partition and offset, so it is assembled in memory, up to `FILE_BYTES`. It
is synced before it is reported, under a name that is used once: what a failed task leaves behind is never taken for a
result. Compaction joins small files of a day into large ones with the same rows.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c
from numpy.typing import NDArray

from penstock import limits
from penstock.errors import Damaged, StorageError
from penstock.spark import functions as f
from penstock.spark.failures import cause, shown_plainly
from penstock.spark.pipelines.archive_store import DAY, Archive, File, Manifest, Part, date_of, located
from penstock.storage.schema import FORMAT, MESSAGES, SCHEMAS, WRITING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


T = TypeVar("T")

TASKS_DEFAULT: Final = 8

Work = Callable[[T], Iterator[bytes]]
Spread = Callable[[Sequence[T], Work[T]], list[bytes]]  # how work is done; tests do it in this process


def on_executors(spark: SparkSession) -> Spread[T]:
    """A function that has the executors of a session do work: one task for each item, whose results come back as bytes.

    It is an ordinary function of a DataFrame with one row in each partition, so it works wherever DataFrames do, Spark
    Connect included. Items are small values; results of an attempt that failed never arrive.
    """

    def spread(items: Sequence[T], work: Work[T]) -> list[bytes]:
        if not items:
            return []

        @shown_plainly
        def act(number: int) -> list[bytes]:
            return list(work(items[number]))

        count = len(items)
        acting = f.udf(act, "array<binary>", useArrow=False)
        try:
            rows = spark.range(0, count, 1, count).select(acting("id").alias("results")).collect()
        except Exception as error:
            ours = cause(error)
            if ours is None:
                raise
            raise ours from None
        return [bytes(result) for row in rows for result in row.results]

    return spread


def task_slots(spark: SparkSession) -> int:
    """How many tasks run at once, as far as is known: Spark Connect does not tell."""
    context = getattr(spark, "sparkContext", None)
    return context.defaultParallelism if context is not None else TASKS_DEFAULT


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
        for key, rows in _split(batch):
            pending.setdefault(key, []).append(rows)
            bytes_of[key] = bytes_of.get(key, 0) + rows.nbytes
        while sum(bytes_of.values()) > bytes_max:
            fullest = max(bytes_of, key=lambda key: bytes_of[key])
            del bytes_of[fullest]
            yield write_file(pa.Table.from_batches(pending.pop(fullest)), stage)
    for parts in pending.values():
        yield write_file(pa.Table.from_batches(parts), stage)


def _split(batch: pa.RecordBatch) -> Iterator[tuple[Key, pa.RecordBatch]]:
    """The rows of each queue and day."""
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
        runs = zip(firsts[order].tolist(), ends[order].tolist(), strict=True)
        moved = pa.concat_tables([table.slice(first, end - first) for first, end in runs])
        if _rising(moved["partition_id"].to_numpy(), moved["offset"].to_numpy()).all():
            return moved
    return table.combine_chunks().take(np.lexsort((offsets, partitions)))


def _rising(partitions: NDArray[np.int32], offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each row comes after the one before it."""
    steps = np.diff(partitions)
    is_rising: NDArray[np.bool_] = (steps > 0) | ((steps == 0) & (np.diff(offsets) > 0))
    return is_rising


def parts_of(table: pa.Table) -> list[Part]:
    """The offsets and rows of each partition in a sorted table."""
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


SMALL_BYTES: Final = FILE_BYTES // 2  # in memory; larger files are left alone


def small_files(manifest: Manifest, small_bytes: int = SMALL_BYTES, file_bytes: int = FILE_BYTES) -> list[list[File]]:
    """Files that may be joined, in lots that each make one file."""
    small = [file for file in manifest.files if file.raw_bytes < small_bytes]
    lots: list[list[File]] = []
    for _, files in groupby(sorted(small, key=_order), key=_day):
        lot: list[File] = []
        for file in files:
            if lot and sum(part.raw_bytes for part in lot) + file.raw_bytes > file_bytes:
                lots.append(lot)
                lot = []
            lot.append(file)
        lots.append(lot)
    return [lot for lot in lots if len(lot) > 1]


def join(archive: Archive, lots: Sequence[Sequence[File]], spread: Spread[Sequence[File]], now: int) -> list[File]:
    """Replace each lot of files by one."""
    out, stage = archive.out, archive.stage
    staged = spread(lots, lambda lot: stage_joined(out, lot, stage))
    files = [msgspec.json.decode(result, type=File) for result in staged]
    kept = sum(file.rows for lot in lots for file in lot)
    assert sum(file.rows for file in files) == kept, "compaction keeps every row"
    return archive.replace(lots, files, now)


def stage_joined(out: Path, files: Sequence[File], stage: Path) -> Iterator[bytes]:
    """On an executor: write the messages of some files to one in the stage."""
    table = pa.concat_tables([read_whole(out, file) for file in files])
    yield msgspec.json.encode(write_file(table, stage))


def read_whole(out: Path, file: File) -> pa.Table:
    """A file of the archive, which must be what the manifest says."""
    data = located(out, file).read_bytes()
    if len(data) != file.bytes or crc32c(data) != file.crc32c:
        raise Damaged(f"{file.path} of the archive does not match its checksum")
    return pq.read_table(pa.BufferReader(data), partitioning=None)


def _day(file: File) -> tuple[str, int, str]:
    return file.queue, file.incarnation, file.date


def _order(file: File) -> tuple[str, int, str, list[tuple[str, int]]]:
    return *_day(file), [(part.partition, part.first) for part in file.parts]
