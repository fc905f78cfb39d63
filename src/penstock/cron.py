"""When a schedule is due: cron expressions in time zones.

Expressions have five fields, or six with seconds first, or are one of `@hourly` and the like. Where the hour is given,
they mean times of day: one that a change of clocks skips runs once at the first instant after the gap, one that comes
twice runs the first time. Where the hour begins with `*`, they mean intervals and follow the instants themselves: every
instant at which the clock of the place shows a time that matches.

The library behind it computes times of day only, never zones: it moves in whole hours, and clocks do not.

The time zones are those of the machine, or of the package `tzdata` where it has none.
"""

from __future__ import annotations

import re
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
NONE: Final = timedelta(0)
SECOND: Final = timedelta(seconds=1)
MINUTE: Final = timedelta(minutes=1)
DAY: Final = timedelta(days=1)


def next_tick(expression: str, zone: str, after: int) -> int:
    """The first tick after an instant, µs. `InvalidField` when there is none, or the expression or zone is wrong."""
    where = zone_of(zone)
    fields = _fields(expression)
    try:
        tick = _next(fields, where, to_datetime(after).astimezone(where))
        if tick is not None:
            return to_micros(tick, "cron")
    except (CronSimError, AssertionError, ValueError, TypeError) as error:
        hint = "use five fields, minute hour day month weekday, such as '30 2 * * *'; or six, with seconds first"
        raise InvalidField(f"cron: {expression!r} is not a cron expression: {error}", hint=hint) from None
    except OverflowError:
        pass
    raise InvalidField(f"cron: {expression!r} never occurs", hint="check the day and the month")


def _fields(expression: str) -> str:
    if not expression.startswith("@"):
        # The library takes 53-53/5 for 53/5, which goes on to the end of the hour.
        return _ONE_STEP.sub(lambda term: term[1] if _is_one(term[1], term[2]) else term[0], expression)
    fields = NAMED.get(expression.lower())
    if fields is None:
        raise InvalidField(f"cron: {expression!r} is not one of {', '.join(NAMED)}")
    return fields


_ONE_STEP: Final = re.compile(r"(?<![^\s,])([A-Za-z0-9]+)-([A-Za-z0-9]+)/0*[1-9][0-9]*(?![^\s,])")


def _is_one(first: str, last: str) -> bool:
    """Whether a range has one value."""
    return first.upper() == last.upper() or (first.isdecimal() and last.isdecimal() and int(first) == int(last))


@lru_cache(maxsize=1_000)
def zone_of(name: str) -> tzinfo:
    """A time zone by its name; `InvalidField` when there is none."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # a name may be a path, and a path may be anything
        hint = "use a name such as 'Europe/Berlin' or 'UTC'"
        raise InvalidField(f"timezone: there is no time zone {name!r}", hint=hint) from None


def _next(fields: str, zone: tzinfo, after: datetime) -> datetime | None:
    """The first tick after an instant; None when there is none."""
    parts = fields.split()
    is_interval = len(parts) in (5, 6) and parts[-4].startswith("*")
    instants = _instants if is_interval else _first_after_gap
    local = after.replace(tzinfo=None, fold=0)
    moments = (moment for time in CronSim(fields, local) for moment in instants(time, zone))
    tick = next((moment for moment in moments if _instant(moment) > _instant(after)), None)
    if tick is None or not is_interval:
        return tick
    return _after_turning_back(fields, zone, after, min(tick, after + DAY, key=_instant)) or tick


def _instant(moment: datetime) -> datetime:
    """To be compared: within one zone Python compares what the clocks show."""
    return moment.astimezone(UTC)


def _instants(local: datetime, zone: tzinfo) -> list[datetime]:
    """When the clock of a place shows a time: once, twice, or never."""
    both = [local.replace(tzinfo=zone, fold=fold) for fold in (0, 1)]
    return [moment for moment in both if not _is_skipped(moment)]


def _after_turning_back(fields: str, zone: tzinfo, after: datetime, until: datetime) -> datetime | None:
    """A tick before `until` that only comes because the clocks were turned back, to a time that was passed already."""
    offset, early, late = after.utcoffset(), _instant(after), _instant(until)
    if _offset_at(late, zone) >= (offset or NONE):
        return None
    while late - early > SECOND:
        middle = early + (late - early) / 2
        early, late = (middle, late) if _offset_at(middle, zone) == offset else (early, middle)
    turned = late.replace(microsecond=0).astimezone(zone)
    shown = turned.replace(tzinfo=None, fold=0)
    for time in CronSim(fields, shown - SECOND):
        moment = (_instant(turned) + (time - shown)).astimezone(zone)
        return moment if _instant(after) < _instant(moment) < _instant(until) else None
    return None


def _offset_at(instant: datetime, zone: tzinfo) -> timedelta:
    return instant.astimezone(zone).utcoffset() or NONE


def _first_after_gap(local: datetime, zone: tzinfo) -> list[datetime]:
    """The instant of a time of day; the end of the gap when there is no such time on that day."""
    moment = local.replace(tzinfo=zone)
    if not _is_skipped(moment):
        return [moment]
    moment = moment.replace(second=0)
    while _is_skipped(moment):
        moment += MINUTE
    return [moment]


def _is_skipped(moment: datetime) -> bool:
    return moment.astimezone(UTC).astimezone(moment.tzinfo).replace(tzinfo=None) != moment.replace(tzinfo=None)
