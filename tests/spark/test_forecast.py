"""Forecasts against weeks whose answer is known."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from penstock.spark.pipelines import forecast
from penstock.spark.pipelines.forecast import ForecastOptions, QueueHistory
from tests.spark.handmade_tables import EVENTS, MESSAGES, START, MadeRun, event, frame, message

HOUR_US = 3_600_000_000
MONDAY = int(START.timestamp()) // 3600 - 9  # the hour in which the week of the tests begins


def week(hours: int, **busy: float) -> np.ndarray:
    """So many hours from Monday on with 360 messages each, and others in the hours named `h9` and so on."""
    counts = np.full(hours, 360.0)
    for name, count in busy.items():
        counts[int(name[1:]) :: 168] = count
    return counts


def known(counts: np.ndarray, **more) -> QueueHistory:
    """History that began on Monday at midnight and ends with the last of the counts; a worker finishes 0.5 a second."""
    hours = np.concatenate([[0.0], counts, [0.0]])  # of the first and the last hour only a part was seen
    given = {"finished": 1800, "busy_seconds": 3600.0, "workers": 1, **more}
    return QueueHistory(
        queue="q",
        group="default",
        first_hour=MONDAY - 1,
        pushed=hours,
        last_us=(MONDAY + len(counts)) * HOUR_US,
        **given,
    )


def test_the_same_hour_of_the_week_is_expected_again():
    found = forecast.profile(MONDAY, week(336, h9=3600))

    assert found.basis == "hour of week"
    assert list(found.rates(MONDAY + 336 + 8, 3)) == [0.1, 1.0, 0.1]


@pytest.mark.parametrize(("hours", "basis"), [(168, "hour of week"), (48, "hour of day"), (47, "mean"), (1, "mean")])
def test_with_less_history_less_is_distinguished(hours, basis):
    found = forecast.profile(MONDAY, week(hours, h9=3600) if hours > 9 else week(hours))

    assert found.basis == basis
    assert found.per_hour.mean() == pytest.approx(
        week(hours, h9=3600).mean() if basis == "mean" else found.per_hour.mean()
    )


def test_the_breach_and_the_workers_that_prevent_it_are_those_of_a_sum_on_paper():
    """Monday from 9 to 10 brings 1 a second; one worker does 0.5, so at 9:30 there are 900 too many: 1800 s to wait."""
    found = forecast.forecast(known(week(336, h9=3600)), ForecastOptions(target_age_seconds=1800))

    nine = datetime.fromtimestamp((MONDAY + 336 + 9) * 3600, UTC)
    assert found.expected is not None
    assert found.expected.backlog.max() == pytest.approx(1800)
    assert found.breach_at is not None
    # What chance adds moves it forward a little.
    assert timedelta(minutes=15) < found.breach_at - nine <= timedelta(minutes=30)
    # Two workers do 1 a second: nothing piles up, and what chance adds is under 140 s.
    assert found.enough == 2
    assert found.with_enough is not None
    assert found.with_enough.seconds.max() < 140
    assert found.used_max == pytest.approx(2.0)


def test_what_is_waiting_already_counts():
    found = forecast.forecast(known(week(336), backlog=1000), ForecastOptions(target_age_seconds=60, horizon_hours=1))

    assert found.breach_at == datetime.fromtimestamp((MONDAY + 336) * 3600, UTC)
    # 1000 messages at 0.5 a second each: 34 workers need 58.8 s for them, 33 need 60.6 s.
    assert found.enough == 34


def test_nobody_at_work_is_no_forecast():
    found = forecast.forecast(known(week(24), finished=0, busy_seconds=0.0, workers=0), ForecastOptions())

    assert found.expected is None
    assert forecast._notes([found])[1].startswith("no message was finished")


def test_the_chance_to_wait_is_that_of_erlang():
    # One server: the chance is the utilisation. Two servers at a load of 1: one third.
    assert forecast.waiting_chance(1, np.array([0.3, 0.9])) == pytest.approx([0.3, 0.9])
    assert forecast.waiting_chance(2, np.array([1.0])) == pytest.approx([1 / 3])


def test_a_store_cannot_fall_below_nothing():
    arrivals = np.array([0.0, 3.0, 0.0, 0.0, 2.0])

    found = forecast.waits(arrivals, 1, 1.0, 0.0, 10.0)

    level, expected = 0.0, []
    for rate in arrivals:
        expected.append(level)
        level = max(0.0, level + (rate - 1.0) * 10.0)
    assert list(found.backlog) == expected == [0.0, 0.0, 20.0, 10.0, 0.0]


def test_work_that_overlaps_counts_once(spark):
    """Worker a takes four messages at once and settles one after the other; b works for 3 s beside it."""
    events = [event("q", n, n, "acked", 0, 10, 12 + 2 * n, consumer="a") for n in range(4)]
    events += [event("q", 4, 4, "retried", 0, 10, 13, consumer="b"), event("q", 5, 9, "expired", 0, None, 14)]

    (row,) = forecast.work(frame(spark, events, EVENTS)).collect()

    assert (row["finished"], row["deliveries"], row["workers"]) == (4, 5, 2)
    assert row["busy_seconds"] == pytest.approx(8 + 3)


def test_what_a_group_has_not_finished_is_open(spark):
    messages = [message("q", n, n) for n in range(6)] + [message("idle", 0, 3)]
    events = [event("q", 0, 2, "acked", 0, 1, 2), event("q", 3, 3, "retried", 3, 4, 5)]
    events += [event("q", 3, 3, "dead", 3, 6, 7), event("q", 0, 0, "acked", 0, 1, 2, group="audit")]

    found = forecast.open_messages(frame(spark, messages, MESSAGES), frame(spark, events, EVENTS)).collect()

    assert {(row["queue"], row["group"]): row["open"] for row in found} == {
        ("q", "default"): 2,
        ("q", "audit"): 5,
        ("idle", "default"): 1,
    }


def test_a_run_says_that_there_is_little_history_and_is_not_repeated(spark, tmp_path):
    messages = [message("q", n, 60 * n) for n in range(240)]
    events = [event("q", n, n, "acked", 60 * n, 60 * n + 1, 60 * n + 21) for n in range(240)]
    run = MadeRun(spark, tmp_path, ForecastOptions(), messages, events)

    report = forecast.run(run)
    again = forecast.run(run)

    (row,) = report.tables[0].rows
    # One message a minute, 20 s each: one worker is busy a third of the time, and lets some wait.
    reported = dict(zip(report.tables[0].columns, row, strict=True))
    assert (reported["basis"], reported["arrivals/h"], reported["messages/s per worker"]) == ("mean", 60.0, 0.05)
    assert reported["used % at most"] == pytest.approx(100 / 3, abs=0.1)
    wait = math.log((1 / 3) / 0.05) / (0.05 - 1 / 60)
    assert (reported["breach at"], reported["workers enough"]) == ("no", 1)
    assert wait == pytest.approx(56.9, abs=0.1)  # just within the minute that is allowed
    assert report.notes[0].startswith("less than two days")
    assert again.summary.startswith("Nothing new")
    assert "data:image/png;base64," in (tmp_path / "report.html").read_text()


NOW_US = (MONDAY + 336) * HOUR_US


def minutes_ago(minutes: float) -> int:
    return NOW_US - round(minutes * 60_000_000)


def outage(**more) -> QueueHistory:
    """628 messages that wait since ten minutes, nobody at work since nine."""
    given = {"backlog": 628, "oldest_us": minutes_ago(10), "worked_us": minutes_ago(9), "now_us": NOW_US, **more}
    return known(week(336), workers=40, **given)


def test_an_outage_is_a_breach_although_workers_kept_up_before():
    found = forecast.forecast(outage(), ForecastOptions(target_age_seconds=60))

    assert found.is_stopped
    assert found.breach_at == datetime.fromtimestamp(minutes_ago(9) / 1e6, UTC)
    report = forecast._report([found], [forecast._table([found])], [], ForecastOptions())
    assert report.summary.startswith("In 1 of 1 queues and groups messages wait longer than 60 s, now or within")
    assert "Messages wait but no worker is active: q/default." in report.summary
    reported = dict(zip(report.tables[0].columns, report.tables[0].rows[0], strict=True))
    assert (reported["open now"], reported["workers"]) == (628, 0)
    assert reported["last worked"] == datetime.fromtimestamp(minutes_ago(9) / 1e6, UTC).strftime("%Y-%m-%d %H:%M")
    assert "no worker was active" in report.notes[-1]


@pytest.mark.parametrize(
    ("known_of_it", "is_stopped", "is_late"),
    [
        ({"worked_us": minutes_ago(0.5)}, False, True),  # they work, and have fallen behind
        ({"oldest_us": minutes_ago(0.5)}, False, False),  # it came just now
        ({"backlog": 0}, False, False),
        ({"worked_us": None}, True, True),
        ({"now_us": NOW_US + 86_400_000_000, "worked_us": minutes_ago(0), "oldest_us": minutes_ago(0)}, True, True),
    ],
)
def test_it_is_an_outage_only_while_somebody_waits_and_nobody_works(known_of_it, is_stopped, is_late):
    found = forecast.forecast(outage(**known_of_it), ForecastOptions(target_age_seconds=60))

    assert found.is_stopped == is_stopped
    now = datetime.fromtimestamp(found.history.now_us / 1e6, UTC)
    assert (found.breach_at is not None and found.breach_at <= now) == is_late


def test_a_forecast_of_something_open_is_made_again_and_knows_who_worked_last(spark, tmp_path):
    """It works for an hour, and then nobody does while messages go on coming."""
    messages = [message("q", n, 60 * n) for n in range(120)]
    events = [event("q", n, n, "acked", 60 * n, 60 * n + 1, 60 * n + 21) for n in range(60)]
    run = MadeRun(spark, tmp_path, ForecastOptions(), messages, events)
    run.until = START + timedelta(hours=2)

    report = forecast.run(run)

    reported = dict(zip(report.tables[0].columns, report.tables[0].rows[0], strict=True))
    assert (reported["open now"], reported["oldest open"], reported["last worked"]) == (
        60,
        "2026-11-16 10:00",
        "2026-11-16 09:59",
    )
    assert "Messages wait but no worker is active: q/default." in report.summary
    assert not forecast.run(run).summary.startswith("Nothing new")


def test_a_message_that_is_not_due_yet_does_not_wait(spark):
    later = {**message("q", 0, 0), "available_at": START + timedelta(hours=1)}

    (row,) = forecast.open_messages(frame(spark, [later], MESSAGES), frame(spark, [], EVENTS)).collect()

    assert row["oldest_us"] == round((START + timedelta(hours=1)).timestamp() * 1_000_000)
