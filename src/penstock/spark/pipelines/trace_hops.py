"""Traces as functions from DataFrame to DataFrame: hops of messages, journeys of traces, and where queues spend time.

A trace is named by the 32 hexadecimal digits of the W3C `traceparent` that a message carries; any other text names its
trace as it is. Messages without a trace take no part.

A hop is one message as one group saw it. A message says which span pushed it, not which message that span was working
on, so the parent of a hop is inferred, in this order:

1. a dead letter names its origin;
2. messages pushed by the same span have the same origin, in a trace of several spans;
3. the hop that was being worked on when this message was pushed; of several the one leased last;
4. the hop that had ended last before.

The critical path is the hop that ended last, its parent, and so on to the beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.model import DLQ_SUFFIX
from penstock.requests import DEAD_ORIGIN
from penstock.spark import functions as f
from penstock.spark.pipelines.replay_messages import ORIGIN as REPLAYED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Hop(NamedTuple):
    """One message as one group saw it."""

    id: str  # queue/partition/offset
    span: str | None
    origin: str | None  # id of the message that this is the dead letter of
    pushed_us: int
    leased_us: int | None  # first
    settled_us: int | None  # last
    is_open: bool


class Step(NamedTuple):
    """The role of a hop in its journey."""

    parent: int | None  # index of the hop that led to it
    is_critical: bool
    gap_us: int  # pushed so long after its parent had ended
    wait_us: int  # waited so long on the critical path
    work_us: int  # and held it up so long after that


def journey(hops: Sequence[Hop]) -> list[Step]:
    """One step per hop, in the same order. Hops come in the order in which they were pushed."""
    parents = _parents(hops)
    path = _critical_path(hops, parents)
    follower = dict(zip(path[1:], path[:-1], strict=True))  # a hop on the path → the one that it led to
    return [_step(hops, index, parents[index], index in path, follower.get(index)) for index in range(len(hops))]


def _parents(hops: Sequence[Hop]) -> list[int | None]:
    by_id = {hop.id: index for index, hop in enumerate(hops)}
    spans = {hop.span for hop in hops if hop.span}
    of_message: dict[str, int | None] = {}
    of_span: dict[str, int | None] = {}
    for hop in hops:
        if hop.id in of_message:
            continue  # another group of the same message
        if hop.origin is not None:
            of_message[hop.id] = by_id.get(hop.origin)
        elif len(spans) > 1 and hop.span in of_span:
            of_message[hop.id] = of_span[hop.span]
        else:
            of_message[hop.id] = _at_work(hops, hop)
            if hop.span:
                of_span[hop.span] = of_message[hop.id]
    return [of_message[hop.id] for hop in hops]


def _at_work(hops: Sequence[Hop], pushed: Hop) -> int | None:
    """The hop that was being worked on at a push, else the one that had ended last."""
    before = [
        (index, hop.leased_us, hop.settled_us)
        for index, hop in enumerate(hops)
        if hop.id != pushed.id and hop.pushed_us <= pushed.pushed_us
        and hop.leased_us is not None and hop.leased_us <= pushed.pushed_us
    ]  # fmt: skip
    working = [(leased, index) for index, leased, ended in before if ended is None or ended >= pushed.pushed_us]
    if working:
        return max(working)[1]
    return max(((ended or 0, index) for index, _, ended in before), default=(0, None))[1]


def _critical_path(hops: Sequence[Hop], parents: Sequence[int | None]) -> list[int]:
    """From the hop that ended last back to the first. What is still open ends after everything else."""
    hop: int | None = max(range(len(hops)), key=lambda index: (hops[index].is_open, _end(hops[index])))
    path: list[int] = []
    while hop is not None and hop not in path:  # messages pushed at the same moment might point at each other
        path.append(hop)
        hop = parents[hop]
    return path


def _end(hop: Hop) -> int:
    return hop.settled_us or hop.leased_us or hop.pushed_us


def _step(hops: Sequence[Hop], index: int, parent: int | None, is_critical: bool, follower: int | None) -> Step:
    hop = hops[index]
    gap_us = max(0, hop.pushed_us - _end(hops[parent])) if parent is not None else 0
    if not is_critical:
        return Step(parent, False, gap_us, 0, 0)
    begun = hop.leased_us if hop.leased_us is not None else hop.pushed_us
    handed_on = _end(hop) if follower is None else min(_end(hop), hops[follower].pushed_us)
    return Step(parent, True, gap_us, max(0, begun - hop.pushed_us), max(0, handed_on - begun))


TRACEPARENT: Final = r"^\s*[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}"
# A message that ended like this comes again; after any other outcome it does not.
AGAIN: Final = ("retried", "released", "snoozed", "timed_out", "interrupted")
FAILED: Final = ("dead", "rejected", "discarded", "expired", "evicted", "lost", "overflowed")

_MESSAGE: Final = ["trace", "span", "queue", "partition", "offset", "origin", "pushed_at"]
_STEP: Final = "parent: string, is_critical: boolean, gap_ms: double, path_wait_ms: double, path_work_ms: double"


def with_trace(messages: DataFrame) -> DataFrame:
    """Messages that carry a trace, with `trace`, `span` and the origin of dead letters and of what was replayed."""
    traced = messages.where(f.col("trace_id").isNotNull() & (f.trim("trace_id") != ""))
    name = f.regexp_extract("trace_id", TRACEPARENT, 1)
    span = f.regexp_extract("trace_id", TRACEPARENT, 2)
    dead, replayed = f.col("headers").getItem(DEAD_ORIGIN), f.col("headers").getItem(REPLAYED)
    # A dead letter may have been replayed before, and be replayed after: where it is tells which came last.
    origin = f.when(f.col("queue").endswith(DLQ_SUFFIX), f.coalesce(dead, replayed)).otherwise(replayed)
    return traced.select(
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
    by_group = joined.groupBy(*_MESSAGE, "group").agg(
        f.min("leased_at").alias("leased_at"),
        f.max("settled_at").alias("settled_at"),
        f.count("leased_at").cast("int").alias("deliveries"),
        f.sum("processing_ms").alias("processing_ms"),
        last.alias("last"),
    )
    is_open = f.col("last.outcome").isNull() | f.col("last.outcome").isin(*AGAIN)
    wait = (f.unix_micros("leased_at") - f.unix_micros("pushed_at")) / f.lit(1000.0)
    held = (f.unix_micros("settled_at") - f.unix_micros("leased_at")) / f.lit(1000.0)
    return by_group.select(
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
    """Hops with their parent (the id of a message), and whether they were on the critical path."""
    order = ["pushed_at", "id", "group"]
    kept = [name for name in hops.columns if name != "trace"]
    every = f.struct(*order, *(name for name in kept if name not in order))
    grouped = hops.groupBy("trace").agg(f.array_sort(f.collect_list(every)).alias("hop"))
    hop_facts = f.transform(
        "hop",
        lambda hop: f.struct(
            *(hop[name] for name in ("id", "span", "origin")),
            *(f.unix_micros(hop[name]) for name in ("pushed_at", "leased_at", "settled_at")),
            hop["is_open"],
        ),
    )
    # Not Arrow's kind of function: those ask for pandas.
    steps = f.udf(_steps, f"array<struct<{_STEP}>>", useArrow=False)(hop_facts)
    both = grouped.select("trace", "hop", steps.alias("step"))
    walked = both.select("trace", f.inline(f.arrays_zip("hop", "step")))
    return walked.select("trace", *(f"hop.{name}" for name in kept), "step.*")


def traces(journeys: DataFrame) -> DataFrame:
    """One row per trace: when, how long, along which queues, and its status."""
    critical = f.when(f.col("is_critical"), f.struct("pushed_at", "settled_at", "queue"))
    path = f.transform(f.array_sort(f.collect_list(critical)), lambda hop: hop["queue"])
    end = f.greatest(f.max("settled_at"), f.max("leased_at"), f.max("pushed_at"))
    # An open dead letter waits for a person: it is the end of the trace, and counts as failed.
    is_dead_letter = f.col("queue").endswith(DLQ_SUFFIX) & f.col("origin").isNotNull() & f.col("outcome").isNull()
    is_open = f.col("is_open") & ~is_dead_letter
    open_since = f.min(f.when(is_open, f.coalesce("settled_at", "leased_at", "pushed_at")))
    failed = f.max(is_dead_letter | (f.col("outcome").isin(*FAILED) & ~f.col("is_open")))
    by_trace = journeys.groupBy("trace").agg(
        f.min("pushed_at").alias("started_at"),
        end.alias("ended_at"),
        f.count_distinct("id").cast("int").alias("messages"),
        f.count_distinct("queue").cast("int").alias("queues"),
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
    return by_trace.withColumn("duration_ms", duration).withColumn("status", status).drop("is_failed")


def by_queue(journeys: DataFrame) -> DataFrame:
    """Where the time goes: waits and processing per queue and group, and the share of all critical paths."""
    from pyspark.sql import Window

    shares = f.array(f.lit(0.5), f.lit(0.95))
    on_path = f.coalesce(f.sum(f.col("path_wait_ms") + f.col("path_work_ms")), f.lit(0.0))
    times = journeys.groupBy("queue", "group").agg(
        f.count("*").alias("hops"),
        f.percentile_approx("wait_ms", shares, 10_000).alias("wait"),
        f.percentile_approx("processing_ms", shares, 10_000).alias("processing"),
        f.sum("between_ms").alias("between_ms"),
        on_path.alias("path_ms"),
        f.coalesce(f.sum("path_wait_ms"), f.lit(0.0)).alias("path_wait_ms"),
    )
    total = f.sum("path_ms").over(Window.partitionBy(f.lit(0)))
    return times.select(
        "queue",
        "group",
        "hops",
        *(f.col(name)[index].alias(f"{name}_{label}_ms") for name in ("wait", "processing")
          for index, label in enumerate(("p50", "p95"))),
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
