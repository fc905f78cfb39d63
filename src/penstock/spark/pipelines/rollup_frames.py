"""Roll-ups as functions from DataFrame to DataFrame: counts and times per minute, hour and day.

A row is about one bucket of time, queue, group and key prefix. Pushes happen to a queue and not to a group, so `pushed`
and `bytes` are in rows whose group is null; everything else is in the row of its group. So every column may be added up
over any rows. Outcomes count when the message was settled, pushes when it was pushed. `fold` is the one way in which
rows become fewer: single events become minutes, hours and days, and stored minutes too.

Times are kept as sketches: a map from bin to count, over a fixed row of bins. Neighbouring bins differ by 2 %, so a
percentile of a sketch is off by at most 1 % of itself. Sketches add up without further loss, in any order: days are
made of hours and hours of minutes. Nothing is random, so the same rows always give the same sketch.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from penstock.spark import functions as f

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

RATIO: Final = 1.02
ERROR_MAX: Final = (RATIO - 1) / (RATIO + 1)
LEAST_MS: Final = 0.001  # one µs: what is less, and what a clock that was set back made negative, counts as this
TYPE: Final = "map<int, bigint>"


def bin_of(value_ms: Column) -> Column:
    """The bin of a value; null for null."""
    return f.ceil(f.log(f.greatest(value_ms, f.lit(LEAST_MS))) / math.log(RATIO)).cast("int")


def value_of(bin_number: int) -> float:
    """The value that represents all values of this bin."""
    return float(2 / (RATIO + 1) * RATIO**bin_number)


def sketch_of(value_ms: Column, count: Column) -> Column:
    """The sketch of one value that occurs `count` times; empty when there is no value."""
    one = f.create_map(bin_of(value_ms), count.cast("bigint"))
    return f.when(value_ms.isNotNull(), one).otherwise(f.create_map()).cast(TYPE)


def percentile(sketch: Column, share: float) -> Column:
    """The value that `share` of all values do not exceed, in milliseconds; null for an empty sketch."""
    total = f.aggregate(f.map_values(sketch), f.lit(0).cast("bigint"), lambda so_far, count: so_far + count)
    # The rank travels with the sum: a column that a lambda mentions would be computed again for every bin.
    start = f.struct(
        f.lit(0).cast("bigint").alias("count"),
        f.lit(None).cast("int").alias("bin"),
        f.ceil(total * f.lit(share)).alias("rank"),
    )

    def step(seen: Column, entry: Column) -> Column:
        count = seen["count"] + entry["value"]
        is_here = seen["bin"].isNull() & (count >= seen["rank"])
        bin_here = f.when(is_here, entry["key"]).otherwise(seen["bin"])
        return f.struct(count.alias("count"), bin_here.alias("bin"), seen["rank"].alias("rank"))

    def value(seen: Column) -> Column:
        return f.round(f.lit(2 / (RATIO + 1)) * f.pow(f.lit(RATIO), seen["bin"]), 3)

    return f.aggregate(f.array_sort(f.map_entries(sketch)), start, step, value)


GRAINS: Final = ("minute", "hour", "day")
SHARES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}

# Every outcome counts in one of these columns, as the glossary has them.
OUTCOMES: Final = {
    "acked": ("acked",),
    "retried": ("retried", "timed_out", "interrupted"),
    "returned": ("released", "snoozed"),
    "dead": ("dead", "rejected"),
    "dropped": ("expired", "evicted", "cancelled", "purged", "overflowed", "skipped", "discarded", "redriven", "lost"),
}
DIMENSIONS: Final = ("queue", "group", "key_prefix")
COUNTS: Final = ("pushed", "bytes", "delivered", *OUTCOMES)
SKETCHES: Final = ("wait", "processing")
ROW: Final = ("bucket", *DIMENSIONS, *COUNTS, *(f"{name}_sketch" for name in SKETCHES))
# Events of a group that was deleted since.
NO_GROUP: Final = "(deleted)"


def prefix_of(key: Column, rule: str | None) -> Column:
    """The prefix of a key by a rule: a number of characters, or up to a delimiter; null without a rule."""
    if rule is None:
        return f.lit(None).cast("string")
    return f.substring(key, 1, int(rule)) if rule.isdigit() else f.substring_index(key, rule, 1)


def table_schema(spark: SparkSession) -> StructType:
    """The columns of a roll-up as it is stored."""
    counts = ", ".join(f"{name} bigint" for name in COUNTS)
    sketches = ", ".join(f"{name}_sketch {TYPE}" for name in SKETCHES)
    dimensions = ", ".join(f"`{name}` string" for name in DIMENSIONS)
    rows = spark.createDataFrame([], f"grain string, bucket timestamp, {dimensions}, {counts}, {sketches}")
    return with_percentiles(rows).select("*", f.current_date().alias("date")).schema


def rows_of_messages(messages: DataFrame, key_prefix: str | None = None, *also: Column) -> DataFrame:
    """One row for every message: `pushed` and `bytes` (where there is a column `payload`), and columns beside them."""
    size = f.octet_length("payload") if "payload" in messages.columns else f.lit(None)
    return _rows(
        messages,
        *also,
        bucket=f.date_trunc("minute", "pushed_at"),
        group=f.lit(None).cast("string"),
        key_prefix=prefix_of(f.col("key") if key_prefix else f.lit(None), key_prefix),
        pushed=f.lit(1),
        bytes=size,
    )


def rows_of_events(events: DataFrame, key_prefix: str | None = None) -> DataFrame:
    """One row for every event. The wait is that of first deliveries: later ones have waited for the backoff too."""
    count, is_delivery = f.col("count"), f.col("leased_at").isNotNull()
    first_wait = f.when(f.col("attempt") == 1, f.col("wait_ms"))
    counts = {name: f.when(f.col("outcome").isin(*words), count) for name, words in OUTCOMES.items()}
    return _rows(
        events,
        bucket=f.date_trunc("minute", "settled_at"),
        group=f.coalesce("group", f.lit(NO_GROUP)),
        key_prefix=prefix_of(f.col("key") if key_prefix else f.lit(None), key_prefix),
        delivered=f.when(is_delivery, count),
        wait_sketch=sketch_of(first_wait, count),
        processing_sketch=sketch_of(f.col("processing_ms"), count),
        **counts,
    )


def with_keys(events: DataFrame, messages: DataFrame) -> DataFrame:
    """Events as one row per message, with its key and its own wait."""
    single = events.withColumn("offset", f.explode(f.sequence("first_offset", "last_offset"))).drop("pushed_at")
    keys = messages.select("queue", "partition", "offset", "key", "pushed_at")
    wait = (f.unix_micros("leased_at") - f.unix_micros("pushed_at")) / f.lit(1000.0)
    joined = single.join(keys, ["queue", "partition", "offset"], "left")
    return joined.withColumn("count", f.lit(1)).withColumn("wait_ms", wait)


def fold(rows: DataFrame, *grains: str) -> DataFrame:
    """Rows of the same bucket, queue, group and key prefix added up, for each of the grains."""
    none = f.struct(f.lit(None).cast("string").alias("of"), f.lit(None).cast("int").alias("bin"), _zero("n"))
    parts = f.concat(f.array(none), *(_entries(name) for name in SKETCHES))
    single = rows.select("bucket", *DIMENSIONS, *COUNTS, f.posexplode(parts).alias("index", "part"))
    # The counts of a row go with its first part only, so that they are not added once for every bin.
    counts = [f.when(f.col("index") == 0, f.col(name)).alias(name) for name in COUNTS]
    grain = f.explode(f.array(*map(f.lit, grains))).alias("grain")
    long = single.select("bucket", *DIMENSIONS, *counts, "part.of", "part.bin", "part.n", grain)
    sums = [f.coalesce(f.sum(name), _zero(name)).alias(name) for name in COUNTS]
    same = ["grain", "bucket", *DIMENSIONS]
    bins = (
        long.withColumn("bucket", f.expr("date_trunc(grain, bucket)"))
        .groupBy(*same, "of", "bin")
        .agg(*sums, f.sum("n").alias("n"))
    )
    return bins.groupBy(*same).agg(*sums, *(_sketch(name) for name in SKETCHES))


def with_percentiles(rows: DataFrame) -> DataFrame:
    """Rows with wait_p50_ms … processing_p99_ms out of their sketches."""
    percentiles = [
        percentile(f.col(f"{name}_sketch"), share).alias(f"{name}_{label}_ms")
        for name in SKETCHES
        for label, share in SHARES.items()
    ]
    return rows.select("grain", "bucket", *DIMENSIONS, *COUNTS, *percentiles, *(f"{name}_sketch" for name in SKETCHES))


def rollup(
    messages: DataFrame, events: DataFrame, grain: str = "minute", *, key_prefix: str | None = None
) -> DataFrame:
    """The whole of it in one go: messages and events → one row per bucket, queue, group and key prefix."""
    known = with_keys(events, messages) if key_prefix else events
    rows = rows_of_messages(messages, key_prefix).unionByName(rows_of_events(known, key_prefix))
    return with_percentiles(fold(rows, grain)).drop("grain")


def _rows(frame: DataFrame, *also: Column, **known: Column) -> DataFrame:
    blank = {**{name: f.lit(None) for name in COUNTS}, **{f"{name}_sketch": f.create_map() for name in SKETCHES}}
    types = {**dict.fromkeys(COUNTS, "bigint"), **{f"{name}_sketch": TYPE for name in SKETCHES}}
    columns = {"queue": f.col("queue"), **blank, **known}
    typed = {name: column.cast(types[name]) if name in types else column for name, column in columns.items()}
    return frame.select(*(typed[name].alias(name) for name in ROW), *also)


def _zero(name: str) -> Column:
    return f.lit(0).cast("bigint").alias(name)


def _entries(name: str) -> Column:
    entries = f.map_entries(f.col(f"{name}_sketch"))
    return f.transform(
        entries, lambda entry: f.struct(f.lit(name).alias("of"), entry["key"].alias("bin"), entry["value"].alias("n"))
    )


def _sketch(name: str) -> Column:
    entry = f.when(f.col("of") == name, f.struct("bin", "n"))
    return f.map_from_entries(f.collect_list(entry)).cast(TYPE).alias(f"{name}_sketch")
