"""Traces for people: the slowest, where queues spend their time, what is stuck, and a page of timelines."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import groupby
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from penstock.spark.pipelines.base import Table
from penstock.spark.pipelines.pages import page, section, table_section
from penstock.spark.pipelines.tracing.gantt import LEGEND, duration, gantt
from penstock.spark.pipelines.tracing.hops import FAILED, by_queue

HOPS_DRAWN_MAX = 200


def stuck_of(traces: DataFrame, now: datetime, seconds: float) -> DataFrame:
    """Open traces to whose open messages nothing has happened for so long."""
    idle = (f.unix_micros(f.lit(now)) - f.unix_micros("open_since")) / f.lit(1e6)
    return traces.where(f.col("open") > 0).withColumn("idle_seconds", idle).where(f.col("idle_seconds") >= seconds)


def tables(journeys: DataFrame, traces: DataFrame, stuck: DataFrame, now: datetime, top: int) -> list[Table]:
    """The tables of the report."""
    slow = _rows(traces.orderBy(f.desc("duration_ms"), "trace").limit(top))
    slowest = [
        [row["trace"], f"{row['started_at']:%Y-%m-%d %H:%M:%S}", _ms(row["duration_ms"]), row["status"],
         row["messages"], _ms(row["path_wait_ms"]), _ms(row["path_work_ms"]), row["path"]]
        for row in slow
    ]  # fmt: skip
    queues = [
        [row["queue"], row["group"], row["hops"], *(_ms(row[name]) for name in _TIMES), _percent(row["waiting_share"]),
         _percent(row["path_share"])]
        for row in _rows(by_queue(journeys.where("group is not null")).orderBy(f.desc("path_ms"), "queue", "group"))
    ]  # fmt: skip
    waiting = [
        [row["trace"], row["open"], round(row["idle_seconds"], 1), row["path"]]
        for row in _rows(stuck.orderBy(f.desc("idle_seconds"), "trace").limit(top))
    ]
    path = "wait", "work", "critical path"
    return [
        Table(
            "Slowest traces",
            ["trace", "started", "ms", "status", "messages", *(f"{path[0]} ms", f"{path[1]} ms"), path[2]],
            slowest,
        ),
        Table(
            "Where the time goes",
            ["queue", "group", "hops", *(name.replace("_", " ") for name in _TIMES), "waiting %", "of all paths %"],
            queues,
        ),
        Table("Stuck traces", ["trace", "open messages", "idle s", "critical path"], waiting),
    ]


_TIMES = ("wait_p50_ms", "wait_p95_ms", "processing_p50_ms", "processing_p95_ms", "between_ms", "path_ms")


def drawn(journeys: DataFrame, traces: DataFrame, shown: Sequence[Table], top: int) -> str:
    """A page with the tables and a timeline of every slow trace."""
    slow = traces.orderBy(f.desc("duration_ms"), "trace").limit(top).select("trace", "duration_ms", "status")
    rows = _rows(journeys.join(f.broadcast(slow), "trace").orderBy(f.desc("duration_ms"), "trace", "pushed_at", "id"))
    sections = [*(table_section(table) for table in shown), section("Timelines", LEGEND)]
    for trace, own in groupby(rows, key=lambda row: row["trace"]):
        hops = list(own)
        note = f"{len(hops) - HOPS_DRAWN_MAX} more hops are not drawn." if len(hops) > HOPS_DRAWN_MAX else ""
        body = gantt(hops[:HOPS_DRAWN_MAX], FAILED)
        sections.append(section(f"{trace} · {duration(hops[0]['duration_ms'])} · {hops[0]['status']}", body, note))
    return page("Journeys of messages", f"The {len({row['trace'] for row in rows})} slowest traces.", sections)


def _rows(frame: DataFrame) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = frame.toArrow().to_pylist()
    return found


def _ms(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _percent(value: float | None) -> float | None:
    return None if value is None else round(100 * value, 1)
