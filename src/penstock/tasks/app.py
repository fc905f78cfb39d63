"""`penstock.App`: tasks, where they are kept, and how they are found again.

    app = penstock.App("penstock://localhost:7710")      # or App("./data"), or App.in_memory() for tests

    @app.task(queue="mail", max_attempts=5, timeout=30)
    async def send(to: str) -> int: ...

    job = send.enqueue("a@b.c")
    job.result(timeout=5)

Making an app, and declaring its tasks, opens nothing: that happens with the first call that needs it.
"""

from __future__ import annotations

import random
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Protocol, Self, TypeVar, Unpack, overload
from uuid import UUID

import msgspec

from penstock import operations as ops
from penstock.client._async.task_calls import run_operation as arun_operation
from penstock.client._async.task_calls import wait_task as await_task
from penstock.client._sync.task_calls import new_operation, run_operation, wait_task
from penstock.client.handles import Penstock
from penstock.client.session import AsyncSession, Session
from penstock.clock import Clock, ManualClock, SystemClock
from penstock.errors import ScheduleNotFound
from penstock.model import Durability, check_name
from penstock.model_tasks import MissedPolicy, OperationView, ScheduleSpec, ScheduleView, TaskView, WorkerView
from penstock.tasks import job_search
from penstock.tasks.job import Job
from penstock.tasks.job_search import JobFilter
from penstock.tasks.middleware import Middleware, checked_middleware
from penstock.tasks.options import QUEUE_DEFAULT, DeclaredOptions, QueueDeclaration, task_id_of
from penstock.tasks.schedules import spec_of
from penstock.tasks.sessions import SessionFactory, Sessions
from penstock.tasks.signing import Key, Signer
from penstock.tasks.submission import Declarations, Sender, registered
from penstock.tasks.task import Configured, Task

if TYPE_CHECKING:
    from penstock.tasks.local import LocalApp
    from penstock.tasks.workflows import Step

P = ParamSpec("P")
T = TypeVar("T")


