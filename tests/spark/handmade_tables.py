"""Tables made by hand, and a run over them: what pipelines are given in tests of what they compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from penstock.spark.pipelines.base import Options, Progress, Run, Silent

START = datetime(2026, 11, 16, 9, 0, tzinfo=UTC)  # a Monday

TIME = pa.timestamp("us", tz="UTC")
MESSAGES = pa.schema(
    [
        ("queue", pa.string()),
        ("partition", pa.string()),
        ("offset", pa.int64()),
        ("key", pa.string()),
        ("payload", pa.binary()),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("pushed_at", TIME),
        ("available_at", TIME),
        ("trace_id", pa.string()),
    ]
)
EVENTS = pa.schema(
    [
        ("queue", pa.string()),
        ("group", pa.string()),
        ("partition", pa.string()),
        ("first_offset", pa.int64()),
        ("last_offset", pa.int64()),
        ("count", pa.int32()),
        ("outcome", pa.string()),
        ("attempt", pa.int32()),
        ("consumer", pa.string()),
        ("leased_at", TIME),
        ("settled_at", TIME),
        ("error", pa.string()),
        ("pushed_at", TIME),
        ("wait_ms", pa.float64()),
        ("processing_ms", pa.float64()),
    ]
)


def at(seconds: float) -> datetime:
    """So many seconds after the start."""
    return START + timedelta(seconds=seconds)


def message(
    queue: str,
    offset: int,
    pushed: float,
    *,
    key: str | None = None,
    payload: bytes = b"",
    headers: dict[str, str] | None = None,
    trace: str | None = None,
) -> dict[str, Any]:
    """A row of messages; times are seconds after the start."""
    return {
        "queue": queue,
        "partition": "0",
        "offset": offset,
        "key": key,
        "payload": payload,
        "headers": None if headers is None else list(headers.items()),
        "pushed_at": at(pushed),
        "available_at": None,
        "trace_id": trace,
    }


def event(
    queue: str,
    first: int,
    last: int,
    outcome: str,
    pushed: float,
    leased: float | None,
    settled: float,
    *,
    attempt: int = 1,
    group: str | None = "default",
    consumer: str | None = "a",
    error: str | None = None,
) -> dict[str, Any]:
    """A row of events; times are seconds after the start."""
    return {
        "queue": queue,
        "group": group,
        "partition": "0",
        "first_offset": first,
        "last_offset": last,
        "count": last - first + 1,
        "outcome": outcome,
        "attempt": attempt,
        "consumer": consumer,
        "leased_at": None if leased is None else at(leased),
        "settled_at": at(settled),
        "error": error,
        "pushed_at": at(pushed),
        "wait_ms": None if leased is None else (leased - pushed) * 1000,
        "processing_ms": None if leased is None else (settled - leased) * 1000,
    }


def frame(spark: SparkSession, rows: Sequence[dict[str, Any]], schema: pa.Schema) -> DataFrame:
    """Rows as a table, in one partition."""
    return spark.createDataFrame(pa.Table.from_pylist(list(rows), schema=schema)).coalesce(1)


@dataclass
class MadeRun(Run):
    """A run over tables made by hand; rows may be added between two runs."""

    spark: SparkSession
    out: Path
    options: Options
    message_rows: list[dict[str, Any]] = field(default_factory=list)
    event_rows: list[dict[str, Any]] = field(default_factory=list)
    url: str = "penstock://made"
    queues: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    progress: Progress = field(default_factory=Silent)

    def messages(self, *, queues: Sequence[str] | None = None, columns: Sequence[str] | None = None) -> DataFrame:
        """The messages."""
        found = frame(self.spark, self.message_rows, MESSAGES)
        return found if columns is None else found.select(*columns)

    def events(self, *, queues: Sequence[str] | None = None, columns: Sequence[str] | None = None) -> DataFrame:
        """The events."""
        found = frame(self.spark, self.event_rows, EVENTS)
        return found if columns is None else found.select(*columns)
