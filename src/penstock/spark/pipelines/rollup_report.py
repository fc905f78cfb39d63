"""The roll-up for people: a table of the queues, a chart for each, and one page with all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from penstock.spark.pipelines.base import Table
from penstock.spark.pipelines.charts import Flow, flow_chart
from penstock.spark.pipelines.pages import page, picture, section, table_section
from penstock.spark.pipelines.rolling import COUNTS, OUTCOMES, ROW, SHARES, SKETCHES, fold, with_percentiles

# The finest grain that does not make more points than a chart can show.
SPANS: Final = {"minute": timedelta(hours=4), "hour": timedelta(days=21), "day": timedelta.max}
SECONDS: Final = {"minute": 60.0, "hour": 3600.0, "day": 86400.0}
FINISHED: Final = ("acked", "dead", "dropped")

Rows = list[dict[str, Any]]


def summary(tables: DataFrame) -> list[Table]:
    """One row per queue and group, over everything in the tables."""
    days = tables.where("grain = 'day'").select(*ROW)
    whole = days.withColumn("bucket", f.lit(datetime(1970, 1, 1, tzinfo=UTC)))
    found = _collected(with_percentiles(fold(whole.withColumn("key_prefix", f.lit(None).cast("string")), "day")))
    pushes = {row["queue"]: row for row in found if row["group"] is None}
    groups = {(row["queue"], row["group"]): row for row in found if row["group"] is not None}
    names = set(groups) | {(queue, None) for queue in pushes if queue not in {queue for queue, _ in groups}}
    columns = ["queue", "group", "pushed", "bytes", "delivered", *OUTCOMES]
    columns += [f"{name} {label} ms" for name in SKETCHES for label in ("p50", "p99")]
    rows = []
    for queue, group in sorted(names, key=lambda name: (name[0], name[1] or "")):
        push, row = pushes.get(queue, {}), groups.get((queue, group), {})
        counts = [row.get(name, 0) for name in ("delivered", *OUTCOMES)]
        times = [row.get(f"{name}_{label}_ms") for name in SKETCHES for label in ("p50", "p99")]
        rows.append([queue, group, push.get("pushed", 0), push.get("bytes", 0), *counts, *times])
    return [Table("Queues", columns, rows)]


def write_report(out: Path, tables: DataFrame, shown: Sequence[Table], *, queues_max: int) -> list[Path]:
    """Draw the busiest queues and write the page; the files that were written."""
    grain, first, last = _grain(tables)
    flows = _flows(tables, grain, first, last)
    busiest = sorted(flows, key=lambda queue: -sum(map(sum, flows[queue].counts.values())))[:queues_max]
    written, sections = [], [table_section(table) for table in shown]
    for path in out.glob("*.png"):
        path.unlink()
    for queue in busiest:
        png = flow_chart(queue, flows[queue])
        sections.append(section("", picture(png, f"Throughput, backlog and times of {queue}")))
        written.append(out / f"{queue}.png")
        written[-1].write_bytes(png)
    left = len(flows) - len(busiest)
    lead = f"{first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC, by {grain}."
    lead += f" {left} quieter queues are not drawn." if left else ""
    report = out / "report.html"
    report.write_text(page("Roll-up of queues", lead, sections), encoding="utf-8")
    return [report, *written]


def _grain(tables: DataFrame) -> tuple[str, datetime, datetime]:
    minutes = tables.where("grain = 'minute'")
    ends = minutes.agg(f.unix_micros(f.min("bucket")), f.unix_micros(f.max("bucket"))).first()
    assert ends is not None
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    first, last = (epoch + timedelta(microseconds=each or 0) for each in ends)
    return next(grain for grain, span in SPANS.items() if last - first <= span), first, last


def _flows(tables: DataFrame, grain: str, first: datetime, last: datetime) -> dict[str, Flow]:
    rows = tables.where(f.col("grain") == grain).select(*ROW).withColumn("key_prefix", f.lit(None).cast("string"))
    by_group = fold(rows, grain).persist()
    groups = _collected(by_group.select("bucket", "queue", "group", *COUNTS))
    together = by_group.withColumn("group", f.lit(None).cast("string"))
    queues = _collected(with_percentiles(fold(together, grain)))
    by_group.unpersist()
    seconds = SECONDS[grain]
    start = datetime.fromtimestamp(first.timestamp() // seconds * seconds, UTC)
    times = [
        start + timedelta(seconds=seconds * step) for step in range(int((last - start).total_seconds() // seconds) + 1)
    ]
    return {
        queue: _flow(times, seconds, [row for row in queues if row["queue"] == queue], _of(groups, queue))
        for queue in sorted({row["queue"] for row in queues})
    }


def _flow(times: list[datetime], seconds: float, queue: Rows, groups: Rows) -> Flow:
    pushed = _series(times, [row for row in groups if row["group"] is None], "pushed", 0)
    backlog = {}
    for group in sorted({row["group"] for row in groups if row["group"] is not None}):
        own = [row for row in groups if row["group"] == group]
        finished = [_series(times, own, name, 0) for name in FINISHED]
        change = [came - sum(went) for came, *went in zip(pushed, *finished, strict=True)]
        # What was there before the tables begin is unknown: it can only have been as much as went out without coming.
        levels = list(accumulate(change))
        lowest = min(0, *levels)
        backlog[group] = [level - lowest for level in levels]
    return Flow(
        times=times,
        seconds=seconds,
        counts={name: _series(times, queue, name, 0) for name in ("pushed", *OUTCOMES)},
        backlog=backlog,
        wait_ms={label: _series(times, queue, f"wait_{label}_ms", math.nan) for label in SHARES},
        processing_ms={label: _series(times, queue, f"processing_{label}_ms", math.nan) for label in SHARES},
    )


def _series(times: list[datetime], rows: Rows, name: str, empty: float) -> list[float]:
    known = {row["bucket"]: row[name] for row in rows if row[name] is not None}
    return [known.get(time, empty) for time in times]


def _of(rows: Rows, queue: str) -> Rows:
    return [row for row in rows if row["queue"] == queue]


def _collected(frame: DataFrame) -> Rows:
    kept = [name for name in frame.columns if not name.endswith("_sketch")]
    found: Rows = frame.select(*kept).toArrow().to_pylist()
    return found
