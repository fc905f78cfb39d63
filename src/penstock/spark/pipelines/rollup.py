"""The pipeline `rollup`: tables of what happened per minute, hour and day, kept up to date, with charts.

A run adds what is new. Messages are new when their offset lies beyond the cursor of their partition, however late they
came; they are added to the minutes in which they were pushed. Events have no number, so their minutes are compared:
one that holds more events now than its rows say is computed again. Every run looks back over `lateness_seconds` for
that. What retention has removed since stays counted.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

from msgspec import Meta

from penstock.errors import InvalidField
from penstock.spark.pipelines.base import Options, Pipeline, Report, Run, Table
from penstock.spark.pipelines.rollup_files import Cursor, RollupFiles, State

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class RollupOptions(Options, frozen=True, kw_only=True):
    """Options of `rollup`."""

    key_prefix: Annotated[
        str | None,
        Meta(description="Also by the beginning of the key: a number of characters, or all before a delimiter."),
    ] = None
    lateness_seconds: Annotated[float, Meta(ge=0, description="How far back to look for what came late.")] = 3600.0
    sizes: Annotated[bool, Meta(description="Add up the bytes of payloads; they must be read for it.")] = True
    charts: Annotated[int, Meta(ge=0, le=100, description="Draw charts of so many queues, the busiest.")] = 12
    rebuild: Annotated[bool, Meta(description="Begin again, from what history still holds.")] = False


def run(run: Run) -> Report:
    """Bring the tables up to date and draw them."""
    options: RollupOptions = run.options
    if options.key_prefix == "":
        raise InvalidField("--key-prefix: it is empty", hint="give a number of characters or a delimiter, such as :")
    files = RollupFiles(run.out)
    state = files.open(run.url, options.key_prefix, is_rebuild=options.rebuild)
    run.progress.step("looking for what is new")
    since = _look_from(run, state)
    pushes = _new_pushes(run, state, since).persist()
    try:
        minutes = _changed_minutes(run, files, state, since)
        cursors, pushed = _advance(state, pushes)
        if not pushed and not minutes:
            return _nothing_new(run, files, state)
        run.progress.step("adding up")
        fresh = _fresh_minutes(run, pushes, minutes, since)
        settled_last = max([state.settled_last_us, *(each["last"] for each in minutes)])
        counted = files.replace(run.spark, state, fresh, _keys(minutes), cursors, settled_last, run.queues)
    finally:
        pushes.unpersist()
    return _report(run, files, counted, pushed, sum(each["more"] for each in minutes))


def _look_from(run: Run, state: State) -> datetime | None:
    """The time before which nothing new is expected; None: everything must be looked at."""
    if not state.dates or set(run.queues) != set(state.queues):
        return None
    last = max((cursor.pushed_last_us for each in state.cursors.values() for cursor in each.values()), default=0)
    seen = min(last, state.settled_last_us) if last and state.settled_last_us else max(last, state.settled_last_us)
    return _EPOCH + timedelta(microseconds=seen) - timedelta(seconds=run.options.lateness_seconds)


def _new_pushes(run: Run, state: State, since: datetime | None) -> DataFrame:
    """Minutes of messages beyond the cursors, still apart by partition, with the last of each."""
    from pyspark.sql import functions as f

    from penstock.spark.pipelines.rolling import COUNTS, rows_of_messages

    wanted = ["queue", "partition", "offset", "pushed_at"]
    wanted += ["key"] if run.options.key_prefix else []
    messages = run.messages(columns=wanted + (["payload"] if run.options.sizes else []))
    if since is not None:
        messages = messages.where(f.col("pushed_at") >= f.lit(since))
    known = [(q, p, c.end_offset, c.pushed_last_us) for q, each in state.cursors.items() for p, c in each.items()]
    cursors = run.spark.createDataFrame(known, "queue string, partition string, end_offset long, pushed_last_us long")
    # A queue that was deleted and made again counts from 0, so what was pushed later is new as well.
    is_new = (
        f.col("end_offset").isNull()
        | (f.col("offset") >= f.col("end_offset"))
        | (f.unix_micros("pushed_at") > f.col("pushed_last_us"))
    )
    found = messages.join(f.broadcast(cursors), ["queue", "partition"], "left").where(is_new)
    extra = [f.col("partition"), f.col("offset"), f.unix_micros("pushed_at").alias("pushed_us")]
    rows = rows_of_messages(found, run.options.key_prefix, *extra)
    counts = [f.sum(name).alias(name) for name in COUNTS]
    last = [f.max("offset").alias("offset_last"), f.max("pushed_us").alias("pushed_last_us")]
    return rows.groupBy("bucket", "queue", "group", "key_prefix", "partition").agg(*counts, *last)


def _advance(state: State, pushes: DataFrame) -> tuple[dict[str, dict[str, Cursor]], int]:
    """The cursors behind the new messages, and how many of those there are."""
    from pyspark.sql import functions as f

    sums = (f.max("offset_last").alias("last"), f.max("pushed_last_us").alias("at"), f.sum("pushed").alias("pushed"))
    found = pushes.groupBy("queue", "partition").agg(*sums).collect()
    cursors = {queue: dict(each) for queue, each in state.cursors.items()}
    for row in found:
        cursors.setdefault(row["queue"], {})[row["partition"]] = Cursor(row["last"] + 1, row["at"])
    return cursors, sum(row["pushed"] for row in found)


def _changed_minutes(run: Run, files: RollupFiles, state: State, since: datetime | None) -> list[dict[str, Any]]:
    """Minutes of a queue that hold more events than were counted."""
    from pyspark.sql import functions as f

    from penstock.spark.pipelines.rolling import OUTCOMES

    events = run.events(columns=["queue", "settled_at", "count"])
    bucket = f.date_trunc("minute", "settled_at").alias("bucket")
    if since is not None:
        events = events.where(f.col("settled_at") >= f.date_trunc("minute", f.lit(since)))
    now = events.groupBy("queue", bucket).agg(
        f.sum("count").alias("now"), f.unix_micros(f.max("settled_at")).alias("last")
    )
    stored = files.minutes(run.spark, state)
    counted = f.sum(sum((f.col(name) for name in OUTCOMES), f.lit(0))).alias("before")
    before = stored.where(f.col("group").isNotNull()).groupBy("queue", "bucket").agg(counted)
    more = f.col("now") - f.coalesce("before", f.lit(0))
    found = now.join(before, ["queue", "bucket"], "left").select(
        "queue", f.unix_micros("bucket").alias("bucket"), "last", more.alias("more")
    )
    return [row.asDict() for row in found.where("more > 0").collect()]


def _keys(minutes: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(each["queue"], each["bucket"]) for each in minutes]


def _fresh_minutes(run: Run, pushes: DataFrame, minutes: list[dict[str, Any]], since: datetime | None) -> DataFrame:
    """Rows of new pushes, and all rows of the minutes whose events have changed."""
    from pyspark.sql import functions as f

    from penstock.spark.pipelines.rolling import ROW, SKETCHES, fold, rows_of_events, with_keys
    from penstock.spark.pipelines.sketch import TYPE

    events = run.events()
    if since is not None:
        events = events.where(f.col("settled_at") >= f.date_trunc("minute", f.lit(since)))
    changed = run.spark.createDataFrame(_keys(minutes), "queue string, minute_us long")
    minute_us = f.unix_micros(f.date_trunc("minute", "settled_at"))
    events = events.withColumn("minute_us", minute_us).join(f.broadcast(changed), ["queue", "minute_us"], "left_semi")
    if run.options.key_prefix:
        events = with_keys(events, run.messages(columns=["queue", "partition", "offset", "key", "pushed_at"]))
    empty = {f"{name}_sketch": f.create_map().cast(TYPE) for name in SKETCHES}
    return pushes.withColumns(empty).select(*ROW).unionByName(fold(rows_of_events(events, run.options.key_prefix)))


def _nothing_new(run: Run, files: RollupFiles, state: State) -> Report:
    return Report(
        summary="Nothing new: the tables are up to date." if state.dates else "No messages and no events yet.",
        figures={"pushed": 0, "events": 0, "dates": 0},
        files=[str(path) for path in files.pages()],
    )


def _report(run: Run, files: RollupFiles, state: State, pushed: int, settled: int) -> Report:
    from penstock.spark.pipelines.rollup_report import summary, write_report

    tables = files.tables(run.spark, state)
    run.progress.step("drawing")
    shown: list[Table] = summary(tables)
    pages = write_report(run.out, tables, shown, queues_max=run.options.charts)
    dates = sorted(date for date, generation in state.dates.items() if generation == state.generation)
    return Report(
        summary=f"{pushed:,} pushes and {settled:,} outcomes added; {len(dates)} dates written.",
        figures={"pushed": pushed, "events": settled, "dates": len(dates)},
        tables=shown,
        files=[str(files.folder), *map(str, pages)],
        notes=[] if run.options.sizes else ["bytes are 0, since payloads were not read"],
    )


PIPELINE = Pipeline(
    name="rollup",
    summary="Counts, bytes, waits and processing times per minute, hour and day, with charts.",
    explanation="""Reads messages and events. Writes Parquet below tables/, partitioned by grain (minute, hour, day) and
date: pushed, bytes, delivered, acked, retried, returned, dead, dropped, and p50, p95, p99 of waits and processing
times, per queue, group and (with --key-prefix) beginning of the key. Pushes are in rows whose group is null. A further
run adds what is new, late events included; percentiles of hours and days come from sketches that add up exactly.
Also writes report.html, which needs nothing beside it, and a PNG per queue.""",
    options=RollupOptions,
    run=run,
)
