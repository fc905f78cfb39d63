"""The messages of a replay: which are selected, what they look like afterwards, and how they are pushed once.

All at once, a replay is one batch of the sink, known by the replay's id. With a rate, the messages are first written in
order to files of the replay; then portions of them are committed one after the other, numbered, as batches of one sink.
A replay that continues asks the queue which portion was the last.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from penstock import limits
from penstock import operations as ops
from penstock.clock import Clock
from penstock.errors import InvalidField
from penstock.requests import SinkCommit
from penstock.spark import functions as f
from penstock.spark.failures import query_error
from penstock.spark.pipelines.frames import match
from penstock.spark.sink_columns import batches_of
from penstock.spark.staging import Target

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


ORIGIN: Final = "penstock-replayed-from"  # header: the id of the message that was replayed
ORDER: Final = ("pushed_at", "queue", "partition", "offset")  # the order in which messages are replayed

_PARTITIONS: Final = "queue string, partition string, {} bigint"

Places = Mapping[tuple[str, str], int]  # (queue, partition): an offset


def after(live: DataFrame, ends: Places) -> DataFrame:
    """The messages of the log that an archive does not cover; `ends` is where it ends."""
    if not ends:
        return live
    rows = [(queue, partition, end) for (queue, partition), end in ends.items()]
    covered = live.sparkSession.createDataFrame(rows, _PARTITIONS.format("covered_end"))
    joined = live.join(f.broadcast(covered), ["queue", "partition"], "left")
    kept = joined.where(f.col("covered_end").isNull() | (f.col("offset") >= f.col("covered_end")))
    return kept.select(*live.columns)


def matching(messages: DataFrame, where: str | None, keys: Sequence[str]) -> DataFrame:
    """The messages that a condition in SQL holds for, and that have one of some keys."""
    from pyspark.errors import PySparkException

    if keys:
        messages = messages.where(f.col("key").isin(*keys))
    if where is None:
        return messages
    try:
        return messages.where(where)
    except PySparkException as error:
        hint = "columns: " + ", ".join(messages.columns) + "; a payload is bytes: cast(payload as string)"
        raise InvalidField(f"where: {where!r} is not understood: {query_error(str(error))}", hint=hint) from None


def unacked(messages: DataFrame, events: DataFrame, group: str, starts: Places) -> DataFrame:
    """The messages that a group has not acknowledged.

    `starts` is where the log starts: of what is older there are no events, and it was settled by every group, or else
    retention would have kept it. So it is left out.
    """
    acked = events.where((f.col("group") == group) & (f.col("outcome") == "acked"))
    if starts:
        rows = [(queue, partition, start) for (queue, partition), start in starts.items()]
        begun = messages.sparkSession.createDataFrame(rows, _PARTITIONS.format("start_offset"))
        joined = messages.join(f.broadcast(begun), ["queue", "partition"], "left")
        kept = joined.where(f.col("offset") >= f.coalesce("start_offset", f.lit(0)))
        messages = kept.select(*messages.columns)
    return match(messages, acked, "left_anti")


def replayed(messages: DataFrame, *, keep_partition: bool = False) -> DataFrame:
    """The messages as they are pushed: a header tells where each came from; when and whether to deliver is left out."""
    headers = f.map_concat(_other_headers(), f.create_map(f.lit(ORIGIN), id_of()))
    columns = ["payload", "key", "priority", "content_type", "trace_id", "max_attempts"]
    if keep_partition:
        columns.append("partition")
    return messages.select(*columns, headers.alias("headers"))


def id_of() -> Column:
    """The id of a message."""
    return f.concat_ws("/", "queue", "partition", f.col("offset").cast("string"))


def _other_headers() -> Column:
    """The headers without our own, which a message that is replayed again has already."""
    none = f.create_map().cast("map<string,string>")
    return f.map_filter(f.coalesce("headers", none), lambda name, _: name != ORIGIN)


MESSAGES: Final = "messages"
PORTION_MAX: Final = 10_000  # messages
PORTION_BYTES: Final = 16 * limits.MIB
READ_ROWS: Final = 1_000

OnProgress = Callable[[int], None]  # how many messages are pushed by now


def push_at_once(messages: DataFrame, url: str, to: str, id: str) -> None:
    """One batch with everything."""
    writing = messages.write.format("penstock").option("url", url).option("jobId", sink_of(id))
    writing.mode("append").save(to)


def prepare(selected: DataFrame, folder: Path, *, keep_partition: bool) -> None:
    """Put the messages, in order, into files."""
    ordered = replayed(selected.orderBy(*ORDER), keep_partition=keep_partition)
    ordered.write.mode("overwrite").parquet(str((folder / MESSAGES).absolute()))


def push_in_portions(
    folder: Path, target: Target, id: str, rows_max: int, pacer: Pacer, on_progress: OnProgress = lambda count: None
) -> int:
    """Push what was prepared, at the rate of the pacer. Returns how many messages there are."""
    sink = sink_of(id)
    target.prepare()
    last = _last(target, sink)
    count = 0
    for number, portion in enumerate(portions(folder / MESSAGES, rows_max), start=1):
        count += portion.num_rows
        if number <= last:
            continue
        pacer.wait()
        columns = tuple(portion.column_names)
        staged, _ = target.stage(sink, 0, batches_of(portion.to_batches(), columns))
        target.commit(SinkCommit(target.queue, sink, number, tuple(staged)))
        pacer.sent(portion.num_rows)
        on_progress(count)
    return count


def prepared_count(folder: Path) -> int:
    """How many messages were prepared."""
    return sum(pq.read_metadata(path).num_rows for path in (folder / MESSAGES).glob("part-*.parquet"))


def forget(folder: Path) -> None:
    """Remove the files of a replay that has ended."""
    shutil.rmtree(folder / MESSAGES, ignore_errors=True)


def sink_of(id: str) -> str:
    """The name by which the queue knows a replay."""
    return f"replay:{id}"


def portion_rows(per_second: float) -> int:
    """About a second's worth of messages."""
    return max(1, min(PORTION_MAX, int(per_second)))


