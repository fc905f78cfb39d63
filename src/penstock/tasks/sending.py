"""Tasks on their way to the queue: plain ones are pushed like any message, the others submitted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Final

from penstock import limits
from penstock import operations as ops
from penstock.envelopes import alike_batch, alike_payloads, new_task_ids, task_message, tasks_batch
from penstock.model_tasks import Submitted, TaskSubmission

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
            return [found.task_id for found in self.submit(tasks)]
        session = self._app.open_session()
        for queue, part in _parts(tasks):
            self._app.declarations.ensure(session, queue)
            session.push(queue, tasks_batch(part), None, None)
        return [task.task_id for task in tasks]

    async def asend_many(self, tasks: Sequence[TaskSubmission]) -> list[str]:
        tasks = [self.through(task) for task in tasks]
        if not all(task.is_plain for task in tasks):
            return [found.task_id for found in await self.asubmit(tasks)]
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
        """What the app's middleware makes of it."""
        for each in self._app.middleware:
            task = each.enqueue(task)
        return task


def _parts(tasks: Sequence[TaskSubmission]) -> Iterator[tuple[str, list[TaskSubmission]]]:
    """Neighbours of one queue, as many as one push can hold."""
    for queue, neighbours in groupby(tasks, key=lambda task: task.queue):
        found = list(neighbours)
        sizes = [len(task.args) + len(task.kwargs) + _ENVELOPE_BYTES for task in found]
        for first, end in _cuts(sizes):
            yield queue, found[first:end]


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
