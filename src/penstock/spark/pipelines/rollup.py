"""The pipeline `rollup`: tables of what happened per minute, hour and day, kept up to date, with charts.

    rollup.json                                            the state; replaced as a whole, so a run counts or does not
    tables/grain=minute/date=2026-11-16/00000007.parquet   one file per grain and date, named by the run that wrote it
    report.html, <queue>.png                               the report and its charts

A run adds what is new. Messages are new when their offset is beyond the cursor of their partition, however late they
came; they are added to the minutes in which they were pushed. Events have no number, so their minutes are compared: one
that holds more events now than its rows say is computed again. Every run looks back over `lateness_seconds` for that.
What retention has removed since stays counted. A date that a run touches is rewritten as a whole; files of a run that
died are removed by the next one.
"""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta

from penstock.errors import InvalidField
from penstock.model import to_datetime
from penstock.spark import functions as f
from penstock.spark.pipelines.base import Options, Pipeline, Report, Run, Table
from penstock.spark.pipelines.frames import persisted
from penstock.spark.pipelines.pages import Flow, flow_chart, page, picture, section, table_section
from penstock.spark.pipelines.rollup_frames import (
    COUNTS,
    GRAINS,
    OUTCOMES,
    ROW,
    SHARES,
    SKETCHES,
    TYPE,
    fold,
    rows_of_events,
    rows_of_messages,
    table_schema,
    value_of,
    with_keys,
    with_percentiles,
)
from penstock.spark.pipelines.state import read_state, write_state
from penstock.units import plural

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class RollupOptions(Options, frozen=True, kw_only=True):
    """Options of `rollup`."""

    key_prefix: Annotated[
        str | None,
        Meta(description="Also group by a prefix of the key: a number of characters, or a delimiter after the prefix."),
    ] = None
    lateness_seconds: Annotated[float, Meta(ge=0, description="How far back to look for late data.")] = 3600.0
    sizes: Annotated[bool, Meta(description="Sum up the bytes of payloads. This reads all payloads.")] = True
    charts: Annotated[int, Meta(ge=0, le=100, description="The number of queues to draw, busiest first.")] = 12
    rebuild: Annotated[bool, Meta(description="Start over, with the history that still exists.")] = False


def run(run: Run) -> Report:
    """Bring the tables up to date and draw them."""
    options: RollupOptions = run.options
    files = RollupFiles(run.out)
    state = files.open(run.url, options.key_prefix, is_rebuild=options.rebuild)
    run.progress.step("looking for new data")
    since = _look_from(run, state)
    with (
        persisted(_new_pushes(run, state, since)) as pushes,
        persisted(_changed_minutes(run, files, state, since)) as minutes,
    ):
        after, pushed, settled = _advance(run, state, pushes, minutes)
        if after is state and (files.is_drawn or not state.dates):
            return _nothing_new(run, state)
        if after is state:
            return _report(run, files, state, 0, 0)
        run.progress.step("adding up")
        files.replace(state, after, _fresh(run, pushes, minutes, since), minutes.select("queue", "minute_us"))
    return _report(run, files, after, pushed, settled)


def _look_from(run: Run, state: State) -> datetime | None:
    """The time before which nothing new is expected; None: everything must be looked at."""
    if not state.dates or set(run.queues) != set(state.queues):
        return None
    last = max(
        (cursor.pushed_last_us for partitions in state.cursors.values() for cursor in partitions.values()), default=0
    )
    seen = min(last, state.settled_last_us) if last and state.settled_last_us else max(last, state.settled_last_us)
    return to_datetime(seen) - timedelta(seconds=run.options.lateness_seconds)


