"""Tasks by the clock: one per tick, kept over restarts, missed ones by their policy (F8)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise

import pytest
from msgspec.structs import replace

from penstock import operations as ops
from penstock.errors import InvalidField, ScheduleNotFound
from penstock.model import to_datetime
from penstock.model_tasks import ScheduleSpec
from tests.behaviour.steps import refuse
from tests.behaviour.task_steps import Office
from tests.support.operations import confirm, run_operation

HOURLY = ScheduleSpec(name="tidy", cron="0 * * * *", task_type="tidy", queue="mail", args=b"[1]")


class Timetable(Office):
    """An office that works by the clock."""

    def set(self, spec: ScheduleSpec = HOURLY, **changes):
        return self.confirmed(run_operation(self.session, ops.SetSchedule(replace(spec, **changes))))

    def schedules(self):
        return self.confirmed(run_operation(self.session, ops.Schedules()))


@pytest.fixture
def timetable(ps):
    return Timetable(ps)


def to_next_hour(clock) -> None:
    now = clock.now()
    clock.advance((3_600_000_000 - now % 3_600_000_000) / 1e6)


def test_each_tick_is_one_task(timetable, clock, way):
    to_next_hour(clock)
    clock.advance(1)
    view = timetable.set()
    assert view.next_at == to_datetime(clock.now()).replace(minute=0, second=0) + timedelta(hours=1)

    done = []
    for _ in range(3):
        to_next_hour(clock)
        way.let_time_happen()
        way.let_time_happen()
        done += timetable.work()
        assert timetable.lease() == []

    assert len(set(done)) == 3
    seen = timetable.task(done[-1])
    assert (seen.task_type, seen.schedule, seen.args) == ("tidy", "tidy", b"[1]")
    (view,) = timetable.schedules()
    assert (view.last_task_id, view.last_at) == (done[-1], to_datetime(clock.now()))
    assert timetable.ids(schedule="tidy") == done[::-1]


def test_the_same_schedule_again_changes_nothing_and_another_changes_it(timetable, clock):
    first = timetable.set()

    assert timetable.set() == first
    changed = timetable.set(cron="30 4 * * *", timezone="Europe/Paris")

    assert changed.next_at is not None
    assert changed.next_at.astimezone(UTC).minute == 30
    assert [view.spec.cron for view in timetable.schedules()] == ["30 4 * * *"]


def test_a_paused_schedule_makes_nothing_until_it_goes_on(timetable, clock, way):
    assert timetable.set(is_paused=True).next_at is None
    to_next_hour(clock)
    way.let_time_happen()
    assert timetable.ids() == []

    assert timetable.set(is_paused=False).next_at is not None
    clock.advance(3600)
    way.let_time_happen()

    assert len(timetable.work()) == 1


def test_a_deleted_schedule_makes_nothing_more(timetable, clock, way):
    timetable.set()

    confirm(timetable.session, run_operation(timetable.session, ops.DeleteSchedule("tidy")))

    clock.advance(7200)
    way.let_time_happen()
    assert timetable.schedules() == []
    assert timetable.ids() == []
    refuse(ScheduleNotFound, lambda: run_operation(timetable.session, ops.DeleteSchedule("tidy")), "tidy")


@pytest.mark.parametrize(("missed", "count"), [("skip", 0), ("catch_up", 5)])
def test_ticks_that_were_missed_follow_the_policy(timetable, clock, way, missed, count):
    timetable.ps.create_queue("mail")
    to_next_hour(clock)
    clock.advance(1)
    timetable.set(missed=missed)

    clock.advance(5 * 3600 + 600)
    way.let_time_happen()

    assert len(timetable.work()) == count
    to_next_hour(clock)
    way.let_time_happen()
    assert len(timetable.work()) == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cron", "every day"),
        ("cron", "61 * * * *"),
        ("cron", "0 0 30 2 *"),
        ("timezone", "Mars/Olympus"),
        ("args", b"{}"),
        ("name", "a b"),
        ("task_type", ""),
        ("timeout_seconds", 0.0),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused(timetable, field, value):
    refuse(InvalidField, lambda: timetable.set(**{field: value}), field)
    assert timetable.schedules() == []


@pytest.mark.parametrize("way", ["file", "sealed", "forgetful"], indirect=True)
def test_a_tick_comes_once_over_restarts(way, clock):
    timetable = Timetable(way.start())
    to_next_hour(clock)
    clock.advance(1)
    timetable.set()
    to_next_hour(clock)
    way.let_time_happen()
    before = timetable.schedules()
    (made,) = timetable.ids()

    timetable = Timetable(way.crash())
    way.let_time_happen()

    assert timetable.schedules() == before
    assert timetable.work() == [made]


def test_a_schedule_is_as_it_was_set(timetable):
    spec = replace(HOURLY, kwargs=b'{"a":1}', priority=7, max_attempts=2, key="k", timezone="Asia/Tokyo")

    timetable.set(spec)

    (view,) = timetable.schedules()
    assert view.spec == spec
    assert view.next_at is not None
    assert view.next_at > datetime(2020, 1, 1, tzinfo=UTC)


def run_now(timetable, name="tidy"):
    return timetable.confirmed(run_operation(timetable.session, ops.RunSchedule(name)))


def ticks_of(timetable, name="tidy", **numbers):
    return timetable.confirmed(run_operation(timetable.session, ops.Ticks(name, **numbers)))


@pytest.mark.parametrize("is_paused", [False, True])
def test_a_schedule_that_is_run_now_makes_one_task_more_and_keeps_its_ticks(timetable, clock, way, is_paused):
    before = timetable.set(is_paused=is_paused)

    made = run_now(timetable)

    assert (made.schedule, made.queue) == ("tidy", "mail")
    assert timetable.schedules() == [before]
    assert timetable.work() == [made.task_id]
    seen = timetable.task(made.task_id)
    assert (seen.task_type, seen.schedule, seen.args, seen.state) == ("tidy", "tidy", b"[1]", "completed")
    to_next_hour(clock)
    way.let_time_happen()
    assert len(timetable.work()) == (0 if is_paused else 1)


def test_the_next_ticks_are_in_utc_and_in_the_zone_of_the_schedule(timetable, clock):
    timetable.set(cron="30 2 * * *", timezone="Europe/Berlin")

    found = ticks_of(timetable, count=3)

    assert (found.schedule, found.cron, found.timezone, found.is_paused) == (
        "tidy",
        "30 2 * * *",
        "Europe/Berlin",
        False,
    )
    assert len(found.next) == 3
    assert found.next[0].at == timetable.schedules()[0].next_at
    for tick in found.next:
        local = datetime.fromisoformat(tick.local)
        assert (local.hour, local.minute) == (2, 30)
        assert local == tick.at
        assert local.utcoffset() != timedelta(0)
    assert [later.at > tick.at for tick, later in pairwise(found.next)] == [True, True]


def test_ticks_show_how_the_last_runs_went_and_who_made_them(timetable, clock, way):
    timetable.set()
    to_next_hour(clock)
    way.let_time_happen()
    (first,) = timetable.work()
    clock.advance(5)
    second = run_now(timetable).task_id
    timetable.lease_one().finish("dead", error="no luck")

    runs = ticks_of(timetable).runs

    assert [(run.task_id, run.trigger, run.state, run.error) for run in runs] == [
        (second, "manual", "dead", "no luck"),
        (first, "tick", "completed", ""),
    ]
    assert len(ticks_of(timetable, runs=1).runs) == 1


def test_ticks_of_a_paused_schedule_are_those_that_would_come(timetable, clock):
    timetable.set(is_paused=True)
    found = ticks_of(timetable, count=2)
    assert found.is_paused
    assert [tick.at.minute for tick in found.next] == [0, 0]
    assert found.next[0].at > to_datetime(clock.now())


def test_a_schedule_that_is_not_there_is_neither_run_nor_shown(timetable):
    refuse(ScheduleNotFound, lambda: run_now(timetable, "nothing"), "nothing")
    refuse(ScheduleNotFound, lambda: ticks_of(timetable, "nothing"), "nothing")
    timetable.set()
    for number in (0, 101):
        refuse(InvalidField, partial(ticks_of, timetable, count=number), "count")
        refuse(InvalidField, partial(ticks_of, timetable, runs=number), "runs")


def test_what_was_run_by_hand_is_there_after_a_crash(timetable, way):
    if not way.lasts:
        return
    timetable.set()
    made = run_now(timetable)

    again = Timetable(way.crash())

    assert [run.task_id for run in ticks_of(again).runs] == [made.task_id]
