"""Rates of queues as functions from DataFrame to DataFrame: arrivals and work per hour, and what is open now.

A worker is a consumer name; consumers without one count as one worker. A worker is busy while it holds a lease: times
that overlap count once, so leasing a hundred messages to work on one after the other is not a hundred times the work.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from penstock.model import DEFAULT_GROUP
from penstock.spark.pipelines.tracing.hops import AGAIN


def arrivals(messages: DataFrame) -> DataFrame:
    """Messages pushed per queue and hour; `hour` counts from 1970."""
    hour = f.floor(f.unix_seconds("pushed_at") / 3600).alias("hour")
    return messages.groupBy("queue", hour).agg(f.count("*").alias("pushed"))


def work(events: DataFrame) -> DataFrame:
    """Per queue, group and hour: messages finished, deliveries, seconds that workers were busy, how many there were."""
    group = f.coalesce("group", f.lit(DEFAULT_GROUP)).alias("group")
    worker = f.coalesce("consumer", f.lit("")).alias("worker")
    held = events.where(f.col("leased_at").isNotNull()).select(
        "queue",
        group,
        worker,
        "count",
        "outcome",
        f.unix_micros("leased_at").alias("leased_us"),
        f.unix_micros("settled_at").alias("settled_us"),
    )
    before = Window.partitionBy("queue", "group", "worker").orderBy("leased_us", "settled_us")
    known = f.max("settled_us").over(before.rowsBetween(Window.unboundedPreceding, -1))
    begun = f.greatest("leased_us", f.coalesce(known, f.col("leased_us")))
    busy = f.greatest(f.col("settled_us") - begun, f.lit(0)) / f.lit(1e6)
    finished = f.when(~f.col("outcome").isin(*AGAIN), f.col("count")).otherwise(0)
    hour = f.floor(f.col("settled_us") / 3_600_000_000).alias("hour")
    return (
        held.withColumn("busy", busy)
        .groupBy("queue", "group", hour)
        .agg(
            f.sum(finished).alias("finished"),
            f.sum("count").alias("deliveries"),
            f.sum("busy").alias("busy_seconds"),
            f.countDistinct("worker").cast("int").alias("workers"),
            f.max("settled_us").alias("last_us"),
        )
    )


def open_messages(messages: DataFrame, events: DataFrame) -> DataFrame:
    """Messages that a group has not finished, and since when the oldest of them could have been worked on.

    A group is one that ever settled anything.
    """
    known = events.select("queue", f.coalesce("group", f.lit(DEFAULT_GROUP)).alias("group")).distinct()
    idle = messages.select("queue").distinct().join(known, "queue", "left_anti")
    groups = known.unionByName(idle.withColumn("group", f.lit(DEFAULT_GROUP)))
    ended = events.where(~f.col("outcome").isin(*AGAIN)).select(
        "queue",
        f.coalesce("group", f.lit(DEFAULT_GROUP)).alias("group"),
        "partition",
        f.explode(f.sequence("first_offset", "last_offset")).alias("offset"),
    )
    due = f.greatest("pushed_at", f.coalesce("available_at", "pushed_at")).alias("due_at")
    expected = messages.select("queue", "partition", "offset", due).join(f.broadcast(groups), "queue")
    left = expected.join(ended, ["queue", "group", "partition", "offset"], "left_anti")
    counts = left.groupBy("queue", "group").agg(
        f.count("*").alias("open"), f.unix_micros(f.min("due_at")).alias("oldest_us")
    )
    return groups.join(counts, ["queue", "group"], "left").fillna({"open": 0})