class Decorator(Protocol):
    """What `@app.task(…)` gives: it makes a task of a function and keeps its types."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, T]], /) -> Task[P, Coroutine[Any, Any, T], T]: ...

    @overload
    def __call__(self, function: Callable[P, T], /) -> Task[P, T, T]: ...


class App:
    """A set of tasks and the place where they are kept. Safe to share between threads and event loops."""

    _has_threads = True  # whether time passes by itself

    def __init__(
        self,
        url: str | Path | Sequence[str] | None = None,
        *,
        queue: str = QUEUE_DEFAULT,
        middleware: Sequence[Middleware] = (),
        sign: Key | Sequence[Key] | None = None,
        token: str | Callable[[], str] | None = None,
        client: str | None = None,
        timeout: float = 30.0,
        durability: Durability = "fsync",
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """`url` names a broker, or else it is a data directory; without it everything is in memory.

        `queue` is for tasks that name none. With `sign`, a key (bytes, or the path of a file) or several, tasks are
        signed with the first, and workers of this app run only what one of them has signed. `token`, `client` and
        `timeout` are those of `penstock.connect`, `durability` is that of `penstock.open`.
        """
        self.clock = clock or SystemClock()
        self.queue_default = check_name(queue)
        self.middleware = checked_middleware(middleware)
        self.signer = None if sign is None else Signer(sign)
        self.changes_tasks = self.signer is not None or any(
            type(item).enqueue is not Middleware.enqueue for item in self.middleware
        )
        self.declarations = Declarations()
        self.sender = Sender(self)
        self._tasks: dict[str, Task[..., Any, Any]] = {}
        self.stand_in: LocalApp | None = None  # while it is tested
        self._session_factory = partial(
            SessionFactory, clock=self.clock, token=token, client=client, timeout=timeout, durability=durability,
            rng=rng, background=self._has_threads,
        )  # fmt: skip
        self.move(url)

    def move(self, url: str | Path | Sequence[str] | None) -> None:
        """Keep the tasks elsewhere, before anything was opened; `penstock worker --url` does so."""
        self.is_in_memory = url is None
        self._sessions = Sessions(self._session_factory(url))

    @staticmethod
    def in_memory(
        *, queue: str = QUEUE_DEFAULT, middleware: Sequence[Middleware] = (), clock: ManualClock | None = None
    ) -> LocalApp:
        """For tests: the same system with nothing on disk. Nothing runs before `run_pending()`, and time moves only
        with `advance(seconds)`.
        """
        from penstock.tasks.local import LocalApp

        return LocalApp(queue=queue, middleware=middleware, clock=clock)

    def testing(self) -> AbstractContextManager[LocalApp]:
        """For tests of these very tasks: within the block they are kept in memory, wherever the app keeps them else."""
        from penstock.tasks.local import standing_in

        return standing_in(self)

    # declaring

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, T]], /) -> Task[P, Coroutine[Any, Any, T], T]: ...

    @overload
    def task(self, function: Callable[P, T], /) -> Task[P, T, T]: ...

    @overload
    def task(self, function: None = None, /, **options: Unpack[DeclaredOptions]) -> Decorator: ...

    def task(self, function: Any = None, /, **options: Any) -> Any:
        """Make a task of a function: `@app.task`, or `@app.task(queue="mail", …)`. docs/tasks.md lists the options."""
        names = sys._getframe(1).f_locals

        def make(function: Any) -> Task[..., Any, Any]:
            task = registered(self, function, options, names)
            self._tasks[task.name] = task
            return task

        return make if function is None else make(function)

    @property
    def tasks(self) -> Mapping[str, Task[..., Any, Any]]:
        """All tasks by name."""
        return self._tasks

    def queue(self, name: str, **options: Any) -> QueueDeclaration:
        """Say which options a queue shall have (docs/options.md): it gets them before this process first uses it.

        `@app.task(queue=…)` takes the answer, or the name.
        """
        return self.declarations.queue(name, options)

    @property
    def queues(self) -> Mapping[str, Mapping[str, Any]]:
        """Every queue that a task or a declaration names, with the options declared for it."""
        return self.declarations.queues

    def declare(self) -> None:
        """Send all declared queues and schedules to the broker; a worker does so when it starts."""
        self.declarations.declare(self.open_session())

    async def adeclare(self) -> None:
        """Asyncio version of `declare()`."""
        await self.declarations.adeclare(await self.open_async_session())

    # jobs

    def job(self, id: str | UUID) -> Job[Any]:
        """The job with this id; nothing is asked yet."""
        return Job(self, task_id_of(id, "id"))

    def jobs(self, *, limit: int | None = None, **filters: Unpack[JobFilter]) -> Iterator[Job[Any]]:
        """Jobs that match, newest first; each has its `view`. Pages are asked for as they are needed."""
        return job_search.jobs(self, job_search.filter_of(filters), job_search.check_limit(limit))

    def ajobs(self, *, limit: int | None = None, **filters: Unpack[JobFilter]) -> AsyncIterator[Job[Any]]:
        """Asyncio version of `jobs()`, for `async for`."""
        return job_search.ajobs(self, job_search.filter_of(filters), job_search.check_limit(limit))

    # workers

    def workers(self) -> list[WorkerView]:
        """Workers that have reported to the broker, of this app and of others."""
        return self.open_session().execute(ops.Workers())

    async def aworkers(self) -> list[WorkerView]:
        """Asyncio version of `workers()`."""
        return await (await self.open_async_session()).execute(ops.Workers())

    # what is behind it

    def open_session(self) -> Session:
        """The session for threads; opened when first asked for."""
        session: Session = self._sessions.blocking()
        return session

    async def open_async_session(self) -> AsyncSession:
        """The session for the running loop; opened when first asked for."""
        session: AsyncSession = await self._sessions.asynchronous()
        return session

    @property
    def penstock(self) -> Penstock:
        """The queues behind the tasks, with all that `penstock.open` and `penstock.connect` offer."""
        return Penstock(self.open_session())

    def wait_task(self, task_id: str, seconds: float) -> TaskView:
        """The task once it is final, or as it is after `seconds`."""
        if self.stand_in is not None:
            return self.stand_in.wait_task(task_id, seconds)
        return wait_task(self.open_session(), task_id, seconds)

    async def await_task(self, task_id: str, seconds: float) -> TaskView:
        """Asyncio version of `wait_task()`."""
        if self.stand_in is not None:
            return await self.stand_in.await_task(task_id, seconds)
        return await await_task(await self.open_async_session(), task_id, seconds)

    def close(self) -> None:
        """Close what was opened; a second call does nothing."""
        self._sessions.close()

    async def aclose(self) -> None:
        """Asyncio version of `close()`; also closes the session of the running loop."""
        await self._sessions.aclose()

    async def aclose_loop(self) -> None:
        """Close the session of this loop only, before the loop ends; threads and other loops go on."""
        await self._sessions.aclose_loop()

    def __enter__(self) -> Self:
        """Opened when it is first used, closed at the end; one that was closed may be entered again."""
        self._sessions.reopen()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        """Asyncio version of `__enter__`: a lifespan that is entered twice finds an open app."""
        self._sessions.reopen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.aclose()

    # schedules

    def schedule(
        self,
        name: str,
        cron: str,
        task: Configured[..., Any] | Step[Any],
        *,
        timezone: str = "UTC",
        missed: MissedPolicy = "skip",
        is_paused: bool = False,
    ) -> ScheduleView:
        """Make or change a schedule, now: `app.schedule("eu", "0 3 * * *", report.s("eu"), timezone="Europe/Rome")`."""
        spec = spec_of(task, name, cron, timezone, missed, is_paused)
        session = self.open_session()
        self.declarations.ensure(session, spec.queue)
        return session.execute(ops.SetSchedule(spec))

    def schedules(self) -> list[ScheduleView]:
        """All schedules that the broker keeps, whoever made them."""
        return self.open_session().execute(ops.Schedules())

    def pause_schedule(self, name: str) -> ScheduleView:
        """No ticks until it is resumed, whoever declares it meanwhile."""
        return self.open_session().execute(ops.SetSchedule(_paused(name, self.schedules(), is_paused=True)))

    def resume_schedule(self, name: str) -> ScheduleView:
        """Go on with the next tick; those that came while it was paused are gone."""
        return self.open_session().execute(ops.SetSchedule(_paused(name, self.schedules(), is_paused=False)))

    def delete_schedule(self, name: str) -> None:
        """End a schedule. One that a task declares comes back when its worker starts again."""
        self.open_session().execute(ops.DeleteSchedule(name))

    def prune_schedules(self) -> list[str]:
        """End those that `cron=` declared once, for queues of this app, and declares no more; returns their names.

        For when no worker with older code is left: one that starts would declare them again.
        """
        names = self.declarations.gone(self.schedules())
        for name in names:
            with suppress(ScheduleNotFound):  # somebody was quicker
                self.delete_schedule(name)
        return names

    async def aschedule(
        self,
        name: str,
        cron: str,
        task: Configured[..., Any] | Step[Any],
        *,
        timezone: str = "UTC",
        missed: MissedPolicy = "skip",
        is_paused: bool = False,
    ) -> ScheduleView:
        spec = spec_of(task, name, cron, timezone, missed, is_paused)
        session = await self.open_async_session()
        await self.declarations.aensure(session, spec.queue)
        return await session.execute(ops.SetSchedule(spec))

    async def aschedules(self) -> list[ScheduleView]:
        return await (await self.open_async_session()).execute(ops.Schedules())

    async def apause_schedule(self, name: str) -> ScheduleView:
        spec = _paused(name, await self.aschedules(), is_paused=True)
        return await (await self.open_async_session()).execute(ops.SetSchedule(spec))

    async def aresume_schedule(self, name: str) -> ScheduleView:
        spec = _paused(name, await self.aschedules(), is_paused=False)
        return await (await self.open_async_session()).execute(ops.SetSchedule(spec))

    async def adelete_schedule(self, name: str) -> None:
        await (await self.open_async_session()).execute(ops.DeleteSchedule(name))

    async def aprune_schedules(self) -> list[str]:
        names = self.declarations.gone(await self.aschedules())
        for name in names:
            with suppress(ScheduleNotFound):
                await self.adelete_schedule(name)
        return names

    # operations on many jobs

    def purge(self, **filters: Unpack[JobFilter]) -> int:
        """Forget final jobs that match; those that only wait are cancelled and forgotten too. Returns how many.

        It waits until the operation is over; `begin` does not.
        """
        return run_operation(self.open_session(), "purge", job_search.filter_of(filters)).purged

    async def apurge(self, **filters: Unpack[JobFilter]) -> int:
        """Asyncio version of `purge()`."""
        session = await self.open_async_session()
        return (await arun_operation(session, "purge", job_search.filter_of(filters))).purged

    def cancel_all(self, **filters: Unpack[JobFilter]) -> int:
        """Cancel all jobs that match and are not final, running ones too. Returns how many; waits as `purge` does."""
        return run_operation(self.open_session(), "cancel", job_search.filter_of(filters)).cancelled

    async def acancel_all(self, **filters: Unpack[JobFilter]) -> int:
        """Asyncio version of `cancel_all()`."""
        session = await self.open_async_session()
        return (await arun_operation(session, "cancel", job_search.filter_of(filters))).cancelled

    def begin(self, action: Action, **filters: Unpack[JobFilter]) -> OperationView:
        """Begin to purge or cancel all jobs that match; returns the operation, which goes on by itself."""
        return self.open_session().execute(new_operation(action, job_search.filter_of(filters)))

    async def abegin(self, action: Action, **filters: Unpack[JobFilter]) -> OperationView:
        """Asyncio version of `begin()`."""
        return await (await self.open_async_session()).execute(new_operation(action, job_search.filter_of(filters)))

    def operation(self, operation_id: str) -> OperationView:
        """How far an operation is. Raises `OperationNotFound`."""
        return self.open_session().execute(ops.FindOperation(operation_id))

    async def aoperation(self, operation_id: str) -> OperationView:
        """Asyncio version of `operation()`."""
        return await (await self.open_async_session()).execute(ops.FindOperation(operation_id))

    def operations(self) -> list[OperationView]:
        """Operations that run and those that did lately, the newest first."""
        return self.open_session().execute(ops.ListOperations())

    async def aoperations(self) -> list[OperationView]:
        """Asyncio version of `operations()`."""
        return await (await self.open_async_session()).execute(ops.ListOperations())

    def stop_operation(self, operation_id: str) -> OperationView:
        """Stop an operation; what was done stays done. Raises `TaskConflict` when it is over already."""
        return self.open_session().execute(ops.StopOperation(operation_id))

    async def astop_operation(self, operation_id: str) -> OperationView:
        """Asyncio version of `stop_operation()`."""
        return await (await self.open_async_session()).execute(ops.StopOperation(operation_id))


def _paused(name: str, known: list[ScheduleView], *, is_paused: bool) -> ScheduleSpec:
    for view in known:
        if view.spec.name == name:
            return msgspec.structs.replace(view.spec, is_paused=is_paused)
    raise ScheduleNotFound(f"no schedule is named {name!r}")


Action = Literal["purge", "cancel"]
