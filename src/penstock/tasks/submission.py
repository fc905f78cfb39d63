"""Tasks on their way to the queue: plain ones are pushed like any message, the others submitted.

What an app declares: queues with their options, and schedules. The broker keeps both.

A queue is made, or brought to the declared options, before this process first uses it; a schedule when a worker starts
or `app.declare()` is called. Options that are not declared stay as they are.

Making a task of a function: its name, its options, its schedule.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock import limits
from penstock import operations as ops
from penstock.client.session import AsyncSession, Session
from penstock.envelopes import alike_batch, alike_payloads, new_task_ids, task_message, tasks_batch
from penstock.errors import InvalidField, InvalidName, QueueExists
from penstock.model import check_name, queue_options
from penstock.model_tasks import ScheduleSpec, ScheduleView, Submitted, TaskSubmission
from penstock.tasks.json_values import local_hints_of
from penstock.tasks.options import DECLARED_OPTIONS, QueueDeclaration, TaskOptions, check_known, checked
from penstock.tasks.schedules import spec_of
from penstock.tasks.task import Task

if TYPE_CHECKING:
    from penstock.tasks.app import App


PUSH_BYTES: Final = limits.batch_bytes_max // 2  # that one push aims at
_ENVELOPE_BYTES: Final = 512  # of a task beside its arguments, at most in the ordinary


class Sender:
    """Sends tasks of one app, for threads and for event loops; answers with their ids once they are durable."""

    def __init__(self, app: App) -> None:
        self._app = app

    def send(self, task: TaskSubmission) -> str:
        task = self.through(task)
        session = self._app.open_session()
        self._app.declarations.ensure(session, task.queue)
        if not task.is_plain:
            return self.submit([task])[0].task_id
        session.push_one(task.queue, task_message(task), None)
        return task.task_id

    async def asend(self, task: TaskSubmission) -> str:
        task = self.through(task)
        session = await self._app.open_async_session()
        await self._app.declarations.aensure(session, task.queue)
        if not task.is_plain:
            return (await self.asubmit([task]))[0].task_id
        await session.push_one(task.queue, task_message(task), None)
        return task.task_id

    def send_many(self, tasks: Sequence[TaskSubmission]) -> list[str]:
        tasks = [self.through(task) for task in tasks]
        if not all(task.is_plain for task in tasks):
            return [submitted.task_id for submitted in self.submit(tasks)]
        session = self._app.open_session()
        for queue, part in _parts(tasks):
            self._app.declarations.ensure(session, queue)
            session.push(queue, tasks_batch(part), None, None)
        return [task.task_id for task in tasks]

    async def asend_many(self, tasks: Sequence[TaskSubmission]) -> list[str]:
        tasks = [self.through(task) for task in tasks]
        if not all(task.is_plain for task in tasks):
            return [submitted.task_id for submitted in await self.asubmit(tasks)]
        session = await self._app.open_async_session()
        for queue, part in _parts(tasks):
            await self._app.declarations.aensure(session, queue)
            await session.push(queue, tasks_batch(part), None, None)
        return [task.task_id for task in tasks]

    def send_alike(self, task: TaskSubmission, calls: Sequence[tuple[bytes, bytes]]) -> list[str]:
        """Tasks that differ only by their arguments."""
        session = self._app.open_session()
        self._app.declarations.ensure(session, task.queue)
        ids = new_task_ids(len(calls), self._app.clock.now())
        for payloads in _slices(alike_payloads(task, calls, ids)):
            session.push(task.queue, alike_batch(task, payloads), None, None)
        return ids

    async def asend_alike(self, task: TaskSubmission, calls: Sequence[tuple[bytes, bytes]]) -> list[str]:
        session = await self._app.open_async_session()
        await self._app.declarations.aensure(session, task.queue)
        ids = new_task_ids(len(calls), self._app.clock.now())
        for payloads in _slices(alike_payloads(task, calls, ids)):
            await session.push(task.queue, alike_batch(task, payloads), None, None)
        return ids

    def submit(self, tasks: Sequence[TaskSubmission]) -> list[Submitted]:
        """All of them or none, in one frame."""
        session = self._app.open_session()
        for queue in dict.fromkeys(task.queue for task in tasks):
            self._app.declarations.ensure(session, queue)
        return session.execute(ops.SubmitTasks(tasks))

    async def asubmit(self, tasks: Sequence[TaskSubmission]) -> list[Submitted]:
        session = await self._app.open_async_session()
        for queue in dict.fromkeys(task.queue for task in tasks):
            await self._app.declarations.aensure(session, queue)
        return await session.execute(ops.SubmitTasks(tasks))

    def through(self, task: TaskSubmission) -> TaskSubmission:
        """What the app's middleware makes of it, signed if the app signs."""
        for item in self._app.middleware:
            task = item.enqueue(task)
        signer = self._app.signer
        return task if signer is None else signer.signed(task, self._app.clock.now())


