"""What runs on the worker's event loop: roles that are due by the clock, background tasks, and a watchdog of the loop.

A role has `next_at`, on the monotonic clock in µs, and `tick(now)`, which never waits: what takes time is spawned. A
role whose `next_at` came nearer calls `Ticker.wake`. The wall clock is never read.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

import structlog

from penstock.clock import Clock

NEVER: Final = 1 << 62


class Role(Protocol):
    """Something that is due from time to time."""

    @property
    def next_at(self) -> int: ...

    def tick(self, now: int) -> None: ...


class Ticker:
    """See the module's rules."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._woken = asyncio.Event()
        self._waits_until = 0
        loop = asyncio.get_running_loop()

        def jumped() -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._woken.set)

        clock.on_jump(jumped)

    def wake(self, at: int) -> None:
        """Something is due at this time: do not sleep past it."""
        if at < self._waits_until:
            self._woken.set()

    async def run(self, roles: Sequence[Role]) -> None:
        """For ever."""
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
    """Tasks of the worker's own that nobody awaits; the loop alone would forget them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Break them off, and wait until they are over."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


log: Any = structlog.stdlib.get_logger("penstock.worker")

CHECK_SECONDS: Final = 1.0
SILENT_CHECKS_MAX: Final = 3  # in a row, without a sign of life


class Watchdog:
    """See the module's rules. Made on the loop that it watches."""

    def __init__(self, look_seconds: float = CHECK_SECONDS) -> None:
        self._loop = asyncio.get_running_loop()
        self._watched = threading.get_ident()
        self._look_seconds = look_seconds
        self._stopped = threading.Event()
        self._alive = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="penstock-watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def _watch(self) -> None:
        silent = 0
        self._ask()
        while not self._stopped.wait(self._look_seconds):
            if self._alive.is_set():
                silent = 0
                self._ask()
                continue
            silent += 1
            if silent == SILENT_CHECKS_MAX:
                self._tell()

    def _ask(self) -> None:
        self._alive.clear()
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._alive.set)

    def _tell(self) -> None:
        frame = sys._current_frames().get(self._watched)
        where = "".join(traceback.format_stack(frame)[-4:]) if frame is not None else ""
        seconds = self._look_seconds * SILENT_CHECKS_MAX
        log.error("a handler blocks the event loop: leases cannot be extended", seconds=seconds, where=where)
