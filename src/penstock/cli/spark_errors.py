"""Errors of Spark as one line: no Java, no plan, no traceback.

Our own errors travel through Spark inside its own, and come out as what they were. What Spark says of a query is kept,
with its suggestion. What went wrong in somebody's Python is its last line.
"""

from __future__ import annotations

import re

from penstock.cli.exits import SERVER_ERROR, USER_ERROR, CommandError
from penstock.errors import PenstockError
from penstock.spark.failures import cause, query_error


def told(error: Exception, *, log: str = "") -> Exception:
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
    _, found, rest = text.rpartition("Traceback (most recent call last):")
    if not found:
        return ""
    lines = [line for line in rest.splitlines() if line.strip()]
    return next((line.strip() for line in lines if re.match(r"[A-Za-z_][\w.]*(:|$)", line)), "")


def _is_sparks(error: Exception) -> bool:
    return type(error).__module__.startswith(("pyspark.", "py4j."))


def _is_of_query(error: Exception) -> bool:
    """Whether whoever asked can mend it: a statement, a value in the data, a wrong use of PySpark."""
    from pyspark import errors

    kinds = (errors.AnalysisException, errors.ParseException, errors.ArithmeticException, errors.NumberFormatException)
    return isinstance(error, (*kinds, ValueError, TypeError, AttributeError, LookupError))


def _see(log: str) -> str:
    return f"what Spark wrote is in {log}" if log else ""
