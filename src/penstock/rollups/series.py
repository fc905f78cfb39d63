"""Series for charts, from the slices of one tier: aligned to the step, with None where nothing was recorded."""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from penstock.errors import InvalidField
from penstock.model import to_datetime
from penstock.model_metrics import (
    BROKER_COUNTERS,
    COUNTERS,
    GAUGES,
    PER_SECOND,
    PERCENTILES,
    POINTS_MAX,
    STEPS,
    ForecastBand,
    HistorySeries,
    SeriesForecast,
    default_step,
)
from penstock.rollups.forecast import forecast
from penstock.rollups.slices import BROKER_COUNTED, BUCKETS, COUNTED, MIDDLES, Int64s, Slice
from penstock.rollups.tiers import BROKER, BROKER_COLUMNS, COLUMNS, DAY, HOUR, LATENCY_ROWS, TIERS, Tier
from penstock.telemetry.meter import quantile

if TYPE_CHECKING:
    from penstock.rollups.recorder import Recorder

Floats = NDArray[np.float64]
SPAN_SECONDS: Final = 3_600  # of a chart that does not say how much it shows
SEASONS: Final = 13  # days, or weeks, that a forecast is made from
_BACKLOG: Final = ("ready", "leased", "delayed")


def series(
    recorder: Recorder, queue: str | None, metrics: tuple[str, ...], since: int, until: int, step: int | None, now: int
) -> HistorySeries:
    """The series of a queue, or of the broker when None; `since` and `until` in seconds since 1970."""
    step = step or _fitting_step(since, until, now)
    start, end = since - since % step, until + -until % step
    count = (end - start) // step
    if count > POINTS_MAX:
        raise InvalidField(f"step: that makes {count} values", hint=f"the limit is {POINTS_MAX}: choose a larger step")
    tier = _tier_of(step)
    table = _Table(queue, start, step, count, tier)
    for part, names in recorder.slices(tier, start, end):
        table.add(part, names)
    begins_at = recorder.begins_at(tier)
    return HistorySeries(
        queue=queue,
        since=to_datetime(start * 1_000_000),
        until=to_datetime(end * 1_000_000),
        step=step,
        resolution=tier.seconds,
        begins_at=None if begins_at is None else to_datetime(begins_at * 1_000_000),
        times=list(range(start, end, step)),
        series={name: table.column(name) for name in metrics},
    )


