"""When schedules are due, compared with a calculation that knows nothing of the one under test.

It goes through every minute of some days around a change of clocks, and asks each whether it matches.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from penstock.cron import next_tick
from penstock.model import to_datetime, to_micros
from tests.support.dose import dose

# Each with the days on which its clocks change, or some day: by an hour, half an hour, two hours, at midnight.
ZONES = {
    "UTC": ("2025-03-30", "2025-10-26"),
    "Europe/Berlin": ("2025-03-30", "2025-10-26"),
    "America/New_York": ("2025-03-09", "2025-11-02"),
    "Australia/Lord_Howe": ("2025-04-06", "2025-10-05"),
    "Pacific/Chatham": ("2025-04-06", "2025-09-28"),
    "Asia/Kathmandu": ("2025-03-30", "2025-12-31"),
    "Antarctica/Troll": ("2025-03-30", "2025-10-26"),
    "Africa/Casablanca": ("2025-02-23", "2025-04-06"),
    "America/Santiago": ("2025-04-06", "2025-09-07"),
    "Asia/Beirut": ("2025-03-30", "2025-10-26"),
}
EXPRESSIONS = dose(300, 3_000)
TICKS = 8
DAYS = 6
MINUTE = timedelta(minutes=1)


class Days(NamedTuple):
    """Every minute of some days: the instant, and what the clock of the place shows."""

    instants: np.ndarray
    shown: list[datetime]
    columns: list[np.ndarray]  # minute, hour, day, month, weekday of what is shown


@cache
def days_of(zone: str, day: str) -> Days:
    first = datetime.fromisoformat(day).replace(tzinfo=UTC) - timedelta(days=DAYS // 2)
    moments = [first + MINUTE * number for number in range(DAYS * 24 * 60)]
    shown = [moment.astimezone(ZoneInfo(zone)).replace(tzinfo=None, fold=0) for moment in moments]
    instants = np.array([to_micros(moment, "at") for moment in moments])
    return Days(instants, shown, columns_of(shown))


def columns_of(shown: list[datetime]) -> list[np.ndarray]:
    return [np.array([getattr(each, name) for each in shown]) for name in ("minute", "hour", "day", "month")] + [
        np.array([each.isoweekday() % 7 for each in shown])
    ]


@cache
def clock_of(zone: str, day: str) -> Days:
    """Every time of day that is on the calendar of those days, also where clocks skip it, with its first instant."""
    days = days_of(zone, day)
    first, last = min(days.shown), max(days.shown)
    known: dict[datetime, int] = {}
    for instant, shown in zip(days.instants.tolist(), days.shown, strict=True):
        known.setdefault(shown, instant)
    times = [first + MINUTE * number for number in range(int((last - first) / MINUTE) + 1)]
    after = 0
    found = []
    for time in reversed(times):
        after = known.get(time, after)  # the end of a gap
        found.append(after)
    return Days(np.array(found[::-1]), times, columns_of(times))


def values(field: str, low: int, high: int) -> set[int]:
    """What a field allows."""
    found: set[int] = set()
    for term in field.split(","):
        span, _, step = term.partition("/")
        first, dash, last = span.partition("-")
        if span == "*":
            chosen = range(low, high + 1)
        elif dash:
            chosen = range(int(first), int(last) + 1)
        else:
            chosen = range(int(first), (high if step else int(first)) + 1)
        found.update(list(chosen)[:: int(step or 1)])
    return found


def expected(expression: str, zone: str, day: str, after: int, end: int) -> list[int]:
    """Ticks in (after, end]."""
    *seconds, minute, hour, dom, month, dow = expression.split()
    is_interval = hour.startswith("*")
    days = days_of(zone, day) if is_interval else clock_of(zone, day)
    minutes, hours, doms, months, dows = days.columns
    on_day, on_weekday = _has(doms, values(dom, 1, 31)), _has(dows, {each % 7 for each in values(dow, 0, 7)})
    is_both = dom.startswith("*") or dow.startswith("*")
    matches = (
        _has(minutes, values(minute, 0, 59)) & _has(hours, values(hour, 0, 23)) & _has(months, values(month, 1, 12))
    )
    matches &= on_day & on_weekday if is_both else on_day | on_weekday
    ticks: set[int] = set()
    for index in np.flatnonzero(matches).tolist():
        is_skipped = (
            not is_interval
            and to_datetime(int(days.instants[index])).astimezone(ZoneInfo(zone)).replace(tzinfo=None, fold=0)
            != days.shown[index]
        )
        for second in [0] if is_skipped or not seconds else sorted(values(seconds[0], 0, 59)):
            ticks.add(int(days.instants[index]) + second * 1_000_000)
    return sorted(tick for tick in ticks if after < tick <= end)


def _has(column: np.ndarray, allowed: set[int]) -> np.ndarray:
    return np.isin(column, list(allowed))


def random_field(rng: random.Random, low: int, high: int, stars: float) -> str:
    if rng.random() < stars:
        return rng.choice(["*", "*", f"*/{rng.randint(1, max(2, (high - low) // 2))}"])
    terms = []
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        first = rng.randint(low, high)
        last = rng.choice([first, rng.randint(first, high)])
        step = rng.randint(1, 7)
        terms.append(
            rng.choice([f"{first}", f"{first}", f"{first}-{last}", f"{first}-{last}/{step}", f"{first}/{step}"])
        )
    return ",".join(terms)


def random_expression(rng: random.Random) -> str:
    fields = [
        random_field(rng, 0, 59, 0.3),
        random_field(rng, 0, 23, 0.5),
        random_field(rng, 1, 31, 0.85),
        random_field(rng, 1, 12, 0.95),
        random_field(rng, 0, 7, 0.8),
    ]
    if rng.random() < 0.15:
        fields.insert(0, random_field(rng, 0, 59, 0.0))
    return " ".join(fields)


@pytest.mark.parametrize("zone", ZONES)
def test_ticks_are_those_of_an_independent_calculation(zone):
    rng = random.Random(zone)
    for number in range(EXPRESSIONS):
        expression = random_expression(rng)
        day = ZONES[zone][number % 2]
        days = days_of(zone, day)
        # A few hours before the clocks change, and sometimes between the minutes.
        after = (
            int(days.instants[DAYS * 12 * 60])
            - rng.randint(-6 * 60, 26 * 60) * 60_000_000
            - rng.choice([0, 1, 30_000_000])
        )
        end = int(days.instants[-1]) - 86_400_000_000  # local days end sooner, or later
        found: list[int] = []
        at = after
        while len(found) < TICKS and (at := next_tick(expression, zone, at)) <= end:
            found.append(at)
        wanted = expected(expression, zone, day, after, end)[:TICKS]
        assert list(map(to_datetime, found)) == list(map(to_datetime, wanted)), (expression, zone, to_datetime(after))


def test_no_tick_is_lost_when_clocks_are_turned_by_half_an_hour():
    """On Lord Howe Island 01:30 to 01:59 comes twice on this day."""
    zone = ZoneInfo("Australia/Lord_Howe")
    at = to_micros(datetime(2025, 4, 6, 0, 0, tzinfo=zone), "at")
    shown = []
    for _ in range(5):
        at = next_tick("45 * * * *", "Australia/Lord_Howe", at)
        shown.append(to_datetime(at).astimezone(zone).isoformat()[11:])
    assert shown == ["00:45:00+11:00", "01:45:00+11:00", "01:45:00+10:30", "02:45:00+10:30", "03:45:00+10:30"]


@pytest.mark.parametrize("range_", ["53-53/5", "053-53/5", "53-53/05"])
def test_a_step_over_one_value_is_that_value(range_):
    at = next_tick(f"{range_} * * * *", "UTC", 0)
    again = next_tick(f"{range_} * * * *", "UTC", at)

    assert (to_datetime(at).minute, again - at) == (53, 3_600_000_000)
    assert to_datetime(next_tick("0 0 * * MON-mon/2", "UTC", 0)).isoweekday() == 1
