"""The recorder: seconds become minutes, hours and days, over restarts, crashes and full disks."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from penstock import limits
from penstock.client.handles import Penstock
from penstock.clock import ManualClock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.model import to_datetime
from penstock.model_metrics import HistorySeries
from penstock.rollups.files import DIRECTORY
from penstock.rollups.tiers import TIERS

NOON = 1_800_014_400  # a full hour, in seconds since 1970, in the middle of a day
HOUR, DAY = 3_600, 86_400


class Rig:
    """An embedded system whose recorder ticks when the test says so."""

    def __init__(self, path: Path | None, at: int = NOON) -> None:
        self.path = path
        self.clock = ManualClock(at * 1_000_000)
        self.open()

    def open(self) -> None:
        durability: Any = "os"
        self.session: Any = Session(
            self.path, durability=durability, clock=self.clock, rng=random.Random(1), background=False
        )
        self.ps = Penstock(BlockingSession(self.session))
        self.session.recorder.tick()

    def pass_seconds(self, seconds: int, *, pushes: int = 0, queue: str = "mail") -> None:
        for _ in range(seconds):
            for _ in range(pushes):
                self.ps.queue(queue).push(b"x")
            self.clock.advance(seconds=1)
            self.session.recorder.tick()

    def skip(self, seconds: int) -> None:
        self.clock.advance(seconds=seconds)
        self.session.recorder.tick()

    def history(self, since: int, until: int, step: int, *metrics: str, queue: str | None = "mail") -> HistorySeries:
        times = to_datetime(since * 1_000_000), to_datetime(until * 1_000_000)
        names = metrics or ("pushed",)
        return (
            self.ps.history(names, *times, step) if queue is None else self.ps.queue(queue).history(names, *times, step)
        )

    def pushed(self, since: int, until: int, step: int) -> list[Any]:
        found: list[Any] = [*self.history(since, until, step).series["pushed"]]
        return found


@pytest.fixture(params=["memory", "disk"])
def rig(request, tmp_path):
    rig = Rig(None if request.param == "memory" else tmp_path)
    yield rig
    rig.ps.close()


def test_each_second_has_its_own_counts_and_a_pause_is_a_gap(rig):
    rig.pass_seconds(2, pushes=3)
    rig.pass_seconds(1)
    rig.skip(3)
    rig.pass_seconds(1, pushes=1)

    found = rig.history(NOON, NOON + 8, 1, "pushed", "ready", "pushed_per_second")

    # What happened in the pause is counted in its last second; the others were not looked at.
    assert found.series["pushed"] == [3, 3, 0, None, None, 0, 1, None]
    assert found.series["ready"] == [3, 6, 6, None, None, 6, 7, None]
    assert found.series["pushed_per_second"] == found.series["pushed"]
    assert found.times == list(range(NOON, NOON + 8))
    assert (found.step, found.resolution) == (1, 1)


def test_counters_are_added_up_and_gauges_keep_their_highest_value(rig):
    rig.pass_seconds(30, pushes=2)
    rig.ps.queue("mail").lease(60).ack()
    rig.pass_seconds(90)

    found = rig.history(NOON, NOON + 120, 60, "pushed", "acked", "delivered", "backlog", "lag")

    assert found.series == {
        "pushed": [60, 0],
        "acked": [60, 0],
        "delivered": [60, 0],
        "backlog": [60, 0],
        "lag": [60, 0],
    }


def test_every_way_a_message_can_end_has_its_column(rig):
    queue = rig.ps.create_queue("mail", max_attempts=2, backoff_jitter=0.0)
    queue.push_many([b"%d" % number for number in range(5)])
    for delivery, end in zip(queue.lease(5), ("ack", "nack", "release", "reject"), strict=False):
        getattr(delivery, end)()
    queue.push(b"late", ttl=1)
    rig.pass_seconds(3)
    queue.purge()
    rig.pass_seconds(1)

    found = rig.history(NOON, NOON + 60, 60, "pushed", "delivered", "acked", "retried", "released", "died", "dropped")

    values = {name: column[0] for name, column in found.series.items()}
    assert values["pushed"] == 6
    assert values["delivered"] == 5
    assert (values["acked"], values["retried"], values["released"], values["died"]) == (1, 1, 1, 1)
    assert values["dropped"] >= 2  # the one that expired, and what was purged


def test_minutes_hours_and_days_agree_and_outlive_a_restart(tmp_path):
    rig = Rig(tmp_path)
    for _ in range(150):
        rig.ps.queue("mail").push(b"x")
        rig.pass_seconds(1)
        rig.skip(59)  # a look every minute will do
    rig.ps.close()

    rig.open()
    minutes, hours, days = (rig.pushed(NOON, NOON + 4 * HOUR, step) for step in (60, HOUR, DAY))

    assert minutes[:149] == [1] * 149
    assert hours[:3] == [60, 60, 30]
    assert days == [150]
    rig.ps.close()


def test_a_crash_costs_the_seconds_since_the_last_full_minute_and_nothing_is_counted_twice(tmp_path):
    rig = Rig(tmp_path)
    for _ in range(65):
        rig.pass_seconds(1, pushes=1)
        rig.skip(59)
    crashed = rig.session  # never closed: as if it were killed
    crashed._disk.close()
    rig.open()

    for _ in range(5):
        rig.pass_seconds(1, pushes=1)
        rig.skip(59)

    hours = rig.pushed(NOON, NOON + 2 * HOUR, HOUR)
    assert hours[0] == 60
    assert hours[1] in (9, 10)  # the minute that was under way is lost
    assert rig.pushed(NOON, NOON + DAY, DAY)[0] == hours[0] + hours[1]
    rig.ps.close()


def test_an_hour_that_ended_while_nobody_ran_is_rolled_up_by_the_next(tmp_path):
    rig = Rig(tmp_path)
    rig.pass_seconds(61, pushes=1)
    rig.ps.close()
    rig.clock.advance(seconds=3 * HOUR)
    rig.open()

    assert rig.pushed(NOON, NOON + 2 * HOUR, HOUR) == [61, None]
    assert any(name.startswith("hour-") for name in rig.session._disk.list(DIRECTORY))
    rig.ps.close()


def test_a_torn_tail_is_cut_and_written_over(tmp_path):
    rig = Rig(tmp_path)
    rig.pass_seconds(121, pushes=1)
    rig.ps.close()
    minutes = next((tmp_path / DIRECTORY).glob("minute-*"))
    minutes.write_bytes(minutes.read_bytes()[:-3])

    rig.open()
    rig.pass_seconds(120, pushes=1)

    assert rig.pushed(NOON, NOON + 180, 60)[:2] == [60, 60]
    rig.ps.close()


@pytest.mark.parametrize("junk", [b"", b"junk", b"PSROLL\x00\x09 a later version"])
def test_a_file_that_cannot_be_read_does_not_keep_a_broker_from_working(tmp_path, junk):
    rig = Rig(tmp_path)
    rig.pass_seconds(61, pushes=1)
    rig.ps.close()
    for file in (tmp_path / DIRECTORY).iterdir():
        file.write_bytes(junk)
    (tmp_path / DIRECTORY / "minute-notes.txt").write_text("of somebody else")

    rig.open()
    rig.pass_seconds(120, pushes=1)

    assert rig.pushed(NOON + 60, NOON + 180, 60)[-1] == 60
    rig.ps.close()


def test_files_go_when_they_are_too_old_and_the_space_is_bounded(tmp_path):
    rig = Rig(tmp_path)
    for _ in range(60):
        rig.pass_seconds(2, pushes=1)
        rig.skip(DAY // 2)
    names = rig.session._disk.list(DIRECTORY)
    now = rig.clock.now() // 1_000_000

    for tier in TIERS:
        starts = [int(name.split("-")[1].split(".")[0]) for name in names if name.startswith(tier.name)]
        assert all(start + tier.file_seconds + tier.keep_seconds > now - DAY for start in starts)
    assert rig.pushed(NOON, NOON + 31 * DAY, DAY)[1:29] == [4] * 28
    rig.ps.close()


def test_a_full_disk_loses_minutes_and_not_the_hour(tmp_path):
    rig = Rig(tmp_path)
    rig.pass_seconds(10, pushes=1)
    rig.session.shard.journal.disk_full = True
    rig.skip(60)
    rig.skip(60)
    rig.session.shard.journal.disk_full = False
    rig.skip(HOUR)

    assert rig.pushed(NOON, NOON + HOUR, HOUR) == [10]
    rig.ps.close()


def test_a_queue_that_was_made_anew_goes_on_under_its_name_and_a_deleted_one_keeps_its_history(rig):
    rig.pass_seconds(2, pushes=1)
    rig.ps.delete_queue("mail")
    rig.pass_seconds(2)
    rig.pass_seconds(2, pushes=2)

    assert rig.pushed(NOON, NOON + 60, 60) == [6]
    rig.ps.delete_queue("mail")
    rig.pass_seconds(1)
    assert rig.pushed(NOON, NOON + 60, 60) == [6]


def test_queues_beyond_the_limit_share_a_row_and_count_for_the_broker(monkeypatch, rig):
    monkeypatch.setattr(limits, "metrics_series_max", 2)
    for number in range(5):
        rig.ps.queue(f"q{number}").push(b"x")
    rig.pass_seconds(1)

    assert rig.history(NOON, NOON + 1, 1, "pushed", queue="q1").series["pushed"] == [1]
    assert rig.history(NOON, NOON + 1, 1, "pushed", queue="q4").series["pushed"] == [None]
    assert rig.history(NOON, NOON + 1, 1, "pushed", "ready", queue=None).series == {"pushed": [5], "ready": [5]}


def test_a_look_that_runs_out_of_steps_goes_on_with_the_next(monkeypatch, rig):
    monkeypatch.setattr("penstock.rollups.sampler.STEPS_MAX", 6)
    for number in range(5):
        rig.ps.queue(f"q{number}").push(b"x")
    rig.pass_seconds(6)

    found = rig.history(NOON, NOON + 60, 60, "pushed", queue=None)

    assert found.series["pushed"] == [5]


def test_what_happened_before_the_first_look_is_no_news(tmp_path):
    rig = Rig(tmp_path)
    rig.ps.queue("mail").push_many([b"x"] * 100)
    rig.ps.close()
    rig.open()
    rig.pass_seconds(2, pushes=1)

    assert rig.pushed(NOON, NOON + 60, 60) == [2]
    rig.ps.close()


def test_percentiles_are_merged_over_seconds_and_minutes(rig):
    rig.ps.queue("mail").push(b"x")
    for second in range(120):
        for share in range(100):
            rig.session.meter.leased("mail", "default", 1, 0.010 if share < 90 + second // 60 * 9 else 1.0)
        rig.pass_seconds(1)

    found = rig.history(NOON, NOON + 120, 60, "latency_p50_ms", "latency_p95_ms", "latency_p99_ms").series
    both = rig.history(NOON, NOON + HOUR, HOUR, "latency_p95_ms").series["latency_p95_ms"][0]

    assert found["latency_p50_ms"] == [pytest.approx(10, rel=0.12)] * 2
    assert found["latency_p95_ms"] == [pytest.approx(1000, rel=0.12), pytest.approx(10, rel=0.12)]
    assert found["latency_p99_ms"] == [pytest.approx(1000, rel=0.12), pytest.approx(10, rel=0.12)]
    # 11 of 200 took a second: more than 5 %. The mean of the two percentiles would have been half of that.
    assert both == pytest.approx(1000, rel=0.12)