def portions(folder: Path, rows_max: int, bytes_max: int = PORTION_BYTES) -> Iterator[pa.Table]:
    """What was prepared, in order: the same portions every time it is read with the same limits."""
    gathered: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in _batches(folder):
        while batch.num_rows:
            part = batch.slice(0, rows_max - rows)
            batch = batch.slice(part.num_rows)
            gathered.append(part)
            rows += part.num_rows
            size += part.nbytes
            if rows == rows_max or size >= bytes_max:
                yield pa.Table.from_batches(gathered)
                gathered, rows, size = [], 0, 0
    if gathered:
        yield pa.Table.from_batches(gathered)


def _batches(folder: Path) -> Iterator[pa.RecordBatch]:
    # Spark numbers its files in the order of the rows.
    for path in sorted(folder.glob("part-*.parquet")):
        with pq.ParquetFile(path) as file:
            yield from file.iter_batches(READ_ROWS)


def _last(target: Target, sink: str) -> int:
    with target.session() as session:
        state = session.execute(ops.GetSinkState(target.queue, sink))
    return int(state.batch)


class Pacer:
    """Waits so that no more than `per_second` messages a second are sent."""

    def __init__(self, per_second: float, clock: Clock, pause: Callable[[float], Any] | None = None) -> None:
        self._per_second = per_second
        self._clock = clock
        self._pause = pause or threading.Event().wait
        self._next_at: float | None = None  # monotonic µs

    def wait(self) -> None:
        """Wait until the next messages may be sent."""
        if self._next_at is not None and (early := self._next_at - self._clock.monotonic()) > 0:
            self._pause(early / 1e6)

    def sent(self, count: int) -> None:
        """Account for `count` messages that were just sent."""
        now = self._clock.monotonic()
        # What was late is not made up for: the rate is a limit at every moment.
        self._next_at = max(self._next_at or now, now) + count / self._per_second * 1e6
