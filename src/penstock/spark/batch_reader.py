"""Reading a table in one go: planned in the driver, read by tasks as Arrow batches.

Planning looks at one moment of the history and opens no file of messages. A task gets slices, a few large lots of them:
each task costs Spark some 50 ms, whatever it reads. Readers are pickled to the tasks, so they hold plain values only
and open the history where they read. Spark refuses a batch whose schema differs from its own, even if it is only wider,
so `Shaper` gives batches exactly the types of the schema.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.history import History, Limits, Slice, open_history, pack
from penstock.history.history import CONNECT_SECONDS
from penstock.spark import failures, ranges
from penstock.spark.json_payload import Parser, texts
from penstock.spark.location import open_planned
from penstock.spark.options import SourceOptions, source_options
from penstock.spark.schema import CORRUPT, Layout, layout

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class Shaper:
    """Turns batches of `needed` columns into batches of a schema."""

    def __init__(self, shape: Layout, schema: StructType) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._shape = shape
        self._parser = self._json_parser()
        stored = ("payload" if name == CORRUPT else name for name in shape.names)
        self.needed = list(dict.fromkeys(stored))

    def shaped(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = {name: batch.column(name) for name in self.needed}
        if self._parser is not None:
            columns["payload"], columns[CORRUPT] = self._parser.parse(columns["payload"])
        elif "payload" in columns and self._shape.payload == "string":
            columns["payload"] = texts(columns["payload"])
        arrays = [_typed(columns[field.name], field.type) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _json_parser(self) -> Parser | None:
        names = self._shape.names
        if self._shape.table != "messages" or self._shape.payload != "json":
            return None
        if "payload" in names:
            return Parser(self._schema.field("payload").type)
        # Without the payload there is still the question whether it is JSON at all.
        return Parser(pa.struct([])) if CORRUPT in names else None


def _typed(array: Any, kind: pa.DataType) -> Any:
    """As this type. A map is stored as a list of pairs, and becomes one without being touched."""
    return array if array.type.equals(kind) else array.cast(kind)


LOT_BYTES_MIN: Final = 8 * 2**20  # less is not worth a task of its own

logger: Final = logging.getLogger("penstock.spark")


def reader(options: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """The reader for a schema.

    It takes no filters: Spark keeps the plan of a filtered query in the DataFrame and uses it for the next one.
    """
    parsed = source_options(options)
    return BatchReader(parsed, layout(parsed, schema), schema)


class Lot(InputPartition):
    """Work for one task, and the id of the shard that it was planned on."""

    def __init__(self, value: Any, shard: str) -> None:
        super().__init__(value)
        self.shard = shard


class BatchReader(DataSourceReader):
    """Plans in the driver, reads in the tasks."""

    def __init__(self, options: SourceOptions, shape: Layout, schema: StructType) -> None:
        self.options = options
        self.shape = shape
        self.schema = schema

    @failures.shown_plainly
    def partitions(self) -> Sequence[InputPartition]:
        """One for each lot of slices."""
        with planned(self.options) as (history, slices):
            if not slices:
                return [InputPartition(None)]
            _hold(history, slices)
            shard = history.identity
        return [Lot(tuple(lot), shard) for lot in lots(slices, self.options.partition_bytes_max)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one lot."""
        shard = partition.shard if isinstance(partition, Lot) else ""
        return read_slices(self.options, self.shape, self.schema, partition.value or (), shard)


@contextmanager
def planned(options: SourceOptions) -> Iterator[tuple[History, Sequence[Slice]]]:
    """The history at a url, and the slices to read: planned now, or before (`options.slices`)."""
    with closing(open_history(options.url, local=options.is_local)) as history:
        yield history, _plan(history, options) if options.slices is None else options.slices


def _plan(history: History, options: SourceOptions) -> list[Slice]:
    moment = history.look()
    limits = Limits(options.since, options.until)
    if options.table == "messages":
        slices = history.plan(moment, ranges.requested(moment, options), limits)
    else:
        names = [view.name for view in ranges.chosen(moment, options.queues)]
        slices = history.plan_changes(moment, options.table, names, limits)
    if options.part != "all":
        slices = [part for part in slices if part.is_tail == (options.part == "tail")]
    return slices


@failures.shown_plainly
def read_slices(
    options: SourceOptions, shape: Layout, schema: StructType, slices: Sequence[Slice], shard: str
) -> Iterator[pa.RecordBatch]:
    """In a task: slices as batches of exactly the schema."""
    return failures.shown_rows(_read(options, shape, schema, slices, shard))


def _read(
    options: SourceOptions, shape: Layout, schema: StructType, slices: Sequence[Slice], shard: str
) -> Iterator[pa.RecordBatch]:
    if slices:
        shaper = Shaper(shape, schema)
        yield from map(shaper.shaped, read_planned(options, shard, slices, shaper.needed))


def read_planned(
    options: SourceOptions,
    shard: str,
    slices: Sequence[Slice],
    columns: Sequence[str],
    connect_seconds: float = CONNECT_SECONDS,
) -> Iterator[pa.RecordBatch]:
    """In a task: the batches of some slices. Messages that retention has removed meanwhile are logged, or an error."""
    with closing(open_planned(options.url, shard, local=options.is_local, connect_seconds=connect_seconds)) as history:
        history.skips_lost = not options.fail_on_data_loss
        for batch in history.read(slices, columns):
            if batch.num_rows:
                yield batch
        for lost in history.lost:
            what = f"offsets {lost.first} to {lost.end - 1} of {lost.queue}/{lost.partition}"
            logger.warning("%s were removed by retention before they were read, and are skipped", what)


def lots(slices: Sequence[Slice], bytes_max: int) -> list[list[Slice]]:
    """Work for the tasks: a lot for every core while there is little, then lots of `bytes_max`."""
    total = sum(part.bytes for part in slices)
    return pack(slices, min(bytes_max, max(LOT_BYTES_MIN, -(-total // (os.cpu_count() or 1)))))


def _hold(history: History, slices: Sequence[Slice]) -> None:
    """Pin the files until the tasks pin them themselves; a pin expires by itself."""
    files = sorted({part.file for part in slices if not part.is_tail})
    if files:
        history.files.pin(f"spark-{secrets.token_hex(8)}", history.clock.now(), files)