def _parts(tasks: Sequence[TaskSubmission]) -> Iterator[tuple[str, list[TaskSubmission]]]:
    """Neighbours of one queue, as many as one push can hold."""
    for queue, neighbours in groupby(tasks, key=lambda task: task.queue):
        run = list(neighbours)
        sizes = [len(task.args) + len(task.kwargs) + _ENVELOPE_BYTES for task in run]
        for first, end in _cuts(sizes):
            yield queue, run[first:end]


def _slices(payloads: list[bytes]) -> Iterator[list[bytes]]:
    """As many as one push can hold."""
    for first, end in _cuts([len(payload) for payload in payloads]):
        yield payloads[first:end]


def _cuts(sizes: list[int]) -> Iterator[tuple[int, int]]:
    """Where to cut so that every part is within `PUSH_BYTES`, or has but one."""
    if sum(sizes) <= PUSH_BYTES:
        if sizes:
            yield 0, len(sizes)
        return
    first = total = 0
    for index, size in enumerate(sizes):
        if index > first and total + size > PUSH_BYTES:
            yield first, index
            first, total = index, 0
        total += size
    yield first, len(sizes)


class Declarations:
    """Queues and schedules of one app."""

    def __init__(self) -> None:
        self.queues: dict[str, Mapping[str, Any]] = {}
        self.schedules: dict[str, ScheduleSpec] = {}
        self._waiting: set[str] = set()  # queues whose options were not sent to the broker yet

    def queue(self, name: str, options: Mapping[str, Any]) -> QueueDeclaration:
        """Declare a queue; twice only with the same options."""
        check_name(name)
        known = self.queues.get(name)
        if options:
            queue_options(options)
            if known and known != options:
                raise InvalidField(f"queue {name!r}: it is declared already, with other options")
            self._waiting.add(name)
        self.queues[name] = options or known or {}
        return QueueDeclaration(name, self.queues[name])

    def schedule(self, spec: ScheduleSpec) -> None:
        """Declare a schedule."""
        self.schedules[spec.name] = msgspec.structs.replace(spec, is_declared=True)

    def gone(self, known: list[ScheduleView]) -> list[str]:
        """Schedules that code declared once, for queues of this app, and that it declares no more.

        Whoever works on a queue has to know all its tasks, so those of its queues are the app's own.
        """
        return [
            view.spec.name
            for view in known
            if view.spec.is_declared and view.spec.queue in self.queues and view.spec.name not in self.schedules
        ]

    def ensure(self, session: Session, queue: str) -> None:
        """Create or update the queue with its declared options, unless that was done before."""
        if queue not in self._waiting:
            self.queues.setdefault(queue, {})
            return
        options = self.queues[queue]
        try:
            session.execute(ops.CreateQueue(queue, options, exist_ok=True))
        except QueueExists:
            session.execute(ops.UpdateQueue(queue, options))
        self._waiting.discard(queue)

    async def aensure(self, session: AsyncSession, queue: str) -> None:
        """Asyncio version of `ensure()`."""
        if queue not in self._waiting:
            self.queues.setdefault(queue, {})
            return
        options = self.queues[queue]
        try:
            await session.execute(ops.CreateQueue(queue, options, exist_ok=True))
        except QueueExists:
            await session.execute(ops.UpdateQueue(queue, options))
        self._waiting.discard(queue)

    def declare(self, session: Session) -> None:
        """Send all declared queues and schedules to the broker."""
        for queue in list(self._waiting):
            self.ensure(session, queue)
        if self.schedules:
            for spec in self._as_paused(session.execute(ops.Schedules())):
                session.execute(ops.SetSchedule(spec))

    async def adeclare(self, session: AsyncSession) -> None:
        """Asyncio version of `declare()`."""
        for queue in list(self._waiting):
            await self.aensure(session, queue)
        if self.schedules:
            for spec in self._as_paused(await session.execute(ops.Schedules())):
                await session.execute(ops.SetSchedule(spec))

    def _as_paused(self, known: list[ScheduleView]) -> list[ScheduleSpec]:
        """What is declared, but what somebody has paused stays paused: a worker that starts must not end that."""
        paused = {view.spec.name for view in known if view.spec.is_paused}
        return [msgspec.structs.replace(spec, is_paused=spec.name in paused) for spec in self.schedules.values()]