def _new_pushes(run: Run, state: State, since: datetime | None) -> DataFrame:
    """Minutes of messages beyond the cursors, still apart by partition, with the last of each."""
    columns = ["queue", "partition", "offset", "pushed_at"]
    columns += ["key"] if run.options.key_prefix else []
    messages = run.messages(columns=columns + (["payload"] if run.options.sizes else []))
    if since is not None:
        messages = messages.where(f.col("pushed_at") >= f.lit(since))
    known = [
        (q, p, c.end_offset, c.pushed_last_us) for q, partitions in state.cursors.items() for p, c in partitions.items()
    ]
    cursors = run.spark.createDataFrame(known, "queue string, partition string, end_offset long, pushed_last_us long")
    # A queue that was deleted and created again counts from 0, so what was pushed later is new as well.
    is_new = (
        f.col("end_offset").isNull()
        | (f.col("offset") >= f.col("end_offset"))
        | (f.unix_micros("pushed_at") > f.col("pushed_last_us"))
    )
    new = messages.join(f.broadcast(cursors), ["queue", "partition"], "left").where(is_new)
    extra = [f.col("partition"), f.col("offset"), f.unix_micros("pushed_at").alias("pushed_us")]
    rows = rows_of_messages(new, run.options.key_prefix, *extra)
    counts = [f.sum(name).alias(name) for name in COUNTS]
    last = [f.max("offset").alias("offset_last"), f.max("pushed_us").alias("pushed_last_us")]
    return rows.groupBy("bucket", "queue", "group", "key_prefix", "partition").agg(*counts, *last)


def _changed_minutes(run: Run, files: RollupFiles, state: State, since: datetime | None) -> DataFrame:
    """Minutes of a queue that hold more events than were counted, and how many more."""
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
    dates = f.collect_set(f.date_format("bucket", "yyyy-MM-dd")).alias("dates")
    sums = f.max("offset_last").alias("last"), f.max("pushed_last_us").alias("at"), f.sum("pushed").alias("pushed")
    rows = pushes.groupBy("queue", "partition").agg(*sums, dates).collect()
    day = f.collect_set(f.date_format(f.timestamp_micros("minute_us"), "yyyy-MM-dd"))
    changed = minutes.agg(f.sum("more"), f.max("last_us"), day).first()
    assert changed is not None
    settled, settled_last, settled_dates = changed
    if not rows and not settled:
        return state, 0, 0
    cursors = {queue: dict(partitions) for queue, partitions in state.cursors.items()}
    for row in rows:
        cursors.setdefault(row["queue"], {})[row["partition"]] = Cursor(row["last"] + 1, row["at"])
    touched = {date for row in rows for date in row["dates"]} | set(settled_dates)
    generation = state.generation + 1
    after = msgspec.structs.replace(
        state,
        queues=run.queues,
        generation=generation,
        dates={**state.dates, **dict.fromkeys(sorted(touched), generation)},
        cursors=cursors,
        settled_last_us=max(state.settled_last_us, settled_last or 0),
    )
    return after, sum(row["pushed"] for row in rows), settled or 0


def _settled_since(events: DataFrame, since: datetime | None) -> DataFrame:
    """Events from the minute on in which `since` lies."""
    return (
        events if since is None else events.where(f.col("settled_at") >= f.lit(since.replace(second=0, microsecond=0)))
    )


def _fresh(run: Run, pushes: DataFrame, minutes: DataFrame, since: datetime | None) -> DataFrame:
    """Rows of new pushes, and rows of all events in the minutes that have changed."""
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
    run.progress.step("drawing")
    rollup = read(files.tables(run.spark, state), len(state.dates))
    shown: list[Table] = summary(rollup)
    pages = write_report(run.out, rollup, shown, queues_max=run.options.charts)
    is_new = bool(pushed or settled)
    dates = [date for date, generation in state.dates.items() if is_new and generation == state.generation]
    new = f"{plural(pushed, 'push', 'pushes')} and {plural(settled, 'outcome')} added"
    added = f"{new}; {plural(len(dates), 'date')} written."
    return Report(
        summary=added if is_new else "Nothing new: the tables are up to date; the report was drawn again.",
        figures={"pushed": pushed, "events": settled, "dates": len(dates)},
        tables=shown,
        files=[str(run.out / "tables"), *map(str, pages)],
        notes=[] if run.options.sizes else ["bytes are 0 because payloads were not read (--sizes)"],
    )


