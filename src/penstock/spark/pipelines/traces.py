"""The pipeline `traces`: journeys of messages across queues by the trace that they carry.

A run computes the traces of its time range anew, as a whole: a trace may go on for as long as it likes. When messages
and events are what they were at the last run, nothing is done. `tracing.hops` holds the functions from DataFrame to
DataFrame.
"""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from msgspec import Meta

from penstock.clock import SystemClock
from penstock.errors import InvalidField
from penstock.spark.pipelines.base import Options, Pipeline, Report, Run, Table
from penstock.spark.pipelines.seen import as_before, remember, seen

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FILE: Final = "traces.json"
_MESSAGES: Final = ["queue", "partition", "offset", "headers", "pushed_at", "trace_id"]


class TracesOptions(Options, frozen=True, kw_only=True):
    """Options of `traces`."""

    trace: Annotated[
        str | None, Meta(description="Only this trace: its 32 digits, or the traceparent of a message.")
    ] = None
    top: Annotated[int, Meta(ge=1, le=1000, description="Show so many of the slowest traces.")] = 20
    stuck_seconds: Annotated[
        float, Meta(ge=0, description="A trace is stuck when nothing has happened to an open message for so long.")
    ] = 300.0


def run(run: Run) -> Report:
    """Write hops and traces, draw the slowest."""
    from penstock.spark.pipelines.tracing import hops

    options: TracesOptions = run.options
    run.progress.step("looking for what is new")
    messages, events = run.messages(columns=_MESSAGES), run.events()
    if options.trace is not None:
        messages = _only(messages, options.trace)
    now = seen(run, messages.where("trace_id is not null"), events.select("count", "settled_at"))
    if options.trace is not None and not now.messages:
        hint = "see the column trace_id of the messages; check --since"
        raise InvalidField(f"--trace: there is no message of {options.trace}", hint=hint)
    before = as_before(run.out / FILE, now)
    if before is not None:
        return before
    run.progress.step("following traces")
    out = run.out.absolute()  # Spark's own directory may be another
    _write(hops.journeys(hops.hops(messages, events)), out / "hops")
    journeys = run.spark.read.parquet(str(out / "hops"))
    _write(hops.traces(journeys), out / "traces")
    found = run.spark.read.parquet(str(out / "traces"))
    return remember(run.out / FILE, now, _report(run, journeys, found))


def check(run: Run) -> None:
    """Refuse a trace without a name."""
    if run.options.trace is not None and not run.options.trace.strip():
        raise InvalidField("--trace: it is empty", hint="give 32 hexadecimal digits, or what messages carry")


def _only(messages: DataFrame, text: str) -> DataFrame:
    """The messages of one trace, of whatever was given for it."""
    from pyspark.sql import functions as f

    from penstock.wire import trace

    context = trace.parse(text)
    name = context.trace_id if context else text.strip()
    return messages.where((f.trim("trace_id") == name) | f.contains(f.col("trace_id"), f.lit(f"-{name}-")))


def _write(frame: DataFrame, place: Path) -> None:
    """Write a table beside its place and put it there when it is whole."""
    beside = place.with_name(f".{place.name}")
    frame.coalesce(4).write.mode("overwrite").parquet(str(beside))
    if not any(beside.glob("*.parquet")):
        hint = "with workers on other machines, --out must be a directory that all of them share"
        raise InvalidField(f"--out: what Spark has written to {beside.parent} is not to be seen here", hint=hint)
    shutil.rmtree(place, ignore_errors=True)
    beside.replace(place)


def _files(out: Path) -> list[str]:
    return [str(out / name) for name in ("hops", "traces", "timeline.html")]


def _report(run: Run, journeys: DataFrame, found: DataFrame) -> Report:
    from penstock.spark.pipelines.tracing.report import drawn, stuck_of, tables

    run.progress.step("drawing")
    until = run.until or datetime.fromtimestamp(SystemClock().now() / 1e6, UTC)
    stuck = stuck_of(found, until, run.options.stuck_seconds)
    counts = {row["status"]: row["count"] for row in found.groupBy("status").count().collect()}
    figures: dict[str, Any] = {
        "traces": sum(counts.values()),
        **{name: counts.get(name, 0) for name in ("done", "failed", "open")},
    }
    figures["stuck"] = stuck.count()
    shown: list[Table] = tables(journeys, found, stuck, until, run.options.top)
    (run.out / "timeline.html").write_text(drawn(journeys, found, shown, run.options.top), encoding="utf-8")
    return Report(
        summary=f"{figures['traces']:,} traces: {figures['done']:,} done, {figures['failed']:,} failed, "
        f"{figures['open']:,} open, of which {figures['stuck']:,} stuck.",
        figures=figures,
        tables=shown,
        files=_files(run.out),
    )


PIPELINE = Pipeline(
    name="traces",
    summary="Journeys of messages across queues by trace id: timeline, critical path, slowest hops, stuck traces.",
    explanation="""Reads messages that carry a trace and the events of them. Writes hops/ (one row per message and
group: pushed, leased, settled, wait, processing, outcome, what led to it, whether it was on the critical path),
traces/ (one row per trace: duration, critical path, status) and timeline.html with the slowest traces, or the one of
--trace. A message says which span pushed it but not which message that was about, so what led to it is found out from
origins of dead letters, spans and times.""",
    options=TracesOptions,
    run=run,
    check=check,
)
