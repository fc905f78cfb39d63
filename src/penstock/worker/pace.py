"""How many tasks a worker has ready: as many as it uses up within a tenth of a second.

So hundreds of quick ones, whose next lease is under way before they are used up; and none of those that take long,
which others may be free to run. It begins with none.
"""

from __future__ import annotations

from typing import Final

READY_US: Final = 100_000  # so much work may be ready
AVERAGED: Final = 16  # so many runs make the average


class Pace:
    """How long runs take of late, and what follows from it."""

    def __init__(self, concurrency: int, ready_max: int) -> None:
        self._slots_us = READY_US * concurrency  # what all slots do in that time
        self._ready_max = ready_max
        self.run_us = 0.0
        self.slow_down()

    @property
    def ready(self) -> int:
        """How many to have beside those that run."""
        return min(self._ready_max, int(self._slots_us / self.run_us))

    def note(self, run_us: int) -> None:
        """A run took so long."""
        self.run_us += (run_us + 1 - self.run_us) / AVERAGED

    def slow_down(self) -> None:
        """What was ready could not be started: runs take longer than it seemed."""
        self.run_us = max(self.run_us, 2.0 * self._slots_us)
