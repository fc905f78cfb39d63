"""DataFrame functions that several pipelines share: joining messages with events, samples.

Events are runs of offsets; messages are single ones. Joining them by "offset between first and last" would compare
everything with everything, so both are cut into stretches of offsets first and joined by the stretch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from penstock.spark import functions as f

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

STRETCH_BITS: Final = 10  # 1,024 offsets


def match(messages: DataFrame, events: DataFrame, how: str, columns: Sequence[str] = ()) -> DataFrame:
    """Messages joined with the events about them; `columns` of the events come along.

    `how` is that of Spark's join: `inner` and `left` give a row for every event, `left_semi` and `left_anti` the
    messages that have some or none.
    """
    stretches = f.sequence(_stretch("first_offset"), _stretch("last_offset"))
    runs = events.select(
        f.col("queue").alias("_queue"),
        f.col("partition").alias("_partition"),
        f.col("first_offset").alias("_first"),
        f.col("last_offset").alias("_last"),
        f.explode(stretches).alias("_run_stretch"),
        *columns,
    )
    is_about = (
        (f.col("queue") == f.col("_queue"))
        & (f.col("partition") == f.col("_partition"))
        & (f.col("_stretch") == f.col("_run_stretch"))
        & f.col("offset").between(f.col("_first"), f.col("_last"))
    )
    joined = messages.withColumn("_stretch", _stretch("offset")).join(runs, is_about, how)
    return joined.drop("_queue", "_partition", "_first", "_last", "_run_stretch", "_stretch")


def sampled(messages: DataFrame, share: float | Column) -> DataFrame:
    """A share of the messages, always the same ones."""
    buckets = 1_000_000
    bucket = f.pmod(f.xxhash64("queue", "partition", "offset"), f.lit(buckets))
    return messages.where(bucket < share * f.lit(buckets))


@contextmanager
def persisted(table: DataFrame) -> Iterator[DataFrame]:
    """A table that is read several times, kept by Spark for the block."""
    table.persist()
    try:
        yield table
    finally:
        table.unpersist()


def _stretch(name: str) -> Column:
    return f.shiftright(f.col(name), STRETCH_BITS)
