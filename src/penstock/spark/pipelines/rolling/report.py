"""The roll-up for people: a table of the queues, a chart for each, and one page with all of them.

What is shown is small, so it is added up here, without Spark.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from penstock.spark.pipelines.base import Table
from penstock.spark.pipelines.charts import Flow, flow_chart
from penstock.spark.pipelines.pages import page, picture, section, table_section
from penstock.spark.pipelines.rolling.frames import COUNTS, OUTCOMES, SHARES, SKETCHES
from penstock.spark.pipelines.rolling.sketch import value_of

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
        for place in sorted(bins):
            seen += bins[place]
            if seen >= rank:
                return round(value_of(place), 3)
        return None


class Known(msgspec.Struct):
    """What there is to show."""

    grain: str
    rows: list[dict[str, Any]]  # of that grain


def read(tables: DataFrame, dates: int) -> Known:
    """The rows of the grain that suits so many dates."""
    grain = next(grain for grain, most in DATES_MAX.items() if dates <= most)
    wanted = ["bucket", "queue", "group", *COUNTS, *(f"{name}_sketch" for name in SKETCHES)]
    return Known(grain, tables.where(f.col("grain") == grain).select(*wanted).toArrow().to_pylist())


def summary(known: Known) -> list[Table]:
    """One row per queue and group, over everything."""
    sums: dict[tuple[str, str | None], Sum] = {}
    for row in known.rows:
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


def write_report(out: Path, known: Known, shown: Sequence[Table], *, queues_max: int) -> list[Path]:
    """Draw the busiest queues and write the page; the files that were written."""
    traffic: Counter[str] = Counter()
    for row in known.rows:
        traffic[row["queue"]] += row["pushed"] + row["delivered"]
    times = _times(known)
    written, sections = [], [table_section(table) for table in shown]
    for path in out.glob("*.png"):
        path.unlink()
    for queue, _ in traffic.most_common(queues_max):
        flow = _flow(times, SECONDS[known.grain], [row for row in known.rows if row["queue"] == queue])
        png = flow_chart(queue, flow)
        sections.append(section("", picture(png, f"Throughput, backlog and times of {queue}")))
        written.append(out / f"{queue}.png")
        written[-1].write_bytes(png)
    left = len(traffic) - len(written)
    lead = f"{times[0]:%Y-%m-%d %H:%M} to {times[-1]:%Y-%m-%d %H:%M} UTC, by {known.grain}."
    lead += f" {left} quieter queues are not drawn." if left else ""
    report = out / "report.html"
    report.write_text(page("Roll-up of queues", lead, sections), encoding="utf-8")
    return [report, *written]


def _times(known: Known) -> list[datetime]:
    """Every bucket from the first to the last."""
    seconds = SECONDS[known.grain]
    ends = [int(each(row["bucket"].timestamp() for row in known.rows)) for each in (min, max)]
    return [datetime.fromtimestamp(second, UTC) for second in range(ends[0], ends[1] + 1, seconds)]


def _flow(times: list[datetime], seconds: int, rows: list[dict[str, Any]]) -> Flow:
    sums = {time: Sum() for time in times}
    for row in rows:
        sums[row["bucket"]].add(row)
    values = list(sums.values())
    pushed = [each.counts["pushed"] for each in values]
    groups = sorted({row["group"] for row in rows if row["group"] is not None})
    return Flow(
        times=times,
        seconds=seconds,
        counts={name: [each.counts[name] for each in values] for name in ("pushed", *OUTCOMES)},
        backlog={group: _backlog(times, pushed, (row for row in rows if row["group"] == group)) for group in groups},
        wait_ms=_percentiles(values, "wait"),
        processing_ms=_percentiles(values, "processing"),
    )


def _percentiles(sums: list[Sum], name: str) -> dict[str, list[float]]:
    found = {label: [each.percentile(name, share) for each in sums] for label, share in SHARES.items()}
    return {label: [math.nan if value is None else value for value in values] for label, values in found.items()}


def _backlog(times: list[datetime], pushed: list[int], rows: Iterable[dict[str, Any]]) -> list[float]:
    went: Counter[datetime] = Counter()
    for row in rows:
        went[row["bucket"]] += sum(row[name] for name in FINISHED)
    levels = list(accumulate(came - went[time] for time, came in zip(times, pushed, strict=True)))
    # What was there before the tables begin is not known; it was at least what went out without having come in.
    lowest = min(0, *levels)
    return [level - lowest for level in levels]
