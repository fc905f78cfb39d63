"""The sink: batches and streams written to a queue, exactly once.

Tasks build batches of their rows and stage them; nothing is in the queue until the driver commits, and a batch that is
committed again, after a crash or by a task that ran twice, is recognised by its number. A streaming query is known by
the id in its checkpoint unless `sinkId` names it; a batch write by its `jobId`, or by `sinkId` and `batchId` as one of
many; one without any is a job of its own.

Spark gives a sink written in Python only what the output mode `append` emits. For the other modes `stream_to` writes
each micro-batch by itself, under the query's id and the batch's number, with the same result.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage

from penstock.errors import InvalidField, PenstockError
from penstock.model import check_name
from penstock.requests import SinkCommit
from penstock.spark.failures import shown_plainly
from penstock.spark.options import SinkOptions, sink_options
from penstock.spark.staging import Target, batches_of, check_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import Row, StructType


ROWS: Final = 10_000  # that are made into one record batch where Spark gives rows

# Spark 4.0 has no writer of streams that is given Arrow.
_ARROW_STREAMS: Final = hasattr(datasource, "DataSourceStreamArrowWriter")
_StreamArrowWriter: Any = getattr(datasource, "DataSourceStreamArrowWriter", DataSourceStreamWriter)


@dataclass
class StagedMessages(WriterCommitMessage):
    """The files that a task has staged."""

    names: list[str] = field(default_factory=list)
    rows: int = 0


class Sink(msgspec.Struct, frozen=True):
    """The work of every kind of writer: stage, commit, abort. It is pickled to every task."""

    target: Target
    columns: tuple[str, ...]
    name: str
    origin: str = ""
    is_reset: bool = False
    is_once: bool = False

    def stage(self, arrived: Iterator[pa.RecordBatch]) -> StagedMessages:
        context = TaskContext.get()
        task = context.partitionId() if context is not None else 0
        return StagedMessages(*self.target.stage(self.name, task, batches_of(arrived, self.columns)))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
        staged = tuple(_names(messages))
        self.target.commit(
            SinkCommit(self.target.queue, self.name, batch, staged, self.origin, self.is_reset, self.is_once)
        )

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        # What is left goes with the sink's next commit, or when it is old; the error that led here is the one to show.
        with suppress(PenstockError):
            # A name that is used once says whose files these are, also those of tasks that reported nothing.
            self.target.discard(_names(messages), self.name if self.is_once else "")


class BatchWriter(DataSourceArrowWriter):
    """`df.write.format("penstock")`."""

    def __init__(self, sink: Sink, batch: int = 0) -> None:
        self._sink = sink
        self._batch = batch

    @shown_plainly
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._sink.stage(iterator)

    @shown_plainly
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._sink.commit(messages, self._batch)

    @shown_plainly
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._sink.abort(messages)


class StreamWriter(_StreamArrowWriter):  # type: ignore[misc] # which it is depends on Spark's version
    """`df.writeStream.format("penstock")`."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    @shown_plainly
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._sink.stage(iterator)

    @shown_plainly
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        self._sink.commit(messages, batchId)

    @shown_plainly
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        self._sink.abort(messages)


class RowStreamWriter(StreamWriter):
    """`StreamWriter` for versions of Spark that pass rows instead of Arrow batches."""

    def __init__(self, sink: Sink, schema: StructType) -> None:
        super().__init__(sink)
        self._schema = schema

    @shown_plainly
    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        return self._sink.stage(record_batches(iterator, self._schema))


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """For a batch write."""
    parsed, target, columns = _checked(options, schema, overwrite)
    if parsed.batch_id is not None:
        return BatchWriter(_named_sink(parsed, target, columns), parsed.batch_id)
    if parsed.sink_id is not None:
        raise InvalidField("sinkId: needs batchId too in a batch write", hint="set jobId for a job that may run again")
    if parsed.job_id is not None:
        return BatchWriter(Sink(target, columns, f"job:{_text(parsed.job_id, 'jobId')}", "", parsed.is_reset))
    return BatchWriter(Sink(target, columns, f"once:{uuid.uuid4().hex}", is_once=True))


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """For a streaming query."""
    parsed, target, columns = _checked(options, schema, overwrite)
    for option, value in (("jobId", parsed.job_id), ("batchId", parsed.batch_id)):
        if value is not None:
            raise InvalidField(f"{option}: a stream numbers its batches itself", hint="set sinkId instead")
    sink = _named_sink(parsed, target, columns)
    return StreamWriter(sink) if _ARROW_STREAMS else RowStreamWriter(sink, schema)


