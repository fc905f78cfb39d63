"""The pipeline `forecast`: when a queue will let messages wait too long, and how many workers would prevent it.

Spark adds up hours, NumPy computes what follows from them. The forecast begins where history ends. A worker is a
consumer name; consumers without one count as one worker. A worker is busy while it holds a lease; overlapping times
count once, so leasing a hundred messages to work on one after the other is not a hundred times the work.

The wait expected at a time has two parts. What has piled up: arrivals go in, the workers take out as much as they can,
and a message that comes now waits until what is ahead of it is done. And chance: even workers that keep up let some
wait, since neither arrivals nor the work come evenly. That is the 95th percentile of the wait in a queue with random
arrivals and random service times (M/M/c, Erlang's formula C), but no more than could build up within an hour. So the
figures hold for work that is as uneven as chance; bursts from one producer are worse, steady streams are better.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Meta
from numpy.typing import NDArray

from penstock.clock import SystemClock
from penstock.model import DEFAULT_GROUP, to_datetime
from penstock.spark import functions as f
from penstock.spark.pipelines.base import Options, Pipeline, Report, Run, Table
from penstock.spark.pipelines.pages import Outlook, outlook_chart, page, picture, section, table_section
from penstock.spark.pipelines.state import Seen, seen, store_report, unchanged_report
from penstock.spark.pipelines.traces import AGAIN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


STEP_SECONDS: Final = 60.0
_STEPS_PER_HOUR: Final = 60
FILE: Final = "forecast.json"
_COLUMNS: Final = ("queue", "partition", "offset", "pushed_at", "available_at")


class ForecastOptions(Options, frozen=True, kw_only=True):
    """Options of `forecast`."""

    target_age_seconds: Annotated[float, Meta(gt=0, description="The longest acceptable wait of a message.")] = 60.0
    horizon_hours: Annotated[int, Meta(ge=1, le=672, description="The number of hours to forecast.")] = 24
    workers: (
        Annotated[
            int, Meta(ge=1, le=10_000, description="The number of workers to assume, instead of those in the history.")
        ]
        | None
    ) = None
    charts: Annotated[
        int, Meta(ge=0, le=100, description="The number of queues to draw, those at most risk first.")
    ] = 12


class QueueHistory(msgspec.Struct, kw_only=True):
    """The history of one queue and group."""

    queue: str
    group: str
    first_hour: int  # of the counts, from 1970
    pushed: Any  # Floats: messages per hour, without gaps, up to where history ends
    last_us: int  # where history ends
    finished: int = 0
    deliveries: int = 0
    busy_seconds: float = 0.0
    workers: int = 0
    backlog: int = 0
    oldest_us: int | None = None  # since when the oldest open message could have been worked on
    worked_us: int | None = None  # when a message was last settled
    now_us: int = 0  # 0: where history ends

    @property
    def per_worker(self) -> float:
        """Messages per second that one worker finishes while it is busy; 0 when none has."""
        return self.finished / self.busy_seconds if self.finished and self.busy_seconds > 0 else 0.0

    @property
    def oldest_seconds(self) -> float:
        """How long the oldest open message has waited by now."""
        return max(0.0, self._since(self.oldest_us)) if self.backlog else 0.0

    def is_stopped(self, seconds: float) -> bool:
        """Whether messages have waited for `seconds` and none was settled meanwhile."""
        return self.oldest_seconds > seconds and (self.worked_us is None or self._since(self.worked_us) > seconds)

    def _since(self, at_us: int | None) -> float:
        return 0.0 if at_us is None else ((self.now_us or self.last_us) - at_us) / 1e6


class Forecast(msgspec.Struct, kw_only=True):
    """The forecast of one queue and group."""

    history: QueueHistory
    profile: Profile
    workers: int
    rates: Any  # Floats, messages per second, one per step
    expected: Waits | None = None  # None: no worker has ever finished a message
    busy: Waits | None = None
    enough: int | None = None  # workers
    with_enough: Waits | None = None
    breach_at: datetime | None = None
    is_stopped: bool = False  # messages wait and no worker works: earlier figures say nothing of now

    @property
    def used_max(self) -> float:
        """The highest utilisation of the workers."""
        capacity = self.workers * self.history.per_worker
        return float(self.rates.max()) / capacity if capacity else math.inf


def forecast(history: QueueHistory, options: ForecastOptions) -> Forecast:
    """The forecast from where history ends."""
    whole, first = _whole_hours(history)
    week = profile(first, whole)
    start = history.last_us / 3.6e9
    steps = options.horizon_hours * _STEPS_PER_HOUR
    hours = (np.floor(start + np.arange(steps) / _STEPS_PER_HOUR) - math.floor(start)).astype(int)
    rates = week.rates(math.floor(start), options.horizon_hours + 1)[hours]
    workers = options.workers or max(history.workers, 1)
    result = Forecast(history=history, profile=week, workers=workers, rates=rates)
    if history.per_worker:
        _look_ahead(result, options)
    target = options.target_age_seconds
    result.is_stopped = options.workers is None and history.is_stopped(target)
    if history.oldest_us is not None and history.oldest_seconds > target:
        breached_at = to_datetime(history.oldest_us) + timedelta(seconds=target)
        result.breach_at = min(breached_at, result.breach_at or breached_at)
    return result


def _whole_hours(history: QueueHistory) -> tuple[Floats, int]:
    """Without the first and last hour, of which only a part was seen; when that leaves nothing, a mean over all."""
    counts: Floats = history.pushed
    if len(counts) >= 3:
        return counts[1:-1], history.first_hour + 1
    seconds = max(history.last_us / 1e6 - history.first_hour * 3600.0, 3600.0)
    return np.full(1, counts.sum() * 3600.0 / seconds), history.first_hour


def _look_ahead(item: Forecast, options: ForecastOptions) -> None:
    rate, backlog, target = item.history.per_worker, float(item.history.backlog), options.target_age_seconds
    item.expected = waits(item.rates, item.workers, rate, backlog, STEP_SECONDS)
    item.busy = waits(item.rates * item.profile.busy_factor, item.workers, rate, backlog, STEP_SECONDS)
    item.enough = workers_enough(item.rates, rate, backlog, STEP_SECONDS, target)
    if item.enough is not None:
        item.with_enough = waits(item.rates, item.enough, rate, backlog, STEP_SECONDS)
    step = breach_step(item.expected, target)
    if step is not None:
        item.breach_at = to_datetime(item.history.last_us) + timedelta(seconds=step * STEP_SECONDS)


def run(run: Run) -> Report:
    """Forecast every queue and group."""
    run.progress.step("looking for new data")
    messages = run.messages(columns=_COLUMNS)
    events = run.events()
    now = seen(run, messages, events)
    if now.is_empty:
        return Report(summary="No messages yet: a forecast needs history.")
    before = unchanged_report(run.out / FILE, now)
    if before is not None:
        return before
    run.progress.step("aggregating hours")
    forecasts = [forecast(item, run.options) for item in histories(run, now)]
    run.progress.step("drawing")
    forecasts.sort(key=lambda item: (item.breach_at or datetime.max.replace(tzinfo=UTC), -item.used_max))
    shown = [_table(forecasts)]
    files = write_report(run.out, forecasts, shown, run.options)
    report = _report(forecasts, shown, files, run.options)
    # What is open grows older by itself: such a forecast holds for no later run.
    return report if any(item.history.backlog for item in forecasts) else store_report(run.out / FILE, now, report)


def histories(run: Run, now: Seen) -> list[QueueHistory]:
    """The history of each queue and group."""
    messages = run.messages(columns=_COLUMNS)
    events = run.events()
    now_us = SystemClock().now() if run.until is None else round(run.until.timestamp() * 1_000_000)
    pushed: dict[str, dict[int, int]] = {}
    for row in arrivals(messages).collect():
        pushed.setdefault(row["queue"], {})[row["hour"]] = row["pushed"]
    hours: dict[tuple[str, str], list[Any]] = {}
    for row in work(events).collect():
        hours.setdefault((row["queue"], row["group"]), []).append(row)
    open_now = open_messages(messages, events).collect()
    return [
        _history(row, pushed.get(row["queue"], {}), hours.get((row["queue"], row["group"]), []), now.last_us, now_us)
        for row in sorted(open_now, key=lambda row: (row["queue"], row["group"]))
    ]


def _history(row: Any, pushed: dict[int, int], hours: list[Any], last_us: int, now_us: int) -> QueueHistory:
    last_hour = last_us // 3_600_000_000
    first = min([*pushed, *(hour["hour"] for hour in hours)], default=last_hour)
    recent = [hour["workers"] for hour in sorted(hours, key=lambda hour: hour["hour"])][-24:]
    return QueueHistory(
        queue=row["queue"],
        group=row["group"],
        first_hour=first,
        pushed=np.array([pushed.get(hour, 0) for hour in range(first, last_hour + 1)], dtype=np.float64),
        last_us=last_us,
        finished=sum(hour["finished"] for hour in hours),
        deliveries=sum(hour["deliveries"] for hour in hours),
        busy_seconds=sum(hour["busy_seconds"] for hour in hours),
        workers=int(np.median(recent)) if recent else 0,
        backlog=row["open"],
        oldest_us=row["oldest_us"],
        worked_us=max((hour["last_us"] for hour in hours), default=None),
        now_us=now_us,
    )


def _table(forecasts: list[Forecast]) -> Table:
    columns = (
        "queue", "group", "basis", "arrivals/h", "busiest/h", "messages/s per worker", "workers", "used % at most",
        "open now", "oldest open", "last worked", "breach at", "workers enough",
    )  # fmt: skip
    return Table("Forecast", columns, [_row(item) for item in forecasts])


def _row(item: Forecast) -> list[Any]:
    known = item.history.per_worker > 0
    breach = _minute(item.breach_at) if item.breach_at else "no" if known else "unknown"
    return [
        item.history.queue,
        item.history.group,
        item.profile.basis,
        round(float(item.rates.mean()) * 3600, 1),
        round(float(item.rates.max()) * 3600, 1),
        round(item.history.per_worker, 3) if known else None,
        item.workers if known and not item.is_stopped else 0,
        round(100 * item.used_max, 1) if known else None,
        item.history.backlog,
        _minute_us(item.history.oldest_us),
        _minute_us(item.history.worked_us),
        breach,
        item.enough,
    ]


def _minute(at: datetime | None) -> str | None:
    return None if at is None else at.strftime("%Y-%m-%d %H:%M")


def _minute_us(at_us: int | None) -> str | None:
    return None if at_us is None else _minute(to_datetime(at_us))


def _report(forecasts: list[Forecast], shown: list[Table], files: list[Path], options: ForecastOptions) -> Report:
    late = [item for item in forecasts if item.breach_at]
    first = f"; the first is {late[0].history.queue}, at {late[0].breach_at:%Y-%m-%d %H:%M} UTC" if late else ""
    target = f"{options.target_age_seconds:g} s"
    summary = f"In {len(late)} of {len(forecasts)} queues and groups messages wait longer than {target}"
    stopped = _names(item for item in forecasts if item.is_stopped)
    outage = f" Messages wait but no worker is active: {stopped}." if stopped else ""
    return Report(
        summary=f"{summary}, now or within {options.horizon_hours} hours{first}.{outage}",
        figures={"forecasts": len(forecasts), "breaches": len(late)},
        tables=shown,
        files=[str(path) for path in files],
        notes=_notes(forecasts),
    )


def _notes(forecasts: list[Forecast]) -> list[str]:
    notes = []
    for basis, needed in (("mean", "two days"), ("hour of day", "a week")):
        short = [
            f"{item.history.queue}/{item.history.group} ({item.profile.hours} h)"
            for item in forecasts
            if item.profile.basis == basis
        ]
        if short:
            used = "the overall mean" if basis == "mean" else "the same hour of the day"
            notes.append(f"less than {needed} of history: the forecast uses {used} for {', '.join(short)}")
    idle = _names(item for item in forecasts if not item.history.per_worker)
    if idle:
        notes.append(f"no message was finished, so the throughput is unknown: {idle}")
    stopped = _names(item for item in forecasts if item.is_stopped)
    if stopped:
        notes.append(
            f"messages wait, and no worker was active for longer than the target age: {stopped}; see 'last worked'"
        )
    return notes


def _names(forecasts: Iterable[Forecast]) -> str:
    return ", ".join(f"{item.history.queue}/{item.history.group}" for item in forecasts)


# rates, added up by Spark


def arrivals(messages: DataFrame) -> DataFrame:
    """Messages pushed per queue and hour; `hour` counts from 1970."""
    hour = f.floor(f.unix_seconds("pushed_at") / 3600).alias("hour")
    return messages.groupBy("queue", hour).agg(f.count("*").alias("pushed"))


def work(events: DataFrame) -> DataFrame:
    """Per queue, group and hour: messages finished, deliveries, seconds that workers were busy, how many there were."""
    from pyspark.sql import Window

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
            f.count_distinct("worker").cast("int").alias("workers"),
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


# the report


_TIME = pa.timestamp("us", tz="UTC")
_METHOD = (
    "The expected traffic of an hour is the mean of the same hour in the past. The expected wait is the backlog "
    "divided by the throughput of the workers, plus random variation (M/M/c, 95th percentile, at most what can "
    "accumulate in an hour). The shaded area assumes that every hour is as busy as the busiest tenth."
)


def write_report(
    out: Path, forecasts: Sequence[Forecast], shown: Sequence[Table], options: ForecastOptions
) -> list[Path]:
    """Write everything; the files that were written."""
    for old in out.glob("*.png"):
        old.unlink()
    sections = [table_section(table, _METHOD) for table in shown]
    written = [_write(out / "hours.parquet", _hours(forecasts)), _write(out / "forecast.parquet", _minutes(forecasts))]
    for item in [item for item in forecasts if item.expected is not None][: options.charts]:
        name = f"{item.history.queue} · {item.history.group}"
        png = outlook_chart(name, _outlook(item, options))
        written.append(out / f"{item.history.queue}.{item.history.group}.png")
        written[-1].write_bytes(png)
        sections.append(section("", picture(png, f"Forecast of {name}")))
    report = out / "report.html"
    lead = (
        f"The next {options.horizon_hours} hours, with a target age of {options.target_age_seconds:g} s. Times are UTC."
    )
    report.write_text(page("Forecast of queues", lead, sections), encoding="utf-8")
    return [report, *written]


def _times(item: Forecast) -> list[datetime]:
    start = to_datetime(item.history.last_us)
    return [start + timedelta(minutes=step) for step in range(len(item.rates))]


def _outlook(item: Forecast, options: ForecastOptions) -> Outlook:
    assert item.expected is not None
    assert item.busy is not None
    return Outlook(
        times=_times(item),
        arrivals=item.rates.tolist(),
        capacity=item.workers * item.history.per_worker,
        wait_seconds=item.expected.seconds.tolist(),
        wait_high_seconds=item.busy.seconds.tolist(),
        wait_enough_seconds=None if item.with_enough is None else item.with_enough.seconds.tolist(),
        target_seconds=options.target_age_seconds,
        workers=item.workers,
        workers_enough=item.enough,
    )


def _hours(forecasts: Sequence[Forecast]) -> pa.Table:
    rows = [
        (
            item.history.queue,
            item.history.group,
            to_datetime((item.history.first_hour + index) * 3_600_000_000),
            int(count),
        )
        for item in forecasts
        for index, count in enumerate(item.history.pushed)
    ]
    kinds = [("queue", pa.string()), ("group", pa.string()), ("hour", _TIME), ("pushed", pa.int64())]
    return _arrow_table(rows, kinds)


def _minutes(forecasts: Sequence[Forecast]) -> pa.Table:
    rows = [
        (item.history.queue, item.history.group, time, *values)
        for item in forecasts
        if item.expected is not None and item.busy is not None
        for time, *values in zip(
            _times(item),
            item.rates.tolist(),
            item.expected.backlog.tolist(),
            item.expected.seconds.tolist(),
            item.busy.seconds.tolist(),
            strict=True,
        )
    ]
    names = ("arrivals_per_second", "backlog", "wait_seconds", "wait_busy_seconds")
    kinds = [("queue", pa.string()), ("group", pa.string()), ("at", _TIME), *((name, pa.float64()) for name in names)]
    return _arrow_table(rows, kinds)


def _arrow_table(rows: Sequence[Sequence[object]], kinds: Sequence[tuple[str, pa.DataType]]) -> pa.Table:
    columns = [pa.array([row[index] for row in rows], kind) for index, (_, kind) in enumerate(kinds)]
    return pa.Table.from_arrays(columns, schema=pa.schema(kinds))


def _write(path: Path, table: pa.Table) -> Path:
    pq.write_table(table, path, compression="zstd")
    return path


PIPELINE = Pipeline(
    name="forecast",
    summary="Forecast arrivals, throughput and waits by hour of week, breaches of a target age, and workers needed.",
    explanation="""Reads messages and events. The forecast for an hour is the mean of the same hour of the week. With
