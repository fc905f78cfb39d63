"""Verifying that the archive equals the log: every message that both hold is the same in both.

Each message is reduced to a hash of all its columns, and a bucket of offsets to the number of messages and sums of
their hashes, which do not depend on the order of rows. Single messages are compared only where buckets differ. The
files of the archive are also checked against the checksums in its manifest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from penstock.errors import Damaged
from penstock.history import Moment, OffsetRange
from penstock.spark import functions as f
from penstock.spark.pipelines.archive_files import Spread, on_executors, read_whole
from penstock.spark.pipelines.archive_store import Archive, File, Manifest, messages
from penstock.spark.schema import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.spark.pipelines.base import Run

BUCKET: Final = 65_536  # offsets
BUCKETS_MAX: Final = 10  # that are looked at closely when they differ
SHOWN_MAX: Final = 20  # offsets that differ, of one bucket

Bucket = tuple[str, str, int]  # queue, partition, number


class Sum(NamedTuple):
    """The number of messages in a bucket, and sums of their hashes."""

    rows: int
    total: int
    xor: int


class Difference(NamedTuple):
    """A message that is not the same in both."""

    queue: str
    partition: str
    offset: int
    what: str


def both_have(moment: Moment, manifest: Manifest, queues: Sequence[str]) -> list[OffsetRange]:
    """The offsets that the log still has and the archive has already."""
    ranges = []
    for name in queues:
        queue = moment.queue(name)
        for partition in queue.partitions.values():
            for first, end in manifest.ranges_of(name, queue.incarnation, partition.name):
                first, end = max(first, partition.start), min(end, partition.end)
                if first < end:
                    ranges.append(OffsetRange(name, partition.name, first, end))
    return ranges


def within(messages: DataFrame, ranges: Sequence[OffsetRange]) -> DataFrame:
    """The messages within these ranges."""
    bounds = messages.sparkSession.createDataFrame(
        [(item.queue, item.partition, item.first, item.end) for item in ranges],
        "queue string, partition string, range_first bigint, range_end bigint",
    )
    offset = f.col("offset")
    inside = messages.join(f.broadcast(bounds), ["queue", "partition"])
    inside = inside.where((offset >= f.col("range_first")) & (offset < f.col("range_end")))
    return inside.drop("range_first", "range_end")


def hashed(messages: DataFrame) -> DataFrame:
    """One row for each message: where it is, its bucket, and a hash of all that it consists of."""
    # A map cannot be hashed; no headers may be written as none or as an empty map.
    headers = f.coalesce(f.map_entries("headers"), f.array().cast("array<struct<key:string,value:string>>"))
    rest = [f.col(name) for name in COLUMNS["messages"] if name not in ("queue", "partition", "headers")]
    # A hash passes over what is null, so where there is nothing must be part of it.
    blanks = f.concat(*(f.isnull(column).cast("int").cast("string") for column in rest))
    hash_of = f.xxhash64(*rest, headers, blanks)
    bucket = f.floor(f.col("offset") / BUCKET).alias("bucket")
    return messages.select("queue", "partition", "offset", bucket, hash_of.alias("hash"))


def sums(log: DataFrame, archive: DataFrame) -> tuple[dict[Bucket, Sum], dict[Bucket, Sum]]:
    """The sums of each bucket in the log and in the archive."""
    both = log.withColumn("is_log", f.lit(True)).unionByName(archive.withColumn("is_log", f.lit(False)))
    rows = both.groupBy("is_log", "queue", "partition", "bucket").agg(
        f.count("*").alias("rows"),
        f.sum(f.col("hash").cast("decimal(38,0)")).alias("total"),
        f.bit_xor("hash").alias("xor"),
    )
    by_side: dict[bool, dict[Bucket, Sum]] = {True: {}, False: {}}
    for row in rows.collect():
        by_side[row.is_log][row.queue, row.partition, row.bucket] = Sum(row.rows, int(row.total), row.xor)
    return by_side[True], by_side[False]


def differing(log: Mapping[Bucket, Sum], archive: Mapping[Bucket, Sum]) -> list[Bucket]:
    """The buckets that are not the same on both sides."""
    return sorted(bucket for bucket in log.keys() | archive.keys() if log.get(bucket) != archive.get(bucket))


def differences(log: DataFrame, archive: DataFrame, buckets: Sequence[Bucket]) -> list[Difference]:
    """The messages of these buckets that differ, from hashes of both sides; not more than a few of each bucket."""
    from pyspark.sql import Window

    keys = ["queue", "partition", "bucket", "offset"]
    spark = log.sparkSession
    few = f.broadcast(spark.createDataFrame(list(buckets), "queue string, partition string, bucket bigint"))
    here = log.join(few, keys[:3]).groupBy(*keys).agg(f.count("*").alias("in_log"), f.first("hash").alias("log_hash"))
    there = (
        archive.join(few, keys[:3])
        .groupBy(*keys)
        .agg(f.count("*").alias("in_archive"), f.first("hash").alias("archive_hash"))
    )
    both = here.join(there, keys, "full")
    what = (
        f.when(f.col("in_archive").isNull(), "not in the archive")
        .when(f.col("in_log").isNull(), "not in the log")
        .when(f.col("in_archive") > 1, "more than once in the archive")
        .when(f.col("log_hash") != f.col("archive_hash"), "not the same")
    )
    number = f.row_number().over(Window.partitionBy(*keys[:3]).orderBy("offset"))
    differing = both.withColumn("what", what).where("what is not null").withColumn("number", number)
    rows = differing.where(f.col("number") <= SHOWN_MAX).orderBy("queue", "partition", "offset").collect()
    return [Difference(row.queue, row.partition, row.offset, row.what) for row in rows]


def check_files(out: Path, files: Sequence[File], spread: Spread[File]) -> list[str]:
    """Problems with files of the archive."""
    return [problem.decode() for problem in spread(files, lambda file: _check_file(out, file))]


def _check_file(out: Path, file: File) -> Iterator[bytes]:
    try:
        rows = read_whole(out, file).num_rows
    except FileNotFoundError:
        yield f"{file.path} is missing".encode()
    except (Damaged, pa.ArrowException) as error:
        yield str(error).encode()
    else:
        if rows != file.rows:
            yield f"{file.path} has {rows} rows, not {file.rows}".encode()


def contradictions(manifest: Manifest) -> list[str]:
    """Partitions of which the files hold more messages than there are offsets: some are there twice."""
    rows: dict[tuple[str, int, str], int] = {}
    for file in manifest.files:
        for part in file.parts:
            key = (file.queue, file.incarnation, part.partition)
            rows[key] = rows.get(key, 0) + part.rows
    return [
        f"queue {queue!r}, partition {partition!r}: {count} rows for fewer offsets"
        for (queue, incarnation, partition), count in sorted(rows.items())
        if count > sum(end - first for first, end in manifest.ranges_of(queue, incarnation, partition))
    ]


def verify(run: Run, moment: Moment, archive: Archive, queues: Sequence[str]) -> int:
    """Compare all messages that both have and count them; `Damaged` names those that differ."""
    files = [file for file in archive.manifest.files if file.queue in queues]
    wrong = contradictions(archive.manifest) + check_files(archive.out, files, on_executors(run.spark))
    if wrong:
        raise Damaged(f"archive: {'; '.join(wrong)}", hint="restore these files from a backup")
    ranges = both_have(moment, archive.manifest, queues)
    if not ranges:
        return 0
    alive = {(name, moment.queue(name).incarnation) for name in queues}
    files = [file for file in files if (file.queue, file.incarnation) in alive]
    log = hashed(within(run.messages(queues=queues), ranges))
    archived = hashed(within(messages(run.spark, archive.out, files), ranges))
    in_log, in_archive = sums(log, archived)
    buckets = differing(in_log, in_archive)
    if buckets:
        different = differences(log, archived, buckets[:BUCKETS_MAX])
        shown = "; ".join(f"{item.queue}/{item.partition}/{item.offset} is {item.what}" for item in different)
        raise Damaged(f"archive and log differ: {shown}", hint="the log is right: archive to another directory")
    return sum(bucket.rows for bucket in in_log.values())
