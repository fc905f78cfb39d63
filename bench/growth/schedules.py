"""Schedules: setting one, and many that are due at the same instant."""

from __future__ import annotations

import msgspec

from bench.growth.cost import CONSTANT, Cost, Setting, Work
from penstock import operations as ops
from penstock.model_tasks import ScheduleSpec
from tests.support.operations import run_operation

MINUTE = 60.0


def _spec(number: int) -> ScheduleSpec:
    return ScheduleSpec(name=f"s{number}", cron="* * * * *", task_type="report", queue="reports")


def _scheduled(setting: Setting, schedules: int) -> None:
    for number in range(schedules):
        run_operation(setting.session, ops.SetSchedule(_spec(number)))


def set_beside(setting: Setting, schedules: int) -> Work:
    """Change some, when there are many."""
    _scheduled(setting, schedules)
    changed = [msgspec.structs.replace(_spec(number), priority=3) for number in range(20)]
    return lambda: [run_operation(setting.session, ops.SetSchedule(spec)) for spec in changed]


def fire_all(setting: Setting, schedules: int) -> Work:
    """All are due at the minute: how long somebody else waits is the longest hold."""
    _scheduled(setting, schedules)
    setting.clock.advance(MINUTE)

    def work() -> None:
        known = setting.session.shard.core.tasks.schedules
        while known.next_at <= setting.clock.now():
            setting.session.timekeeper.tick()

    return work


COSTS = [
    Cost(
        "schedules: set 20",
        "schedules",
        set_beside,
        sizes=(500, 2_000, 8_000),
        steps_at=(100, 800),
        exponent_max=CONSTANT,
    ),
    Cost("schedules: due at the same minute", "schedules", fire_all, sizes=(500, 1_000, 4_000), steps_at=(60, 480)),
]
