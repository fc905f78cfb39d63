"""Spark under a command: started quietly, watched while it works, stopped whatever happens.

What Java prints goes to a file, which is kept only when Spark failed and the error names it. The bar is drawn on the
terminal that standard error was before that. What went wrong in somebody's Python is its last line.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from penstock.cli.exits import SERVER_ERROR, USER_ERROR, CommandError
from penstock.errors import PenstockError
from penstock.spark.failures import cause, query_error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def readable_error(error: Exception, *, log: str = "") -> Exception:
    """The error that a person should see. `log` is where the rest of the story is."""
    if isinstance(error, PenstockError | CommandError) or not _is_sparks(error):
        return error
    ours = cause(error)
    if ours is not None:
        return ours
    raised = python_error(str(error))
    if raised:
        return CommandError(f"a Python function failed: {raised}", hint=_see(log), code="failed", exit_code=USER_ERROR)
    if _is_of_query(error):
        return CommandError(query_error(str(error)), hint="", code="bad_query", exit_code=USER_ERROR)
    return CommandError(f"Spark: {query_error(str(error))}", hint=_see(log), code="spark", exit_code=SERVER_ERROR)


def python_error(text: str) -> str:
    """The last line of a traceback in a text; nothing if there is none."""
    _, marker, rest = text.rpartition("Traceback (most recent call last):")
    if not marker:
        return ""
    lines = [line for line in rest.splitlines() if line.strip()]
    return next((line.strip() for line in lines if re.match(r"[A-Za-z_][\w.]*(:|$)", line)), "")


def _is_sparks(error: Exception) -> bool:
    return type(error).__module__.startswith(("pyspark.", "py4j."))


def _is_of_query(error: Exception) -> bool:
    """Whether the user can fix it: a statement, a value in the data, a wrong use of PySpark."""
    from pyspark import errors

    kinds = (errors.AnalysisException, errors.ParseException, errors.ArithmeticException, errors.NumberFormatException)
    return isinstance(error, (*kinds, ValueError, TypeError, AttributeError, LookupError))


def _see(log: str) -> str:
    return f"Spark's log is in {log}" if log else ""


LOOK_SECONDS: Final = 0.25
PANEL: Final = "Spark"
# Java's better compiler waits until something is really hot. Most of what runs in a short life is not: starting and a
# first query take a third less work, and long scans are as fast as before.
JAVA_OPTIONS: Final = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=20000 "
    "-XX:Tier4CompileThreshold=100000 -XX:Tier4BackEdgeThreshold=400000"
)
LOUD: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")

Master = Annotated[
    str,
    typer.Option(
        "--master",
        metavar="MASTER",
        help="The Spark master: local[*] for this machine, local[2] for two cores, spark://host:port for a cluster.",
        rich_help_panel=PANEL,
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option(
        "--conf", metavar="KEY=VALUE", help="A Spark setting; repeatable.", rich_help_panel=PANEL, show_default=False
    ),
]


class Bar:
    """How far a command is, on standard error; on a terminal only."""

    def __init__(self, *, is_shown: bool) -> None:
        # Standard error is about to be Java's.
        self._terminal = os.fdopen(os.dup(sys.__stderr__.fileno()), "w") if is_shown and sys.__stderr__ else None
        console = Console(file=self._terminal or sys.stderr)
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        is_drawn = self._terminal is not None and console.is_terminal
        self._bar = Progress(*columns, console=console, transient=True, disable=not is_drawn)
        self._task = self._bar.add_task("starting Spark", total=None)
        self._is_counted = False
        self._over = threading.Event()
        self._watcher: threading.Thread | None = None

    def step(self, what: str, done: float | None = None, total: float | None = None) -> None:
        """Now doing `what`; without numbers the bar shows the tasks of Spark."""
        self._is_counted = total is not None
        self._bar.update(self._task, description=what, completed=done or 0, total=total)

    def watch(self, spark: SparkSession) -> None:
        """Show how far Spark is, from a thread beside."""
        if self._bar.disable or not hasattr(spark, "sparkContext"):
            return
        self._watcher = threading.Thread(target=self._look, args=(spark.sparkContext.statusTracker(),), daemon=True)
        self._watcher.start()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()
        self._bar.stop()
        if self._terminal is not None:
            self._terminal.close()

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Out of the way, while something is printed."""
        self._bar.stop()
        yield
        self._bar.start()

    def leave(self) -> None:
        """Look at Spark no more: it is about to stop."""
        self._over.set()
        if self._watcher is not None:
            self._watcher.join()

    def _look(self, tracker: Any) -> None:
        # Spark may be gone between two looks.
        with suppress(Exception):
            while not self._over.wait(LOOK_SECONDS):
                stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
                active = [stage for stage in stages if stage is not None]
                if active and not self._is_counted:
                    done, total = (
                        sum(stage.numCompletedTasks for stage in active),
                        sum(stage.numTasks for stage in active),
                    )
                    self._bar.update(self._task, completed=done, total=total)


@contextmanager
def started(app: str, *, master: str, settings: Mapping[str, str], bar: Bar) -> Iterator[SparkSession]:
    """A session for the block. Errors of Spark leave it as errors of ours."""
    descriptor, name = tempfile.mkstemp(prefix="penstock-spark-", suffix=".log")
    is_kept = False
    try:
        spark = start(app, master, settings, descriptor)
        try:
            bar.watch(spark)
            yield spark
        finally:
            bar.leave()
            stop(spark)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is shown in one line
        shown = readable_error(error, log=name)
        is_kept = name in getattr(shown, "hint", "")
        raise shown from None
    finally:
        os.close(descriptor)
        if not is_kept:
            Path(name).unlink(missing_ok=True)


def start(app: str, master: str, settings: Mapping[str, str], log: int) -> SparkSession:
    """Start Spark, with what Java prints in a file."""
    from penstock.spark import session

    # Workers must find the modules that are beside us, as we do.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.getcwd(), os.environ.get("PYTHONPATH"))))
    defaults = {"spark.driver.extraJavaOptions": JAVA_OPTIONS} if master.startswith("local") else {}
    with _standard_error_into(log):
        spark = session(f"penstock {app}", master, **{**defaults, **settings})
    hush()
    if threading.current_thread() is threading.main_thread():
        # PySpark's own handler calls Java in the middle of another call; stopping Spark ends its jobs as well.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return spark


def stop(spark: SparkSession) -> None:
    """Stop Spark."""
    spark.stop()


def hush() -> None:
    """PySpark and Py4J log the errors that they raise, with every stack, and warn of what we do not use."""
    from pyspark.logger import PySparkLogger

    logging.getLogger().addHandler(logging.NullHandler())
    warnings.filterwarnings("ignore", module=r"pyspark\.")
    for name in LOUD:
        PySparkLogger.getLogger(name).disabled = True


@contextmanager
def _standard_error_into(descriptor: int) -> Iterator[None]:
    """Whoever is started in the block has this as standard error for life; we only while the block runs."""
    ours = os.dup(2)
    sys.stderr.flush()
    os.dup2(descriptor, 2)
    try:
        yield
    finally:
        os.dup2(ours, 2)
        os.close(ours)


def parsed_conf(texts: Sequence[str] | None) -> dict[str, str]:
    """Settings of Spark from `key=value`."""
    settings = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name.startswith("spark."):
            hint = "such as --conf spark.driver.memory=4g"
            raise CommandError(f"--conf: {text!r} is not a Spark setting", hint=hint)
        settings[name.strip()] = value.strip()
    return settings
