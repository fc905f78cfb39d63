"""The pipeline `rollup`: tables of what happened per minute, hour and day, kept up to date, with charts.

A run adds what is new. Messages are new when their offset lies beyond the cursor of their partition, however late they
came; they are added to the minutes in which they were pushed. Events have no number, so their minutes are compared:
one that holds more events now than its rows say is computed again. Every run looks back over `lateness_seconds` for
that. What retention has removed since stays counted.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import Meta

from penstock.errors import InvalidField
from penstock.spark.pipelines.base import Options, Pipeline, Report, Run, Table
from penstock.spark.pipelines.rolling.files import Cursor, RollupFiles, State
from penstock.units import plural

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
    files = RollupFiles(run.out)
    state = files.open(run.url, options.key_prefix, is_rebuild=options.rebuild)
    run.progress.step("looking for what is new")
    since = _look_from(run, state)
    pushes = _new_pushes(run, state, since).persist()
    minutes = _changed_minutes(run, files, state, since).persist()
    try:
        after, pushed, settled = _advance(run, state, pushes, minutes)
        if after is state and (files.is_drawn or not state.dates):
            return _nothing_new(run, state)
        if after is state:
            return _report(run, files, state, 0, 0)
        run.progress.step("adding up")
        files.replace(state, after, _fresh(run, pushes, minutes, since), minutes.select("queue", "minute_us"))
    finally:
        pushes.unpersist()
        minutes.unpersist()
    return _report(run, files, after, pushed, settled)


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

    from penstock.spark.pipelines.rolling.frames import COUNTS, rows_of_messages

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


def _changed_minutes(run: Run, files: RollupFiles, state: State, since: datetime | None) -> DataFrame:
    """Minutes of a queue that hold more events than were counted, and how many more."""
    from pyspark.sql import functions as f

    from penstock.spark.pipelines.rolling.frames import OUTCOMES

    minute = f.unix_micros(f.date_trunc("minute", "settled_at")).alias("minute_us")
    sums = f.sum("count").alias("now"), f.unix_micros(f.max("settled_at")).alias("last_us")
    now = (
        _settled_since(run.events(columns=["queue", "settled_at", "count"]), since).groupBy("queue", minute).agg(*sums)
    )
    stored = files.minutes(run.spark, state).where(f.col("group").isNotNull())
    counted = f.sum(sum((f.col(name) for name in OUTCOMES), f.lit(0))).alias("before")
    before = stored.groupBy("queue", f.unix_micros("bucket").alias("minute_us")).agg(counted)
    more = (f.col("now") - f.coalesce("before", f.lit(0))).alias("more")
    return (
        now.join(before, ["queue", "minute_us"], "left").select("queue", "minute_us", "last_us", more).where("more > 0")
    )


def _advance(run: Run, state: State, pushes: DataFrame, minutes: DataFrame) -> tuple[State, int, int]:
    """The state after this run, and how much is new; the same state when nothing is."""
    from pyspark.sql import functions as f

    dates = f.collect_set(f.date_format("bucket", "yyyy-MM-dd")).alias("dates")
    sums = f.max("offset_last").alias("last"), f.max("pushed_last_us").alias("at"), f.sum("pushed").alias("pushed")
    found = pushes.groupBy("queue", "partition").agg(*sums, dates).collect()
    day = f.collect_set(f.date_format(f.timestamp_micros("minute_us"), "yyyy-MM-dd"))
    changed = minutes.agg(f.sum("more"), f.max("last_us"), day).first()
    assert changed is not None
    settled, settled_last, settled_dates = changed
    if not found and not settled:
        return state, 0, 0
    cursors = {queue: dict(each) for queue, each in state.cursors.items()}
    for row in found:
        cursors.setdefault(row["queue"], {})[row["partition"]] = Cursor(row["last"] + 1, row["at"])
    touched = {date for row in found for date in row["dates"]} | set(settled_dates)
    generation = state.generation + 1
    after = msgspec.structs.replace(
        state,
        queues=run.queues,
        generation=generation,
        dates={**state.dates, **dict.fromkeys(sorted(touched), generation)},
        cursors=cursors,
        settled_last_us=max(state.settled_last_us, settled_last or 0),
    )
    return after, sum(row["pushed"] for row in found), settled or 0


def _settled_since(events: DataFrame, since: datetime | None) -> DataFrame:
    """Events from the minute on in which `since` lies."""
    from pyspark.sql import functions as f

    return (
        events if since is None else events.where(f.col("settled_at") >= f.lit(since.replace(second=0, microsecond=0)))
    )


def _fresh(run: Run, pushes: DataFrame, minutes: DataFrame, since: datetime | None) -> DataFrame:
    """Rows of new pushes, and rows of all events in the minutes that have changed."""
    from pyspark.sql import functions as f

    from penstock.spark.pipelines.rolling.frames import ROW, SKETCHES, rows_of_events, with_keys
    from penstock.spark.pipelines.rolling.sketch import TYPE

    minute_us = f.unix_micros(f.date_trunc("minute", "settled_at"))
    events = _settled_since(run.events(), since).withColumn("minute_us", minute_us)
    events = events.join(minutes, ["queue", "minute_us"], "left_semi")
    if run.options.key_prefix:
        events = with_keys(events, run.messages(columns=["queue", "partition", "offset", "key", "pushed_at"]))
    empty = {f"{name}_sketch": f.create_map().cast(TYPE) for name in SKETCHES}
    return pushes.withColumns(empty).select(*ROW).unionByName(rows_of_events(events, run.options.key_prefix))


def _nothing_new(run: Run, state: State) -> Report:
    return Report(
        summary="Nothing new: the tables are up to date." if state.dates else "No messages and no events yet.",
        figures={"pushed": 0, "events": 0, "dates": 0},
        files=[str(path) for path in (run.out / "tables", run.out / "report.html") if path.exists()],
    )


def _report(run: Run, files: RollupFiles, state: State, pushed: int, settled: int) -> Report:
    from penstock.spark.pipelines.rolling.report import read, summary, write_report

    run.progress.step("drawing")
    known = read(files.tables(run.spark, state), len(state.dates))
    shown: list[Table] = summary(known)
    pages = write_report(run.out, known, shown, queues_max=run.options.charts)
    is_new = bool(pushed or settled)
    dates = [date for date, generation in state.dates.items() if is_new and generation == state.generation]
    new = f"{plural(pushed, 'push', 'pushes')} and {plural(settled, 'outcome')} added"
    added = f"{new}; {plural(len(dates), 'date')} written."
    return Report(
        summary=added if is_new else "Nothing new: the tables are up to date, and the report is drawn again.",
        figures={"pushed": pushed, "events": settled, "dates": len(dates)},
        tables=shown,
        files=[str(run.out / "tables"), *map(str, pages)],
        notes=[] if run.options.sizes else ["bytes are 0, since payloads were not read"],
    )


def check(run: Run) -> None:
    """Refuse an empty prefix."""
    if run.options.key_prefix == "":
        raise InvalidField("--key-prefix: it is empty", hint="give a number of characters or a delimiter, such as :")


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
    check=check,
)