def check(run: Run) -> None:
    """Refuse an empty prefix."""
    if run.options.key_prefix == "":
        raise InvalidField("--key-prefix: it is empty", hint="give a number of characters or a delimiter, such as :")


# the state and the files


FORMAT: Final = 1


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """How far a partition has been counted."""

    end_offset: int
    pushed_last_us: int


class State(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the tables: what they were made from, and how far."""

    format: int = FORMAT
    url: str
    key_prefix: str | None = None
    queues: tuple[str, ...] = ()
    generation: int = 0  # runs that have written something
    dates: dict[str, int] = {}  # the run that wrote each date last
    cursors: dict[str, dict[str, Cursor]] = {}  # by queue and partition
    settled_last_us: int = 0


class RollupFiles:
    """The files of one roll-up."""

    def __init__(self, out: Path) -> None:
        self.out = out.absolute()  # Spark's own directory may be another
        self.folder = self.out / "tables"
        self._path = self.out / "rollup.json"

    def open(self, url: str, key_prefix: str | None, *, is_rebuild: bool) -> State:
        """The state to go on from. What a run that died has left is removed."""
        source = url if "://" in url else str(Path(url).resolve())
        stored = read_state(self._path, State)
        state = State(url=source, key_prefix=key_prefix, generation=stored.generation if stored else 0)
        state = stored if stored and not is_rebuild else state
        for name, was, value in (("url", state.url, source), ("key-prefix", state.key_prefix, key_prefix)):
            if was != value:
                hint = "use another directory with --out, or start over with --rebuild"
                raise InvalidField(f"--{name}: {self.out} was created with {was}, not {value}", hint=hint)
        shutil.rmtree(self._staged, ignore_errors=True)
        if not is_rebuild:
            self._sweep(state)
        return state

    def replace(self, before: State, after: State, fresh: DataFrame, recounted: DataFrame) -> State:
        """Put fresh rows to those that are there; minutes (queue, minute_us) that were recounted replace theirs."""
        touched = [date for date, generation in after.dates.items() if generation == after.generation]
        stored = self.minutes(fresh.sparkSession, before, touched).withColumn("minute_us", f.unix_micros("bucket"))
        pushes = stored.where(f.col("group").isNull())
        kept = stored.where(f.col("group").isNotNull()).join(recounted, ["queue", "minute_us"], "left_anti")
        self._stage(pushes.unionByName(kept).drop("minute_us").unionByName(fresh))
        self._move(after.generation)
        write_state(self._path, after)
        self._sweep(after)
        return after

    def minutes(self, spark: SparkSession, state: State, dates: Sequence[str] | None = None) -> DataFrame:
        """Stored rows of minutes, without percentiles; of all dates or of these."""
        return self.tables(spark, state, dates).where("grain = 'minute'").select(*ROW)

    def tables(self, spark: SparkSession, state: State, dates: Sequence[str] | None = None) -> DataFrame:
        """Everything that counts, with the columns `grain` and `date`."""
        generations = (
            state.dates if dates is None else {date: state.dates[date] for date in dates if date in state.dates}
        )
        names = [f"grain=*/date={date}/{_name(generation)}" for date, generation in generations.items()]
        paths = [str(path) for name in names for path in self.folder.glob(name)]
        if not paths:
            return spark.createDataFrame([], table_schema(spark))
        return spark.read.option("basePath", str(self.folder)).parquet(*paths)

    @property
    def is_drawn(self) -> bool:
        """Whether the report is as new as the tables: a run may have died between the two."""
        report = self.out / "report.html"
        return report.exists() and report.stat().st_mtime_ns >= self._path.stat().st_mtime_ns

    @property
    def _staged(self) -> Path:
        return self.out / ".staged"

    def _stage(self, minutes: DataFrame) -> None:
        date = f.date_format("bucket", "yyyy-MM-dd").alias("date")
        whole = with_percentiles(fold(minutes, *GRAINS)).select("*", date).repartition("grain", "date")
        ordered = whole.sortWithinPartitions("grain", "date", "bucket", "queue", "group", "key_prefix")
        ordered.write.partitionBy("grain", "date").parquet(str(self._staged))

    def _move(self, generation: int) -> None:
        staged = sorted(self._staged.glob("grain=*/date=*/*.parquet"))
        if not staged:
            hint = "with workers on other machines, --out must be a directory that all of them share"
            raise InvalidField(f"--out: the files that Spark wrote to {self.out} are not visible here", hint=hint)
        for path in staged:
            target = self.folder / path.relative_to(self._staged).parent / _name(generation)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)
        shutil.rmtree(self._staged, ignore_errors=True)

    def _sweep(self, state: State) -> None:
        for path in self.folder.glob("grain=*/date=*/*.parquet"):
            date = path.parent.name.removeprefix("date=")
            if state.dates.get(date) is None or path.name != _name(state.dates[date]):
                path.unlink()


def _name(generation: int) -> str:
    return f"{generation:08d}.parquet"


# the report: what is shown is small, so it is added up here, without Spark


# The finest grain that does not make more points than a chart can show, by how many dates there are.
DATES_MAX: Final = {"minute": 1, "hour": 21, "day": math.inf}
SECONDS: Final = {"minute": 60, "hour": 3600, "day": 86400}
FINISHED: Final = ("acked", "dead", "dropped")


class Sum(msgspec.Struct):
    """Rows of a roll-up added up."""

    counts: Counter[str] = msgspec.field(default_factory=Counter)
    sketches: dict[str, Counter[int]] = msgspec.field(default_factory=lambda: {name: Counter() for name in SKETCHES})

    def add(self, row: dict[str, Any]) -> None:
        """One more row."""
        self.counts.update({name: row[name] for name in COUNTS})
        for name, bins in self.sketches.items():
            bins.update(dict(row[f"{name}_sketch"]))

    def percentile(self, name: str, share: float) -> float | None:
        """As `sketch.percentile`; None without values."""
        bins = self.sketches[name]
        rank, seen = math.ceil(bins.total() * share), 0
        for bin_number in sorted(bins):
            seen += bins[bin_number]
            if seen >= rank:
                return round(value_of(bin_number), 3)
        return None


class Rollup(msgspec.Struct):
    """The rows to show, of one grain."""

    grain: str
    rows: list[dict[str, Any]]


def read(tables: DataFrame, dates: int) -> Rollup:
    """The rows of the grain that suits this number of dates."""
    grain = next(grain for grain, most in DATES_MAX.items() if dates <= most)
    columns = ["bucket", "queue", "group", *COUNTS, *(f"{name}_sketch" for name in SKETCHES)]
    return Rollup(grain, tables.where(f.col("grain") == grain).select(*columns).toArrow().to_pylist())


def summary(rollup: Rollup) -> list[Table]:
    """One row per queue and group, over everything."""
    sums: dict[tuple[str, str | None], Sum] = {}
    for row in rollup.rows:
        sums.setdefault((row["queue"], row["group"]), Sum()).add(row)
    groups = {name for name in sums if name[1] is not None}
    silent = {name for name in sums if name[1] is None} - {(queue, None) for queue, _ in groups}
    columns = ["queue", "group", "pushed", "bytes", "delivered", *OUTCOMES]
    columns += [f"{name} {label} ms" for name in SKETCHES for label in ("p50", "p99")]
    rows = []
    for queue, group in sorted(groups | silent, key=lambda name: (name[0], name[1] or "")):
        push, own = sums.get((queue, None), Sum()).counts, sums[queue, group]
        times = [own.percentile(name, SHARES[label]) for name in SKETCHES for label in ("p50", "p99")]
        rows.append(
            [queue, group, push["pushed"], push["bytes"], *(own.counts[n] for n in ("delivered", *OUTCOMES)), *times]
        )
    return [Table("Queues", columns, rows)]


def write_report(out: Path, rollup: Rollup, shown: Sequence[Table], *, queues_max: int) -> list[Path]:
    """Draw the busiest queues and write the page; the files that were written."""
    traffic: Counter[str] = Counter()
    for row in rollup.rows:
        traffic[row["queue"]] += row["pushed"] + row["delivered"]
    times = _times(rollup)
    written, sections = [], [table_section(table) for table in shown]
    for path in out.glob("*.png"):
        path.unlink()
    for queue, _ in traffic.most_common(queues_max):
        flow = _flow(times, SECONDS[rollup.grain], [row for row in rollup.rows if row["queue"] == queue])
        png = flow_chart(queue, flow)
        sections.append(section("", picture(png, f"Throughput, backlog and times of {queue}")))
        written.append(out / f"{queue}.png")
        written[-1].write_bytes(png)
    left = len(traffic) - len(written)
    lead = f"{times[0]:%Y-%m-%d %H:%M} to {times[-1]:%Y-%m-%d %H:%M} UTC, by {rollup.grain}."
    lead += f" {left} queues with less traffic are not drawn." if left else ""
    report = out / "report.html"
    report.write_text(page("Roll-up of queues", lead, sections), encoding="utf-8")
    return [report, *written]


def _times(rollup: Rollup) -> list[datetime]:
    """Every bucket from the first to the last."""
    seconds = SECONDS[rollup.grain]
    ends = [int(bound(row["bucket"].timestamp() for row in rollup.rows)) for bound in (min, max)]
    return [datetime.fromtimestamp(second, UTC) for second in range(ends[0], ends[1] + 1, seconds)]


def _flow(times: list[datetime], seconds: int, rows: list[dict[str, Any]]) -> Flow:
    sums = {time: Sum() for time in times}
    for row in rows:
        sums[row["bucket"]].add(row)
    values = list(sums.values())
    pushed = [total.counts["pushed"] for total in values]
    groups = sorted({row["group"] for row in rows if row["group"] is not None})
    return Flow(
        times=times,
        seconds=seconds,
        counts={name: [total.counts[name] for total in values] for name in ("pushed", *OUTCOMES)},
        backlog={group: _backlog(times, pushed, (row for row in rows if row["group"] == group)) for group in groups},
        wait_ms=_percentiles(values, "wait"),
        processing_ms=_percentiles(values, "processing"),
    )


def _percentiles(sums: list[Sum], name: str) -> dict[str, list[float]]:
    by_label = {label: [total.percentile(name, share) for total in sums] for label, share in SHARES.items()}
    return {label: [math.nan if value is None else value for value in values] for label, values in by_label.items()}


def _backlog(times: list[datetime], pushed: list[int], rows: Iterable[dict[str, Any]]) -> list[float]:
    went: Counter[datetime] = Counter()
    for row in rows:
        went[row["bucket"]] += sum(row[name] for name in FINISHED)
    levels = list(accumulate(came - went[time] for time, came in zip(times, pushed, strict=True)))
    # What was there before the tables begin is not known; it was at least what went out without having come in.
    lowest = min(0, *levels)
    return [level - lowest for level in levels]


PIPELINE = Pipeline(
    name="rollup",
    summary="Aggregate counts, bytes, waiting and processing times by minute, hour and day, with charts.",
    explanation="""Reads messages and events. Writes Parquet files to tables/, partitioned by grain (minute, hour, day)
and date: pushed, bytes, delivered, acked, retried, returned, dead, dropped, and p50, p95, p99 of waiting and processing
times, per queue, group and (with --key-prefix) prefix of the key. Pushes are in rows whose group is null. The next run
adds what is new, including late events. Percentiles of hours and days come from mergeable sketches. Also writes
report.html, a self-contained page, and a PNG per queue.""",
    options=RollupOptions,
    run=run,
    check=check,
)
