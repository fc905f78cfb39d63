"""Traces as functions from DataFrame to DataFrame: hops of messages, journeys of traces, and where queues spend time.

A trace is named by the 32 hexadecimal digits of the W3C `traceparent` that a message carries; any other text names its
trace as it is. Messages without a trace take no part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from penstock.model import DLQ_SUFFIX
from penstock.requests import DEAD_ORIGIN
from penstock.spark.pipelines.replaying.selecting import ORIGIN as REPLAYED
from penstock.spark.pipelines.tracing.journeys import Hop, journey

TRACEPARENT: Final = r"^\s*[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}"
# A message that ended like this comes again; after any other outcome it does not.
AGAIN: Final = ("retried", "released", "snoozed", "timed_out", "interrupted")
FAILED: Final = ("dead", "rejected", "discarded", "expired", "evicted", "lost", "overflowed")

_MESSAGE: Final = ["trace", "span", "queue", "partition", "offset", "origin", "pushed_at"]
_STEP: Final = "parent: string, is_critical: boolean, gap_ms: double, path_wait_ms: double, path_work_ms: double"


def with_trace(messages: DataFrame) -> DataFrame:
    """Messages that carry a trace, with `trace`, `span` and the origin of dead letters and of what was replayed."""
    found = messages.where(f.col("trace_id").isNotNull() & (f.trim("trace_id") != ""))
    name = f.regexp_extract("trace_id", TRACEPARENT, 1)
    span = f.regexp_extract("trace_id", TRACEPARENT, 2)
    dead, replayed = f.col("headers").getItem(DEAD_ORIGIN), f.col("headers").getItem(REPLAYED)
    # A dead letter may have been replayed before, and be replayed after: where it is tells which came last.
    origin = f.when(f.col("queue").endswith(DLQ_SUFFIX), f.coalesce(dead, replayed)).otherwise(replayed)
    return found.select(
        f.when(name != "", name).otherwise(f.trim("trace_id")).alias("trace"),
        f.when(span != "", span).alias("span"),
        "queue",
        "partition",
        "offset",
        origin.alias("origin"),
        "pushed_at",
    )


def hops(messages: DataFrame, events: DataFrame) -> DataFrame:
    """One row per message of a trace and group: when it was pushed, leased and settled, how often, and how it ended."""
    traced = with_trace(messages)
    single = events.select(
        "queue",
        "partition",
        f.explode(f.sequence("first_offset", "last_offset")).alias("offset"),
        *("group", "outcome", "attempt", "leased_at", "settled_at", "processing_ms", "error"),
    )
    joined = traced.join(single, ["queue", "partition", "offset"], "left")
    last = f.max_by(f.struct("outcome", "error"), f.struct("settled_at", "attempt"))
    found = joined.groupBy(*_MESSAGE, "group").agg(
        f.min("leased_at").alias("leased_at"),
        f.max("settled_at").alias("settled_at"),
        f.count("leased_at").cast("int").alias("deliveries"),
        f.sum("processing_ms").alias("processing_ms"),
        last.alias("last"),
    )
    is_open = f.col("last.outcome").isNull() | f.col("last.outcome").isin(*AGAIN)
    wait = (f.unix_micros("leased_at") - f.unix_micros("pushed_at")) / f.lit(1000.0)
    held = (f.unix_micros("settled_at") - f.unix_micros("leased_at")) / f.lit(1000.0)
    return found.select(
        *_MESSAGE,
        "group",
        f.concat_ws("/", "queue", "partition", "offset").alias("id"),
        *("leased_at", "settled_at", "deliveries"),
        f.col("last.outcome").alias("outcome"),
        f.col("last.error").alias("error"),
        wait.alias("wait_ms"),
        "processing_ms",
        # Between two deliveries: backoff, and waiting to be leased again.
        f.greatest(held - f.col("processing_ms"), f.lit(0.0)).alias("between_ms"),
        is_open.alias("is_open"),
    )


def journeys(hops: DataFrame) -> DataFrame:
    """Hops with where they came from and whether they were on the critical path; `parent` is the id of a message."""
    order = ["pushed_at", "id", "group"]
    kept = [name for name in hops.columns if name != "trace"]
    every = f.struct(*order, *(name for name in kept if name not in order))
    grouped = hops.groupBy("trace").agg(f.array_sort(f.collect_list(every)).alias("hop"))
    told = f.transform(
        "hop",
        lambda hop: f.struct(
            *(hop[name] for name in ("id", "span", "origin")),
            *(f.unix_micros(hop[name]) for name in ("pushed_at", "leased_at", "settled_at")),
            hop["is_open"],
        ),
    )
    # Not Arrow's kind of function: those ask for pandas.
    steps = f.udf(_steps, f"array<struct<{_STEP}>>", useArrow=False)(told)
    both = grouped.select("trace", "hop", steps.alias("step"))
    walked = both.select("trace", f.inline(f.arrays_zip("hop", "step")))
    return walked.select("trace", *(f"hop.{name}" for name in kept), "step.*")


def traces(journeys: DataFrame) -> DataFrame:
    """One row per trace: when, how long, along which queues, and what became of it."""
    critical = f.when(f.col("is_critical"), f.struct("pushed_at", "settled_at", "queue"))
    path = f.transform(f.array_sort(f.collect_list(critical)), lambda hop: hop["queue"])
    end = f.greatest(f.max("settled_at"), f.max("leased_at"), f.max("pushed_at"))
    # Nobody works on a dead letter until somebody looks at it: it is the end of the trace, and no good one.
    is_letter = f.col("queue").endswith(DLQ_SUFFIX) & f.col("origin").isNotNull() & f.col("outcome").isNull()
    is_open = f.col("is_open") & ~is_letter
    open_since = f.min(f.when(is_open, f.coalesce("settled_at", "leased_at", "pushed_at")))
    failed = f.max(is_letter | (f.col("outcome").isin(*FAILED) & ~f.col("is_open")))
    found = journeys.groupBy("trace").agg(
        f.min("pushed_at").alias("started_at"),
        end.alias("ended_at"),
        f.countDistinct("id").cast("int").alias("messages"),
        f.countDistinct("queue").cast("int").alias("queues"),
        f.sum("deliveries").alias("deliveries"),
        f.array_join(path, " → ").alias("path"),
        *(f.sum(name).alias(name) for name in ("path_wait_ms", "path_work_ms")),
        f.sum(f.when(f.col("is_critical"), f.col("gap_ms"))).alias("path_gap_ms"),
        f.sum(is_open.cast("int")).cast("int").alias("open"),
        open_since.alias("open_since"),
        failed.alias("is_failed"),
    )
    status = f.when(f.col("open") > 0, "open").when(f.col("is_failed"), "failed").otherwise("done")
    duration = (f.unix_micros("ended_at") - f.unix_micros("started_at")) / f.lit(1000.0)
    return found.withColumn("duration_ms", duration).withColumn("status", status).drop("is_failed")


def by_queue(journeys: DataFrame) -> DataFrame:
    """Where the time goes: waits and processing per queue and group, and the share of all critical paths."""
    shares = f.array(f.lit(0.5), f.lit(0.95))
    on_path = f.coalesce(f.sum(f.col("path_wait_ms") + f.col("path_work_ms")), f.lit(0.0))
    found = journeys.groupBy("queue", "group").agg(
        f.count("*").alias("hops"),
        f.percentile_approx("wait_ms", shares, 10_000).alias("wait"),
        f.percentile_approx("processing_ms", shares, 10_000).alias("processing"),
        f.sum("between_ms").alias("between_ms"),
        on_path.alias("path_ms"),
        f.coalesce(f.sum("path_wait_ms"), f.lit(0.0)).alias("path_wait_ms"),
    )
    total = f.sum("path_ms").over(Window.partitionBy(f.lit(0)))
    return found.select(
        "queue",
        "group",
        "hops",
        *(f.col(name)[place].alias(f"{name}_{label}_ms") for name in ("wait", "processing")
          for place, label in enumerate(("p50", "p95"))),
        "between_ms",
        "path_ms",
        f.try_divide("path_wait_ms", "path_ms").alias("waiting_share"),
        f.try_divide("path_ms", total).alias("path_share"),
    )  # fmt: skip


def _steps(rows: Sequence[Sequence[Any]]) -> list[tuple[str | None, bool, float, float, float]]:
    hops = [Hop(*row) for row in rows]
    return [
        (
            None if step.parent is None else hops[step.parent].id,
            step.is_critical,
            step.gap_us / 1e3,
            step.wait_us / 1e3,
            step.work_us / 1e3,
        )
        for step in journey(hops)
    ]
