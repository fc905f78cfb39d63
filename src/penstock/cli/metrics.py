"""`penstock metrics` and `penstock history`: counters and latencies of the moment, and over time."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from penstock.cli import human, output
from penstock.cli.options import AsJson, Since, Until, complete_queue, seconds_option
from penstock.cli.target import Broker
from penstock.errors import NotAuthorised
from penstock.model_metrics import (
    COUNTERS,
    GAUGES,
    SERIES_DEFAULT,
    ForecastBand,
    HistorySeries,
    Latency,
    MetricsReport,
    SeriesForecast,
)
from penstock.units import plural

if TYPE_CHECKING:
    from penstock import Penstock

QueueArgument = Annotated[
    str | None,
    typer.Argument(metavar="[QUEUE]", help="The name of the queue. [default: all]", autocompletion=complete_queue),
]
SPARKLINE_WIDTH: Final = 40


def metrics(broker: Broker, queue: QueueArgument = None, as_json: AsJson = False) -> None:
    """Show counters since the broker started, latencies and health."""
    with broker.opened() as ps:
        found = ps.metrics(queue)
    if as_json:
        output.write_json(msgspec.to_builtins(found))
        return
    _write_report(found)


def health(broker: Broker, as_json: AsJson = False) -> None:
    """Check that the broker answers and is healthy; the exit code is 2 if it is not.

    Meant for health checks: any valid key works. Problems are printed.
    """
    from penstock import operations as ops

    with broker.opened() as ps:
        info, problems = ps.session.execute(ops.Info()), _problems(ps)
    status = "degraded" if problems else "ok"
    if as_json:
        output.write_json({"status": status, "problems": problems, **msgspec.to_builtins(info)})
        return
    queues = plural(info.queues, "queue")
    output.write_plain(f"{status}: Penstock {info.version}, {queues}, durability {info.durability}")
    for problem in problems:
        output.write_plain(f"  {problem}")


def _problems(ps: Penstock) -> list[str]:
    """What somebody should look at; none when this caller may not ask for it."""
    try:
        return list(ps.metrics().health.problems)
    except NotAuthorised:
        return []


def _write_report(found: MetricsReport) -> None:
    health = found.health
    problems = "".join(f"\n  {problem}" for problem in health.problems)
    output.write(f"{health.status} since {found.since:%Y-%m-%d %H:%M:%S}Z{problems}")
    columns = (*COUNTERS, *GAUGES[:-1])
    rows = [(queue.name, *(getattr(queue, name) for name in columns)) for queue in found.queues]
    if rows:
        output.write(output.table(("queue", *columns), rows))
    timed = [(name, *_latency(latency)) for name, latency in found.latencies.items() if latency.count]
    if timed:
        output.write(output.table(("latency", "count", "mean ms", "p50 ms", "p95 ms", "p99 ms"), timed))


def _latency(latency: Latency) -> tuple[Any, ...]:
    times = (latency.mean_ms, latency.p50_ms, latency.p95_ms, latency.p99_ms)
    return latency.count, *(f"{time or 0:.3f}" for time in times)


def history(
    broker: Broker,
    queue: QueueArgument = None,
    metric: Annotated[
        str,
        typer.Option(
            "--metric", "-m", metavar="NAMES", help="Metrics to show, comma-separated; docs/history.md lists them."
        ),
    ] = ",".join(SERIES_DEFAULT),
    since: Since = None,
    until: Until = None,
    step: Annotated[float | None, seconds_option("--step", about="The time per step. [default: chosen to fit]")] = None,
    forecast: Annotated[
        float | None,
        seconds_option("--forecast", about="Also show what is expected for this time after the last step."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show metrics of a queue, or of the whole broker, over time."""
    names = [name.strip() for name in metric.split(",")]
    span = (since, until, None if step is None else max(1, round(step)))
    ahead = None if forecast is None else max(1, round(forecast))
    with broker.opened() as ps:
        source = ps if queue is None else ps.queue(queue)
        found = source.history(names, *span, forecast=ahead)
    if as_json:
        output.write_json(msgspec.to_builtins(found))
    elif all(value is None for values in found.series.values() for value in values):
        output.write_nothing(
            "nothing was recorded in that time", "a broker records with history = true; try --since -1d"
        )
    else:
        _write_series(found)
        if found.forecast is not None:
            _write_forecast(found.forecast, found.step)


def _write_series(found: HistorySeries) -> None:
    """A line for each step, and the course of each series below."""
    rows = [
        (_time(at, found.step), *(_number(values[place]) for values in found.series.values()))
        for place, at in enumerate(found.times)
        if any(values[place] is not None for values in found.series.values())
    ]
    output.write(output.table(("from", *found.series), rows))
    for name, values in found.series.items():
        known = [value or 0.0 for value in values]
        output.write(f"{human.sparkline(known, SPARKLINE_WIDTH)} {name}")


def _write_forecast(forecast: SeriesForecast, step: int) -> None:
    """A line for each step ahead: the expected value of each series, and the range of four in five."""
    known = {name: band for name, band in forecast.series.items() if any(value is not None for value in band.value)}
    if not known:
        output.write("too little history for a forecast")
        return
    rows = [
        (_time(at, step), *(_band(band, place) for band in known.values())) for place, at in enumerate(forecast.times)
    ]
    output.write(output.table(("expected from", *known), rows))


def _band(band: ForecastBand, place: int) -> str:
    value, low, high = band.value[place], band.low[place], band.high[place]
    return _number(value) if value is None else f"{_number(value)} ({_number(low)} to {_number(high)})"


def _time(at: int, step: int) -> str:
    moment = datetime.fromtimestamp(at, UTC)
    return f"{moment:%Y-%m-%d}" if step % 86_400 == 0 else f"{moment:%Y-%m-%d %H:%M:%S}"


def _number(value: float | None) -> str:
    return "·" if value is None else f"{value:,.0f}" if value == round(value) else f"{value:,.3f}"