def earlier(
    recorder: Recorder, queue: str | None, metrics: tuple[str, ...], found: HistorySeries, seconds: int, now: int
) -> dict[str, list[float | None]]:
    """The steps of a series, `seconds` earlier. Where only longer ones are kept, each covers several."""
    since, until = found.times[0] - seconds, found.times[-1] + found.step - seconds
    step = found.step
    if _tier_of(step).keep_seconds < now - since:
        step = max(step, _fitting_step(since, until, now))
    before = series(recorder, queue, metrics, since, until, step, now)
    places = [(at - seconds - before.times[0]) // step for at in found.times]
    return {
        name: [_share(name, values[place], found.step / step) for place in places]
        for name, values in before.series.items()
    }


def ahead(
    recorder: Recorder, queue: str | None, metrics: tuple[str, ...], found: HistorySeries, seconds: int, now: int
) -> SeriesForecast:
    """A forecast of the steps after a series, from whole hours or days before its end."""
    step, end = found.step, found.times[-1] + found.step
    count = -(-seconds // step)
    if count > POINTS_MAX:
        raise InvalidField(f"forecast: that makes {count} values", hint=f"at most {POINTS_MAX}: choose a larger step")
    unit = HOUR if step <= HOUR else step if DAY % step == 0 else DAY
    season = DAY // unit if unit < DAY else 7
    until = min(end, now)
    until -= until % unit  # an hour that is not over has not all its messages
    before = series(recorder, queue, metrics, until - unit * season * SEASONS, until, unit, now)
    times = list(range(end, end + count * step, step))
    places = [max(0, (at - until) // unit) for at in times]
    bands = {name: forecast(values, season, places[-1] + 1) for name, values in before.series.items()}
    return SeriesForecast(times, {name: _spread(name, band, places, step / unit) for name, band in bands.items()})


def _spread(name: str, band: ForecastBand, places: list[int], share: float) -> ForecastBand:
    """A forecast by the hour or day for the steps of a chart."""
    value, low, high = (
        [_share(name, values[place], share) for place in places] for values in (band.value, band.low, band.high)
    )
    return ForecastBand(value=value, low=low, high=high, is_seasonal=band.is_seasonal)


def _share(name: str, value: float | None, share: float) -> float | None:
    """A value for a shorter step: sums are divided, everything else is the same."""
    return value * share if value is not None and name in (*COUNTERS, *BROKER_COUNTERS) else value


def _fitting_step(since: int, until: int, now: int) -> int:
    """A step for a chart whose tier still has `since`, if any does."""
    wanted = default_step(until - since)
    steps = [step for step in STEPS if step >= wanted]
    return next((step for step in steps if _tier_of(step).keep_seconds >= now - since), steps[-1])


def _tier_of(step: int) -> Tier:
    """The coarsest tier that a step is made of: the fewest slices to read, and those that are kept longest."""
    return next(tier for tier in reversed(TIERS) if step % tier.seconds == 0)


class _Table:
    """The steps of a chart, filled slice by slice."""

    def __init__(self, queue: str | None, start: int, step: int, count: int, tier: Tier) -> None:
        self._queue = queue
        self._start, self._step = start, step
        self._is_sparse = tier is TIERS[0]
        self._values: Floats = np.full((count, len(COLUMNS)), np.nan)
        self._broker: Floats = np.full((count, len(BROKER_COLUMNS)), np.nan)
        self._latencies: dict[str, NDArray[np.int64]] = {}
        self._count = count
        self._carried: tuple[int, Int64s] = (-1, np.zeros(0, np.int64))  # minute, gauges

    def add(self, part: Slice, names: Mapping[int, str]) -> None:
        """Add one slice to its step."""
        step = (part.at - self._start) // self._step
        if self._queue is None:
            ids: list[int] | None = None
            row = part.row(BROKER)
            _fill(self._broker[step], part.broker, BROKER_COUNTED)
            for name, id in LATENCY_ROWS.items():
                self._observe(name, step, part.latencies([id]))
        else:
            ids = [id for id, name in names.items() if name == self._queue]
            row = self._row_of(part, ids)
        if row is not None:
            _fill(self._values[step], row, COUNTED)
        self._observe("latency", step, part.latencies(ids))

    def _row_of(self, part: Slice, ids: list[int]) -> Int64s | None:
        """The columns of the queue; of all its incarnations, where it was re-created within the slice."""
        rows = [row for row in map(part.row, ids) if row is not None]
        minute = part.at // 60
        if not rows:
            # Seconds have rows for queues that have changed; the first of each minute has all of them.
            carried, gauges = self._carried
            if not (self._is_sparse and carried == minute):
                return None
            return np.concatenate([np.zeros(COUNTED, np.int64), gauges])
        row = np.concatenate([np.sum(rows, axis=0)[:COUNTED], np.max(rows, axis=0)[COUNTED:]])
        self._carried = (minute, row[COUNTED:])
        return row

    def _observe(self, name: str, step: int, counts: Int64s) -> None:
        if counts.any():
            known = self._latencies.setdefault(name, np.zeros((self._count, BUCKETS), np.int64))
            known[step] += counts

    def column(self, name: str) -> list[float | None]:
        """The values of one series."""
        if name.endswith("_ms") and name not in GAUGES:
            of, percentile, _ = name.rsplit("_", 2)
            return self._percentiles(of, PERCENTILES[percentile])
        if name.endswith(PER_SECOND):
            return _shown(self._column(name.removesuffix(PER_SECOND)) / self._step)
        if name == "backlog":
            return _shown(sum((self._column(part) for part in _BACKLOG), np.zeros(self._count)))
        return _shown(self._column(name))

    def _column(self, name: str) -> Floats:
        if name in COLUMNS:
            return self._values[:, COLUMNS.index(name)]
        return self._broker[:, BROKER_COLUMNS.index(name)]

    def _percentiles(self, of: str, share: float) -> list[float | None]:
        counts = self._latencies.get(of)
        if counts is None:
            return [None] * self._count
        found = (quantile(row.tolist(), share, MIDDLES) for row in counts)
        return [None if seconds is None else round(seconds * 1000, 4) for seconds in found]


def _fill(row: Floats, values: Int64s, counted: int) -> None:
    """Add a slice to a step: counters are added up, gauges keep the highest."""
    row[:counted] = np.nan_to_num(row[:counted]) + values[:counted]
    row[counted:] = np.fmax(row[counted:], values[counted:])


def _shown(values: Floats) -> list[float | None]:
    return [None if isnan(value) else value for value in values.tolist()]
