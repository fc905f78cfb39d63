"""The pipeline `traces`: journeys of messages across queues by the trace that they carry.

A run computes the traces of its time range as a whole: a trace may go on for as long as it likes. When messages and
events are unchanged since the last run, nothing is done.

A trace is named by the 32 hexadecimal digits of the W3C `traceparent` that a message carries; any other text names its
trace as it is. Messages without a trace take no part.

A hop is one message as one group saw it. A message says which span pushed it, not which message that span was working
on, so the parent of a hop is inferred, in this order:

1. a dead letter names its origin;
2. messages pushed by the same span have the same origin, in a trace of several spans;
3. the hop that was being worked on when this message was pushed; of several the one leased last;
4. the hop that had ended last before.

The critical path is the hop that ended last, its parent, and so on to the beginning.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

from msgspec import Meta

from penstock.clock import SystemClock
from penstock.errors import InvalidField
from penstock.model import DLQ_SUFFIX
from penstock.model_letters import DEAD_ORIGIN
from penstock.spark import functions as f
from penstock.spark.pipelines.base import Options, Pipeline, Report, Run, Table
from penstock.spark.pipelines.pages import page, section, table_section
from penstock.spark.pipelines.replay import ORIGIN as REPLAYED
from penstock.spark.pipelines.state import seen, store_report, unchanged_report

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Hop(NamedTuple):
    """One message as one group saw it."""

    id: str  # queue/partition/offset
    span: str | None
    origin: str | None  # id of the message that this is the dead letter of
    pushed_us: int
    leased_us: int | None  # first
    settled_us: int | None  # last
    is_open: bool


class Step(NamedTuple):
    """The role of a hop in its journey."""

    parent: int | None  # index of the hop that led to it
    is_critical: bool
    gap_us: int  # from the end of its parent to its push
    wait_us: int  # its wait, on the critical path
    work_us: int  # its work after that, on the critical path


def journey(hops: Sequence[Hop]) -> list[Step]:
    """One step per hop, in the same order. Hops come in the order in which they were pushed."""
    parents = _parents(hops)
    path = _critical_path(hops, parents)
    follower = dict(zip(path[1:], path[:-1], strict=True))  # a hop on the path → the one that it led to
    return [_step(hops, index, parents[index], index in path, follower.get(index)) for index in range(len(hops))]


def _parents(hops: Sequence[Hop]) -> list[int | None]:
    by_id = {hop.id: index for index, hop in enumerate(hops)}
    spans = {hop.span for hop in hops if hop.span}
    of_message: dict[str, int | None] = {}
    of_span: dict[str, int | None] = {}
    for hop in hops:
        if hop.id in of_message:
            continue  # another group of the same message
        if hop.origin is not None:
            of_message[hop.id] = by_id.get(hop.origin)
        elif len(spans) > 1 and hop.span in of_span:
            of_message[hop.id] = of_span[hop.span]
        else:
            of_message[hop.id] = _at_work(hops, hop)
            if hop.span:
                of_span[hop.span] = of_message[hop.id]
    return [of_message[hop.id] for hop in hops]


def _at_work(hops: Sequence[Hop], pushed: Hop) -> int | None:
    """The hop that was being worked on at a push, else the one that had ended last."""
    before = [
        (index, hop.leased_us, hop.settled_us)
        for index, hop in enumerate(hops)
        if hop.id != pushed.id and hop.pushed_us <= pushed.pushed_us
        and hop.leased_us is not None and hop.leased_us <= pushed.pushed_us
    ]  # fmt: skip
    working = [(leased, index) for index, leased, ended in before if ended is None or ended >= pushed.pushed_us]
    if working:
        return max(working)[1]
    return max(((ended or 0, index) for index, _, ended in before), default=(0, None))[1]


def _critical_path(hops: Sequence[Hop], parents: Sequence[int | None]) -> list[int]:
    """From the hop that ended last back to the first. What is still open ends after everything else."""
    hop: int | None = max(range(len(hops)), key=lambda index: (hops[index].is_open, _end(hops[index])))
    path: list[int] = []
    while hop is not None and hop not in path:  # messages pushed at the same moment might point at each other
        path.append(hop)
        hop = parents[hop]
    return path


def _end(hop: Hop) -> int:
    return hop.settled_us or hop.leased_us or hop.pushed_us


def _step(hops: Sequence[Hop], index: int, parent: int | None, is_critical: bool, follower: int | None) -> Step:
    hop = hops[index]
    gap_us = max(0, hop.pushed_us - _end(hops[parent])) if parent is not None else 0
    if not is_critical:
        return Step(parent, False, gap_us, 0, 0)
    begun = hop.leased_us if hop.leased_us is not None else hop.pushed_us
    handed_on = _end(hop) if follower is None else min(_end(hop), hops[follower].pushed_us)
    return Step(parent, True, gap_us, max(0, begun - hop.pushed_us), max(0, handed_on - begun))


TRACEPARENT: Final = r"^\s*[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}"
# A message that ended like this comes again; after any other outcome it does not.
AGAIN: Final = ("retried", "released", "snoozed", "timed_out", "interrupted")
FAILED: Final = ("dead", "rejected", "discarded", "expired", "evicted", "lost", "overflowed")

_MESSAGE: Final = ["trace", "span", "queue", "partition", "offset", "origin", "pushed_at"]
_STEP: Final = "parent: string, is_critical: boolean, gap_ms: double, path_wait_ms: double, path_work_ms: double"


def with_trace(messages: DataFrame) -> DataFrame:
    """Messages that carry a trace, with `trace`, `span` and the origin of dead letters and of what was replayed."""
    traced = messages.where(f.col("trace_id").isNotNull() & (f.trim("trace_id") != ""))
    name = f.regexp_extract("trace_id", TRACEPARENT, 1)
    span = f.regexp_extract("trace_id", TRACEPARENT, 2)
    dead, replayed = f.col("headers").getItem(DEAD_ORIGIN), f.col("headers").getItem(REPLAYED)
    # A dead letter may have been replayed before, and be replayed after: where it is tells which came last.
    origin = f.when(f.col("queue").endswith(DLQ_SUFFIX), f.coalesce(dead, replayed)).otherwise(replayed)
    return traced.select(
        f.when(name != "", name).otherwise(f.trim("trace_id")).alias("trace"),
        f.when(span != "", span).alias("span"),
        "queue",
        "partition",
        "offset",
        origin.alias("origin"),
        "pushed_at",
    )


def hops(messages: DataFrame, events: DataFrame) -> DataFrame:
    """One row per message of a trace and group: when it was pushed, leased and settled, how often, and how it ended."""
    traced = with_trace(messages)
    single = events.select(
        "queue",
        "partition",
        f.explode(f.sequence("first_offset", "last_offset")).alias("offset"),
        *("group", "outcome", "attempt", "leased_at", "settled_at", "processing_ms", "error"),
    )
    joined = traced.join(single, ["queue", "partition", "offset"], "left")
    last = f.max_by(f.struct("outcome", "error"), f.struct("settled_at", "attempt"))
    by_group = joined.groupBy(*_MESSAGE, "group").agg(
        f.min("leased_at").alias("leased_at"),
        f.max("settled_at").alias("settled_at"),
        f.count("leased_at").cast("int").alias("deliveries"),
        f.sum("processing_ms").alias("processing_ms"),
        last.alias("last"),
    )
    is_open = f.col("last.outcome").isNull() | f.col("last.outcome").isin(*AGAIN)
    wait = (f.unix_micros("leased_at") - f.unix_micros("pushed_at")) / f.lit(1000.0)
    held = (f.unix_micros("settled_at") - f.unix_micros("leased_at")) / f.lit(1000.0)
    return by_group.select(
        *_MESSAGE,
        "group",
        f.concat_ws("/", "queue", "partition", "offset").alias("id"),
        *("leased_at", "settled_at", "deliveries"),
        f.col("last.outcome").alias("outcome"),
        f.col("last.error").alias("error"),
        wait.alias("wait_ms"),
        "processing_ms",
        # Between two deliveries: backoff, and waiting to be leased again.
        f.greatest(held - f.col("processing_ms"), f.lit(0.0)).alias("between_ms"),
        is_open.alias("is_open"),
    )


def journeys(hops: DataFrame) -> DataFrame:
    """Hops with their parent (the id of a message), and whether they were on the critical path."""
    order = ["pushed_at", "id", "group"]
    kept = [name for name in hops.columns if name != "trace"]
    every = f.struct(*order, *(name for name in kept if name not in order))
    grouped = hops.groupBy("trace").agg(f.array_sort(f.collect_list(every)).alias("hop"))
    hop_facts = f.transform(
        "hop",
        lambda hop: f.struct(
            *(hop[name] for name in ("id", "span", "origin")),
            *(f.unix_micros(hop[name]) for name in ("pushed_at", "leased_at", "settled_at")),
            hop["is_open"],
        ),
    )
    # Not Arrow's kind of function: those ask for pandas.
    steps = f.udf(_steps, f"array<struct<{_STEP}>>", useArrow=False)(hop_facts)
    both = grouped.select("trace", "hop", steps.alias("step"))
    walked = both.select("trace", f.inline(f.arrays_zip("hop", "step")))
    return walked.select("trace", *(f"hop.{name}" for name in kept), "step.*")


def traces(journeys: DataFrame) -> DataFrame:
    """One row per trace: when, how long, along which queues, and its status."""
    critical = f.when(f.col("is_critical"), f.struct("pushed_at", "settled_at", "queue"))
    path = f.transform(f.array_sort(f.collect_list(critical)), lambda hop: hop["queue"])
    end = f.greatest(f.max("settled_at"), f.max("leased_at"), f.max("pushed_at"))
    # An open dead letter waits for a person: it is the end of the trace, and counts as failed.
    is_dead_letter = f.col("queue").endswith(DLQ_SUFFIX) & f.col("origin").isNotNull() & f.col("outcome").isNull()
    is_open = f.col("is_open") & ~is_dead_letter
    open_since = f.min(f.when(is_open, f.coalesce("settled_at", "leased_at", "pushed_at")))
    failed = f.max(is_dead_letter | (f.col("outcome").isin(*FAILED) & ~f.col("is_open")))
    by_trace = journeys.groupBy("trace").agg(
        f.min("pushed_at").alias("started_at"),
        end.alias("ended_at"),
        f.count_distinct("id").cast("int").alias("messages"),
        f.count_distinct("queue").cast("int").alias("queues"),
        f.sum("deliveries").alias("deliveries"),
        f.array_join(path, " → ").alias("path"),
        *(f.sum(name).alias(name) for name in ("path_wait_ms", "path_work_ms")),
        f.sum(f.when(f.col("is_critical"), f.col("gap_ms"))).alias("path_gap_ms"),
        f.sum(is_open.cast("int")).cast("int").alias("open"),
        open_since.alias("open_since"),
        failed.alias("is_failed"),
    )
    status = f.when(f.col("open") > 0, "open").when(f.col("is_failed"), "failed").otherwise("done")
    duration = (f.unix_micros("ended_at") - f.unix_micros("started_at")) / f.lit(1000.0)
    return by_trace.withColumn("duration_ms", duration).withColumn("status", status).drop("is_failed")


def by_queue(journeys: DataFrame) -> DataFrame:
    """Where the time goes: waits and processing per queue and group, and the share of all critical paths."""
    from pyspark.sql import Window

    shares = f.array(f.lit(0.5), f.lit(0.95))
    on_path = f.coalesce(f.sum(f.col("path_wait_ms") + f.col("path_work_ms")), f.lit(0.0))
    times = journeys.groupBy("queue", "group").agg(
        f.count("*").alias("hops"),
        f.percentile_approx("wait_ms", shares, 10_000).alias("wait"),
        f.percentile_approx("processing_ms", shares, 10_000).alias("processing"),
        f.sum("between_ms").alias("between_ms"),
        on_path.alias("path_ms"),
        f.coalesce(f.sum("path_wait_ms"), f.lit(0.0)).alias("path_wait_ms"),
    )
    total = f.sum("path_ms").over(Window.partitionBy(f.lit(0)))
    return times.select(
        "queue",
        "group",
        "hops",
        *(f.col(name)[index].alias(f"{name}_{label}_ms") for name in ("wait", "processing")
          for index, label in enumerate(("p50", "p95"))),
        "between_ms",
        "path_ms",
        f.try_divide("path_wait_ms", "path_ms").alias("waiting_share"),
        f.try_divide("path_ms", total).alias("path_share"),
    )  # fmt: skip


def _steps(rows: Sequence[Sequence[Any]]) -> list[tuple[str | None, bool, float, float, float]]:
    hops = [Hop(*row) for row in rows]
    return [
        (
            None if step.parent is None else hops[step.parent].id,
            step.is_critical,
            step.gap_us / 1e3,
            step.wait_us / 1e3,
            step.work_us / 1e3,
        )
        for step in journey(hops)
    ]


FILE: Final = "traces.json"
_MESSAGES: Final = ["queue", "partition", "offset", "headers", "pushed_at", "trace_id"]


class TracesOptions(Options, frozen=True, kw_only=True):
    """Options of `traces`."""

    trace: Annotated[
        str | None, Meta(description="Only this trace: its 32 hexadecimal digits, or the traceparent of a message.")
    ] = None
    top: Annotated[int, Meta(ge=1, le=1000, description="The number of slowest traces to show.")] = 20
    stuck_seconds: Annotated[
        float, Meta(ge=0, description="A trace is stuck if an open message had no event for this time.")
    ] = 300.0


def run(run: Run) -> Report:
    """Write hops and traces, draw the slowest."""
    options: TracesOptions = run.options
    run.progress.step("looking for new data")
    messages, events = run.messages(columns=_MESSAGES), run.events()
    if options.trace is not None:
        messages = _only(messages, options.trace)
    now = seen(run, messages.where("trace_id is not null"), events.select("count", "settled_at"))
    if options.trace is not None and not now.messages:
        hint = "see the column trace_id of the messages; check --since"
        raise InvalidField(f"--trace: no message has the trace {options.trace}", hint=hint)
    before = unchanged_report(run.out / FILE, now)
    if before is not None:
        return before
    run.progress.step("following traces")
    out = run.out.absolute()  # Spark's own directory may be another
    _write(journeys(hops(messages, events)), out / "hops")
    written_hops = run.spark.read.parquet(str(out / "hops"))
    _write(traces(written_hops), out / "traces")
    return store_report(run.out / FILE, now, _report(run, written_hops, run.spark.read.parquet(str(out / "traces"))))


def check(run: Run) -> None:
    """Refuse an empty trace."""
    if run.options.trace is not None and not run.options.trace.strip():
        raise InvalidField("--trace: it is empty", hint="give 32 hexadecimal digits, or the traceparent of a message")


def _only(messages: DataFrame, text: str) -> DataFrame:
    """The messages of one trace, named by its digits or by a traceparent."""
    from penstock.wire import trace

    context = trace.parse(text)
    name = context.trace_id if context else text.strip()
    return messages.where((f.trim("trace_id") == name) | f.contains(f.col("trace_id"), f.lit(f"-{name}-")))


def _write(frame: DataFrame, target: Path) -> None:
    """Write a table to a temporary directory and rename it when it is whole."""
    beside = target.with_name(f".{target.name}")
    frame.coalesce(4).write.mode("overwrite").parquet(str(beside))
    if not any(beside.glob("*.parquet")):
        hint = "with workers on other machines, --out must be a directory that all of them share"
        raise InvalidField(f"--out: the files that Spark wrote to {beside.parent} are not visible here", hint=hint)
    shutil.rmtree(target, ignore_errors=True)
    beside.replace(target)


def _files(out: Path) -> list[str]:
    return [str(out / name) for name in ("hops", "traces", "timeline.html")]


def _report(run: Run, journeys: DataFrame, traces: DataFrame) -> Report:
    run.progress.step("drawing")
    until = run.until or datetime.fromtimestamp(SystemClock().now() / 1e6, UTC)
    stuck = stuck_of(traces, until, run.options.stuck_seconds)
    counts = {row["status"]: row["count"] for row in traces.groupBy("status").count().collect()}
    figures: dict[str, Any] = {
        "traces": sum(counts.values()),
        **{name: counts.get(name, 0) for name in ("done", "failed", "open")},
    }
    figures["stuck"] = stuck.count()
    shown: list[Table] = tables(journeys, traces, stuck, until, run.options.top)
    (run.out / "timeline.html").write_text(timeline_page(journeys, traces, shown, run.options.top), encoding="utf-8")
    return Report(
        summary=f"{figures['traces']:,} traces: {figures['done']:,} done, {figures['failed']:,} failed, "
        f"{figures['open']:,} open, of which {figures['stuck']:,} stuck.",
        figures=figures,
        tables=shown,
        files=_files(run.out),
    )


# timelines: one bar per hop, as SVG


Row = Mapping[str, Any]  # of the table of journeys

WIDTH, LABEL, ROW, TOP = 1060, 250, 22, 24
WAIT_COLOUR, WORK_COLOUR, FAILED_COLOUR, OPEN_COLOUR = "#e0a030", "#1f6f8b", "#c8413b", "#9aa5b1"
_MARK: Final = "#c8413b"

LEGEND: Final = (
    "<p class='note'>"
    f"<b style='color:{WAIT_COLOUR}'>■</b> waiting &nbsp; "
    f"<b style='color:{WORK_COLOUR}'>■</b> from first lease to end &nbsp; "
    f"<b style='color:{FAILED_COLOUR}'>■</b> failed &nbsp; "
    f"<b style='color:{OPEN_COLOUR}'>■</b> in progress &nbsp; "
    f"<b style='color:{_MARK}'>│</b> on the critical path</p>"
)


def gantt(rows: Sequence[Row], failed: Sequence[str]) -> str:
    """The hops of one trace, in the order in which they were pushed."""
    start = min(row["pushed_at"] for row in rows)
    end = max(time for row in rows for time in (row["pushed_at"], row["leased_at"], row["settled_at"]) if time)
    span_ms = max(_ms_between(start, end), 0.001)
    height = TOP + ROW * len(rows) + 8
    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" font-size="11.5">']
    parts += [_tick(share, span_ms, height) for share in (0, 0.25, 0.5, 0.75, 1)]
    parts += [_hop(row, index, start, span_ms, failed) for index, row in enumerate(rows)]
    return "".join(parts) + "</svg>"


def duration(ms: float) -> str:
    """A duration with the unit that fits it."""
    for unit, size in (("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if ms >= size:
            return f"{ms / size:.3g} {unit}" if ms / size < 1000 else f"{ms / size:,.0f} {unit}"
    return f"{ms:.3g} ms"


def _tick(share: float, span_ms: float, height: int) -> str:
    x = LABEL + share * (WIDTH - LABEL - 10)
    anchor = {0.0: "start", 1.0: "end"}.get(share, "middle")
    line = f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{height - 6}" stroke="currentColor" opacity=".15"/>'
    text = f'<text x="{x:.1f}" y="12" text-anchor="{anchor}" fill="currentColor" opacity=".7">'
    return f"{line}{text}+{duration(share * span_ms)}</text>"


def _hop(row: Row, index: int, start: datetime, span_ms: float, failed: Sequence[str]) -> str:
    y = TOP + index * ROW
    pushed = _ms_between(start, row["pushed_at"])
    end = span_ms if row["is_open"] else _ms_between(start, row["settled_at"])
    leased = _ms_between(start, row["leased_at"]) if row["leased_at"] else end
    work = OPEN_COLOUR if row["is_open"] else FAILED_COLOUR if row["outcome"] in failed else WORK_COLOUR
    wait = OPEN_COLOUR if row["is_open"] and not row["leased_at"] else WAIT_COLOUR
    group = "" if row["group"] in (None, "default") else f" · {row['group']}"
    label = escape(_short(f"{row['queue']}/{row['partition']}/{row['offset']}{group}"))
    mark = f'<rect x="0" y="{y + 3}" width="3" height="{ROW - 6}" fill="{_MARK}"/>' if row["is_critical"] else ""
    return (
        f"<g><title>{escape(_tooltip(row))}</title>{mark}"
        f'<text x="8" y="{y + 15}" fill="currentColor">{label}</text>'
        f"{_bar(y, pushed, leased, span_ms, wait)}{_bar(y, leased, end, span_ms, work)}</g>"
    )


def _bar(y: int, first_ms: float, last_ms: float, span_ms: float, colour: str) -> str:
    scale = (WIDTH - LABEL - 10) / span_ms
    width = (last_ms - first_ms) * scale
    if width <= 0:
        return ""
    return (
        f'<rect x="{LABEL + first_ms * scale:.1f}" y="{y + 4}" width="{max(width, 1):.1f}" height="{ROW - 8}" '
        f'rx="2" fill="{colour}"/>'
    )


def _tooltip(row: Row) -> str:
    facts = [f"{row['id']} ({row['group'] or 'no group yet'})", f"{row['outcome'] or 'not delivered yet'}"]
    facts += [f"deliveries {row['deliveries']}"]
    facts += [f"waited {duration(row['wait_ms'])}"] if row["wait_ms"] is not None else []
    facts += [f"processing {duration(row['processing_ms'])}"] if row["processing_ms"] is not None else []
    facts += [f"from {row['parent']}"] if row["parent"] else []
    return "\n".join([*facts, *([row["error"]] if row["error"] else [])])


def _short(text: str, length: int = 36) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _ms_between(first: datetime, last: datetime) -> float:
    return (last - first).total_seconds() * 1000


# tables and the page


HOPS_DRAWN_MAX = 200


def stuck_of(traces: DataFrame, now: datetime, seconds: float) -> DataFrame:
    """Open traces whose open messages have been idle for `seconds`."""
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


def timeline_page(journeys: DataFrame, traces: DataFrame, shown: Sequence[Table], top: int) -> str:
    """A page with the tables and a timeline of every slow trace."""
    slow = traces.orderBy(f.desc("duration_ms"), "trace").limit(top).select("trace", "duration_ms", "status")
    rows = _rows(journeys.join(f.broadcast(slow), "trace").orderBy(f.desc("duration_ms"), "trace", "pushed_at", "id"))
    sections = [*(table_section(table) for table in shown), section("Timelines", LEGEND)]
    for trace, own in groupby(rows, key=lambda row: row["trace"]):
        hops = list(own)
        note = f"{len(hops) - HOPS_DRAWN_MAX} more hops are not drawn." if len(hops) > HOPS_DRAWN_MAX else ""
        body = gantt(hops[:HOPS_DRAWN_MAX], FAILED)
        sections.append(section(f"{trace} · {duration(hops[0]['duration_ms'])} · {hops[0]['status']}", body, note))
    return page("Message traces", f"The {len({row['trace'] for row in rows})} slowest traces.", sections)


def _rows(frame: DataFrame) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = frame.toArrow().to_pylist()
    return rows


def _ms(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _percent(value: float | None) -> float | None:
    return None if value is None else round(100 * value, 1)


PIPELINE = Pipeline(
    name="traces",
    summary="Follow messages across queues by trace id: timeline, critical path, slowest hops, stuck traces.",
    explanation="""Reads messages that have a trace, and their events. Writes hops/ (one row per message and group:
pushed, leased, settled, wait, processing, outcome, parent, whether it was on the critical path), traces/ (one row per
trace: duration, critical path, status) and timeline.html with the slowest traces, or with --trace. A message records
the span that pushed it, but not the message that the span was processing, so parents are inferred from spans, times and
the origins of dead letters.""",
    options=TracesOptions,
    run=run,
    check=check,
)
