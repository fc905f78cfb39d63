"""Filters that Spark pushes down, as bounds on what is read.

Bounds only leave out what cannot match: Spark is given every filter back and checks each row again. So a filter that
is not understood, or only in part, costs time and never rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.history import Limits
from penstock.spark.options import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

# The columns that bounds are about, by table; all are numbers, but for the first two.
_TIMES: Final = {"messages": "pushed_at", "events": "settled_at", "tasks": "at"}
_EXACT: Final = ("EqualTo", "EqualNullSafe", "In")
_EVERYTHING: Final = (None, None)

Range = tuple[int | None, int | None]  # [least, greatest], both included; None: no bound


class Bounds(msgspec.Struct, frozen=True):
    """What may match: names among these, numbers within these."""

    queues: frozenset[str] | None = None
    partitions: frozenset[str] | None = None
    offsets: Range = _EVERYTHING
    times: Range = _EVERYTHING
    priorities: Range = _EVERYTHING

    def has_queue(self, name: str) -> bool:
        return self.queues is None or name in self.queues

    def has_partition(self, name: str) -> bool:
        return self.partitions is None or name in self.partitions

    def limited(self, first: int, end: int) -> tuple[int, int]:
        """Offsets [first, end) as far as they may match."""
        least, greatest = self.offsets
        return max(first, least or 0), end if greatest is None else min(end, greatest + 1)

    def limits(self, options: SourceOptions) -> Limits:
        """With what the options say: the narrower of both."""
        least, greatest = self.times
        since = _both(max, options.since, least)
        until = _both(min, options.until, None if greatest is None else greatest + 1)
        return Limits(since, until, *self.priorities)


NO_BOUNDS: Final = Bounds()


def bounds_of(filters: Iterable[Filter], table: str) -> Bounds:
    """What all of these filters together leave."""
    names: dict[str, frozenset[str]] = {}
    ranges: dict[str, Range] = {}
    for each in filters:
        path: tuple[str, ...] = getattr(each, "attribute", ())
        if len(path) != 1:
            continue
        column = path[0]
        if column in ("queue", "partition"):
            among = _among(each)
            if among is not None:
                names[column] = names.get(column, among) & among
        elif column in _ranged(table):
            least, greatest = _range(each)
            known = ranges.get(column, _EVERYTHING)
            ranges[column] = (_both(max, known[0], least), _both(min, known[1], greatest))
    return Bounds(
        names.get("queue"),
        names.get("partition"),
        ranges.get("offset", _EVERYTHING),
        ranges.get(_TIMES[table], _EVERYTHING),
        ranges.get("priority", _EVERYTHING),
    )


def _ranged(table: str) -> tuple[str, ...]:
    return ("offset", "priority", "pushed_at") if table == "messages" else (_TIMES[table],)


def _among(each: Filter) -> frozenset[str] | None:
    """The only names that match; None when there may be others."""
    if type(each).__name__ not in _EXACT:
        return None
    return frozenset(value for value in _values(each) if isinstance(value, str))


def _range(each: Filter) -> Range:
    kind = type(each).__name__
    numbers = [_number(value) for value in _values(each)]
    known = [number for number in numbers if number is not None]
    if len(known) != len(numbers) or not known:
        return _EVERYTHING
    if kind in _EXACT:
        return min(known), max(known)
    # One more or less than the value itself is as much as can be said of whole numbers.
    return {
        "GreaterThan": (known[0] + 1, None),
        "GreaterThanOrEqual": (known[0], None),
        "LessThan": (None, known[0] - 1),
        "LessThanOrEqual": (None, known[0]),
    }.get(kind, _EVERYTHING)


def _values(each: Filter) -> tuple[Any, ...]:
    value = getattr(each, "value", None)
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _number(value: Any) -> int | None:
    """Whole numbers, and instants as µs."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return None
        # Whole seconds and the rest apart: a float has no room for both.
        return int(value.replace(microsecond=0).timestamp()) * 1_000_000 + value.microsecond
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _both(pick: Any, one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    found: int = pick(one, other)
    return found
