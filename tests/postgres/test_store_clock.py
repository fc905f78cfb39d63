"""The time of a shard in PostgreSQL is the server's: clocks of nodes that are wrong or jump change nothing."""

from __future__ import annotations

import time
from collections import Counter
from datetime import datetime, timedelta
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

import penstock
from penstock import clock as clock_module
from penstock import operations as ops
from penstock.clock import SLEW_SHARE, SystemClock
from penstock.envelopes import parse_envelope
from penstock.model_tasks import ScheduleSpec
from penstock.postgres.clock import ServerTime, StoreClock
from tests.postgres.test_nodes import PATIENCE_SECONDS, until

HOURS = (-5, 5)
NEAR = timedelta(hours=1)  # far from a jump, whatever a slow machine does
HOUR_US = 3_600_000_000
BEAT_US = 250_000


class Machine:
    """In place of `time`: a node whose wall clock jumps, beside a server whose clock does not."""

    def __init__(self) -> None:
        self.mono_us = 5_000_000
        self.jump_us = 0
        self.server_ahead_us = 1_700_000_000_000_000

    def monotonic_ns(self) -> int:
        return self.mono_us * 1000

    def time_ns(self) -> int:
        return (self.mono_us + self.server_ahead_us + self.jump_us) * 1000

    def server_us(self) -> int:
        return self.mono_us + self.server_ahead_us


@pytest.fixture
def machine(monkeypatch):
    machine = Machine()
    monkeypatch.setattr(clock_module, "time", machine)
    return machine


def passed(machine: Machine, server: ServerTime, clock: StoreClock, seconds: int) -> list[int]:
    """What the clock says while time passes, with four heartbeats a second."""
    times = []
    for _ in range(seconds * 4):
        machine.mono_us += BEAT_US
        server.saw(machine.server_us(), machine.mono_us)
        times.append(clock.now())
    return times


def store_clock(machine: Machine) -> tuple[ServerTime, StoreClock]:
    server = ServerTime(machine.server_us(), machine.mono_us)
    return server, StoreClock(SystemClock(server.wall_ns))


@pytest.mark.parametrize("hours", HOURS)
def test_a_jump_of_the_nodes_clock_does_not_move_the_time_of_the_shard(machine, hours):
    server, clock = store_clock(machine)
    passed(machine, server, clock, 3)
    machine.jump_us = hours * HOUR_US
    passed(machine, server, clock, 7_200)
    assert clock.now() == machine.server_us()


@pytest.mark.parametrize("seconds", [-3, 3])
def test_the_time_of_another_server_is_approached_slowly_and_never_backwards(machine, seconds):
    server, clock = store_clock(machine)
    passed(machine, server, clock, 3)
    machine.server_ahead_us += seconds * 1_000_000  # of a standby that was promoted
    times = passed(machine, server, clock, 2 * round(abs(seconds) / SLEW_SHARE))
    assert clock.now() == machine.server_us()
    steps = [later - sooner for sooner, later in pairwise(times)]
    assert min(steps) >= BEAT_US * (1 - SLEW_SHARE) - 1
    assert max(steps) <= BEAT_US * (1 + 2 * SLEW_SHARE)  # what it missed until it looked is made up for


class Jumping:
    """The wall clock of the nodes in this process."""

    def __init__(self) -> None:
        self.hours = 0

    def time_ns(self) -> int:
        return time.time_ns() + self.hours * 3600 * 1_000_000_000


@pytest.fixture
def wall(monkeypatch):
    jumping = Jumping()
    replaced = SimpleNamespace(monotonic_ns=time.monotonic_ns, time_ns=jumping.time_ns)
    monkeypatch.setattr(clock_module, "time", replaced)
    return jumping


def server_now(url: str) -> datetime:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT clock_timestamp()").fetchone()
    assert row is not None
    now: datetime = row[0]
    return now


def prepare(ps: Any) -> None:
    """Whatever a wrong clock would change: a delay, a time to live, a lease, an hourly and a quick schedule."""
    ps.queue("delayed").push(b"1", delay=3600)
    ps.queue("short").push(b"1", ttl=3600)
    ps.create_queue("held", max_attempts=1).push(b"1")
    for name, cron in {"hourly": "0 * * * *", "quick": "* * * * * *"}.items():
        spec = ScheduleSpec(name=name, cron=cron, queue=name, task_type="tick")
        ps._session.execute(ops.SetSchedule(spec))


def check(ps: Any, url: str) -> None:
    """The time is the server's, and nothing happened before or after its time."""
    ps.queue("now").push(b"1")
    pushed_at = ps.queue("now").read(limit=1)[0].pushed_at
    assert abs(pushed_at - server_now(url)) < NEAR
    assert ps.queue("delayed").stats().groups["default"].waiting == 1
    assert [message.payload for message in ps.queue("short").read()] == [b"1"]
    ticks = len(fired(ps, "quick"))
    until(lambda: len(fired(ps, "quick")) > ticks + 1)
    assert set(fired(ps, "quick").values()) == {1}
    assert fired(ps, "hourly").total() <= 1  # the full hour may pass at just this time


def fired(ps: Any, name: str) -> Counter[str]:
    """How often a schedule has submitted its task, by the time it was due."""
    if name not in ps.queues():
        return Counter()
    return Counter(parse_envelope(message.payload).scheduled_at for message in ps.queue(name).read(limit=10_000))


@pytest.mark.parametrize("hours", HOURS)
def test_a_new_owner_whose_clock_is_hours_wrong_uses_the_time_of_the_server(start_node, run_node, url, wall, hours):
    owner = start_node("a")
    with penstock.connect(owner.url()) as ps:
        prepare(ps)
    wall.hours = hours
    spare = run_node("b")
    owner.kill()
    with penstock.connect(spare.url(), timeout=PATIENCE_SECONDS) as ps:
        check(ps, url)


@pytest.mark.parametrize("hours", HOURS)
def test_a_clock_that_jumps_while_a_node_owns_the_shard_ends_no_lease_and_fires_no_schedule(run_node, url, wall, hours):
    node = run_node("a")
    with penstock.connect(node.url()) as ps:
        prepare(ps)
        held = ps.queue("held").lease(lease_seconds=600)[0]
        wall.hours = hours
        check(ps, url)
        held.ack()
        assert ps.queue("held").stats().groups["default"].dead == 0
