"""`backtest`: what would this handler have done? A Python function is run over history and compared with what happened.

Nothing is settled or pushed: the handler receives messages that only look like deliveries. Each Spark worker runs it in
a process of its own, with a time limit for every message. The results are written to a Parquet table first, so that the
handler is called once for every message however often the results are read.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta

from penstock.clock import SystemClock
from penstock.errors import InvalidField
from penstock.model import DEFAULT_GROUP, DLQ_SUFFIX
from penstock.spark import functions as f
from penstock.spark.failures import cause, shown_plainly
from penstock.spark.pipelines.base import Options, Pipeline, Report, Run, Table
from penstock.spark.pipelines.error_signatures import signature
from penstock.spark.pipelines.frames import match, persisted, sampled
from penstock.spark.pipelines.handler_process import Call, HandlerProcess, Setup
from penstock.spark.pipelines.state import write_state

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

RESULTS: Final = "results"
ID_COLUMNS: Final = ("queue", "partition", "offset")
COLUMNS: Final = (
    "queue", "partition", "offset", "key", "payload", "headers", "priority", "pushed_at", "dedup_key", "trace_id",
    "content_type", "max_attempts",
)  # fmt: skip
_EVENTS: Final = (
    "queue", "group", "partition", "first_offset", "last_offset", "outcome", "attempt", "settled_at", "error",
    "processing_ms",
)  # fmt: skip
_RESULT: Final = "struct<outcome: string, error: string, ms: double>"

FAILED: Final = ("retried", "rejected", "timed_out", "interrupted", "dead", "discarded")


class BacktestOptions(Options, frozen=True, kw_only=True):
    """Options of `backtest`."""

    handler: Annotated[str, Meta(description="module:function; called with each message, sync or async.")]
    group: Annotated[str, Meta(description="The group whose outcomes to compare with.")] = DEFAULT_GROUP
    share: Annotated[float, Meta(description="The share of the messages to run, 0 to 1.", gt=0, le=1)] = 1.0
    limit: Annotated[int, Meta(description="The approximate number of messages to run.", ge=1)] | None = None
    timeout_seconds: Annotated[float, Meta(description="The time limit for one message.", gt=0)] = 30.0
    tasks: Annotated[int, Meta(description="The number of Spark tasks to divide the work into.", ge=1)] | None = None
    samples: Annotated[int, Meta(description="The number of messages to show of each kind.", ge=0)] = 10


_processes: dict[Handling, HandlerProcess] = {}  # in a worker of Spark's, which has one at a time


class Handling(msgspec.Struct, frozen=True, kw_only=True):
    """A handler as a function of columns. `run_id` keeps runs apart: the code behind a name may change meanwhile."""

    setup: Setup
    timeout_seconds: float
    run_id: int

    # A method of a class that workers import: what a nested function finds in a module would be copied for every task.
    @shown_plainly
    def __call__(self, *fields: Any) -> tuple[Any, ...]:
        process = _processes.get(self)
        if process is None:
            for other in _processes.values():
                other.stop()
            _processes.clear()
            process = _processes[self] = HandlerProcess(self.setup, self.timeout_seconds)
        return msgspec.structs.astuple(process.call(Call(*fields)))


def called(messages: DataFrame, handling: Handling) -> DataFrame:
    """Every message handed to the handler: queue, partition, offset, outcome, error, ms. Write it down at once."""
    # Not Arrow's kind of function: those ask for pandas.
    handle = f.udf(handling, _RESULT, useArrow=False).asNondeterministic()
    columns = [f.unix_micros("pushed_at") if name == "pushed_at" else f.col(name) for name in COLUMNS]
    return messages.select(*ID_COLUMNS, handle(*columns).alias("_result")).select(*ID_COLUMNS, "_result.*")


def what_happened(messages: DataFrame, events: DataFrame) -> DataFrame:
    """How deliveries of each message ended in one group: was, was_error, was_ms, attempts. Only of those delivered."""
    matched = match(
        messages.select(*ID_COLUMNS), events, "inner", ["outcome", "attempt", "settled_at", "error", "processing_ms"]
    )
    when = f.struct("settled_at", "attempt")
    return matched.groupBy(*ID_COLUMNS).agg(
        f.max_by("outcome", when).alias("was"),
        f.max_by("processing_ms", when).alias("was_ms"),
        f.max_by("error", f.when(f.col("error") != "", when)).alias("was_error"),
        f.max("attempt").alias("attempts"),
    )


def compared(results: DataFrame, happened: DataFrame) -> DataFrame:
    """Results beside what happened, with a verdict: same, broken, fixed, failing, or other (nothing to compare)."""
    worked, works = f.col("was") == "acked", f.col("outcome") == "acked"
    failed, fails = f.col("was").isin(*FAILED), f.col("outcome").isin(*FAILED)
    verdict = (
        f.when(worked & works, "same")
        .when(worked & fails, "broken")
        .when(failed & works, "fixed")
        .when(failed & fails, "failing")
        .otherwise("other")
    )
    joined = results.join(happened, list(ID_COLUMNS), "left")
    return joined.select(
        f.concat_ws("/", *ID_COLUMNS).alias("id"), "*", verdict.alias("verdict"), _was_in_words().alias("before")
    )


def _was_in_words() -> Column:
    was = f.col("was")
    retried = was.isin("acked", "dead") & (f.col("attempts") > 1)
    return f.when(was.isNull(), "never delivered").otherwise(
        f.when(retried, f.concat(was, f.lit(" after retries"))).otherwise(was)
    )


def run(run: Run) -> Report:
    """Run the handler over the messages and compare."""
    options: BacktestOptions = run.options
    setup = _setup(options)
    queues = _queues(run)
    run.progress.step("choosing messages")
    messages = _chosen(run, queues, options)
    run.progress.step("running the handler")
    results = _written(
        run, messages, Handling(setup=setup, timeout_seconds=options.timeout_seconds, run_id=SystemClock().now())
    )
    run.progress.step("comparing")
    events = run.events(queues=queues, columns=_EVENTS).where(f.col("group") == options.group)
    table = compared(results, what_happened(results, events)).withColumn("signature", signature(f.col("error")))
    with persisted(table):
        return report(table, run.out, options.handler, options.samples)


def check(run: Run) -> None:
    """Refuse a backtest of no queue, and a handler that cannot be imported."""
    if not _queues(run):
        raise InvalidField("queue: name the queue whose history to run", hint="--queue orders")
    check_handler(run.options)


def check_handler(options: BacktestOptions) -> None:
    """Try the handler, in a process of its own."""
    module, _, name = options.handler.partition(":")
    if not module or not name:
        raise InvalidField(f"handler: {options.handler!r} is not a function", hint="write module:function")
    process = HandlerProcess(_setup(options), options.timeout_seconds)
    try:
        process.start()
    finally:
        process.stop()


def _setup(options: BacktestOptions) -> Setup:
    # Where the command was given, as `python -m` would.
    return Setup(handler=options.handler, path=(os.getcwd(),))


def _queues(run: Run) -> list[str]:
    return [name for name in run.queues if not name.endswith(DLQ_SUFFIX)]


def _chosen(run: Run, queues: list[str], options: BacktestOptions) -> DataFrame:
    share = options.share
    if options.limit is not None:
        count = run.messages(queues=queues, columns=ID_COLUMNS).count()
        share = min(share, options.limit / max(count, 1))
    messages = run.messages(queues=queues, columns=COLUMNS)
    tasks = options.tasks or int(run.spark.conf.get("spark.sql.shuffle.partitions") or 2)
    return (messages if share >= 1 else sampled(messages, share)).repartition(tasks)


def _written(run: Run, messages: DataFrame, handling: Handling) -> DataFrame:
    from pyspark.errors import PySparkException

    path = str(run.out / RESULTS)
    try:
        called(messages, handling).write.mode("overwrite").parquet(path)
    except PySparkException as error:
        raise cause(error) or error from None
    return run.spark.read.parquet(path)


# the report


FILE: Final = "backtest.json"
PERCENTILES: Final = (0.5, 0.95, 0.99)
VERDICTS: Final = ("same", "broken", "fixed", "failing", "other")
ERRORS_SHOWN: Final = 20
ERROR_CHARS_SHOWN: Final = 100


def report(table: DataFrame, out: Path, handler: str, samples: int) -> Report:
    """The report of a table as `compared` gives it, with a signature."""
    counts = table.groupBy("before", "outcome", "verdict").count().collect()
    by_verdict = {verdict: sum(row["count"] for row in counts if row.verdict == verdict) for verdict in VERDICTS}
    times = latency(table)
    figures: dict[str, Any] = {"messages": sum(by_verdict.values()), **by_verdict, **_by_name(times)}
    tables = [
        confusion(counts),
        _latency_table(times),
        errors(table),
        _samples(table, "broken", "Newly failing", "outcome", "error", samples),
        _samples(table, "fixed", "Newly passing", "before", "was_error", samples),
    ]
    tables = [part for part in tables if part.rows]
    notes = _notes(counts)
    write_state(out / FILE, {"handler": handler, **figures, "notes": notes, "tables": tables})
    return Report(
        summary=verdict(handler, figures),
        figures=figures,
        tables=tables,
        files=[str(out / FILE), str(out / "results")],
        notes=notes,
    )


def verdict(handler: str, figures: dict[str, Any]) -> str:
    """One line: better, worse, mixed or the same."""
    if not figures["messages"]:
        return "no messages to run"
    broken, fixed = figures["broken"], figures["fixed"]
    worked, failed = figures["same"] + broken, figures["failing"] + fixed
    parts = [f"{broken:,} of {worked:,} that were acknowledged would fail" if worked else ""]
    parts += [f"{fixed:,} of {failed:,} that failed would pass" if failed else ""]
    parts += [f"{figures['other']:,} cannot be compared" if figures["other"] else ""]
    # However many it fixes: when something that worked would fail, it is never called better.
    word = {(0, 0): "the same", (1, 0): "worse", (0, 1): "better", (1, 1): "mixed"}[bool(broken), bool(fixed)]
    return f"{handler} is {word}: " + "; ".join(filter(None, parts))


def confusion(counts: Sequence[Any]) -> Table:
    """What happened in rows, what would happen now in columns."""
    now = sorted({row.outcome for row in counts})
    cells = {(row.before, row.outcome): row["count"] for row in counts}
    rows = [(was, *(cells.get((was, outcome), 0) for outcome in now)) for was in sorted({row.before for row in counts})]
    return Table("Outcomes then and now", ("it was", *(f"now {outcome}" for outcome in now)), rows)


def latency(table: DataFrame) -> dict[str, list[float] | None]:
    """p50, p95 and p99 in ms of the messages that were acknowledged then and would be now."""
    shares = f.array(*map(f.lit, PERCENTILES))
    row = (
        table.where("verdict = 'same'")
        .agg(f.percentile("was_ms", shares).alias("before"), f.percentile("ms", shares).alias("after"))
        .collect()[0]
    )
    return row.asDict()


def _by_name(times: dict[str, list[float] | None]) -> dict[str, float]:
    return {
        f"p{share * 100:g}_ms_{when}": ms
        for when, values in times.items()
        for share, ms in zip(PERCENTILES, values or (), strict=False)
    }


def _latency_table(times: dict[str, list[float] | None]) -> Table:
    rows = [(when, *(round(ms, 3) for ms in values)) for when, values in times.items() if values]
    return Table("Latency of messages acknowledged then and now, ms", ("", "p50", "p95", "p99"), rows)


def errors(table: DataFrame) -> Table:
    """The errors of the handler by signature, the most frequent first."""
    by_signature = (
        table.where("error is not null")
        .groupBy("outcome", "signature")
        .agg(f.count("*").alias("n"), f.count_if(f.col("verdict") == "broken").alias("broken"), f.min("id").alias("id"))
        .orderBy(f.desc("broken"), f.desc("n"), "signature")
        .limit(ERRORS_SHOWN)
    )
    rows = [(_cut(row.signature), row.outcome, row.id, row.n, row.broken) for row in by_signature.collect()]
    return Table("Errors of the handler", ("error", "now", "for example", "messages", "newly failing"), rows)


def _samples(table: DataFrame, verdict: str, title: str, state: str, error: str, count: int) -> Table:
    chosen = table.where(table.verdict == verdict).select("id", state, error).orderBy("id").limit(count)
    rows = [(row[0], row[1], _cut(_last_line(row[2] or ""))) for row in chosen.collect()]
    return Table(title, ("id", "now" if state == "outcome" else "it was", "error"), rows)


def _notes(counts: Sequence[Any]) -> list[str]:
    skipped = sum(row["count"] for row in counts if row.outcome == "skipped")
    note = "'before' is the time from lease to settlement; messages leased together share it"
    return [note, *([f"{skipped:,} messages were not run: the handler hung or died too often"] if skipped else [])]


def _last_line(text: str) -> str:
    return text.strip().rsplit("\n", 1)[-1]


def _cut(text: str) -> str:
    return text if len(text) <= ERROR_CHARS_SHOWN else text[: ERROR_CHARS_SHOWN - 1] + "…"


PIPELINE: Final = Pipeline(
    name="backtest",
    summary="Run a Python handler over history and compare its outcomes, errors and latency with what happened.",
    explanation=(
        "Reads the messages of the given queues, and how a group settled them. Calls the handler with each message, "
        "in parallel and in separate processes, so the handler may raise, hang (--timeout-seconds) or crash. Messages "
        "look like deliveries (payload, json(), key, headers, id, attempt, ack(), nack(), reject() and so on), but "
        "nothing is settled or pushed. Side effects of the handler itself are real.\n\n"
        "A message counts as acknowledged if the handler returns, and as failed if it raises. The report shows the "
        "messages that were acknowledged and would fail now, those that failed and would pass now, the errors by "
        "signature, and the latencies before and after.\n\n"
        "Spark tasks must be able to import the module: on a cluster, use --conf spark.submit.pyFiles=handlers.py. "
        f"Writes the result of every message to {RESULTS}/ (Parquet), and backtest.json."
    ),
    options=BacktestOptions,
    run=run,
    check=check,
)