less than a week of history it is the same hour of the day, and with less than two days the overall mean. A worker is a
consumer name; its throughput is the number of messages per second that it finished while it held leases. Messages that
the workers cannot finish accumulate, and random variation adds to the wait (M/M/c, 95th percentile). Writes
forecast.parquet (a row per queue, group and minute), hours.parquet (the history) and report.html, with a chart for each
queue.""",
    options=ForecastOptions,
    run=run,
)


Floats = NDArray[np.float64]

HOURS_PER_WEEK: Final = 168
HOURS_PER_DAY: Final = 24
# 1970 began on a Thursday; slot 0 is Monday, 0:00 to 1:00 UTC.
_SLOT_OF_EPOCH: Final = 72
WORKERS_MAX: Final = 10_000
_LATE_SHARE: Final = 0.05  # the chance of waiting longer than what is called the wait
_Z95: Final = 1.645
_Z90: Final = 1.282


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """The expected arrivals of each hour of the week."""

    basis: str  # "hour of week", "hour of day" or "mean"
    per_hour: Any  # Floats: messages per hour, by hour of week
    spread: float  # standard deviation of an hour around that, as a share of the mean
    hours: int  # of history

    def rates(self, first_hour: int, count: int) -> Floats:
        """Messages per second expected in `count` hours from `first_hour` on; hours are counted from 1970."""
        slots = (np.arange(first_hour, first_hour + count) + _SLOT_OF_EPOCH) % HOURS_PER_WEEK
        return np.asarray(self.per_hour[slots] / 3600.0)

    @property
    def busy_factor(self) -> float:
        """How much more comes in an hour as busy as one in ten."""
        return 1.0 + _Z90 * self.spread


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """Backlog and waits that follow from arrivals and workers, one value per step."""

    backlog: Any  # Floats: messages
    seconds: Any  # Floats


def profile(first_hour: int, counts: Floats) -> Profile:
    """The profile of a week from whole hours of history without gaps, as fine as there is enough history for."""
    hours = len(counts)
    slots = (np.arange(first_hour, first_hour + hours) + _SLOT_OF_EPOCH) % HOURS_PER_WEEK
    if hours >= HOURS_PER_WEEK:
        basis, period = "hour of week", HOURS_PER_WEEK
    elif hours >= 2 * HOURS_PER_DAY:
        basis, period = "hour of day", HOURS_PER_DAY
    else:
        basis, period = "mean", 1
    slots_of_period = slots % period
    sums = np.bincount(slots_of_period, weights=counts, minlength=period)
    means = sums / np.maximum(np.bincount(slots_of_period, minlength=period), 1)
    per_hour = means[np.arange(HOURS_PER_WEEK) % period]
    mean = float(counts.mean()) if hours else 0.0
    return Profile(
        basis=basis, per_hour=per_hour, spread=_spread(counts, means[slots_of_period], period, mean), hours=hours
    )


def _spread(counts: Floats, fitted: Floats, parameters: int, mean: float) -> float:
    if mean <= 0:
        return 0.0
    freedom = len(counts) - parameters
    # With one week of history every hour fits itself; then all that is known is chance (Poisson).
    variance = float(np.sum((counts - fitted) ** 2)) / freedom if freedom >= HOURS_PER_DAY else mean
    return float(np.sqrt(max(variance, mean)) / mean)


def waits(rates: Floats, workers: int, per_worker: float, backlog: float, step_seconds: float) -> Waits:
    """Backlog and wait at the beginning of every step. `rates` and `per_worker` are messages per second."""
    capacity = workers * per_worker
    # Level over time of a store that cannot fall below nothing, in one go (Lindley).
    level = backlog + np.concatenate([[0.0], np.cumsum((rates - capacity) * step_seconds)[:-1]])
    piled = level - np.minimum(0.0, np.minimum.accumulate(level))
    return Waits(backlog=piled, seconds=piled / capacity + _by_chance(rates, workers, per_worker))


def breach_step(waits: Waits, target_seconds: float) -> int | None:
    """The first step at which the wait is longer than the target; None if there is none."""
    late = np.flatnonzero(waits.seconds > target_seconds)
    return int(late[0]) if len(late) else None


def workers_enough(
    rates: Floats, per_worker: float, backlog: float, step_seconds: float, target_seconds: float
) -> int | None:
    """The fewest workers with which the target holds over the whole time; None if more than `WORKERS_MAX`."""

    def holds(workers: int) -> bool:
        return breach_step(waits(rates, workers, per_worker, backlog, step_seconds), target_seconds) is None

    high = 1
    while not holds(high):
        if high >= WORKERS_MAX:
            return None
        high = min(2 * high, WORKERS_MAX)
    low = high // 2  # not enough, or 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def waiting_chance(workers: int, load: Floats) -> Floats:
    """Erlang C: how likely a message finds all workers busy; `load` is arrivals × service time, below `workers`."""
    blocked = np.ones_like(load)
    for count in range(1, workers + 1):
        blocked = load * blocked / (count + load * blocked)
    used = load / workers
    return np.asarray(blocked / (1 - used * (1 - blocked)))


def _by_chance(rates: Floats, workers: int, per_worker: float) -> Floats:
    """The wait that 5 % exceed although nothing piles up."""
    levels, level_of = np.unique(rates, return_inverse=True)
    capacity = workers * per_worker
    within_an_hour = _Z95 * np.sqrt(2 * levels * 3600.0) / capacity
    is_keeping_up = levels < capacity
    spare = np.where(is_keeping_up, capacity - levels, 1.0)
    chance = waiting_chance(workers, np.where(is_keeping_up, levels, 0.0) / per_worker)
    steady = np.log(np.maximum(chance / _LATE_SHARE, 1.0)) / spare
    return np.asarray(np.where(is_keeping_up, np.minimum(steady, within_an_hour), within_an_hour)[level_of])
