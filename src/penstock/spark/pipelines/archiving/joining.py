"""Compaction of the archive: small files of a day become large ones. What they hold stays the same, to the row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c

from penstock.errors import Damaged
from penstock.spark.pipelines.archiving.manifest import File, Manifest
from penstock.spark.pipelines.archiving.spread import Spread
from penstock.spark.pipelines.archiving.storing import Archive, located
from penstock.spark.pipelines.archiving.writing import FILE_BYTES, write_file

SMALL_BYTES: Final = FILE_BYTES // 2  # in memory; larger files are left alone


def small_files(manifest: Manifest, small_bytes: int = SMALL_BYTES, file_bytes: int = FILE_BYTES) -> list[list[File]]:
    """Files that may be joined, in lots that each make one file."""
    small = [file for file in manifest.files if file.raw_bytes < small_bytes]
    lots: list[list[File]] = []
    for _, files in groupby(sorted(small, key=_order), key=_place):
        lot: list[File] = []
        for file in files:
            if lot and sum(each.raw_bytes for each in lot) + file.raw_bytes > file_bytes:
                lots.append(lot)
                lot = []
            lot.append(file)
        lots.append(lot)
    return [lot for lot in lots if len(lot) > 1]


def join(archive: Archive, lots: Sequence[Sequence[File]], spread: Spread[Sequence[File]], now: int) -> list[File]:
    """Put one file in the place of each lot."""
    out, stage = archive.out, archive.stage
    staged = spread(lots, lambda lot: stage_joined(out, lot, stage))
    files = [msgspec.json.decode(each, type=File) for each in staged]
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


def _place(file: File) -> tuple[str, int, str]:
    return file.queue, file.incarnation, file.date


def _order(file: File) -> tuple[str, int, str, list[tuple[str, int]]]:
    return *_place(file), [(part.partition, part.first) for part in file.parts]
