"""Schedules: tasks that the clock submits.

A schedule knows the instant of its next tick. A tick is one frame: the task is pushed and the schedule moves on, so it
happens once, whatever stops in between.
"""

from __future__ import annotations

import msgspec

from penstock.delivery.entries import ScheduleFired, ScheduleSet
from penstock.delivery.log import FOREVER


class Schedule(msgspec.Struct, array_like=True, frozen=True):
    """One schedule. `spec` is JSON; `next_at` is 0 while it is paused. Frozen: a checkpoint may be reading it."""

    spec: bytes
    next_at: int
    last_at: int = 0
    last_task_id: bytes = b""


class Schedules:
    """All schedules of a shard, by name."""

    def __init__(self) -> None:
        self.known: dict[str, Schedule] = {}
        self.next_at = FOREVER  # of the one that comes first
        self.touched = 0
        self.applied = 0

    def set(self, entry: ScheduleSet, frame: int) -> None:
        """A schedule was made, changed or deleted."""
        if frame <= self.applied:
            return
        self.touched = frame
        if entry.is_deleted:
            self.known.pop(entry.name, None)
        else:
            before = self.known.get(entry.name)
            last = (0, b"") if before is None else (before.last_at, before.last_task_id)
            self.known[entry.name] = Schedule(entry.spec, entry.next_at, *last)
        self._look()

    def fire(self, entry: ScheduleFired, frame: int) -> None:
        """A tick came, or ticks that were missed are passed over."""
        schedule = self.known.get(entry.name)
        if frame <= self.applied or schedule is None:
            return
        self.touched = frame
        last = (entry.tick_at, entry.task_id) if entry.task_id else (schedule.last_at, schedule.last_task_id)
        self.known[entry.name] = Schedule(schedule.spec, entry.next_at, *last)
        self._look()

    def postpone(self, instant: int) -> None:
        """Nothing can be pushed now: look again at an instant."""
        self.next_at = max(self.next_at, instant)

    def restore(self, known: dict[str, Schedule]) -> None:
        """Put those of a checkpoint back."""
        self.known = known
        self._look()

    def _look(self) -> None:
        self.next_at = min((each.next_at for each in self.known.values() if each.next_at), default=FOREVER)
