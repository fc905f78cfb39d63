"""Operations on metrics: current values and their history."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final

from penstock.errors import InvalidField
from penstock.model_metrics import SERIES_DEFAULT, HistorySeries, MetricsReport, check_series
from penstock.operations.base import Action, Check, Operation, operation
from penstock.operations.types import Flag, Instant, QueueName

STEP_SECONDS_MAX: Final = 366 * 86_400
YEARS: Final = (1970, 9000)  # of a period: steps, comparisons and forecasts around it must be times too


def _step(value: Any, field: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= STEP_SECONDS_MAX:
        raise InvalidField(f"{field}: {value!r} is not a whole number of seconds from 1 to {STEP_SECONDS_MAX:,}")
    return value


def _series(value: Any, field: str) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidField(f"{field}: {value!r} is not a list of metrics", hint="for example metrics=['lag']")
    return tuple(value) or SERIES_DEFAULT


@operation(
    Action.MONITOR,
    http="GET /history/series",
    route="get_series",
    errors=("invalid_field", "queue_not_found"),
    example={"queue": "orders", "metric": "pushed_per_second,lag,latency_p99_ms", "step": 60},
)
class GetSeries(Operation[HistorySeries], frozen=True):
    """Get metrics of a queue, or of the whole broker, over time.

    The values come from the roll-ups that the broker keeps: by second for five minutes, and by minute, hour and day for
    longer. For each step, counters are summed, gauges are the maximum, and percentiles are merged. The default of
    `from` is one hour ago; the default of `step` gives about as many values as fit on a chart. A step that is a
    multiple of an hour reads the hourly roll-ups, and so on. `compare` adds `previous`: the same steps that number of
    seconds earlier, for example 604800 for the previous week. `marks` adds changes of options and pauses in the same
    period, from the audit log. `forecast` adds the values expected for that number of seconds after the period, based
    on the same time of day or day of week.
    """

    queue: QueueName | None = None
    metrics: Annotated[tuple[str, ...], Check(_series)] = SERIES_DEFAULT
    since: Instant | None = None
    until: Instant | None = None
    step: Annotated[int, Check(_step)] | None = None  # seconds
    compare: Annotated[int, Check(_step)] | None = None  # seconds
    marks: Flag = False
    forecast: Annotated[int, Check(_step)] | None = None  # seconds

    def __post_init__(self) -> None:
        super().__post_init__()
        check_series(self.metrics, self.queue)
        for name, value in (("from", self.since), ("to", self.until)):
            if value is not None and not YEARS[0] <= value.year <= YEARS[1]:
                raise InvalidField(f"{name}: {value.isoformat()} is not in the years {YEARS[0]} to {YEARS[1]}")
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise InvalidField(f"from: {self.since.isoformat()} is not before to, {self.until.isoformat()}")


@operation(
    Action.MONITOR,
    http="GET /metrics",
    route="get_report",
    errors=("queue_not_found",),
    example={"queue": "orders"},
)
class GetMetrics(Operation[MetricsReport], frozen=True):
    """Get the current counters, latencies and health of one queue or of all queues."""

    queue: QueueName | None = None
