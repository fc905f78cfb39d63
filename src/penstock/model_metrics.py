"""Metrics as they are shown: a report of the moment, and series over time for charts."""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal

import msgspec

from penstock.errors import InvalidField

# What the roll-ups hold of a queue, and of the broker as a whole: counters, then gauges.
COUNTERS: Final = ("pushed", "delivered", "acked", "retried", "released", "died", "dropped")
GAUGES: Final = ("ready", "leased", "delayed", "dead", "lag", "oldest_age_ms")
# Of the broker only.
BROKER_COUNTERS: Final = ("refused",)
BROKER_GAUGES: Final = ("connections", "waiting_leases", "journal_bytes", "segment_bytes")
LATENCIES: Final = ("push", "lease", "settle", "commit")
PERCENTILES: Final = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
PER_SECOND: Final = "_per_second"


def _percentiles(of: str) -> tuple[str, ...]:
    return tuple(f"{of}_{percentile}_ms" for percentile in PERCENTILES)


QUEUE_SERIES: Final = (
    *COUNTERS,
    *(name + PER_SECOND for name in COUNTERS),
    *GAUGES,
    "backlog",
    *_percentiles("latency"),
)
BROKER_SERIES: Final = (
    *QUEUE_SERIES,
    *BROKER_COUNTERS,
    *(name + PER_SECOND for name in BROKER_COUNTERS),
    *BROKER_GAUGES,
    *(name for operation in LATENCIES for name in _percentiles(operation)),
)
SERIES_DEFAULT: Final = ("pushed_per_second", "acked_per_second", "backlog", "lag", "dead", "latency_p99_ms")
STEPS: Final = (1, 5, 10, 30, 60, 300, 900, 1_800, 3_600, 10_800, 21_600, 43_200, 86_400, 604_800)  # seconds
POINTS_DEFAULT: Final = 300  # about as many as a chart has pixels for
POINTS_MAX: Final = 5_000
MARKS_MAX: Final = 200
# Operations that show in charts.
MARKED: Final = frozenset(
    {"create_queue", "update_queue", "pause", "resume", "pause_broker", "resume_broker", "pause_namespace"}
    | {"resume_namespace", "purge", "seek"}
)


class SeriesMark(msgspec.Struct, frozen=True):
    """A change to show as a mark in a chart."""

    at: datetime
    queue: str
    what: str  # the operation
    by: str
    text: str


class ForecastBand(msgspec.Struct, frozen=True):
    """The expected values of a series, and the range that contains four in five of them.

    Values are None where there is too little data.
    """

    value: list[float | None]
    low: list[float | None]
    high: list[float | None]
    is_seasonal: bool  # it follows the time of the day, or the day of the week


class SeriesForecast(msgspec.Struct, frozen=True):
    """The forecast for the steps after a series."""

    times: list[int]
    series: dict[str, ForecastBand]


class HistorySeries(msgspec.Struct, frozen=True):
    """Metrics of a queue, or of the broker, over time: columns of equal length, for a chart.

    `times` are the starts of the steps, in seconds since 1970 and multiples of the step. Each series has one value per
    step, or None where nothing was recorded. `begins_at` is the start of the history at this resolution.
    """

    queue: str | None
    since: datetime
    until: datetime
    step: int  # seconds
    resolution: int  # seconds that one stored value stands for
    begins_at: datetime | None
    times: list[int]
    series: dict[str, list[float | None]]
    previous: dict[str, list[float | None]] = {}  # the same steps `compare` seconds earlier
    marks: list[SeriesMark] = []  # changes of options and pauses in the span, oldest first
    forecast: SeriesForecast | None = None  # of `forecast` seconds after the span


class Latency(msgspec.Struct, frozen=True):
    """How long something took. Percentiles are accurate to 6 %. They are None if nothing was measured."""

    count: int = 0
    mean_ms: float | None = None
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None


class QueueMetrics(msgspec.Struct, frozen=True):
    """Counters of one queue since `MetricsReport.since`, and its gauges, summed over its groups."""

    name: str
    pushed: int
    delivered: int
    acked: int
    retried: int
    released: int
    died: int
    dropped: int
    ready: int
    leased: int
    delayed: int
    dead: int
    lag: int  # of the group that is furthest behind
    oldest_age_ms: int
    latency: Latency  # from push to delivery


class HealthReport(msgspec.Struct, frozen=True):
    """Whether the broker works. `problems` lists what an operator should look at."""

    status: Literal["ok", "degraded", "stopping", "failed"]
    problems: list[str]
    journal_bytes: int
    segment_bytes: int
    disk_free_bytes: int | None  # None: there is no disk


class MetricsReport(msgspec.Struct, frozen=True):
    """Counters, latencies and health at one moment.

    Counters start at `since`, when the directory was opened. `latencies` contains push, lease, settle, commit and
    delivery (from push to delivery).
    """

    at: datetime
    since: datetime
    totals: dict[str, int]
    queues: list[QueueMetrics]
    latencies: dict[str, Latency]
    health: HealthReport


def check_series(names: tuple[str, ...], queue: str | None) -> tuple[str, ...]:
    """Names of series that there are; those of the broker only without a queue."""
    for name in names:
        if name not in BROKER_SERIES:
            raise InvalidField(f"metrics: there is no metric {name!r}", hint=f"choose from {', '.join(BROKER_SERIES)}")
        if queue is not None and name not in QUEUE_SERIES:
            raise InvalidField(f"metrics: {name!r} is a metric of the broker, not of a queue", hint="omit the queue")
    return names


def default_step(seconds: float) -> int:
    """A step for a chart of that many seconds."""
    return next((step for step in STEPS if seconds / step <= POINTS_DEFAULT), STEPS[-1])
