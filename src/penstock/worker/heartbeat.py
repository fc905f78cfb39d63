"""A worker reports itself every 15 seconds, and receives which of its runs were cancelled, and what operators want.

Cancellations are waited for beside that, so that a cancelled run ends at once. After a lost connection, or when the
broker was restarted, the next heartbeat follows at once: a worker that is silent for 30 seconds is dead to the broker.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

import psutil

from penstock import limits
from penstock import operations as ops
from penstock.client.session import AsyncSession
from penstock.clock import Clock
from penstock.errors import AccessError, Closed, PenstockError
from penstock.model_tasks import WorkerInfo, WorkerNews
from penstock.version import VERSION
from penstock.worker.dispatcher import Dispatcher
from penstock.worker.event_loop import NEVER, Spawner, Ticker
from penstock.worker.settings import Settings

logger: Final = logging.getLogger("penstock.worker")

INTERVAL_US: Final = round(limits.worker_heartbeat_seconds * 1_000_000)
RETRY_US: Final = 1_000_000  # after an error
NOTIFICATION_SECONDS: Final = 30.0
USAGE_US_MIN: Final = 1_000_000  # processor time is counted in steps of 10 ms: less says nothing


class Usage:
    """Processor time and memory of this process and of its children; `now` is on the monotonic clock, in µs."""

    def __init__(self, now: int, children: Callable[[], Iterable[int]] = tuple) -> None:
        self._own = psutil.Process()
        self._children = children
        self._before = (now, self._total(_cpu_seconds))
        self._percent = 0.0

    def cpu_percent(self, now: int) -> float:
        """Since the last measurement; 100 is one processor. Within a second of it, the figure stays the same."""
        at, seconds = self._before
        if now - at >= USAGE_US_MIN:
            self._before = (now, self._total(_cpu_seconds))
            self._percent = round(max(0.0, self._before[1] - seconds) * 1e8 / (now - at), 1)
        return self._percent

    def memory_bytes(self) -> int:
        """Resident memory now."""
        return int(self._total(lambda process: process.memory_info().rss))

    def _total(self, measure: Callable[[psutil.Process], float]) -> float:
        total = measure(self._own)
        for pid in self._children():
            with suppress(psutil.Error):  # it has just ended
                total += measure(psutil.Process(pid))
        return total


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


class Heartbeat:
    """Sends what the broker should know of this worker."""

    def __init__(
        self,
        session: AsyncSession,
        settings: Settings,
        clock: Clock,
        dispatcher: Dispatcher,
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
        self._dispatcher = dispatcher
        self._ticker = ticker
        self._spawner = spawner
        self._rng = rng
        self._task_types = task_types
        self._usage = Usage(clock.monotonic(), children)
        self._beating: asyncio.Task[None] | None = None
        self.is_stopping = False
        self.is_quiet = False
        self.on_request: Callable[[WorkerNews], None] = lambda news: None  # what an operator wants now
        self.next_at = clock.monotonic() + INTERVAL_US

    def tick(self, now: int) -> None:
        self.next_at = now + INTERVAL_US
        if self._beating is None:
            self._beating = self._spawner.spawn(self._try_beat())

    async def _try_beat(self) -> None:
        try:
            await self.beat()
        except PenstockError as error:
            logger.warning("the heartbeat was not received", extra={"error": str(error)})
            self._beat_soon()
        finally:
            self._beating = None

    async def beat(self) -> None:
        """Send a heartbeat now."""
        reply = await self._session.execute(ops.HeartbeatWorker(self.info()))
        self._obey(reply)

    def _obey(self, news: WorkerNews) -> None:
        self._dispatcher.cancel(news.cancelled)
        self.on_request(news)

    async def stop(self) -> None:
        """Send no heartbeat after this: one that follows the goodbye would register the worker again."""
        self.next_at = NEVER
        if self._beating is not None:
            await self._beating

    def _beat_soon(self) -> None:
        self.next_at = self._clock.monotonic() + RETRY_US
        self._ticker.wake(self.next_at)

    async def receive_cancellations(self) -> None:
        """Wait for cancelled tasks, and interrupt their runs, until cancelled."""
        while True:
            try:
                reply = await self._session.execute(ops.AwaitNews(self._settings.worker_id, NOTIFICATION_SECONDS))
                self._obey(reply)
            except (AccessError, Closed):
                raise
            except PenstockError as error:
                logger.debug("cancellations could not be received", extra={"error": str(error)})
                self._beat_soon()
                await asyncio.sleep(self._rng.uniform(0.5, 1.0))

    def info(self) -> WorkerInfo:
        """The state of this worker."""
        dispatcher, settings = self._dispatcher, self._settings
        return WorkerInfo(
            worker_id=settings.worker_id,
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=settings.queues,
            task_types=self._task_types,
            concurrency=settings.concurrency,
            running=dispatcher.running,
            abandoned=len(dispatcher.abandoned),
            completed=dispatcher.completed,
            failed=dispatcher.failed,
            cpu_percent=self._usage.cpu_percent(self._clock.monotonic()),
            memory_bytes=self._usage.memory_bytes(),
            version=VERSION,
            is_stopping=self.is_stopping,
            is_stuck=dispatcher.is_stuck,
            is_quiet=self.is_quiet,
        )
