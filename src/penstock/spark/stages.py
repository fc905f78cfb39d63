"""A stage on Spark: the same functions and the same folds, over the history of its source.

The messages of a partition are folded by one task, in order of offset, with the rules of `penstock.streams`: so windows
and late messages are the same as in the stage. Windows that the watermark has not reached are left out, as they are
there. Without a window, each key has one row, its value after the last message.

The rows have the columns of the sink: write them with `format("penstock")`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, Final

from penstock.batch.fields import payload_of
from penstock.clock import SystemClock
from penstock.model import CONTENT_TYPE_NAMES
from penstock.spark import functions as f
from penstock.spark.tables import table
from penstock.streams import Element, Output, PartitionFold, Stage, value_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA: Final = "key string, payload binary, content_type string"
COLUMNS: Final = ("partition", "offset", "pushed_at", "key", "payload", "content_type")
ROWS_AT_ONCE: Final = 10_000
_KINDS: Final = {name: kind for kind, name in CONTENT_TYPE_NAMES.items()}

Row = tuple[str | None, bytes, str]


def to_spark(stage: Stage[Any], spark: SparkSession, url: str) -> DataFrame:
    """The rows that the stage would write for what its source holds now."""
    # The client of a stage stays here: only its definition is sent to the tasks.
    definition = replace(stage, stream=replace(stage.stream, runner=None))
    messages = table(spark, url, stage.stream.source, columns=COLUMNS)
    messages = messages.withColumn("pushed_at", f.unix_micros("pushed_at"))
    ordered = messages.repartition("partition").sortWithinPartitions("partition", "offset")
    now = SystemClock().now()
    return spark.createDataFrame(ordered.rdd.mapPartitions(_folder(definition, now)), SCHEMA)


def _folder(stage: Stage[Any], now: int) -> Callable[[Iterable[Any]], Iterator[Row]]:
    is_running = stage.stream.fold is not None and stage.stream.window is None

    def run(rows: Iterable[Any]) -> Iterator[Row]:
        for _, group in groupby(rows, key=lambda row: row[0]):
            fold, latest = PartitionFold(stage), dict[str | None, Output]()
            elements = (Element(value_of(bytes(row[4]), _KINDS[row[5]]), row[3], row[2]) for row in group)
            while some := list(islice(elements, ROWS_AT_ONCE)):
                outputs = fold.feed(some)
                fold.changes()  # they are stored nowhere, and need not be remembered
                if is_running:
                    latest |= {output.key: output for output in outputs}
                else:
                    yield from map(row_of, outputs)
            yield from map(row_of, latest.values())
            if stage.stream.window is not None:
                yield from map(row_of, fold.close_silent(stage.stream.window, now))

    def row_of(output: Output) -> Row:
        payload, kind = payload_of(output.payload(stage))
        return output.key, payload, CONTENT_TYPE_NAMES[kind]

    return run
