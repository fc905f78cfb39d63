"""`backtest`: what would this handler have done? A Python function is run over history and compared with what happened.

Nothing is settled or pushed: the handler is given messages that only look like deliveries. Each worker of Spark's runs
it in a process of its own, with a limit of time for every message. What it did goes to a Parquet table first, so that
it is called once for every message however often the results are read.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta

from penstock.clock import SystemClock
from penstock.errors import InvalidField
from penstock.model import DEFAULT_GROUP, DLQ_SUFFIX
from penstock.spark.failures import cause, shown_plainly
from penstock.spark.pipelines.backtesting import report as backtest_report
from penstock.spark.pipelines.backtesting.handler_child import Call, Setup
from penstock.spark.pipelines.backtesting.handler_process import HandlerProcess
from penstock.spark.pipelines.base import Options, Pipeline, Report, Run
from penstock.spark.pipelines.triaging.matching import match, sampled
from penstock.spark.pipelines.triaging.signatures import signature

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

RESULTS: Final = "results"
PLACE: Final = ("queue", "partition", "offset")
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
    group: Annotated[str, Meta(description="The group whose history it is compared with.")] = DEFAULT_GROUP
    share: Annotated[float, Meta(description="The part of the messages to run, 0 to 1.", gt=0, le=1)] = 1.0
    limit: Annotated[int, Meta(description="About how many messages to run.", ge=1)] | None = None
    timeout_seconds: Annotated[float, Meta(description="How long one message may take.", gt=0)] = 30.0
    tasks: Annotated[int, Meta(description="Into how many tasks to divide the work.", ge=1)] | None = None
    samples: Annotated[int, Meta(description="How many messages to show of each kind.", ge=0)] = 10


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
    from pyspark.sql import functions as f

    # Not Arrow's kind of function: those ask for pandas.
    handle = f.udf(handling, _RESULT, useArrow=False).asNondeterministic()
    columns = [f.unix_micros("pushed_at") if name == "pushed_at" else f.col(name) for name in COLUMNS]
    return messages.select(*PLACE, handle(*columns).alias("_result")).select(*PLACE, "_result.*")


def what_happened(messages: DataFrame, events: DataFrame) -> DataFrame:
    """How deliveries of each message ended in one group: was, was_error, was_ms, attempts. Only of those delivered."""
    from pyspark.sql import functions as f

    found = match(
        messages.select(*PLACE), events, "inner", ["outcome", "attempt", "settled_at", "error", "processing_ms"]
    )
    when = f.struct("settled_at", "attempt")
    return found.groupBy(*PLACE).agg(
        f.max_by("outcome", when).alias("was"),
        f.max_by("processing_ms", when).alias("was_ms"),
        f.max_by("error", f.when(f.col("error") != "", when)).alias("was_error"),
        f.max("attempt").alias("attempts"),
    )


def compared(results: DataFrame, happened: DataFrame) -> DataFrame:
    """Results beside what happened, with a verdict: same, broken, fixed, failing, or other (nothing to compare)."""
    from pyspark.sql import functions as f

    worked, works = f.col("was") == "acked", f.col("outcome") == "acked"
    failed, fails = f.col("was").isin(*FAILED), f.col("outcome").isin(*FAILED)
    verdict = (
        f.when(worked & works, "same")
        .when(worked & fails, "broken")
        .when(failed & works, "fixed")
        .when(failed & fails, "failing")
        .otherwise("other")
    )
    joined = results.join(happened, list(PLACE), "left")
    return joined.select(
        f.concat_ws("/", *PLACE).alias("id"), "*", verdict.alias("verdict"), _was_in_words().alias("before")
    )


def _was_in_words() -> Column:
    from pyspark.sql import functions as f

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
    results = _written(run, messages, Handling(setup=setup, timeout_seconds=options.timeout_seconds, run_id=_now()))
    run.progress.step("comparing")
    from pyspark.sql import functions as f

    events = run.events(queues=queues, columns=_EVENTS).where(f.col("group") == options.group)
    table = compared(results, what_happened(results, events)).withColumn("signature", signature(f.col("error")))
    table.persist()
    try:
        return backtest_report.report(table, run.out, options.handler, options.samples)
    finally:
        table.unpersist()


def check(run: Run) -> None:
    """Refuse a backtest of no queue, and a handler that cannot be imported."""
    if not _queues(run):
        raise InvalidField("queue: name the queue whose history is to be run", hint="--queue orders")
    check_handler(run.options)


def check_handler(options: BacktestOptions) -> None:
    """Try the handler, in a process of its own."""
    module, _, name = options.handler.partition(":")
    if not module or not name:
        raise InvalidField(f"handler: {options.handler!r} names no function", hint="write module:function")
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


def _now() -> int:
    return SystemClock().now()


def _chosen(run: Run, queues: list[str], options: BacktestOptions) -> DataFrame:
    share = options.share
    if options.limit is not None:
        count = run.messages(queues=queues, columns=PLACE).count()
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


PIPELINE: Final = Pipeline(
    name="backtest",
    summary="Run a Python handler over history and compare its outcomes, errors and latency with what happened.",
    explanation=(
        "Reads messages of the queues given and what became of them in a group. Calls the handler with each message, "
        "in parallel, in processes of its own: it may raise, hang (--timeout-seconds) or crash. Messages look like "
        "deliveries (payload, json(), key, headers, id, attempt, ack(), nack(), reject() and so on) but nothing is "
        "settled or pushed; what the handler itself sends elsewhere is sent.\n\n"
        "A handler that returns has acknowledged; one that raises has failed. Reports what was acknowledged and would "
        "fail now, what failed and would pass now, the errors by signature, and latencies before and after.\n\n"
        "The module must be importable where tasks run: --conf spark.submit.pyFiles=handlers.py on a cluster. "
        f"Writes the result of every message to {RESULTS}/ (Parquet), and backtest.json."
    ),
    options=BacktestOptions,
    run=run,
    check=check,
)
