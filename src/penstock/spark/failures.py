"""Penstock errors that are raised inside Spark's Python processes, and reach users through Java.

Spark shows them as a traceback inside an exception of its own. In those processes `shown_plainly` makes Spark leave the
traceback out of errors that are meant for the user; in the driver `cause` finds the Penstock error in what Spark
raised.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final, ParamSpec, TypeVar

from penstock import errors
from penstock.errors import PenstockError

P = ParamSpec("P")
R = TypeVar("R")

# Read by Spark's workers when they report an exception, after which they end: it concerns no other.
_HIDE_TRACEBACK: Final = "SPARK_HIDE_TRACEBACK"
_WORKERS: Final = "pyspark."  # what they were started as: pyspark.daemon, pyspark.worker and others
_NOISE: Final = re.compile(r"^\[[A-Z0-9_.]+\]\s*|\s*SQLSTATE: \w{5};?|\s*\((?=line)|(?<=\d)\)")
_JAVA: Final = re.compile(r"\n\s*(JVM stacktrace:|at [\w.$]+\(|== SQL|== DataFrame)")
_OURS: Final = re.compile(r"penstock\.errors\.(\w+): (.*)")


def shown_plainly(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: a `PenstockError` of the function is reported by a Spark worker by its message alone."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except PenstockError:
            hide_traceback()
            raise

    return run


def shown_rows(rows: Iterator[R]) -> Iterator[R]:
    """Rows whose `PenstockError`, raised while they are iterated, a Spark worker reports by its message alone."""
    try:
        yield from rows
    except PenstockError:
        hide_traceback()
        raise


def hide_traceback() -> None:
    """In a Spark worker, have the error that is being raised reported by its message alone."""
    if is_worker():
        os.environ[_HIDE_TRACEBACK] = "1"


def is_worker() -> bool:
    """Whether this process is a Spark worker."""
    main: Any = getattr(sys.modules.get("__main__"), "__spec__", None)
    return main is not None and str(main.name).startswith(_WORKERS)


def cause(error: BaseException) -> PenstockError | None:
    """The Penstock error behind one of Spark's, if there is one."""
    match = _OURS.search(str(error))
    kind = getattr(errors, match[1], None) if match else None
    if match is None or not (isinstance(kind, type) and issubclass(kind, PenstockError)):
        return None
    return kind(match[2].strip(), hint="")


def query_error(text: str) -> str:
    """Spark's error message about a query, without codes and stack traces."""
    sentence = _JAVA.split(text.strip())[0].split(";\n")[0]
    return " ".join(_NOISE.sub(" ", " ".join(sentence.split())).split()).rstrip(";")
