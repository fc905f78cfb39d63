"""What runs on the worker's event loop: roles that are due by the clock, background tasks, and a watchdog of the loop.

A role has `next_at`, on the monotonic clock in µs, and `tick(now)`, which never waits: what takes time is spawned. A
role whose `next_at` came nearer calls `Ticker.wake`. The wall clock is never read.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

from penstock.clock import Clock

logger: Final = logging.getLogger("penstock.worker")

NEVER: Final = 1 << 62
CHECK_SECONDS: Final = 1.0
SILENT_CHECKS_MAX: Final = 3  # in a row, without a sign of life


class Role(Protocol):
    """Something that is due from time to time."""

    @property
    def next_at(self) -> int: ...

    def tick(self, now: int) -> None: ...


class Ticker:
    """One loop that calls every role when it is due."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._woken = asyncio.Event()
        self._waits_until = 0
        loop = asyncio.get_running_loop()

        def on_jump() -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._woken.set)

        clock.on_jump(on_jump)

    def wake(self, at: int) -> None:
        """Something is due at this time: do not sleep past it."""
        if at < self._waits_until:
            self._woken.set()

    async def run(self, roles: Sequence[Role]) -> None:
        """Run until cancelled."""
        while True:
            now = self._clock.monotonic()
            for role in roles:
                if role.next_at <= now:
                    role.tick(now)
            self._woken.clear()
            self._waits_until = min(role.next_at for role in roles)
            left = (self._waits_until - self._clock.monotonic()) / 1e6
            if left > 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(left, 3600.0)):
                        await self._woken.wait()
            else:
                await asyncio.sleep(0)
            self._waits_until = 0


class Spawner:
    """Background tasks that nobody awaits; the loop alone keeps no reference to them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Cancel them, and wait until they have ended."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Watchdog:
    """A thread that logs where the event loop is when it stands still. Made on the loop that it watches.

    An async handler that blocks, with `time.sleep` or a long computation, stops everything: other runs, heartbeats,
    the extension of leases. Nothing on the loop could notice that.
    """

    def __init__(self, check_seconds: float = CHECK_SECONDS) -> None:
        self._loop = asyncio.get_running_loop()
        self._watched = threading.get_ident()
        self._check_seconds = check_seconds
        self._stopped = threading.Event()
        self._alive = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="penstock-watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def _watch(self) -> None:
        silent = 0
        self._ping()
        while not self._stopped.wait(self._check_seconds):
            if self._alive.is_set():
                silent = 0
                self._ping()
                continue
            silent += 1
            if silent == SILENT_CHECKS_MAX:
                self._report()

    def _ping(self) -> None:
        self._alive.clear()
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._alive.set)

    def _report(self) -> None:
        frame = sys._current_frames().get(self._watched)
        where = "".join(traceback.format_stack(frame)[-4:]) if frame is not None else ""
        extra = {"seconds": self._check_seconds * SILENT_CHECKS_MAX, "where": where}
        logger.error("a handler blocks the event loop: leases cannot be extended", extra=extra)
