"""The pipeline `archive`: queues as Parquet files by queue and day, which stay when retention has removed the messages.

    <out>/queue=<name>/date=<YYYY-MM-DD>/….parquet     all columns of messages, sorted by partition and offset
    <out>/_penstock/archive.json                       which files count, and which offsets they cover

A run copies what is new since the last one, in rounds. In a round the executors write the messages of some new offsets
to the stage, and the archive takes the files in one step. A run may die at any moment: the next one continues after the
last round, without a gap and without copying anything twice (`archive_store.py` says why). Progress is also committed
as the group `archive` of each queue: for people to see, and for retention to wait for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import msgspec
import pyarrow as pa

from penstock import limits
from penstock.clock import SystemClock
from penstock.errors import Damaged, InvalidField, PenstockError, StorageError
from penstock.history import History, Moment, OffsetRange, QueueView, Slice, absolute_url, open_history, pack
from penstock.model import ARCHIVE_GROUP, DLQ_SUFFIX
from penstock.spark import functions as f
from penstock.spark import schema
from penstock.spark.location import Location, move_group, open_planned
from penstock.spark.pipelines.archive_files import (
    COLUMNS,
    Spread,
    join,
    on_executors,
    read_whole,
    small_files,
    task_slots,
    write_files,
)
from penstock.spark.pipelines.archive_store import Archive, File, Manifest, Range, messages, names_like, read_archive
from penstock.spark.pipelines.base import Options, Pipeline, Report, Run, Table
from penstock.units import plural

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.spark.pipelines.base import Run


__all__ = ["PIPELINE", "ArchiveOptions", "read_archive", "run"]


class ArchiveOptions(Options, frozen=True, kw_only=True):
    """Options of `archive`."""

    compact: Annotated[bool, msgspec.Meta(description="Merge the small files of a day into large ones.")] = False
    verify: Annotated[bool, msgspec.Meta(description="Verify that archive and log are identical.")] = False
    commit: Annotated[
        bool, msgspec.Meta(description="Record progress as the group 'archive', for retention_until_archived.")
    ] = True


class _Done(msgspec.Struct):
    """The results of a run so far."""

    new: NewMessages
    files: list[File] = []
    joined: list[File] = []
    verified: int = 0
    seconds: float = 0.0
    notes: list[str] = []


def check(run: Run) -> None:
    """Refuse what would make gaps."""
    if run.since is not None or run.until is not None:
        hint = "omit --since and --until: each run continues where the last one ended"
        raise InvalidField("since, until: an archive must not have gaps", hint=hint)


def run(run: Run) -> Report:
    """Copy what is new; then join small files and verify, as the options say."""
    clock = SystemClock()
    # Tasks may run in other directories than this process.
    archive, url = Archive(run.out.absolute()), absolute_url(run.url)
    left = archive.open(clock.now())
    history = open_history(url)
    try:
        archive.claim(history.identity)
        moment = history.look()
        queues = names_like(moment.queues, run.queues, run.url)
        done = _Done(new_messages(moment, archive.manifest, queues))
        if left:
            done.notes.append(f"removed {plural(len(left), 'file')} left over from an interrupted run")
        begun = clock.monotonic()
        _copy(run, Copier(archive, url, history, on_executors(run.spark), task_slots(run.spark)), moment, done)
        done.seconds = (clock.monotonic() - begun) / 1e6
        if run.options.compact:
            _join(run, archive, done, clock.now())
        if run.options.verify:
            run.progress.step("comparing with the log")
            done.verified = verify(run, moment, archive, queues)
    finally:
        history.close()
    if run.options.commit:
        run.progress.step("committing progress")
        done.notes += commit_progress(url, moment, archive.manifest, queues)
    return _report(run, archive, done)


def _copy(run: Run, copier: Copier, moment: Moment, done: _Done) -> None:
    copied = 0
    for share in copier.rounds(moment, done.new.ranges):
        run.progress.step("archiving", copied, done.new.messages)
        done.files += copier.copy(moment, share)
        copied += sum(item.end - item.first for item in share)


def _join(run: Run, archive: Archive, done: _Done, now: int) -> None:
    lots = small_files(archive.manifest)
    if lots:
        run.progress.step("merging small files")
        done.joined = join(archive, lots, on_executors(run.spark), now)
        count = sum(map(len, lots))
        done.notes.append(
            f"merged {plural(count, 'file')} into {len(done.joined)}; "
            "the old files are kept in _penstock/replaced for an hour"
        )


def _report(run: Run, archive: Archive, done: _Done) -> Report:
    rows = sum(file.rows for file in done.files)
    notes = [*(_lost(item) for item in done.new.lost), *done.notes]
    figures = {
        "messages_archived": rows,
        "messages_in_archive": sum(file.rows for file in archive.manifest.files),
        "files_in_archive": len(archive.manifest.files),
        "bytes_in_archive": sum(file.bytes for file in archive.manifest.files),
    }
    if rows:
        figures["messages_per_second"] = round(rows / max(done.seconds, 1e-6))
    summary = "nothing new to archive"
    if rows:
        summary = f"archived {plural(rows, 'new message')} in {plural(len(done.files), 'file')}"
    if done.verified:
        figures["messages_proved"] = done.verified
        summary += f"; verified {plural(done.verified, 'message')}: archive and log are identical"
    return Report(
        summary=summary,
        figures=figures,
        tables=[_by_queue(archive)],
        files=[str(run.out / file.path) for file in done.joined or done.files],
        notes=notes,
    )


def _by_queue(archive: Archive) -> Table:
    rows = []
    for queue in sorted(archive.manifest.covered):
        files = [file for file in archive.manifest.files if file.queue == queue]
        dates = sorted({file.date for file in files}) or [""]
        size = sum(file.bytes for file in files)
        rows.append((queue, sum(file.rows for file in files), len(files), size, dates[0], dates[-1]))
    return Table("the archive", ("queue", "messages", "files", "bytes", "from", "to"), rows)


def _lost(item: OffsetRange) -> str:
    return (
        f"queue {item.queue!r}, partition {item.partition!r}: retention removed offsets {item.first} to "
        f"{item.end - 1} before they were archived; set retention_until_archived=True to prevent this"
    )


# progress


def commit_progress(url: str, moment: Moment, manifest: Manifest, queues: Sequence[str]) -> list[str]:
    """Move the group of each queue to where the archive ends. Returns notes about what failed."""
    offsets = {name: ends_of(moment.queue(name), manifest) for name in queues if not name.endswith(DLQ_SUFFIX)}
    try:
        with Location(url).handle() as handle:
            for name, ends in offsets.items():
                if ends:
                    move_group(handle, name, ARCHIVE_GROUP, ends)
    except PenstockError as error:
        return [f"progress was not committed: {error}"]
    return []


def ends_of(queue: QueueView, manifest: Manifest) -> dict[str, int]:
    """The end of the archive in each partition that it covers."""
    ends = {name: manifest.end_of(queue.name, queue.incarnation, name) for name in queue.partitions}
    return {name: end for name, end in ends.items() if end}


# copying


ROUND_BYTES: Final = 4 * limits.GIB
LOT_BYTES: Final = 128 * limits.MIB  # of a task
LOT_BYTES_MIN: Final = 8 * limits.MIB  # smaller lots would make small files


class NewMessages(NamedTuple):
    """Messages that are to be archived, and those that are lost."""

    ranges: list[OffsetRange]
    lost: list[OffsetRange]  # removed by retention before they were archived

    @property
    def messages(self) -> int:
        return sum(item.end - item.first for item in self.ranges)


def new_messages(moment: Moment, manifest: Manifest, queues: Sequence[str]) -> NewMessages:
    """The offsets of some queues that the log has and the archive has not."""
    new = NewMessages([], [])
    for name in queues:
        queue = moment.queue(name)
        for partition in queue.partitions.values():
            end = manifest.end_of(name, queue.incarnation, partition.name)
            if end and end < partition.start:
                new.lost.append(OffsetRange(name, partition.name, end, partition.start))
            first = max(end, partition.start)
            if first < partition.end:
                new.ranges.append(OffsetRange(name, partition.name, first, partition.end))
    return new


def rounds(requested: Sequence[OffsetRange], messages_max: int) -> Iterator[list[OffsetRange]]:
    """The requested ranges in order, in shares of at most `messages_max` messages."""
    share: list[OffsetRange] = []
    room = messages_max
    for item in requested:
        first = item.first
        while first < item.end:
            if room == 0:
                yield share
                share, room = [], messages_max
            end = min(item.end, first + room)
            share.append(OffsetRange(item.queue, item.partition, first, end))
            room -= end - first
            first = end
    if share:
        yield share


class Copier:
    """Copies messages of a shard to an archive."""

    def __init__(
        self, archive: Archive, url: str, history: History, spread: Spread[Sequence[Slice]], tasks: int
    ) -> None:
        self._archive = archive
        self._url = url
        self._history = history
        self._spread = spread
        self._tasks = tasks  # that run at once

    def rounds(self, moment: Moment, requested: Sequence[OffsetRange]) -> Iterator[list[OffsetRange]]:
        """Shares of about `ROUND_BYTES` each, by the average size of a message."""
        slices = self._history.plan(moment, requested)
        bytes_each = max(1, sum(part.bytes for part in slices)) / max(1, sum(part.rows for part in slices))
        return rounds(requested, max(1, int(ROUND_BYTES / bytes_each)))

    def copy(self, moment: Moment, share: Sequence[OffsetRange]) -> list[File]:
        """Archive one share."""
        slices = self._history.plan(moment, share)
        size = sum(part.bytes for part in slices) // self._tasks
        lots = pack(slices, max(LOT_BYTES_MIN, min(LOT_BYTES, size)))
        url, stage = self._url, self._archive.stage
        staged = self._spread(lots, lambda lot: stage_messages(url, lot, stage))
        files = [msgspec.json.decode(result, type=File) for result in staged]
        covered = {
            (item.queue, moment.queue(item.queue).incarnation, item.partition): (item.first, item.end) for item in share
        }
        _check(files, sum(part.rows for part in slices), covered)
        return self._archive.add(sorted(files, key=_order), covered)


def stage_messages(url: str, slices: Sequence[Slice], stage: Path) -> Iterator[bytes]:
    """On an executor: write the messages of some slices to the stage; yields a `File` as JSON for each."""
    with closing(open_planned(url)) as history:
        for file in write_files(history.read(slices, COLUMNS), stage):
            yield msgspec.json.encode(file)


def _order(file: File) -> tuple[str, str, list[tuple[str, int]]]:
    return file.queue, file.date, [(part.partition, part.first) for part in file.parts]


def _check(files: Sequence[File], rows: int, covered: Mapping[tuple[str, int, str], Range]) -> None:
    """Check that the files hold exactly what was planned: as many rows, and no offset outside of the share."""
    stray = [
        (file.queue, part)
        for file in files
        for part in file.parts
        for first, end in [covered.get((file.queue, file.incarnation, part.partition), (0, 0))]
        if part.first < first or part.end > end
    ]
    if stray or sum(file.rows for file in files) != rows:
        hint = "nothing was archived in this round: run it again, and run `penstock verify` if it fails again"
        raise StorageError(
            f"the log returned different messages than planned ({rows}) {stray[:1] or ''}".strip(), hint=hint
        )


# Verifying that every message that the log and the archive both hold is the same in both.
#
# Each message is reduced to a hash of all its columns, and a bucket of offsets to the number of messages and sums of
# their hashes, which do not depend on the order of rows. Single messages are compared only where buckets differ.


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
    rest = [f.col(name) for name in schema.COLUMNS["messages"] if name not in ("queue", "partition", "headers")]
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
        raise Damaged(f"archive and log differ: {shown}", hint="the log is correct: archive to another directory")
    return sum(bucket.rows for bucket in in_log.values())


EXPLANATION: Final = """\
Copies the messages of queues to Parquet files, one directory per queue and day. The files have all columns of the
messages table, sorted by partition and offset, with times in µs and zstd compression. Each run copies the messages that
are new since the last run, even if that run failed.

Progress is recorded as the group 'archive' of each queue. With the queue option retention_until_archived, retention
removes only messages that this group has passed.

--compact merges the small files that frequent runs create. --verify compares every message that is still in the log
with the archive, and the files of the archive with their checksums. A difference is an error that names the offsets.
"""

PIPELINE: Final = Pipeline(
    name="archive",
    summary="Copy queues to Parquet files by queue and day, to keep messages that retention removes.",
    explanation=EXPLANATION,
    options=ArchiveOptions,
    run=run,
    check=check,
)
