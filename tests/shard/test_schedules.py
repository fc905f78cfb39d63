"""Schedules: one task for each tick, by the clock of a place, also after a rest."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from penstock import limits
from penstock.clock import ManualClock
from penstock.cron import next_tick
from penstock.delivery import admin
from penstock.delivery.entries import FOREVER, ScheduleFired, ScheduleSet
from penstock.delivery.tasks import Schedules
from penstock.envelopes import parse_envelope
from penstock.errors import InvalidField, InvalidName, QueueFull, ScheduleNotFound, TooLarge
from penstock.model import queue_options, to_micros
from penstock.model_tasks import ScheduleSpec
from penstock.requests import LeaseRequest
from penstock.shard.opening import open_on_disk
from penstock.shard.tasks import schedules as task_schedules
from tests.support.accounts import assert_accounts
from tests.support.forgetful import ForgetfulDisk
from tests.support.task_rig import Rig

BERLIN = ZoneInfo("Europe/Berlin")  # 2026: forward on 29 March at 2:00, back on 25 October at 3:00


def local(text: str, fold: int = 0) -> int:
    return to_micros(datetime.fromisoformat(text).replace(tzinfo=BERLIN, fold=fold), "text")


def ticks(cron: str, after: str, count: int, fold: int = 0) -> list[str]:
    found = []
    instant = local(after, fold)
    for _ in range(count):
        instant = next_tick(cron, "Europe/Berlin", instant)
        found.append(datetime.fromtimestamp(instant / 1e6, BERLIN).isoformat())
    return found


# when


@pytest.mark.parametrize(
    ("cron", "after", "fold", "expected"),
    [
        ("30 2 * * *", "2026-03-28T03:00", 0, ["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"]),
        ("0 30 2 * * *", "2026-03-28T03:00", 0, ["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"]),
        ("*/20 2 * * *", "2026-03-28T02:40", 0, ["2026-03-29T03:00:00+02:00", "2026-03-30T02:00:00+02:00"]),
        ("*/30 * * * *", "2026-03-29T01:30", 0, ["2026-03-29T03:00:00+02:00", "2026-03-29T03:30:00+02:00"]),
        ("30 2 * * *", "2026-10-24T03:00", 0, ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"]),
        ("30 2 * * *", "2026-10-25T02:10", 1, ["2026-10-26T02:30:00+01:00", "2026-10-27T02:30:00+01:00"]),
        ("@hourly", "2026-10-25T01:30", 0, ["2026-10-25T02:00:00+02:00", "2026-10-25T02:00:00+01:00"]),
        ("15 10 29 2 *", "2026-01-01T00:00", 0, ["2028-02-29T10:15:00+01:00", "2032-02-29T10:15:00+01:00"]),
    ],
)
def test_a_time_that_is_skipped_runs_after_the_gap_and_one_that_comes_twice_runs_once(cron, after, fold, expected):
    assert ticks(cron, after, 2, fold) == expected


@pytest.mark.parametrize("hours", range(0, 24 * 14, 7))
def test_a_daily_time_comes_once_on_each_day_from_wherever_one_looks(hours):
    start = datetime(2026, 10, 18, tzinfo=UTC) + timedelta(hours=hours)
    instant = to_micros(start, "start")
    days = set()
    for _ in range(20):
        instant = next_tick("0 15 2 * * *", "Europe/Berlin", instant)
        days.add(datetime.fromtimestamp(instant / 1e6, BERLIN).date())
    assert len(days) == 20
    assert (max(days) - min(days)).days == 19


@pytest.mark.parametrize(
    ("cron", "zone", "field"),
    [
        ("", "UTC", "cron"), ("* * * *", "UTC", "cron"), ("61 * * * *", "UTC", "cron"), ("@often", "UTC", "cron"),
        ("@reboot", "UTC", "cron"), ("0 0 30 2 *", "UTC", "cron"), ("* * */20 * 1L", "Europe/Berlin", "cron"),
        ("a b c d e", "UTC", "cron"), ("* * * * 5L/2", "UTC", "cron"), ("²  * * * *", "UTC", "cron"),
        ("0 0 * * *", "Mars/Olympus", "timezone"), ("0 0 * * *", "../etc/passwd", "timezone"),
        ("0 0 * * *", "", "timezone"), ("0 0 * * *", "Europe", "timezone"), ("0 0 * * *", "a\0b", "timezone"),
    ],
)  # fmt: skip
def test_what_never_comes_or_makes_no_sense_is_refused(cron, zone, field):
    with pytest.raises(InvalidField, match=field):
        next_tick(cron, zone, 0)


# what the shard makes of it


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.clock.advance(to_micros(datetime(2026, 5, 1, 12, 0, 30, tzinfo=UTC), "t") / 1e6 - rig.clock.now() / 1e6)
    return rig


def spec(**more: Any) -> ScheduleSpec:
    return ScheduleSpec(**{"name": "report", "cron": "* * * * *", "task_type": "report", "queue": "q", **more})


def set_schedule(rig: Rig, **more: Any) -> Any:
    return task_schedules.set_schedule(rig.shard, spec(**more))[0]


def made(rig: Rig, queue: str = "q") -> list[str]:
    """The minutes of the ticks that became tasks since the last look."""
    rig.tick()
    found = []
    if queue in rig.shard.core.by_name:
        reply, _ = rig.shard.lease(queue, "default", LeaseRequest(count_max=10_000, auto_ack=True))
        for piece in rig.shard.loaded(reply.pieces):
            for payload in piece.payloads():
                envelope = parse_envelope(payload)
                assert envelope.schedule == "report"
                found.append(envelope.scheduled_at[11:19])
    return found


def test_each_tick_is_one_task_in_one_frame_with_its_queue(rig):
    view = set_schedule(rig, args=b"[7]", kwargs=b'{"a":1}', priority=200, max_attempts=3, key="k", timeout_seconds=9.0)
    assert view.next_at == datetime(2026, 5, 1, 12, 1, tzinfo=UTC)
    assert view.last_at is None
    rig.tick()
    assert rig.shard.core.by_name == {}

    rig.clock.advance(30)
    rig.tick()

    assert [type(each).__name__ for each in rig.frames()[-1]] == [
        "QueueSet", "PartitionsAdded", "GroupSet", "Push", "ScheduleFired",
    ]  # fmt: skip
    reply, _ = rig.shard.lease("q", "default", LeaseRequest())
    (piece,) = reply.pieces
    envelope = parse_envelope(piece.payloads()[0])
    assert (bytes(envelope.args), bytes(envelope.kwargs), envelope.timeout_seconds) == (b"[7]", b'{"a":1}', 9.0)
    assert (envelope.schedule, envelope.scheduled_at) == ("report", "2026-05-01T12:01:00+00:00")
    assert (int(piece.batch.priority[0]), int(piece.batch.max_attempts[0]), piece.batch.key(0)) == (200, 3, "k")
    (view,) = task_schedules.schedules(rig.shard)[0]
    assert (view.last_task_id, view.last_at) == (envelope.task_id, datetime(2026, 5, 1, 12, 1, tzinfo=UTC))
    assert view.next_at == datetime(2026, 5, 1, 12, 2, tzinfo=UTC)
    assert_accounts(rig.shard)


def test_upkeep_wakes_for_the_next_tick(rig):
    woken: list[int] = []
    rig.shard.on_deadline = woken.append
    set_schedule(rig)

    due = to_micros(datetime(2026, 5, 1, 12, 1, tzinfo=UTC), "t")
    assert due in woken
    with rig.shard.lock:
        assert rig.shard.next_at(rig.clock.now(), rig.clock.monotonic()) == due


@pytest.mark.parametrize(
    ("missed", "rest", "expected"),
    [
        ("skip", 30, ["12:01:00"]),
        ("skip", 85, ["12:01:00"]),
        ("skip", 300, ["12:05:00"]),
        ("catch_up", 300, ["12:01:00", "12:02:00", "12:03:00", "12:04:00", "12:05:00"]),
    ],
)
def test_ticks_that_were_missed_are_skipped_or_made_up_for(rig, missed, rest, expected):
    set_schedule(rig, missed=missed)

    rig.clock.advance(rest)

    assert made(rig) == expected
    assert made(rig) == []


def test_a_tick_that_is_over_for_longer_than_a_minute_is_skipped(rig):
    set_schedule(rig, cron="0 13 * * *")
    rig.clock.advance(3600 + 90)
    assert made(rig) == []

    rig.clock.advance(86_400 - 90)

    assert made(rig) == ["13:00:00"]


def test_as_many_ticks_as_one_look_takes_are_made_up_for_and_the_rest_follows(rig, monkeypatch):
    monkeypatch.setattr(limits, "schedule_ticks_max", 10)
    set_schedule(rig, missed="catch_up")
    rig.clock.advance(60 * 25)

    assert [len(made(rig)), len(made(rig)), len(made(rig))] == [20, 5, 0]  # a lease is a look too


def test_a_schedule_by_the_second_that_rested_for_a_year_does_not_count_its_seconds(rig):
    set_schedule(rig, cron="* * * * * *")
    rig.clock.advance(365 * 86_400)

    assert made(rig) == ["12:00:30"]


def test_the_same_again_changes_nothing_and_a_change_keeps_what_was_missed(rig):
    set_schedule(rig, missed="catch_up")
    before = len(rig.frames())
    set_schedule(rig, missed="catch_up")
    assert len(rig.frames()) == before
    rig.clock.advance(120)

    with rig.shard.lock:
        rig.shard.core.tasks.schedules.postpone(rig.clock.now() + 1)  # nobody has looked yet
    set_schedule(rig, missed="catch_up", args=b"[2]")

    assert made(rig) == ["12:01:00", "12:02:00"]


def test_a_paused_schedule_rests_and_goes_on_with_the_next_tick(rig):
    set_schedule(rig, missed="catch_up")
    assert set_schedule(rig, missed="catch_up", is_paused=True).next_at is None
    rig.clock.advance(600)
    assert made(rig) == []

    set_schedule(rig, missed="catch_up")

    rig.clock.advance(60)
    assert made(rig) == ["12:11:00"]


def test_a_deleted_schedule_is_gone_and_one_created_again_in_the_same_minute_does_not_run_twice(rig):
    set_schedule(rig)
    rig.clock.advance(30)
    assert made(rig) == ["12:01:00"]
    rig.shard.confirm(task_schedules.delete_schedule(rig.shard, "report"))
    assert task_schedules.schedules(rig.shard)[0] == []
    with pytest.raises(ScheduleNotFound):
        task_schedules.delete_schedule(rig.shard, "report")
    rig.clock.advance(60)
    assert made(rig) == []

    set_schedule(rig)
    rig.clock.advance(60)
    assert made(rig) == ["12:03:00"]


def test_a_tick_that_its_queue_refuses_is_passed_over_and_the_schedule_goes_on(rig, caplog):
    options = queue_options({"max_length": 1})
    rig.shard.change(lambda now: admin.decide_create_queue(rig.shard.core, "q", options, now))
    set_schedule(rig)
    rig.clock.advance(30)
    rig.tick()
    rig.clock.advance(60)
    rig.tick()

    assert "a tick was skipped" in caplog.text
    assert made(rig) == ["12:01:00"]
    rig.clock.advance(60)
    assert made(rig) == ["12:03:00"]


def test_bad_schedules_are_refused(rig, monkeypatch):
    for bad, refusal in (
        ({"cron": "x"}, InvalidField),
        ({"timezone": "x"}, InvalidField),
        ({"queue": "q.dlq"}, InvalidName),
        ({"args": b'["%b"]' % (b"x" * limits.schedule_bytes_max)}, TooLarge),
    ):
        with pytest.raises(refusal):
            set_schedule(rig, **bad)
    monkeypatch.setattr(limits, "schedules_max", 0)
    with pytest.raises(QueueFull):
        set_schedule(rig)


def test_a_full_disk_postpones_ticks(rig, monkeypatch):
    set_schedule(rig)
    monkeypatch.setattr(rig.shard.journal, "disk_full", True)
    rig.clock.advance(30)
    rig.tick()
    with rig.shard.lock:
        assert rig.shard.next_at(rig.clock.now(), rig.clock.monotonic()) == rig.clock.now() + 1_000_000
    monkeypatch.setattr(rig.shard.journal, "disk_full", False)
    rig.clock.advance(2)
    assert made(rig) == ["12:01:00"]


@pytest.mark.parametrize("checkpointed", [True, False])
def test_ticks_happen_once_across_restarts(checkpointed):
    clock = ManualClock()
    clock.advance(60 - clock.now() / 1e6 % 60)
    disk = ForgetfulDisk()
    seen: list[str] = []
    for turn in range(6):
        shard, keeper = open_on_disk(disk, clock, random.Random(turn), journal_file_bytes=1 << 16)
        rig = Rig(shard, clock)
        if turn == 0:
            set_schedule(rig, missed="catch_up")
        seen += made(rig)
        clock.advance(90)
        if turn % 2:
            seen += made(rig)
        if checkpointed:
            keeper.checkpoint()
        shard.confirm(shard.journal.sequence)
        disk.kill()
    assert len(seen) == len(set(seen))
    assert seen == sorted(seen)
    assert len(seen) == 9


@pytest.mark.parametrize("seed", range(5))
def test_the_one_that_comes_first_is_known_whatever_is_set_paused_fired_and_deleted(seed):
    rng = random.Random(seed)
    schedules = Schedules()
    for frame in range(1, 1_500):
        name, at = f"s{rng.randrange(30)}", rng.choice([0, rng.randrange(1, 1_000)])
        if rng.random() < 0.5:
            schedules.set(ScheduleSet(name, b"{}", at, 0, rng.random() < 0.2), frame)
        elif (first := schedules.due(FOREVER)) is not None:
            schedules.fire(ScheduleFired(first, schedules.next_at, at, b""), frame)
        ticks = [(each.next_at, name) for name, each in schedules.known.items() if each.next_at]

        assert schedules.next_at == min(ticks, default=(FOREVER, ""))[0]
        assert schedules.due(FOREVER) == (min(ticks)[1] if ticks else None)
        assert schedules.due(schedules.next_at - 1) is None
        assert len(schedules._ticks) <= 2 * 30 + 101
