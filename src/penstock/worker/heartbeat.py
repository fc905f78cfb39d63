"""A worker reports itself every 15 seconds, and receives which of its runs were cancelled.

Cancellations are waited for beside that, so that a cancelled run ends at once. After a lost connection, or when the
broker was restarted, the next heartbeat follows at once: a worker that is silent for 30 seconds is dead to the broker.
"""

from __future__ import annotations

import asyncio
import os
import random
import resource
import socket
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

import structlog

from penstock import limits
from penstock import operations as ops
from penstock.client.session import AsyncSession
from penstock.clock import Clock
from penstock.errors import AccessError, Closed, PenstockError
from penstock.model_tasks import WorkerInfo
from penstock.version import VERSION
from penstock.worker.dispatcher import Desk
from penstock.worker.event_loop import NEVER, Spawner, Ticker
from penstock.worker.settings import Settings

_PAGE: Final = os.sysconf("SC_PAGESIZE")
_TICKS: Final = os.sysconf("SC_CLK_TCK")


class Usage:
    """Processor time between two looks; time is an argument."""

    def __init__(self, now: int) -> None:
        self._seen = (now, _cpu_seconds(()))

    def cpu_percent(self, now: int, children: Iterable[int] = ()) -> float:
        """Since the last look, of this process and of those that it started; 100 is one processor."""
        at, seconds = self._seen
        self._seen = (now, _cpu_seconds(children))
        return round(max(0.0, self._seen[1] - seconds) * 1e8 / max(1, now - at), 1)


def memory_bytes(children: Iterable[int] = ()) -> int:
    """Memory of this process and of some others."""
    return _memory("self") + sum(_memory(str(pid)) for pid in children)


def _memory(who: str) -> int:
    with suppress(OSError, ValueError, IndexError), open(f"/proc/{who}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * _PAGE
    if who != "self":
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _cpu_seconds(children: Iterable[int]) -> float:
    times = os.times()  # those of children that are over are in it
    own = times.user + times.system + times.children_user + times.children_system
    return own + sum(map(_cpu_seconds_of, children))


def _cpu_seconds_of(pid: int) -> float:
    with suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        # The second field is a name in parentheses, with whatever in it.
        fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS
    return 0.0


log: Any = structlog.stdlib.get_logger("penstock.worker")

EVERY_US: Final = round(limits.worker_heartbeat_seconds * 1_000_000)
AGAIN_US: Final = 1_000_000  # after an error
NEWS_SECONDS: Final = 30.0


class Heartbeat:
    """See the module's rules."""

    def __init__(
        self,
        session: AsyncSession,
        settings: Settings,
        clock: Clock,
        desk: Desk,
        ticker: Ticker,
        spawner: Spawner,
        rng: random.Random,
        *,
        task_types: tuple[str, ...],
        children: Callable[[], Iterable[int]] = tuple,
    ) -> None:
        self._session = session
        self._settings = settings
        self._clock = clock
        self._desk = desk
        self._ticker = ticker
        self._spawner = spawner
        self._rng = rng
        self._task_types = task_types
        self._children = children
        self._usage = Usage(clock.monotonic())
        self._beating: asyncio.Task[None] | None = None
        self.is_stopping = False
        self.next_at = clock.monotonic() + EVERY_US

    def tick(self, now: int) -> None:
        self.next_at = now + EVERY_US
        if self._beating is None:
            self._beating = self._spawner.spawn(self._again())

    async def _again(self) -> None:
        try:
            await self.beat()
        except PenstockError as error:
            log.warning("the heartbeat was not heard", error=str(error))
            self._soon()
        finally:
            self._beating = None

    async def beat(self) -> None:
        """Tell of ourselves now."""
        news = await self._session.execute(ops.HeartbeatWorker(self.info()))
        self._desk.cancelled(news.cancelled)

    async def stop(self) -> None:
        """No heartbeat after this: one that comes after the goodbye would be of a worker that is there."""
        self.next_at = NEVER
        if self._beating is not None:
            await self._beating

    def _soon(self) -> None:
        self.next_at = self._clock.monotonic() + AGAIN_US
        self._ticker.wake(self.next_at)

    async def hear_news(self) -> None:
        """For ever: runs to be broken off."""
        while True:
            try:
                news = await self._session.execute(ops.AwaitNews(self._settings.worker_id, NEWS_SECONDS))
                self._desk.cancelled(news.cancelled)
            except (AccessError, Closed):
                raise
            except PenstockError as error:
                log.debug("no news", error=str(error))
                self._soon()
                await asyncio.sleep(self._rng.uniform(0.5, 1.0))

    def info(self) -> WorkerInfo:
        """What there is to tell."""
        desk, settings, children = self._desk, self._settings, tuple(self._children())
        return WorkerInfo(
            worker_id=settings.worker_id,
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=settings.queues,
            task_types=self._task_types,
            concurrency=settings.concurrency,
            running=desk.running,
            abandoned=len(desk.abandoned),
            completed=desk.completed,
            failed=desk.failed,
            cpu_percent=self._usage.cpu_percent(self._clock.monotonic(), children),
            memory_bytes=memory_bytes(children),
            version=VERSION,
            is_stopping=self.is_stopping,
            is_stuck=desk.is_stuck,
        )
