"""Searching tasks by what they were called with.

    a@b.c              a text, or a number, true, false, null, anywhere in the arguments
    kwargs.to=a@b.c    the value at a path: names of objects and positions of lists, joined by dots
    args.0=7

The value is compared as a number when it is one, and as text too, so that `7` finds 7, 7.0 and "7" (but `7.0` not 7:
rows that do not contain the text at all are skipped before their JSON is read). JSON may write any character as
a number with u before it: rows that do so are read.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from penstock import limits
from penstock.errors import InvalidField

LENGTH_MAX: Final = limits.task_filter_bytes_max
OPENED: Final = "opened"  # an SQL function: a sealed value of a queue as it was, null when its data key was erased
MATCHES: Final = "argument_matches"  # an SQL function: whether some JSON holds an argument
_PLAIN: Final = re.compile(r"[A-Za-z0-9 _.@:+-]+")
_WORDS: Final[dict[str, object]] = {"true": True, "false": False, "null": None}
_PATH: Final = re.compile(r"(args|kwargs)((?:\.[^.=]+)+)=(.*)", re.DOTALL)
_decode: Final = msgspec.json.Decoder().decode


class _Condition(NamedTuple):
    """A parsed argument."""

    column: str  # args or kwargs; empty: both
    path: tuple[str, ...]
    text: str
    number: int | float | None


@lru_cache(maxsize=64)
def _parsed(argument: str) -> _Condition:
    match = _PATH.fullmatch(argument)
    if match is None:
        return _Condition("", (), argument, _number(argument))
    column, path, text = match.groups()
    return _Condition(column, tuple(path[1:].split(".")), text, _number(text))


def argument_terms(argument: str) -> tuple[str, dict[str, Any]]:
    """The SQL term that an argument must meet, and the values that it names."""
    if not argument or len(argument) > LENGTH_MAX:
        raise InvalidField(
            f"argument: must have 1 to {LENGTH_MAX} characters, not {len(argument)}",
            hint="use a value, or a path and a value such as kwargs.to=a@b.c or args.0=7",
        )
    condition = _parsed(argument)
    values = {"argument": argument, "glimpse": _glimpse(condition.text), "escape": "\\u"}
    columns = (condition.column,) if condition.column else ("args", "kwargs")
    terms = [
        f"(CASE typeof({column}) WHEN 'blob' THEN {MATCHES}({OPENED}(queue, {column}), :argument)"
        f" ELSE (instr({column}, :glimpse) > 0 OR instr({column}, :escape) > 0) AND {MATCHES}({column}, :argument) END)"
        for column in columns
    ]
    return f"({' OR '.join(terms)})", values


def install(connection: sqlite3.Connection) -> None:
    """Define the SQL function for a connection."""
    connection.create_function(MATCHES, 2, _matches, deterministic=True)


def _matches(json: str | None, argument: str) -> bool:
    if json is None:
        return False
    condition = _parsed(argument)
    try:
        value = _decode(json)
    except (msgspec.MsgspecError, RecursionError):
        return False
    values = _at(value, condition.path) if condition.column else _leaves(value)
    return any(_is_same(value, condition) for value in values)


def _at(value: Any, path: tuple[str, ...]) -> Iterator[Any]:
    """The value at a path: a number is a position in a list, and a name in an object."""
    for step in path:
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            return
    yield value


def _leaves(value: Any) -> Iterator[Any]:
    todo = [value]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            todo += value.values()
        elif isinstance(value, list):
            todo += value
        else:
            yield value


def _is_same(value: Any, condition: _Condition) -> bool:
    if isinstance(value, str):
        return value == condition.text
    if value is None or isinstance(value, bool):
        return condition.text in _WORDS and value is _WORDS[condition.text]
    return condition.number is not None and isinstance(value, int | float) and value == condition.number


def _number(text: str) -> int | float | None:
    """The number that a text stands for."""
    try:
        value = _decode(text.encode())
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _glimpse(value: str) -> str:
    """A part of the JSON of every such value, unless it is escaped: the longest run of plain characters in it.

    The quotes of a text belong to it, so that few rows are decoded in vain.
    """
    run = max(_PLAIN.finditer(value), key=lambda run: len(run[0]), default=None)
    if run is None:
        return ""
    if value in _WORDS or _number(value) is not None:
        return run[0]  # it may be there without quotes
    return '"' * (run.start() == 0) + run[0] + '"' * (run.end() == len(value))
