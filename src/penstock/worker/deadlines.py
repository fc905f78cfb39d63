"""Runs that take longer than they may are broken off, and count as failed.

A run that ends by being broken off has some seconds to clean up. One that does not end, because its handler takes no
notice or because it is in a thread, is abandoned; see `desk`.
"""

from __future__ import annotations

from typing import Any, Final

import structlog

from penstock.worker.desk import GRACE_US, Desk
from penstock.worker.runs import Stage, Why
from penstock.worker.ticking import NEVER, Ticker

log: Any = structlog.stdlib.get_logger("penstock.worker")


class Deadlines:
    """See the module's rules. `next_at` may be too early, never too late."""

    def __init__(self, desk: Desk, ticker: Ticker) -> None:
        self._desk = desk
        self._ticker = ticker
        self.next_at = NEVER
        desk.hurry = self._hurry

    def _hurry(self, at: int) -> None:
        if at < self.next_at:
            self.next_at = at
            self._ticker.wake(at)

    def tick(self, now: int) -> None:
        for run in [run for run in self._desk.runs if run.stage is Stage.RUNNING and 0 < run.deadline <= now]:
            if run.why is None:
                log.warning("timed out", seconds=run.timeout_seconds, **run.fields())
                if self._desk.break_off(run, Why.TIMED_OUT):
                    run.deadline = now + GRACE_US
                    continue
            run.deadline = 0
            if run.why is not Why.STOPPING:
                self._desk.abandon(run)
        waiting = [run.deadline for run in self._desk.runs if run.stage is Stage.RUNNING and run.deadline]
        self.next_at = min(waiting, default=NEVER)


class Aging:
    """What has been buffered for a second is given back: whoever is free may have it."""

    AGE_US: Final = 1_000_000

    def __init__(self, desk: Desk, ticker: Ticker) -> None:
        self._desk = desk
        self._ticker = ticker
        self.next_at = NEVER

    def watch(self, now: int) -> None:
        """Something may have been buffered."""
        if self._desk.buffered and self.next_at == NEVER:
            self.next_at = now + self.AGE_US
            self._ticker.wake(self.next_at)

    def tick(self, now: int) -> None:
        given_back = self._desk.give_back(now - self.AGE_US)
        if given_back:
            log.info("given back, since all slots are taken", tasks=given_back)
        self.next_at = NEVER
        self.watch(now)
