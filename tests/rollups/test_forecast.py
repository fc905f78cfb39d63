"""The forecast of a series: pure, so that it is tested with series that are made up."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from random import Random

import pytest

from penstock import operations as ops
from penstock.errors import InvalidField
from penstock.rollups.forecast import forecast
from tests.rollups.test_recorder import HOUR, NOON, Rig


def day(scale: float = 1.0) -> list[float]:
    return [scale * (100 + 50 * math.sin(hour / 24 * 2 * math.pi)) for hour in range(24)]


def test_a_day_like_every_other_is_expected_again_with_no_band():
    band = forecast(day() * 5, 24, 30)
    assert band.value == pytest.approx([*day(), *day()[:6]], abs=1e-3)
    assert band.low == band.value == band.high
    assert band.is_seasonal


def test_a_level_that_has_risen_is_kept():
    band = forecast([*day() * 4, *(value + 200 for value in day())], 24, 24)
    assert band.value == pytest.approx([value + 200 for value in day()], abs=1)


def test_one_spike_moves_nothing():
    values = day() * 5
    values[60] = 1e9
    assert forecast(values, 24, 24).value == pytest.approx(day(), abs=1e-3)


def test_four_in_five_of_what_comes_is_in_the_band():
    rng = Random(5)
    noisy = [value + rng.gauss(0, 10) for value in day() * 40]
    inside = 0
    for start in range(0, 24 * 20, 24):
        band = forecast(noisy[start : start + 24 * 13], 24, 24)
        pairs = zip(noisy[start + 24 * 13 :], band.low, band.high, strict=False)
        inside += sum(low <= value <= high for value, low, high in pairs if low is not None and high is not None)
    assert 0.7 < inside / (24 * 20) < 0.9


def test_the_band_widens_with_the_days_ahead_and_nothing_is_below_nought():
    rng = Random(5)
    band = forecast([max(0.0, rng.gauss(5, 5)) for _ in range(24 * 10)], 24, 24 * 9)
    widths = [high - value for value, high in zip(band.value, band.high, strict=True)]  # type: ignore[operator]
    assert widths[-1] == pytest.approx(3 * widths[0], rel=0.01)
    assert min(band.low) >= 0  # type: ignore[type-var, operator]


def test_without_two_days_it_is_the_usual_value_and_with_little_there_is_none():
    short = forecast([1.0, 2.0, 3.0] * 4, 24, 2)
    assert (short.value, short.is_seasonal) == ([2.0, 2.0], False)
    assert (short.low, short.high) == ([1.0, 1.0], [3.0, 3.0])
    assert forecast([1.0] * 7, 24, 2).value == [None, None]
    assert forecast([None] * 100, 24, 1).high == [None]
    assert forecast([], 24, 1).low == [None]


def test_holes_in_the_history_are_passed_over():
    values: list[float | None] = list(day() * 5)
    values[24:40] = [None] * 16
    values[-24:] = [None] * 24
    assert forecast(values, 24, 24).value == pytest.approx(day(), abs=1e-3)


def test_the_series_of_a_queue_comes_with_its_forecast():
    rig = Rig(None)
    session = rig.ps._session
    since, until = (datetime.fromtimestamp(at, UTC) for at in (NOON - HOUR, NOON))
    found = session.execute(ops.GetSeries(None, ("pushed",), since, until, 60, forecast=7_200))
    assert found.forecast is not None
    assert found.forecast.times[:2] == [found.times[-1] + 60, found.times[-1] + 120]
    assert len(found.forecast.times) == len(found.forecast.series["pushed"].value) == 120
    assert session.execute(ops.GetSeries(None, ("pushed",))).forecast is None
    with pytest.raises(InvalidField, match="forecast"):
        session.execute(ops.GetSeries(None, ("pushed",), since, until, 1, forecast=86_400))
    with pytest.raises(InvalidField, match="forecast"):
        ops.GetSeries(forecast=0)
    rig.ps.close()


def test_a_forecast_by_the_minute_has_a_share_of_what_an_hour_has():
    """Of what is counted; a level is the same in an hour and in a minute of it."""
    rig = Rig(None)
    rig.ps.create_queue("mail")
    for _ in range(10):
        rig.ps.queue("mail").push_many([b"x"] * 60)
        rig.pass_seconds(HOUR)
    now = rig.clock.now() // 1_000_000
    since, until = (datetime.fromtimestamp(at, UTC) for at in (now - HOUR, now))
    call = ops.GetSeries("mail", ("pushed", "ready"), since, until, 60, forecast=120)
    expected = rig.ps._session.execute(call).forecast
    assert expected is not None
    assert expected.series["pushed"].value == [1.0, 1.0]
    first, second = expected.series["ready"].value
    assert first == second
    assert (first or 0) > 60
    rig.ps.close()
