"""The forecast for people and programs: Parquet tables, charts, and a page with both."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.spark.pipelines.base import Table
from penstock.spark.pipelines.charts import Outlook, outlook_chart
from penstock.spark.pipelines.pages import page, picture, section, table_section

if TYPE_CHECKING:
    from penstock.spark.pipelines.forecast import Forecast, ForecastOptions

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME = pa.timestamp("us", tz="UTC")
_METHOD = (
    "Expected of every hour: the mean of the same hour before. The wait is what has piled up, divided by what the "
    "workers finish, plus what chance adds (M/M/c, 95th percentile, at most what an hour can build up). Shaded: if "
    "every hour is as busy as one in ten."
)


def write_report(out: Path, found: Sequence[Forecast], shown: Sequence[Table], options: ForecastOptions) -> list[Path]:
    """Write everything; the files that were written."""
    for old in out.glob("*.png"):
        old.unlink()
    sections = [table_section(table, _METHOD) for table in shown]
    written = [_write(out / "hours.parquet", _hours(found)), _write(out / "forecast.parquet", _minutes(found))]
    for each in [each for each in found if each.expected is not None][: options.charts]:
        name = f"{each.history.queue} · {each.history.group}"
        png = outlook_chart(name, _outlook(each, options))
        written.append(out / f"{each.history.queue}.{each.history.group}.png")
        written[-1].write_bytes(png)
        sections.append(section("", picture(png, f"Forecast of {name}")))
    report = out / "report.html"
    lead = (
        f"The next {options.horizon_hours} hours; a message may wait {options.target_age_seconds:g} s. Times are UTC."
    )
    report.write_text(page("Forecast of queues", lead, sections), encoding="utf-8")
    return [report, *written]


def _times(each: Forecast) -> list[datetime]:
    start = _EPOCH + timedelta(microseconds=each.history.last_us)
    return [start + timedelta(minutes=step) for step in range(len(each.rates))]


def _outlook(each: Forecast, options: ForecastOptions) -> Outlook:
    assert each.expected is not None
    assert each.busy is not None
    return Outlook(
        times=_times(each),
        arrivals=each.rates.tolist(),
        capacity=each.workers * each.history.per_worker,
        wait_seconds=each.expected.seconds.tolist(),
        wait_high_seconds=each.busy.seconds.tolist(),
        wait_enough_seconds=None if each.with_enough is None else each.with_enough.seconds.tolist(),
        target_seconds=options.target_age_seconds,
        workers=each.workers,
        workers_enough=each.enough,
    )


def _hours(found: Sequence[Forecast]) -> pa.Table:
    rows = [
        (each.history.queue, each.history.group, _EPOCH + timedelta(hours=each.history.first_hour + place), int(count))
        for each in found
        for place, count in enumerate(each.history.pushed)
    ]
    kinds = [("queue", pa.string()), ("group", pa.string()), ("hour", _TIME), ("pushed", pa.int64())]
    return _table(rows, kinds)


def _minutes(found: Sequence[Forecast]) -> pa.Table:
    rows = [
        (each.history.queue, each.history.group, time, *values)
        for each in found
        if each.expected is not None and each.busy is not None
        for time, *values in zip(
            _times(each),
            each.rates.tolist(),
            each.expected.backlog.tolist(),
            each.expected.seconds.tolist(),
            each.busy.seconds.tolist(),
            strict=True,
        )
    ]
    names = ("arrivals_per_second", "backlog", "wait_seconds", "wait_busy_seconds")
    kinds = [("queue", pa.string()), ("group", pa.string()), ("at", _TIME), *((name, pa.float64()) for name in names)]
    return _table(rows, kinds)


def _table(rows: Sequence[Sequence[object]], kinds: Sequence[tuple[str, pa.DataType]]) -> pa.Table:
    columns = [pa.array([row[place] for row in rows], kind) for place, (_, kind) in enumerate(kinds)]
    return pa.Table.from_arrays(columns, schema=pa.schema(kinds))


def _write(path: Path, table: pa.Table) -> Path:
    pq.write_table(table, path, compression="zstd")
    return path
