"""Queues as views for SQL: `messages`, `events`, `tasks`, and one for each queue.

The view of a queue has its name. In SQL a name with dots or dashes is quoted with backticks, or written with
underscores instead: orders.eu is also orders_eu, unless a queue is called that. Spark does not tell upper case from
lower: queues whose names differ in nothing else have no view, and are found in `messages`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from datetime import datetime
from typing import TYPE_CHECKING, Final

from penstock.errors import InvalidField
from penstock.history import open_history
from penstock.model import suggestion

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ALL: Final = "*"
TABLES: Final = ("messages", "events", "tasks")
_NOT_IN_WORDS: Final = re.compile(r"\W", re.ASCII)
_WORDS: Final = re.compile(r"\w+", re.ASCII)
_LISTING: Final = re.compile(r"\s*show\b", re.IGNORECASE)
# What no word of a statement is in: strings, quoted names, comments.
_QUOTED: Final = re.compile(
    r"""\br(?:'[^']*'|"[^"]*")|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`|--[^\n]*|/\*.*?\*/""",
    re.IGNORECASE | re.DOTALL,
)
_READS: Final = ("select", "with", "from", "values", "table", "show", "desc", "describe", "explain", "set")
_TEMPORARY: Final = re.compile(r"create\s+(or\s+replace\s+)?temp(orary)?\s+view\b", re.IGNORECASE)
_INSERT: Final = re.compile(r"\binsert\b", re.IGNORECASE)
# A program that rows are sent through, and functions that call any method of Java.
_PROGRAM: Final = re.compile(r"\busing\s*''", re.IGNORECASE)
_JAVA: Final = re.compile(r"\b(?:java_method|(?:try_)?reflect)`?\s*\(", re.IGNORECASE)


def query(
    spark: SparkSession, url: str, text: str, *, since: datetime | None = None, until: datetime | None = None
) -> DataFrame:
    """The result of a statement over the views of a directory or a broker.

    Messages are those with `since` ≤ `pushed_at` < `until`; for events it is `settled_at`.
    """
    check_reading(text)
    from pyspark.errors import AnalysisException

    from penstock.spark.tables import table

    queues = queue_names(url)
    for name, queue in meant(text, queues).items():
        kind = name if queue is None else "messages"
        table(spark, url, queue or ALL, kind, since, until).createOrReplaceTempView(f"`{name}`")
    try:
        return spark.sql(text.strip().rstrip(";"))
    except AnalysisException as error:
        if error.getCondition() != "TABLE_OR_VIEW_NOT_FOUND":
            raise
        missing = (error.getMessageParameters() or {}).get("relationName", "").replace("`", "")
        hint = suggestion(missing, (*TABLES, *queues))
        raise InvalidField(f"there is no view or queue {missing!r}", hint=hint) from None


def check_reading(text: str) -> None:
    """Refuse a statement that does anything but read: an insert may stand after a WITH or a FROM too."""
    plain = _QUOTED.sub(_without_words, text).lstrip(" \t\r\n(;")
    first = next(iter(_WORDS.findall(plain)), "").lower()
    is_reading = first in ("", *_READS) or _TEMPORARY.match(plain)
    if not is_reading or _INSERT.search(plain):
        hint = suggestion(first, _READS) if not is_reading else ""
        hint = hint or "docs/spark-sink.md writes the rows of a query to a queue; 'penstock push' needs no Spark"
        raise InvalidField(f"{first if not is_reading else 'insert'}: queues are only read here", hint=hint)
    if _PROGRAM.search(plain) or _JAVA.search(_QUOTED.sub(_without_texts, text)):
        hint = "read the rows with penstock.spark.table, in a program of your own"
        raise InvalidField("a query runs no other program: queues are only read here", hint=hint)


def _without_words(quoted: re.Match[str]) -> str:
    """The replacement of a quoted part of a statement: blank, or for a string an empty string."""
    return " " if quoted[0][0] in "`-/" else "''"


def _without_texts(quoted: re.Match[str]) -> str:
    """As `_without_words`, but quoted names stay: those of functions may be quoted."""
    return quoted[0] if quoted[0][0] == "`" else _without_words(quoted)


def queue_names(url: str) -> list[str]:
    """The queues that are there, in the order of their names."""
    with closing(open_history(url)) as history:
        return sorted(history.look().queues)


def meant(text: str, queues: Sequence[str]) -> dict[str, str | None]:
    """The views that a statement may mean, by name, each with its queue; None is all queues.

    There may be very many queues, so none is made that the statement cannot mean. `show views` means all of them.
    """
    words = {word.lower() for word in _WORDS.findall(text)}
    is_listing = _LISTING.match(text) is not None
    alike = Counter(queue.lower() for queue in queues)
    named = [queue for queue in queues if alike[queue.lower()] == 1]
    plain = {_NOT_IN_WORDS.sub("_", queue): queue for queue in named}
    views: dict[str, str | None] = {name: queue for name, queue in plain.items() if name.lower() in words}
    # All words of a name that is quoted are in the text.
    views |= {name: name for name in named if is_listing or words.issuperset(_WORDS.findall(name.lower()))}
    return views | {name: None for name in TABLES if is_listing or name in words}
