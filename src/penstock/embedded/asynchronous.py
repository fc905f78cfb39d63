"""The session in this process, for an event loop.

The shard's own work is microseconds and runs on the loop; only what may block is handed away: durability to the
committer thread, files to worker threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Generic, TypeVar

from penstock import operations as ops
from penstock.batch import Batch, encode_one
from penstock.embedded.blocking import Pipeline
from penstock.embedded.session import Reply, Session, Watch
from penstock.errors import PenstockError
from penstock.forks import refuse_in_forks
from penstock.journal.commit import Confirmer
from penstock.model import Durability, MessageId, Receipt
from penstock.model_tasks import Submitted, TaskView, WorkerNews
from penstock.replies import LeaseReplies, LeaseReply, PushReply, leases_of
from penstock.requests import RELEASE, LeaseRequest, Operation, PartitionChoice, QueueChoice, Settling
from penstock.shard.queue_sets import set_key

R = TypeVar("R")


class AsyncPipeline(Pipeline):
    """Settles that are not waited for one by one: the last of them confirms them all."""

    def __init__(self, session: Session, confirmed: Callable[[int], Awaitable[None]]) -> None:
        super().__init__(session)
        self._confirmed = confirmed

    async def confirm(self) -> None:  # type: ignore[override]
        await self._confirmed(self._ticket)


class PendingLease(Generic[Reply]):
    """One lease until its caller has it. Once abandoned, whatever it takes is released, by whoever notices last.

    `ask` leases; whether it may read files is its argument, and None says that it must.
    """

    def __init__(
        self,
        session: Session,
        request: LeaseRequest,
        ask: Callable[[LeaseRequest, bool], tuple[Reply, int] | None],
        watch: Callable[[Callable[[], object]], Watch],
    ) -> None:
        self.session = session
        self._request = request
        self._ask: Callable[[LeaseRequest, bool], tuple[Reply, int] | None] = ask
        self.watch = watch
        self._nonces: list[int] = []
        self._is_abandoned = False

    async def run(self) -> tuple[Reply, int]:
        """Ask the shard, in a thread if that may read a file."""
        taken = self._take(may_read=False)
        return await asyncio.to_thread(self._take_loaded) if taken is None else taken

    def abandon(self) -> None:
        """The caller was cancelled. A thread that is still at work finds out by itself."""
        self._is_abandoned = True
        self._release()

    def _take_loaded(self) -> tuple[Reply, int]:
        taken = self._take(may_read=True)
        assert taken is not None
        reply, ticket = taken
        return self.session.loaded_reply(reply), ticket

    def _take(self, *, may_read: bool) -> tuple[Reply, int] | None:
        taken = self._ask(self._request, may_read)
        if taken is None:
            return None
        reply, _ = taken
        self._nonces = [lease.nonce for lease in leases_of(reply)]
        if isinstance(reply, LeaseReply):  # of several queues the set knows in which the group was
            self._request = self._request.in_existing_group()
        if self._is_abandoned:
            self._release()
        return taken

    def _release(self) -> None:
        for nonce in self._nonces:
            with suppress(PenstockError):  # released by the other thread, acknowledged on delivery, or closed
                self.session.settle_lease(nonce, RELEASE)


class AsyncSession:
    """A session whose methods are awaited and answer with what is durable."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.shard = session.shard
        self.loaded = session.loaded
        self.clock = session.clock
        self._confirmer: Confirmer | None = None  # of the running loop, from the first use on
        refuse_in_forks(self)

    async def start(self) -> None:
        """An embedded session is ready when it is made."""

    async def close(self) -> None:
        await asyncio.to_thread(self.session.close)

    async def confirmed(self, ticket: int) -> None:
        """Return when what the ticket stands for cannot be undone."""
        if ticket:
            await (self._confirmer or self._own_confirmer()).confirmed(ticket)

    def _own_confirmer(self) -> Confirmer:
        self._confirmer = Confirmer(self.shard.commit, asyncio.get_running_loop())
        return self._confirmer

    # messages

    async def push_bytes(self, queue: str, payload: bytes) -> MessageId:
        shard = self.shard
        if not shard.throttle.is_set():
            await self._unthrottled()
        id, ticket = shard.push_one(queue, encode_one(payload))
        if ticket:
            await (self._confirmer or self._own_confirmer()).future(ticket)
        return id

    async def push_one(self, queue: str, data: bytes, durability: Durability | None) -> MessageId:
        await self._unthrottled()
        id, ticket = self.shard.push_one(queue, data, durability)
        await self.confirmed(ticket)
        return id

    async def push(
        self,
        queue: str,
        batch: Batch,
        partition: PartitionChoice,
        durability: Durability | None,
        skips: bool = False,
    ) -> PushReply:
        await self._unthrottled()
        reply, ticket = self.session.push(queue, batch, partition, durability, skips)
        await self.confirmed(ticket)
        return reply

    async def _unthrottled(self) -> None:
        throttle = self.shard.throttle
        if not throttle.is_set():
            await asyncio.to_thread(throttle.wait)

    async def lease(self, queue: str, group: str, request: LeaseRequest, wait_seconds: float) -> LeaseReply:
        session = self.session

        def ask(request: LeaseRequest, may_read: bool) -> tuple[LeaseReply, int] | None:
            if not may_read and session.needs_files(queue, group):
                return None
            return session.lease(queue, group, request)

        pending = PendingLease(session, request, ask, lambda wake: session.watch(queue, wake, group))
        return await self._taken(pending, wait_seconds)

    async def lease_queues(
        self, choice: QueueChoice, group: str, request: LeaseRequest, wait_seconds: float
    ) -> LeaseReplies:
        key = set_key(choice, group, request)

        def ask(request: LeaseRequest, may_read: bool) -> tuple[LeaseReplies, int] | None:
            return self.session.lease_set(key, request, may_read=may_read)

        pending = PendingLease(self.session, request, ask, lambda wake: self.session.watch_queues(key, wake))
        return await self._taken(pending, wait_seconds)

    async def _taken(self, pending: PendingLease[Reply], wait_seconds: float) -> Reply:
        try:
            reply, ticket = await pending.run()
            if not reply.count and wait_seconds:
                reply, ticket = await self._lease_waiting(pending, wait_seconds)
            await self.confirmed(ticket)
        except asyncio.CancelledError:
            pending.abandon()
            raise
        return reply

    async def _lease_waiting(self, pending: PendingLease[Reply], seconds: float) -> tuple[Reply, int]:
        session, loop = self.session, asyncio.get_running_loop()
        deadline = loop.time() + seconds
        woken = asyncio.Event()
        while True:
            woken.clear()
            waiter = pending.watch(partial(loop.call_soon_threadsafe, woken.set))
            reply: Reply | None = None
            try:
                reply, ticket = await pending.run()
                if not reply.count:
                    await _woken_within(woken, deadline - loop.time())
                    reply, ticket = await pending.run()
            finally:
                session.unwatch(waiter, served=reply is not None and bool(reply.count))
            if reply.count or loop.time() >= deadline:
                return reply, ticket

    async def settle(self, receipts: Sequence[Receipt], how: Settling) -> None:
        await self.confirmed(self.session.settle(receipts, how))

    async def settle_lease(self, nonce: int, how: Settling) -> None:
        await self.confirmed(self.session.settle_lease(nonce, how))

    async def settle_leases(self, nonces: Sequence[int], how: Settling) -> None:
        failure, ticket = self.session.settle_leases(nonces, how)
        await self.confirmed(ticket)
        if failure is not None:
            raise failure

    async def extend(self, nonce: int, seconds: float) -> int:
        return self.session.extend(nonce, seconds)

    def pipeline(self) -> AsyncPipeline:
        return AsyncPipeline(self.session, self.confirmed)

    async def transact(self, operations: Sequence[Operation]) -> list[list[MessageId]]:
        ids, ticket = await asyncio.to_thread(self.session.transact, operations)
        await self.confirmed(ticket)
        return ids

    # everything else

    async def execute(self, operation: ops.Operation[R]) -> R:
        """Execute an operation: in a worker thread, unless it neither reads files nor waits."""
        special = ON_LOOP.get(type(operation))
        if special is not None:
            result: R = await special(self, operation)
            return result
        return await self._in_thread(operation)

    async def _directly(self, operation: ops.Operation[R]) -> R:
        reply, ticket = self.session.run(operation)
        await self.confirmed(ticket)
        return reply

    async def _in_thread(self, operation: ops.Operation[R]) -> R:
        reply, ticket = await asyncio.to_thread(self.session.run, operation)
        await self.confirmed(ticket)
        return reply

    async def _submit(self, operation: ops.SubmitTasks) -> list[Submitted]:
        # Parents are looked up, and when the sealer is behind, the shard has submissions wait.
        if not self.shard.throttle.is_set() or any(task.depends_on for task in operation.tasks):
            return await self._in_thread(operation)
        return await self._directly(operation)

    async def _finish(self, operation: ops.FinishTasks) -> list[PenstockError | None]:
        # A dead letter is a copy of its message, which may have to be read.
        if self.shard.store is not None and any(run.outcome in ("failed", "dead") for run in operation.finishes):
            return await self._in_thread(operation)
        return await self._directly(operation)

    async def _wait_task(self, operation: ops.WaitTask) -> TaskView:
        loop, tasks = asyncio.get_running_loop(), self.session.tasks
        deadline = loop.time() + operation.wait_seconds
        woken = asyncio.Event()
        waiter = tasks.watch(operation.task_id, partial(_wake, loop, woken))
        try:
            while True:
                woken.clear()
                view = await self._lookup(operation.task_id)
                left = deadline - loop.time()
                if view.is_final or left <= 0:
                    return view
                await _woken_within(woken, left)
                final = tasks.final(waiter, view)
                await self.confirmed(waiter.ticket)
                if final is not None:
                    return final
        finally:
            tasks.waiters.leave(waiter)

    async def _lookup(self, task_id: str) -> TaskView:
        """The task as it is, without its runs; those who ask at the same time share a look."""
        loop, looks = asyncio.get_running_loop(), self.session.tasks.looks
        future: asyncio.Future[TaskView] = loop.create_future()
        if looks.ask(task_id, lambda answer: loop.call_soon_threadsafe(_resolve, future, answer)):
            loop.run_in_executor(None, looks.lead)
        return await future

    async def _await_news(self, operation: ops.AwaitNews) -> WorkerNews:
        loop, registry = asyncio.get_running_loop(), self.session.tasks.registry
        worker_id = operation.worker_id
        deadline = loop.time() + operation.wait_seconds
        woken = asyncio.Event()
        wake = partial(_wake, loop, woken)
        registry.listen(worker_id, wake)
        try:
            while True:
                woken.clear()
                self.shard.require_open()
                news, is_new = registry.take_news(worker_id)
                left = deadline - loop.time()
                if is_new or left <= 0:
                    return news
                await _woken_within(woken, left)
        finally:
            registry.unlisten(worker_id, wake)


# Operations that the loop's own thread executes: quick ones, and those that wait without holding a thread.
ON_LOOP: Final[dict[type, Callable[[AsyncSession, Any], Awaitable[Any]]]] = {
    ops.SubmitTasks: AsyncSession._submit,
    ops.FinishTasks: AsyncSession._finish,
    ops.NoteProgress: AsyncSession._directly,
    ops.HeartbeatWorker: AsyncSession._directly,
    ops.ForgetWorker: AsyncSession._directly,
    ops.DeleteSchedule: AsyncSession._directly,
    ops.WaitTask: AsyncSession._wait_task,
    ops.AwaitNews: AsyncSession._await_news,
}


def _resolve(future: asyncio.Future[TaskView], answer: TaskView | PenstockError) -> None:
    if future.done():
        return  # whoever asked has gone
    if isinstance(answer, PenstockError):
        future.set_exception(answer)
    else:
        future.set_result(answer)


async def _woken_within(woken: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, seconds)):
            await woken.wait()


def _wake(loop: asyncio.AbstractEventLoop, woken: asyncio.Event) -> None:
    with suppress(RuntimeError):  # the loop is closed: nobody is left to wake
        loop.call_soon_threadsafe(woken.set)
