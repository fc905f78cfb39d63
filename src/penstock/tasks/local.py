"""An app for tests: everything is in memory, runs in this thread, and time moves only when the test says so.

    app = penstock.App.in_memory()
    job = send.enqueue("a@b.c")
    app.run_pending()               # all tasks that are due, and those that become due by them
    app.advance(60)                 # retries, delays and schedules become due
    app.run_pending()
    assert job.result() == 1

It behaves like a broker with workers, because it is the same system: arguments travel as JSON, failed tasks wait for
their backoff, children wait for their parents. A timeout ends async tasks; a plain function cannot be stopped in the
thread that runs it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, Final

import msgspec

from penstock import operations as ops
from penstock import validation
from penstock.client._sync.delivery import Delivery, Leased
from penstock.clock import ManualClock, SystemClock
from penstock.envelopes import parse_envelope
from penstock.errors import InvalidField, LeaseLost, TaskConflict, TaskUnfinished, TooLarge
from penstock.model import DEFAULT_GROUP, check_seconds
from penstock.model_tasks import TaskView
from penstock.tasks.app import App
from penstock.tasks.context import TaskContext
from penstock.tasks.endings import Ending, result_error
from penstock.tasks.middleware import Middleware
from penstock.tasks.options import QUEUE_DEFAULT
from penstock.tasks.runs import arun_one, load_parents, run_one, timed_out, timeout_of, unknown
from penstock.tasks.signing import Key
from penstock.tasks.task import Task

WORKER: Final = "run_pending"
RUNS_MAX: Final = 10_000
MOMENT_SECONDS: Final = 0.002  # timers fire by whole ticks of about a millisecond, and never early
_LEASE: Final = validation.lease_request(1, None, WORKER, None, False)


class LocalApp(App):
    """An app for tests, created with `App.in_memory()`. Nothing is on disk, and time moves only with `advance`."""

    _has_threads = False

    def __init__(
        self,
        *,
        queue: str = QUEUE_DEFAULT,
        middleware: Sequence[Middleware] = (),
        sign: Key | Sequence[Key] | None = None,
        clock: ManualClock | None = None,
    ) -> None:
        self.manual_clock = clock or ManualClock(SystemClock().now())
        super().__init__(None, queue=queue, middleware=middleware, sign=sign, clock=self.manual_clock)

    def advance(self, seconds: float) -> None:
        """Move time forward. Tasks that become due run with the next `run_pending()`."""
        self.manual_clock.advance(check_seconds(seconds, "seconds") + MOMENT_SECONDS)
        self._let_time_happen()

    def run_pending(self, limit: int = RUNS_MAX) -> int:
        """Run all tasks that are due, at most `limit` runs. Returns the number of runs."""
        validation.read_limit(limit, RUNS_MAX)
        self.declare()
        runs = 0
        with closing(asyncio.Runner()) as runner:
            while runs < limit and (run := self._next()) is not None:
                if run.task is None or not run.task.is_async:
                    self._finish(run, run.ending())
                elif _is_on_a_loop():
                    self._finish(run, Ending("released"))
                    hint = "use await app.arun_pending() instead"
                    raise InvalidField(
                        f"task {run.task.name!r} is async, and an event loop is already running", hint=hint
                    )
                else:
                    self._finish(run, runner.run(run.aending()))
                runs += 1
        return runs

    async def arun_pending(self, limit: int = RUNS_MAX) -> int:
        """Asyncio version of `run_pending()`: async tasks run on the running loop."""
        validation.read_limit(limit, RUNS_MAX)
        self.declare()
        runs = 0
        while runs < limit and (run := self._next()) is not None:
            self._finish(run, await run.aending() if run.task is not None and run.task.is_async else run.ending())
            runs += 1
        return runs

    def wait_task(self, task_id: str, seconds: float) -> TaskView:
        """Nothing happens here while we wait, so nobody waits."""
        view = self.open_session().execute(ops.FindTask(task_id))
        return view if view.is_final else self._unfinished(view)

    async def await_task(self, task_id: str, seconds: float) -> TaskView:
        return self.wait_task(task_id, seconds)

    def _unfinished(self, view: TaskView) -> TaskView:
        what = f"task {view.task_type!r} ({view.task_id}) is {view.state}"
        raise TaskUnfinished(what, hint="call app.run_pending(); app.advance(seconds) lets time pass")

    def _let_time_happen(self) -> None:
        session: Any = self.open_session()
        session.session.timekeeper.tick()

    def _next(self) -> Run | None:
        """The next run, of the first queue that has one."""
        self._let_time_happen()
        session = self.open_session()
        for queue in session.execute(ops.Queues()):
            if queue in self.queues:
                for delivery in Leased(session, session.lease(queue, DEFAULT_GROUP, _LEASE, 0.0)):
                    return self._run_of(delivery) or self._next()
        return None

    def _run_of(self, delivery: Delivery) -> Run | None:
        """None for a message that is no task: it is rejected, as a worker does."""
        try:
            return Run(self, delivery)
        except InvalidField as error:
            delivery.reject(str(error))
            return None

    def _finish(self, run: Run, ended: Ending) -> None:
        finish = ended.finish(run.delivery.proof, run.envelope.task_id)
        (problem,) = self.open_session().execute(ops.FinishTasks([finish]))
        if isinstance(problem, TooLarge) and ended.outcome == "completed":  # only the result is lost
            (problem,) = self.open_session().execute(
                ops.FinishTasks([msgspec.structs.replace(finish, result=result_error(str(problem)))])
            )
        if problem is not None and not isinstance(problem, LeaseLost):  # cancelled by itself, say
            raise problem


@contextmanager
def standing_in(app: App) -> Iterator[LocalApp]:
    """A local app with the tasks of another one, whose calls it takes meanwhile."""
    if app.stand_in is not None:
        raise TaskConflict("the app is already being tested", hint="leave one block before you enter the next")
    local = LocalApp(queue=app.queue_default, middleware=app.middleware)
    local._tasks = app._tasks
    for name, options in app.declarations.queues.items():
        local.declarations.queue(name, options)
    local.declarations.schedules = app.declarations.schedules
    own = app._sessions, app.clock, app.declarations, None
    app._sessions, app.clock, app.declarations, app.stand_in = local._sessions, local.clock, local.declarations, local
    try:
        yield local
    finally:
        app._sessions, app.clock, app.declarations, app.stand_in = own
        local.close()


class Run:
    """One task that was leased."""

    def __init__(self, app: LocalApp, delivery: Delivery) -> None:
        session = app.open_session()
        self.app = app
        self.delivery = delivery
        self.envelope = parse_envelope(delivery.payload)
        self.task: Task[..., Any, Any] | None = app.tasks.get(self.envelope.task_type)
        id, proof = self.envelope.task_id, delivery.proof
        self.context = TaskContext(
            self.envelope,
            attempt=delivery.attempt,
            queue=delivery.id.queue,
            worker=WORKER,
            key=delivery.key,
            trace=delivery.trace,
            parents=load_parents(session, self.envelope),
            note=lambda progress: session.execute(ops.NoteProgress(proof, id, progress)),
        )

    def _problem(self) -> str:
        signer, delivery = self.app.signer, self.delivery
        if signer is None:
            return ""
        return signer.problem(self.envelope, delivery.id.queue, delivery.headers, self.app.clock.now())

    def ending(self) -> Ending:
        if problem := self._problem():
            return Ending("dead", error=problem)
        if self.task is None:
            return unknown(self.envelope, self.app.tasks)
        return run_one(self.task, self.envelope, self.context)

    async def aending(self) -> Ending:
        task = self.task
        if task is None or self._problem():
            return self.ending()
        seconds = timeout_of(task, self.envelope)
        late = timed_out(task, seconds or 0, self.context.attempt)
        self.context.broken_off = late
        try:
            async with asyncio.timeout(seconds):
                return await arun_one(task, self.envelope, self.context)
        except TimeoutError:
            return late


def _is_on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
