"""Series for charts: steps, tiers, bad requests, and every name on its page."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from penstock import Penstock
from penstock import operations as ops
from penstock.clock import ManualClock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.errors import InvalidField, QueueNotFound
from penstock.model_metrics import BROKER_SERIES, POINTS_MAX, QUEUE_SERIES, STEPS, default_step
from penstock.rollups.series import _fitting_step, _tier_of
from tests.rollups.test_recorder import HOUR, NOON, Rig

DAY = 24 * HOUR
PAGE = Path(__file__).parent.parent.parent / "docs" / "history.md"


def test_every_series_is_on_its_page():
    named = set(re.findall(r"`(\w+)`", PAGE.read_text()))
    derived = ("lease_", "settle_", "commit_")
    names = [name for name in BROKER_SERIES if not (name.endswith("_per_second") or name.startswith(derived))]
    assert [name for name in names if name not in named] == []


def test_every_series_can_be_drawn_of_a_broker_and_of_a_queue():
    rig = Rig(None)
    rig.ps.queue("mail").push(b"x")
    rig.pass_seconds(1)

    broker = rig.history(NOON, NOON + 1, 1, *BROKER_SERIES, queue=None)
    queue = rig.history(NOON, NOON + 1, 1, *QUEUE_SERIES)

    assert broker.series.keys() == set(BROKER_SERIES)
    assert queue.series.keys() == set(QUEUE_SERIES)
    assert all(len(values) == 1 for values in broker.series.values())
    assert broker.series["pushed"] == queue.series["pushed"] == [1]
    rig.ps.close()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"metrics": ("pushes",)}, "pushes"),
        ({"queue": "mail", "metrics": ("refused",)}, "refused"),
        ({"step": 0}, "step"),
        ({"step": True}, "step"),
        ({"since": datetime(2030, 1, 2, tzinfo=UTC), "until": datetime(2030, 1, 1, tzinfo=UTC)}, "from"),
    ],
)
def test_a_bad_request_is_refused_by_the_name_of_what_is_wrong(arguments, named):
    with pytest.raises(InvalidField, match=named):
        ops.GetSeries(**arguments)


def test_too_many_values_and_a_future_that_never_was_are_refused():
    rig = Rig(None)
    now = datetime.fromtimestamp(NOON, UTC)

    with pytest.raises(InvalidField, match="step"):
        rig.ps.history(since=now - timedelta(days=365), until=now, step=60)
    with pytest.raises(InvalidField, match="from"):
        rig.ps.history(since=now + timedelta(days=1))
    with pytest.raises(QueueNotFound):
        rig.ps.queue("none").history()
    assert len(rig.ps.history(since=now - timedelta(seconds=POINTS_MAX), until=now, step=1).times) == POINTS_MAX
    rig.ps.close()


def test_the_answer_is_aligned_to_steps_whatever_is_asked_for():
    rig = Rig(None)
    since = datetime.fromtimestamp(NOON - 3601, UTC)
    found = rig.ps.history(since=since, until=since + timedelta(seconds=3_000), step=300)

    assert all(at % 300 == 0 for at in found.times)
    assert found.since.timestamp() == found.times[0] <= since.timestamp()
    assert found.until.timestamp() == found.times[-1] + 300
    assert msgspec.json.decode(msgspec.json.encode(found))["times"] == found.times
    rig.ps.close()


@pytest.mark.parametrize(
    ("seconds", "step"), [(60, 1), (300, 1), (HOUR, 30), (DAY, 300), (30 * DAY, 10_800), (366 * DAY, 604_800)]
)
def test_a_chart_has_as_many_values_as_it_has_pixels(seconds, step):
    assert default_step(seconds) == step
    assert step in STEPS


@pytest.mark.parametrize(
    ("age", "span", "step"),
    [(300, 300, 1), (HOUR, HOUR, 60), (DAY, DAY, 300), (7 * DAY, 7 * DAY, HOUR), (300 * DAY, DAY, DAY)],
)
def test_a_step_is_chosen_whose_history_reaches_back_far_enough(age, span, step):
    assert _fitting_step(NOON - age, NOON - age + span, NOON) == step
    assert _tier_of(step).keep_seconds >= age


def test_a_series_is_compared_with_the_same_time_before_whatever_resolution_is_kept():
    rig = Rig(None)
    for _ in range(2):
        rig.ps.queue("mail").push(b"x")
        rig.pass_seconds(60)
    session = rig.ps._session

    found = run_series(session, since=NOON + 60, until=NOON + 120, step=60, compare=60)

    assert found.series["pushed"] == [1]
    assert found.previous["pushed"] == [1]
    assert found.previous.keys() == found.series.keys()
    assert run_series(session, since=NOON, until=NOON + 60, step=60).previous == {}
    assert run_series(session, since=NOON, until=NOON + 60, step=60, compare=7 * DAY).previous["pushed"] == [None]
    with pytest.raises(InvalidField, match="compare"):
        ops.GetSeries(compare=0)
    rig.ps.close()


def run_series(session, since, until, **options):
    since, until = datetime.fromtimestamp(since, UTC), datetime.fromtimestamp(until, UTC)
    return session.execute(ops.GetSeries("mail", ("pushed", "ready"), since, until, **options))


def test_changes_of_options_and_pauses_are_marks():
    clock = ManualClock(NOON * 1_000_000)
    with Penstock(BlockingSession(Session(None, durability="os", clock=clock, background=False, audit=True))) as ps:
        ps.create_queue("mail")
        ps.create_queue("other")
        clock.advance(1)
        ps.update_queue("mail", max_attempts=9)
        ps.queue("mail").push(b"x")
        ps.queue("mail").pause(reason="a release")
        clock.advance(60)

        found = run_series(ps.session, since=NOON, until=NOON + 60, step=60, marks=True)

        assert [(mark.what, mark.queue) for mark in found.marks] == [
            ("create_queue", "mail"),
            ("update_queue", "mail"),
            ("pause", "mail"),
        ]
        assert "max_attempts=9" in found.marks[1].text
        assert found.marks[1].at.timestamp() == NOON + 1
        assert run_series(ps.session, since=NOON, until=NOON + 60, step=60).marks == []
        assert run_series(ps.session, since=NOON + 30, until=NOON + 60, step=30, marks=True).marks == []
