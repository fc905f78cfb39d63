"""The tasks of the session in this process, for an event loop.

What the shard alone decides runs on the loop; whatever asks the catalogue, which reads files, runs in a thread. Waiting
holds no thread: the loop is woken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from penstock import validation
from penstock.errors import PenstockError
from penstock.model import Receipt, check_seconds
from penstock.model_tasks import (
    Finish,
    OperationAction,
    OperationView,
    ScheduleSpec,
    ScheduleView,
    Submitted,
    TaskFilter,
    TaskPage,
    TaskSubmission,
    TaskView,
    WorkerInfo,
    WorkerNews,
    WorkerView,
)
from penstock.shard.shard import Shard

if TYPE_CHECKING:
    from penstock.embedded.session import Session

T = TypeVar("T")


class AsyncTaskMethods:
    """What a session can do with tasks; each answer is durable."""

    session: Session
    shard: Shard

    async def _answer(self, call: Callable[..., tuple[T, int]], *arguments: Any) -> T:
        """Asked in a thread, told when it is durable."""
        answer, ticket = await asyncio.to_thread(call, *arguments)
        await self.shard.confirmed(ticket)
        return answer

    # submitting and finishing

    async def submit_tasks(self, tasks: Sequence[TaskSubmission]) -> list[Submitted]:
        # Parents are looked up, and when the sealer is behind, the shard has submissions wait.
        if not self.shard.throttle.is_set() or any(getattr(task, "depends_on", ()) for task in tasks):
            return await self._answer(self.session.submit_tasks, tasks)
        submitted, ticket = self.session.submit_tasks(tasks)
        await self.shard.confirmed(ticket)
        return submitted

    async def finish_tasks(self, finishes: Sequence[Finish]) -> list[PenstockError | None]:
        # A dead letter is a copy of its message, which may have to be read.
        if self.shard.store is not None and any(finish.outcome in ("failed", "dead") for finish in finishes):
            return await self._answer(self.session.finish_tasks, finishes)
        refusals, ticket = self.session.finish_tasks(finishes)
        await self.shard.confirmed(ticket)
        return refusals

    async def note_progress(self, receipt: Receipt, task_id: str, progress: bytes) -> None:
        await self.shard.confirmed(self.session.note_progress(receipt, task_id, progress))

    # looking and waiting

    async def task(self, task_id: str) -> TaskView:
        return await self._answer(self.session.task, task_id)

    async def tasks(self, wanted: TaskFilter) -> TaskPage:
        return await self._answer(self.session.tasks, wanted)

    async def wait_task(self, task_id: str, seconds: float) -> TaskView:
        checked = validation.task_id(task_id)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + check_seconds(seconds, "seconds")
        woken = asyncio.Event()
        waiter = self.session.watch_task(checked, partial(_wake, loop, woken))
        try:
            while True:
                woken.clear()
                view = await self._seen(checked)
                left = deadline - loop.time()
                if view.is_final or left <= 0:
                    return view
                with suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await woken.wait()
                final = self.session.told(waiter, view)
                await self.shard.confirmed(waiter.ticket)
                if final is not None:
                    return final
        finally:
            self.session.unwatch_task(waiter)

    async def _seen(self, task_id: str) -> TaskView:
        """The task as it is, without its runs; those who ask at the same time share a look."""
        loop, looks = asyncio.get_running_loop(), self.session.desk.looks
        future: asyncio.Future[TaskView] = loop.create_future()
        if looks.ask(task_id, lambda answer: loop.call_soon_threadsafe(_resolve, future, answer)):
            loop.run_in_executor(None, looks.lead)
        return await future

    # changing

    async def cancel_task(self, task_id: str) -> TaskView:
        return await self._answer(self.session.cancel_task, task_id)

    async def retry_task(self, task_id: str) -> TaskView:
        return await self._answer(self.session.retry_task, task_id)

    async def purge_tasks(self, wanted: TaskFilter) -> int:
        return (await self._worked_off(OperationAction.PURGE, wanted)).purged

    async def cancel_tasks(self, wanted: TaskFilter) -> int:
        return (await self._worked_off(OperationAction.CANCEL, wanted)).cancelled

    async def _worked_off(self, action: OperationAction, wanted: TaskFilter) -> OperationView:
        view = await self.begin_operation(action, wanted)
        pauses = validation.pauses()
        while not view.is_over:
            await asyncio.sleep(next(pauses))
            view = await self.operation(view.operation_id)
        return validation.succeeded(view)

    # operations

    async def begin_operation(self, action: str, wanted: TaskFilter, operation_id: str = "") -> OperationView:
        return await self._answer(self.session.begin_operation, action, wanted, operation_id)

    async def operation(self, operation_id: str) -> OperationView:
        return await self._answer(self.session.operation, operation_id)

    async def operations(self) -> list[OperationView]:
        return await self._answer(self.session.operations)

    async def stop_operation(self, operation_id: str) -> OperationView:
        return await self._answer(self.session.stop_operation, operation_id)

    # workers

    async def heartbeat_worker(self, info: WorkerInfo) -> WorkerNews:
        return self.session.heartbeat_worker(info)[0]

    async def worker_news(self, worker_id: str, seconds: float) -> WorkerNews:
        checked = validation.worker_id(worker_id)
        loop, registry = asyncio.get_running_loop(), self.session.desk.registry
        deadline = loop.time() + check_seconds(seconds, "seconds")
        woken = asyncio.Event()
        wake = partial(_wake, loop, woken)
        registry.listen(checked, wake)
        try:
            while True:
                woken.clear()
                self.shard.require_open()
                news = registry.news(checked)
                left = deadline - loop.time()
                if news.cancelled or left <= 0:
                    return news
                with suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await woken.wait()
        finally:
            registry.unlisten(checked, wake)

    async def forget_worker(self, worker_id: str) -> None:
        await self.shard.confirmed(self.session.forget_worker(worker_id))

    async def workers(self) -> list[WorkerView]:
        return await self._answer(self.session.workers)

    # schedules

    async def set_schedule(self, spec: ScheduleSpec) -> ScheduleView:
        return await self._answer(self.session.set_schedule, spec)

    async def delete_schedule(self, name: str) -> None:
        await self.shard.confirmed(self.session.delete_schedule(name))

    async def schedules(self) -> list[ScheduleView]:
        return await self._answer(self.session.schedules)


def _resolve(future: asyncio.Future[TaskView], answer: TaskView | PenstockError) -> None:
    if future.done():
        return  # whoever asked has gone
    if isinstance(answer, PenstockError):
        future.set_exception(answer)
    else:
        future.set_result(answer)


def _wake(loop: asyncio.AbstractEventLoop, woken: asyncio.Event) -> None:
    with suppress(RuntimeError):  # the loop is closed: nobody is left to wake
        loop.call_soon_threadsafe(woken.set)
