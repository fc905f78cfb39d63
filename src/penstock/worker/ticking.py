"""One loop for everything that happens by the clock: heartbeats, extensions, time-outs, what has waited for too long.

A role has `next_at`, by the monotonic clock in µs, and `tick(now)`, which never waits: what takes time is spawned. A
role whose `next_at` came nearer says so with `wake`. The machine's wall clock is never looked at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

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
