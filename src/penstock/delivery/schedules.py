"""Schedules: tasks that the clock submits.

A schedule knows the instant of its next tick. A tick is one frame: the task is pushed and the schedule moves on, so it
happens once, whatever stops in between.
"""

from __future__ import annotations

import heapq
from typing import Final

import msgspec

from penstock.delivery.entries import ScheduleFired, ScheduleSet
from penstock.delivery.log import FOREVER

STALE_MAX: Final = 100  # ticks that are stale, kept before they are swept out


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
        self._ticks: list[tuple[int, str]] = []  # heap; a tick that is not the next one of its schedule is stale
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
            self._put(entry.name, Schedule(entry.spec, entry.next_at, *last))
        self._look()

    def fire(self, entry: ScheduleFired, frame: int) -> None:
        """A tick came, or ticks that were missed are passed over."""
        schedule = self.known.get(entry.name)
        if frame <= self.applied or schedule is None:
            return
        self.touched = frame
        last = (entry.tick_at, entry.task_id) if entry.task_id else (schedule.last_at, schedule.last_task_id)
        self._put(entry.name, Schedule(schedule.spec, entry.next_at, *last))
        self._look()

    def postpone(self, instant: int) -> None:
        """Nothing can be pushed now: look again at an instant."""
        self.next_at = max(self.next_at, instant)

    def restore(self, known: dict[str, Schedule]) -> None:
        """Put those of a checkpoint back."""
        self.known = known
        self._sweep()
        self._look()

    def due(self, now: int) -> str | None:
        """Of those that have a tick behind them, the one that waits longest."""
        return self._ticks[0][1] if self.next_at <= now and self._ticks else None

    def _put(self, name: str, schedule: Schedule) -> None:
        self.known[name] = schedule
        if schedule.next_at:
            heapq.heappush(self._ticks, (schedule.next_at, name))
        if len(self._ticks) > 2 * len(self.known) + STALE_MAX:
            self._sweep()

    def _sweep(self) -> None:
        self._ticks = [(each.next_at, name) for name, each in self.known.items() if each.next_at]
        heapq.heapify(self._ticks)

    def _look(self) -> None:
        while self._ticks and self._is_stale(*self._ticks[0]):
            heapq.heappop(self._ticks)
        self.next_at = self._ticks[0][0] if self._ticks else FOREVER

    def _is_stale(self, at: int, name: str) -> bool:
        schedule = self.known.get(name)
        return schedule is None or schedule.next_at != at