_OF_SCHEDULES = ("cron", "timezone", "missed")


def registered(app: App, function: Any, declared: Mapping[str, Any], names: Mapping[str, Any]) -> Task[..., Any, Any]:
    """A task of this function. `names` are those around it, which its annotations may use."""
    if isinstance(function, Task):  # of another app, or declared again
        function = function.function
    if not callable(function) or inspect.isclass(function):
        raise InvalidField(f"task: {function!r} is not a function", hint="write @app.task, or @app.task(queue=…)")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        hint = "return a list, or tell values with current_task().progress(…)"
        raise InvalidField(f"task: {function!r} is a generator, whose values nobody would ask for", hint=hint)
    check_known(declared, DECLARED_OPTIONS)
    options = {name: value for name, value in declared.items() if name not in (*_OF_SCHEDULES, "name")}
    for word in ("key", "unique_key"):
        if word in options:
            options[f"{word}_of"] = options.pop(word)
    if isinstance(options.get("queue"), QueueDeclaration):
        options["queue"] = options["queue"].name
    known = (*options, *DECLARED_OPTIONS)
    defaults = checked(options, known, TaskOptions(queue=app.queue_default))
    task: Task[..., Any, Any] = Task(
        app, function, name_of(function, declared.get("name")), defaults, local_hints_of(function, names)
    )
    _check_free(app.tasks.get(task.name), task)
    if declared.get("cron") is not None:
        app.declarations.schedule(
            spec_of(task, task.name, **{key: declared[key] for key in _OF_SCHEDULES if key in declared})
        )
    elif "timezone" in declared or "missed" in declared:
        raise InvalidField(f"task {task.name!r}: timezone and missed say how cron is meant, which is not given")
    app.declarations.queue(defaults.queue, {})
    return task


def name_of(function: Callable[..., Any], name: str | None) -> str:
    """The name that a task travels by: as given, or that of the function."""
    chosen = getattr(function, "__name__", "") if name is None else name
    try:
        return check_name(chosen, "task")
    except InvalidName as error:
        hint = error.hint if name is not None else "give it one with @app.task(name=…)"
        raise InvalidName(error.message, hint=hint) from None


def _check_free(known: Task[..., Any, Any] | None, task: Task[..., Any, Any]) -> None:
    """A name stands for one function. The same function may be declared again: modules are reloaded."""
    if known is None:
        return
    before, now = (_home(declared.function) for declared in (known, task))
    if before != now:
        hint = "give one of them another name with @app.task(name=…)"
        raise InvalidField(f"task {task.name!r}: {now} would replace {before}", hint=hint)


def _home(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', function)}"
