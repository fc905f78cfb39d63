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
    """The result of `@app.task(…)`: turns a function into a task and keeps its types."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, T]], /) -> Task[P, Coroutine[Any, Any, T], T]: ...

    @overload
    def __call__(self, function: Callable[P, T], /) -> Task[P, T, T]: ...


class App(AsyncAppCalls, AppCalls):
    """A set of tasks, and where they are stored. Safe to share between threads and event loops.

    Calls to the broker come in pairs: `jobs()` blocks, `ajobs()` is for asyncio.
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
        """Create an app. `url` is that of a broker, or a data directory; without it everything is in memory.

        `queue` is the default queue of tasks. With `sign`, a key (bytes, or the path of a file) or a list of keys,
        tasks are signed with the first key, and workers of this app run only tasks signed with one of them. `token`,
        `client` and `timeout` are as in `penstock.connect`, `durability` as in `penstock.open`.
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
        """Store the tasks elsewhere. Call it before the app is used; `penstock worker --url` does.

        `token`, if given, replaces the token of the app.
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
        """Create an app for tests, with nothing on disk.

        Nothing runs before `run_pending()`, and time moves only with `advance(seconds)`.
        """
        from penstock.tasks.local import LocalApp

        return LocalApp(queue=queue, middleware=middleware, sign=sign, clock=clock)

    def testing(self) -> AbstractContextManager[LocalApp]:
        """Test the tasks of this app: within the block they are stored in memory."""
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
        """Turn a function into a task: `@app.task`, or `@app.task(queue="mail", …)`. Options: docs/tasks.md."""
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
        """Declare the options of a queue (docs/options.md). They are set before this process first uses the queue.

        Returns the declaration, which `@app.task(queue=…)` accepts instead of a name.
        """
        return self.declarations.queue(name, options)

    @property
    def queues(self) -> Mapping[str, Mapping[str, Any]]:
        """All queues that a task or a declaration names, with their declared options."""
        return self.declarations.queues

    # jobs

    def job(self, id: str | UUID) -> Job[Any]:
        """Return the job with this id, without contacting the broker."""
        return Job(self, task_id_of(id, "id"))

    # what is behind it

    async def aclose_loop(self) -> None:
        """Close only the session of this loop, before the loop ends. Threads and other loops continue."""
        await self._sessions.aclose_loop()

    @property
    def penstock(self) -> Penstock:
        """The queues behind the tasks, with everything that `penstock.open` and `penstock.connect` offer."""
        return Penstock(self.open_session())
