"""A worker: takes tasks from queues, runs them, and tells how they ended.

    leasing ──► desk ──► lanes: the loop, threads, processes
                 │ ▲       │
                 │ └─ended─┘        by the clock (ticking): heartbeat, extending, deadlines, aging
                 ▼
             finishing

It stops in two steps. The first lets what runs come to its end, for `stop_seconds` at most, and gives back what has not
begun. The second, or the end of that time, breaks off what is left and gives it back too: nothing is lost, and what was
given back costs no attempt.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import structlog

from penstock import operations as ops
from penstock.clock import Clock, SystemClock
from penstock.errors import InvalidField, PenstockError, ServerError
from penstock.worker.child_protocol import Hello
from penstock.worker.runtime import Crew
from penstock.worker.settings import settings

if TYPE_CHECKING:
    from penstock.tasks.app import App

T = TypeVar("T")

log: Any = structlog.stdlib.get_logger("penstock.worker")

GOODBYE_SECONDS: Final = 5.0  # for the last results, and to say that we go
BREAK_SECONDS: Final = 2.0  # for handlers that were broken off to clean up
PAUSE_SECONDS_MAX: Final = 2.0


class Worker:
    """See the module's rules. `run` may be called once; `stop` from the loop that runs it."""

    def __init__(
        self,
        app: App,
        *,
        queues: Iterable[str] | None = None,
        app_path: str | None = None,
        app_url: str | None = None,
        app_logs: tuple[str, str] | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        **options: Any,
    ) -> None:
        self.app = app
        self.settings = settings(app.queues if queues is None else queues, **options)
        if self.settings.processes and not app_path:
            raise InvalidField("processes: they must import the app", hint="pass app_path, such as 'myapp:app'")
        self._hello = Hello(app_path or "", app_url, [path for path in sys.path if path], app_logs)
        self._clock = clock or SystemClock()
        self._rng = rng or random.Random()
        self._stopped = asyncio.Event()  # once
        self._hurried = asyncio.Event()  # twice
        self.started = asyncio.Event()
        self.has_broken_off = False  # runs did not come to their end by themselves; their threads may still work
        self.wants_restart = False  # it was stuck, and ended for that: whoever ran it should run another process
        self.crew: Crew  # from the moment it runs

    def stop(self) -> None:
        """Finish what was begun, then end. Called again: give everything back and end at once."""
        if self._stopped.is_set():
            self._hurried.set()
        self._stopped.set()
        self.wants_restart = False

    def interrupt(self) -> None:
        """Pass Ctrl-C on to what tasks run in processes: those have sessions of their own, away from the terminal."""
        if self.started.is_set():
            self.crew.interrupt()

    async def run(self) -> None:
        """Until it is stopped; or, when draining, until nothing is left to do. Raises what cannot be mended."""
        session = await self._patiently(self.app.open_async_session)
        if session is None:
            return
        crew = self.crew = Crew(self.app, session, self.settings, self._clock, self._rng, self._hello)
        try:
            await self._begin(crew)
            await self._work(crew)
        finally:
            await self._end(crew)

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T | None:
        """What a broker answers; None when we were stopped before one did."""
        pause = 0.1
        while not self._stopped.is_set():
            try:
                return await ask()
            except ServerError as error:
                if self.settings.is_draining:
                    raise
                log.warning("no broker answers yet", error=str(error))
            with suppress(TimeoutError):
                async with asyncio.timeout(pause * self._rng.uniform(0.5, 1.0)):
                    await self._stopped.wait()
            pause = min(pause * 2, PAUSE_SECONDS_MAX)
        return None

    async def _begin(self, crew: Crew) -> None:
        await self._patiently(crew.heartbeat.beat)
        await self._patiently(partial(self.app.declarations.adeclare, crew.session))
        for each in self.app.middleware:
            each.worker_started(self.settings.worker_id)
        shown = self.settings
        log.info("working", worker=shown.worker_id, queues=shown.queues, concurrency=shown.concurrency)
        self.started.set()

    async def _work(self, crew: Crew) -> None:
        """Until somebody wants it to end, or something is over that should go on for ever."""
        crew.start()
        asked: list[asyncio.Future[Any]] = [asyncio.ensure_future(self._stopped.wait())]
        if self.settings.restarts_when_stuck:
            asked.append(asyncio.ensure_future(crew.desk.stuck.wait()))
        await asyncio.wait([*asked, *crew.background], return_when=asyncio.FIRST_COMPLETED)
        for each in asked:
            each.cancel()
        self.wants_restart = self.settings.restarts_when_stuck and crew.desk.is_stuck and not self._stopped.is_set()
        for each in crew.background:
            if each.done():
                _raise_first(each)

    # the end

    async def _end(self, crew: Crew) -> None:
        await crew.stop_leasing()
        log.info("stopping", running=crew.desk.running, given_back=crew.desk.close())
        await self._wait(crew, crew.desk.is_done, self.settings.stop_seconds)
        self.has_broken_off = bool(crew.desk.runs)
        if not crew.desk.is_done():
            log.warning("breaking off what still runs: it is given back", running=crew.desk.running)
            crew.desk.break_off_all()
            await self._wait(crew, crew.desk.is_done, BREAK_SECONDS, is_patient=True)
        crew.desk.give_up_all()
        await self._wait(crew, lambda: not len(crew.finishing), GOODBYE_SECONDS, is_patient=True)
        await self._say_goodbye(crew)
        await crew.close()
        if self.started.is_set():
            for each in self.app.middleware:
                each.worker_stopped(self.settings.worker_id)
        log.info("stopped", completed=crew.desk.completed, failed=crew.desk.failed)

    async def _wait(self, crew: Crew, holds: Callable[[], bool], seconds: float, *, is_patient: bool = False) -> None:
        """Until something holds, for some time at most, and not when we are hurried."""
        hurried = asyncio.ensure_future(self._hurried.wait())
        try:
            async with asyncio.timeout(seconds):
                while not holds() and (is_patient or not self._hurried.is_set()):
                    crew.desk.changed.clear()
                    changed = asyncio.ensure_future(crew.desk.changed.wait())
                    waited = [changed] if is_patient else [changed, hurried]
                    await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                    changed.cancel()
        except TimeoutError:
            return
        finally:
            hurried.cancel()

    async def _say_goodbye(self, crew: Crew) -> None:
        try:
            async with asyncio.timeout(GOODBYE_SECONDS):
                await crew.heartbeat.stop()
                await crew.session.execute(ops.ForgetWorker(self.settings.worker_id))
        except (PenstockError, TimeoutError) as error:
            log.warning("the broker was not told that we stop", error=str(error) or "no answer")


def _raise_first(done: asyncio.Future[Any]) -> None:
    """What a background task died of; of a group, the first."""
    error = done.exception()
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if error is not None:
        raise error