def _named_sink(options: SinkOptions, target: Target, columns: tuple[str, ...]) -> Sink:
    """The sink of a query, by the name that it was given or by the id in its checkpoint."""
    origin = query_id(options.checkpoint_location)
    name = _text(options.sink_id, "sinkId") if options.sink_id is not None else origin
    if not name:
        where = f"in {options.checkpoint_location}" if options.checkpoint_location else "without checkpointLocation"
        raise InvalidField(
            f"sinkId: missing, and the query has no id that can be read {where}",
            hint="option('checkpointLocation', a directory of this machine), or name the sink: option('sinkId', …)",
        )
    return Sink(target, columns, name, origin, options.is_reset)


def query_id(checkpoint: str | None) -> str:
    """The id that Spark keeps in the checkpoint of a query; "" when there is none that we can read."""
    if not checkpoint:
        return ""
    parts = urlsplit(checkpoint)
    if parts.scheme not in ("", "file"):
        return ""
    try:
        metadata = msgspec.json.decode((Path(parts.path) / "metadata").read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError):
        return ""
    return str(metadata.get("id", ""))


def record_batches(rows: Iterator[Row], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Rows as record batches."""
    from pyspark.sql.pandas.types import to_arrow_schema

    arrow, gathered = to_arrow_schema(schema), []
    for row in rows:
        gathered.append(row.asDict(recursive=True))
        if len(gathered) == ROWS:
            yield pa.RecordBatch.from_pylist(gathered, arrow)
            gathered = []
    if gathered:
        yield pa.RecordBatch.from_pylist(gathered, arrow)


def _checked(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> tuple[SinkOptions, Target, tuple[str, ...]]:
    if overwrite:
        raise InvalidField(
            "mode: overwrite is not supported", hint="use append; purge the queue first to replace its messages"
        )
    parsed = sink_options(options)
    columns = check_columns(schema)
    target = Target(parsed.url, check_name(parsed.queue))
    target.prepare()
    return parsed, target, columns


def _text(value: str, option: str) -> str:
    if not value:
        raise InvalidField(f"{option}: it is empty")
    return value


def _names(messages: Sequence[WriterCommitMessage | None]) -> list[str]:
    # Of tasks that failed there is no message.
    return [name for message in messages if isinstance(message, StagedMessages) for name in message.names]


def stream_to(
    frame: DataFrame, url: str, queue: str, *, checkpoint: Path | str, mode: str = "append", sink_id: str | None = None
) -> DataStreamWriter:
    """Return a stream writer from `frame` to a queue; add a trigger and start it."""
    writer = frame.writeStream.outputMode(mode).option("checkpointLocation", str(checkpoint))
    if mode != "append":
        return writer.foreachBatch(each_batch(url, queue, sink_id=sink_id, checkpoint=checkpoint))
    if sink_id is not None:
        writer = writer.option("sinkId", sink_id)
    return writer.format("penstock").option("url", url).option("path", queue)


def each_batch(
    url: str, queue: str, *, sink_id: str | None = None, checkpoint: Path | str | None = None
) -> Callable[[DataFrame, int], None]:
    """Return a function for `foreachBatch` that writes every batch exactly once.

    Batches are identified by the query's checkpoint or by an explicit sink id.
    """
    if sink_id is None and checkpoint is None:
        raise InvalidField("sink_id: missing", hint="set sink_id, or pass the query's checkpoint")
    options = {"url": url}
    if sink_id is not None:
        options["sinkId"] = sink_id
    if checkpoint is not None:
        options["checkpointLocation"] = str(checkpoint)

    def write(frame: DataFrame, batch: int) -> None:
        frame.write.format("penstock").options(**options, batchId=str(batch)).mode("append").save(queue)

    return write
