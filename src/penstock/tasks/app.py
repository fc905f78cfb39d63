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
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, Unpack, overload
from uuid import UUID

from penstock.client.handles import Penstock
from penstock.clock import Clock, ManualClock, SystemClock
from penstock.model import Durability, check_name
from penstock.tasks._async.app_calls import AsyncAppCalls
from penstock.tasks._sync.app_calls import AppCalls
from penstock.tasks.job import Job
from penstock.tasks.middleware import Middleware, checked_middleware
from penstock.tasks.options import QUEUE_DEFAULT, DeclaredOptions, QueueDeclaration, task_id_of
from penstock.tasks.sessions import SessionFactory, Sessions
from penstock.tasks.signing import Key, Signer
from penstock.tasks.submission import Declarations, Sender, registered
from penstock.tasks.task import Task

if TYPE_CHECKING:
    from penstock.tasks.local import LocalApp

P = ParamSpec("P")
T = TypeVar("T")


class Decorator(Protocol):
    """What `@app.task(…)` gives: it makes a task of a function and keeps its types."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, T]], /) -> Task[P, Coroutine[Any, Any, T], T]: ...

    @overload
    def __call__(self, function: Callable[P, T], /) -> Task[P, T, T]: ...


class App(AsyncAppCalls, AppCalls):
    """A set of tasks and the place where they are kept. Safe to share between threads and event loops.

    What asks the broker is there twice: `jobs()` blocks, `ajobs()` is for asyncio. Both are written in `_async`.
    """

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

    def move(self, url: str | Path | Sequence[str] | None, *, token: str | Callable[[], str] | None = None) -> None:
        """Keep the tasks elsewhere, before anything was opened; `penstock worker --url` does so.

        `token` replaces that of the app, if it is given.
        """
        self.is_in_memory = url is None
        factory = self._session_factory if token is None else partial(self._session_factory, token=token)
        self._sessions = Sessions(factory(url))

    @staticmethod
    def in_memory(
        *,
        queue: str = QUEUE_DEFAULT,
        middleware: Sequence[Middleware] = (),
        sign: Key | Sequence[Key] | None = None,
        clock: ManualClock | None = None,
    ) -> LocalApp:
        """For tests: the same system with nothing on disk. Nothing runs before `run_pending()`, and time moves only
        with `advance(seconds)`.
        """
        from penstock.tasks.local import LocalApp

        return LocalApp(queue=queue, middleware=middleware, sign=sign, clock=clock)

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

    # jobs

    def job(self, id: str | UUID) -> Job[Any]:
        """The job with this id; nothing is asked yet."""
        return Job(self, task_id_of(id, "id"))

    # what is behind it

    async def aclose_loop(self) -> None:
        """Close the session of this loop only, before the loop ends; threads and other loops go on."""
        await self._sessions.aclose_loop()

    @property
    def penstock(self) -> Penstock:
        """The queues behind the tasks, with all that `penstock.open` and `penstock.connect` offer."""
        return Penstock(self.open_session())
