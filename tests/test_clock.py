"""The shard's clock beside a wall clock that jumps or is read late: it follows slowly, and never goes back."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from penstock import clock as module
from penstock.clock import SLEW_SHARE, SystemClock

SECOND = 1_000_000_000


class Machine:
    """In place of `time`. The wall clock goes as the monotonic one does, but for `skew`."""

    def __init__(self) -> None:
        self.mono = 5 * SECOND
        self.skew = 1_700_000_000 * SECOND
        self.late = 0  # how long whoever reads the wall clock is held up on the way

    def monotonic_ns(self) -> int:
        return self.mono

    def time_ns(self) -> int:
        self.mono += self.late
        return self.mono + self.skew

    def wall(self) -> int:
        return (self.mono + self.skew) // 1000


@pytest.fixture
def machine(monkeypatch):
    machine = Machine()
    monkeypatch.setattr(module, "time", machine)
    return machine


def passed(machine: Machine, clock: SystemClock, seconds: float, step: float) -> list[int]:
    """What the clock tells while time passes."""
    reported = []
    for _ in range(round(seconds / step)):
        machine.mono += round(step * SECOND)
        reported.append(clock.now())
    return reported


@pytest.mark.parametrize("jump", [-0.2, 0.2])
def test_it_follows_a_wall_clock_that_jumps_but_never_runs_back(machine, jump):
    clock = SystemClock()
    passed(machine, clock, 3, 0.5)
    assert clock.now() == machine.wall()

    machine.skew += round(jump * SECOND)
    reported = passed(machine, clock, 30, 0.003)

    paces = [(later - sooner) / 3000 for sooner, later in pairwise(reported)]
    assert min(paces) >= 1 - SLEW_SHARE - 0.001
    assert max(paces) <= 1 + SLEW_SHARE + 0.001
    assert abs(reported[-1] - machine.wall()) <= 10


def test_whoever_is_held_up_between_two_reads_does_not_turn_it_back(machine):
    clock, rng = SystemClock(), random.Random(1)
    last, _ = clock.read()
    for _ in range(20_000):
        machine.mono += rng.randrange(1, SECOND // 100)
        machine.late = rng.choice((0, 100, 900_000, 30_000_000))
        now = rng.choice((clock.now, lambda: clock.read()[0]))()
        machine.late = 0
        machine.mono += 1
        assert last <= now <= clock.now()
        last = now

    assert abs(clock.now() - machine.wall()) < 1_000


@pytest.mark.parametrize("jump", [-3, 3])
def test_after_a_time_in_which_nobody_asked_it_may_be_ahead_but_not_behind(machine, jump):
    clock = SystemClock()
    machine.skew += jump * SECOND
    machine.mono += 600 * SECOND
    first = clock.now()

    assert first == machine.wall() + (3_000_000 if jump < 0 else 0)
    reported = passed(machine, clock, 5, 0.01)
    assert [first, *reported] == sorted([first, *reported])
