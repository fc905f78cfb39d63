"""Searching tasks by what they were called with.

    a@b.c              a text, or a number, true, false, null, that stands anywhere in the arguments
    kwargs.to=a@b.c    the value at a path: names of objects and positions of lists, joined by dots
    args.0=7

The value is compared as a number when it is one, and as text too, so that `7` finds 7, 7.0 and "7" (but `7.0` not 7:
rows that do not hold the text at all are passed over before their JSON is read).
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from penstock import limits
from penstock.errors import InvalidField

LENGTH_MAX: Final = limits.task_filter_bytes_max
_PLAIN: Final = re.compile(r"[A-Za-z0-9 _.@:+-]+")
_WORDS: Final = frozenset({"true", "false", "null"})
_PATH: Final = re.compile(r"(args|kwargs)((?:\.[^.=]+)+)=(.*)", re.DOTALL)


def argument_terms(argument: str) -> tuple[str, dict[str, Any]]:
    """The SQL term that an argument must meet, and the values that it names."""
    if not argument or len(argument) > LENGTH_MAX:
        raise InvalidField(
            f"argument: must have from 1 to {LENGTH_MAX} characters, not {len(argument)}",
            hint="a value, or a path and a value such as kwargs.to=a@b.c or args.0=7",
        )
    match = _PATH.fullmatch(argument)
    if match is None:
        return _anywhere(argument)
    column, path, value = match.groups()
    values = {
        "path": _json_path(path, column),
        "argument": value,
        "argument_json": _scalar(value),
        "glimpse": _glimpse(value),
    }
    at = f"json_extract({column}, :path)"
    typed = f"json_type({column}, :path)"
    return f"(instr({column}, :glimpse) > 0 AND json_valid({column}) AND {_same(at, typed)})", values


def _anywhere(value: str) -> tuple[str, dict[str, Any]]:
    """The value of any leaf."""
    values = {"argument": value, "argument_json": _scalar(value), "glimpse": _glimpse(value)}
    term = "(" + " OR ".join(
        f"(instr({column}, :glimpse) > 0 AND json_valid({column}) AND EXISTS"
        f" (SELECT 1 FROM json_tree({column}) AS leaf WHERE {_same('leaf.atom', 'leaf.type')}))"
        for column in ("args", "kwargs")
    )
    return term + ")", values


def _same(value: str, typed: str) -> str:
    """SQLite has 1 for true: types are compared too where that matters."""
    return (
        f"(({typed} = 'text' AND {value} = :argument)"
        f" OR ({typed} IN ('integer', 'real') AND {value} = :argument_json)"
        f" OR ({typed} IN ('true', 'false', 'null') AND {typed} = :argument))"
    )


def _scalar(text: str) -> int | float | None:
    """The number that a text stands for."""
    try:
        value = msgspec.json.decode(text.encode())
    except (msgspec.MsgspecError, UnicodeEncodeError):
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and abs(value) < 1 << 63 else None


def _glimpse(value: str) -> str:
    """A piece of JSON that every such value has, however it is escaped: the longest run of plain characters in it.

    The quotes of a text belong to it, so that few rows are looked into in vain.
    """
    run = max(_PLAIN.finditer(value), key=lambda run: len(run[0]), default=None)
    if run is None:
        return ""
    if value in _WORDS or _scalar(value) is not None:
        return run[0]  # it may stand there without quotes
    return '"' * (run.start() == 0) + run[0] + '"' * (run.end() == len(value))


def _json_path(dotted: str, column: str) -> str:
    steps = []
    for index, step in enumerate(dotted[1:].split(".")):
        is_position = step.isdigit() and (column == "args" or index > 0)
        steps.append(f"[{int(step)}]" if is_position else '."' + step.replace('"', "") + '"')
    return "$" + "".join(steps)
