"""When a schedule is due: cron expressions in time zones.

Expressions have five fields, or six with seconds first, or are one of `@hourly` and the like. Where the hour is given,
they mean times of day: one that a change of clocks skips runs once at the first instant after the gap, one that comes
twice runs the first time. Where the hour begins with `*`, they mean intervals and follow the instants themselves.

The time zones are those of the machine, or of the package `tzdata` where it has none.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from penstock.errors import InvalidField
from penstock.model import to_datetime, to_micros

NAMED: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
MINUTE: Final = timedelta(minutes=1)


def next_tick(expression: str, zone: str, after: int) -> int:
    """The first tick after an instant, µs. `InvalidField` when there is none, or the words make no sense."""
    where = _zone(zone)
    fields = _fields(expression)
    try:
        for tick in _ticks(fields, where, to_datetime(after).astimezone(where)):
            if tick > after:
                return tick
    except (CronSimError, AssertionError, ValueError, TypeError) as error:
        hint = "five fields, minute hour day month weekday, such as '30 2 * * *'; or six, with seconds first"
        raise InvalidField(f"cron: {expression!r} is no schedule: {error}", hint=hint) from None
    except OverflowError:
        pass
    raise InvalidField(f"cron: {expression!r} never comes", hint="look at the day and the month")


def _fields(expression: str) -> str:
    if not expression.startswith("@"):
        return expression
    found = NAMED.get(expression.lower())
    if found is None:
        raise InvalidField(f"cron: {expression!r} is not one of {', '.join(NAMED)}")
    return found


@lru_cache(maxsize=1_000)
def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # a name may be a path, and a path may be anything
        hint = "a name such as 'Europe/Berlin', or 'UTC'"
        raise InvalidField(f"timezone: there is no time zone {name!r}", hint=hint) from None


def _ticks(fields: str, zone: tzinfo, start: datetime) -> Iterator[int]:
    parts = fields.split()
    if zone is UTC or (len(parts) in (5, 6) and parts[-4].startswith("*")):
        for moment in CronSim(fields, start):
            yield to_micros(moment, "cron")
        return
    for local in CronSim(fields, start.replace(tzinfo=None)):
        yield to_micros(_first_after_gap(local, zone), "cron")


def _first_after_gap(local: datetime, zone: tzinfo) -> datetime:
    """The instant of a time of day; the end of the gap when there is no such time on that day."""
    moment = local.replace(tzinfo=zone)
    if not _is_skipped(moment):
        return moment
    moment = moment.replace(second=0)
    while _is_skipped(moment):
        moment += MINUTE
    return moment


def _is_skipped(moment: datetime) -> bool:
    return moment.astimezone(UTC).astimezone(moment.tzinfo).replace(tzinfo=None) != moment.replace(tzinfo=None)
