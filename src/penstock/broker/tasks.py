"""Operations on tasks and workers that the event loop executes itself, and requests that wait without holding a thread.

What takes the shard's lock only for a moment runs on the loop, as pushes do; what may read a file, or the task index,
runs in a thread. Access to a task depends on its queue, which is looked up first.

    looking ──it has happened, or time is over──▶ replied, when it is durable
      │  ▲
  not yet│ woken
      ▼  │
    waiting                           cancel(): the client has gone     end(): the broker stops, and says so

A wait watches before it looks, so that nothing that happens in between is missed.
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import msgspec

from penstock import operations as ops
from penstock.access.masking import EVERYTHING, mask_of
from penstock.broker.access import Client
from penstock.broker.callbacks import OnReply, answer_of, raised, resolve
from penstock.errors import LeaseLost, PenstockError, TaskNotFound, Unavailable
from penstock.model import owned
from penstock.model_backlog import TaskWait
from penstock.model_tasks import (
    Finish,
    Suggestion,
    TaskFilter,
    TaskPage,
    TaskSubmission,
    TaskView,
    WorkerNews,
    WorkflowPage,
    WorkflowView,
)
from penstock.operations import Action

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.embedded.session import Session
    from penstock.shard.tasks.waits import TaskWaiter
    from penstock.shard.worker_registry import Registry
    from penstock.task_index.index import TaskIndex


T = TypeVar("T")
Wake = Callable[[], object]  # called from any thread
May = Callable[[str], bool] | None  # which queues may be looked into; None: all of them
Found = TaskView | PenstockError


class Expected(Protocol):
    """What is waited for."""

    def watch(self, wake: Wake) -> None: ...

    def unwatch(self) -> None: ...

    def is_at_hand(self) -> bool:
        """Whether a look reads no file; otherwise it is asked for."""

    def look(self) -> tuple[Any, int]:
        """What there is, and the ticket of it."""

    def ask(self, broker: Broker, on_reply: OnReply) -> None:
        """Look, and call back on the loop with what there is, or with a `PenstockError`."""

    def is_it(self, reply: Any) -> bool:
        """Whether this was waited for."""


class Wait:
    """One request that waits for `expected`; replies once, when it has happened, is durable, or time is over."""

    __slots__ = ("_broker", "_expected", "_is_late", "_is_looking", "_is_woken", "_on_reply", "_timer", "is_over")

    def __init__(self, broker: Broker, expected: Expected, on_reply: OnReply) -> None:
        self._broker = broker
        self._expected = expected
        self._on_reply = on_reply
        self._timer: asyncio.TimerHandle | None = None
        self._is_looking = False
        self._is_woken = False  # while it looked
        self._is_late = False
        self.is_over = False

    def start(self, seconds: float) -> None:
        """Look for the first time."""
        self._broker.waits.add(self)
        self._is_late = not seconds
        if seconds:
            self._timer = self._broker.loop.call_later(seconds, self._expire)
            self._expected.watch(self._wake)
        self._look()

    def cancel(self) -> None:
        """Nobody waits for the answer any more."""
        if not self.is_over:
            self.is_over = True
            self._broker.waits.discard(self)
            if self._timer is not None:
                self._timer.cancel()
                self._expected.unwatch()

    def end(self) -> None:
        """The broker stops; the client may go on waiting elsewhere."""
        self._reply(stopping(), 0)

    def _expire(self) -> None:
        self._is_late = True
        self._look()

    def _wake(self) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._broker.loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        if self.is_over:
            return
        if self._is_looking:
            self._is_woken = True
            return
        self._is_looking, self._is_woken = True, False
        if self._expected.is_at_hand():
            self._looked(answer_of(self._expected.look))
        else:
            self._expected.ask(self._broker, self._looked)

    def _looked(self, answer: Any) -> None:
        self._is_looking = False
        if self.is_over:
            return
        if isinstance(answer, PenstockError):
            self._reply(answer, 0)
        elif self._expected.is_it(answer[0]) or (self._is_late and not self._is_woken):
            self._reply(*answer)
        elif self._is_woken:
            self._look()

    def _reply(self, answer: Any, ticket: int) -> None:
        if not self.is_over:
            self.cancel()
            self._broker.confirmer.after(ticket, self._on_reply, answer)


class ExpectedTask:
    """A task that shall be final. Many who ask for one share a look at the task index."""

    def __init__(self, session: Session, task_id: str, allowed: Callable[[Found], TaskView]) -> None:
        self._session = session
        self._task_id = task_id
        self._allowed = allowed
        self._seen: TaskView | None = None
        self._waiter: TaskWaiter | None = None

    def watch(self, wake: Wake) -> None:
        self._waiter = self._session.tasks.watch(self._task_id, wake)

    def unwatch(self) -> None:
        if self._waiter is not None:
            self._session.tasks.waiters.leave(self._waiter)

    def is_at_hand(self) -> bool:
        return self._final_view() is not None

    def look(self) -> tuple[TaskView, int]:
        final = self._final_view()
        assert final is not None
        assert self._waiter is not None
        return final, self._waiter.ticket

    def _final_view(self) -> TaskView | None:
        return self._waiter.final(self._seen) if self._waiter is not None and self._seen is not None else None

    def ask(self, broker: Broker, on_reply: OnReply) -> None:
        def seen(view: Found) -> tuple[TaskView, int]:
            self._seen = self._allowed(view)
            return self._seen, 0

        def looked(view: Found) -> None:
            broker.loop.call_soon_threadsafe(lambda: on_reply(answer_of(lambda: seen(view))))

        looks = self._session.tasks.looks
        if looks.ask(self._task_id, looked):
            broker.in_thread(looks.lead, lambda _: None)

    def is_it(self, reply: TaskView) -> bool:
        return reply.is_final


class ExpectedNews:
    """News for a worker."""

    def __init__(self, registry: Registry, worker_id: str) -> None:
        self._registry = registry
        self._worker_id = worker_id
        self._wake: Wake | None = None
        self._is_new = False

    def watch(self, wake: Wake) -> None:
        self._wake = wake
        self._registry.listen(self._worker_id, wake)

    def unwatch(self) -> None:
        if self._wake is not None:
            self._registry.unlisten(self._worker_id, self._wake)

    def is_at_hand(self) -> bool:
        return True

    def look(self) -> tuple[WorkerNews, int]:
        news, self._is_new = self._registry.take_news(self._worker_id)
        return news, 0

    def ask(self, broker: Broker, on_reply: OnReply) -> None:
        on_reply(self.look())

    def is_it(self, reply: WorkerNews) -> bool:
        return self._is_new


def stopping() -> Unavailable:
    """What new work is answered with while the broker drains."""
    return Unavailable("the broker is stopping", hint="reconnect in a moment, or to another address")


MANY: Final = 1_000  # tasks of one request: more take longer than a turn of the event loop should
# A dead letter is a copy, made when it is settled.
_MAY_READ_FILES: Final = ("failed", "dead")
# The outcomes of a run that its own finish can have made.
_ENDS: Final = {
    "completed": ("acked",),
    "failed": ("retried", "dead"),
    "dead": ("rejected", "dead"),
    "snoozed": ("snoozed",),
    "cancelled": ("cancelled",),
    "released": ("released",),
}


class Tasks:
    """Executes operations on tasks and workers. The callback forms reply exactly once, and never raise."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._session = broker.session

    def begin(self, client: Client, operation: ops.Operation[Any], on_reply: OnReply) -> Wait | None:
        """One of the operations of `BEGUN`; what it answers with can be taken back while it is not over."""
        wait: Wait | None = BEGUN[type(operation)](self, client, operation, on_reply)
        return wait

    async def begun(self, client: Client, operation: ops.Operation[Any]) -> Any:
        """Asyncio version of `begin()`: returns the reply, or raises it."""
        future: asyncio.Future[Any] = self._broker.loop.create_future()
        wait = self.begin(client, operation, partial(resolve, future))
        try:
            return raised(await future)
        except asyncio.CancelledError:
            if wait is not None:
                wait.cancel()
            raise

    # submitting and finishing

    def submit(self, client: Client, operation: ops.SubmitTasks, on_reply: OnReply) -> None:
        broker, tasks = self._broker, operation.tasks
        queues = dict.fromkeys(task.queue for task in tasks)
        if broker.refuse(client, Action.PUSH, queues, on_reply):
            return
        if broker.is_holding:
            broker.hold(partial(self.submit, client, operation, on_reply))
            return
        broker.flush()
        work = partial(self._submit, client, operation)
        self._run(work, _takes_long(tasks), min(queues, default=""), on_reply)

    def _submit(self, client: Client, operation: ops.SubmitTasks) -> tuple[Any, int]:
        self._broker.authorisation.require_parents(client, operation.tasks)
        return self._session.run(operation, client.identity)

    def finish(self, client: Client, operation: ops.FinishTasks, on_reply: OnReply) -> None:
        finishes = operation.finishes
        queues = dict.fromkeys(finish.receipt.queue for finish in finishes)
        if self._broker.refuse(client, Action.CONSUME, queues, on_reply, even_draining=True):
            return
        broker, started = self._broker, self._broker.clock.monotonic()

        def answered(answer: Any) -> None:
            if isinstance(answer, PenstockError):
                on_reply(broker.count("", answer))
                return
            errors, ticket = answer
            broker.meter.finished(
                [
                    (finish.task_type, finish.outcome, finish.run_seconds)
                    for finish, error in zip(finishes, errors, strict=True)
                    if error is None
                ]
            )
            reply = partial(broker.timed, "settle", started, on_reply)
            if operation.is_again and any(isinstance(error, LeaseLost) for error in errors):
                judged = partial(self._judged, finishes, errors)
                broker.in_thread(judged, lambda refusals: broker.confirmer.after(ticket, reply, refusals))
            else:
                broker.confirmer.after(ticket, reply, errors)

        work = partial(self._session.run, operation)
        reads_files = broker.shard.store is not None and any(finish.outcome in _MAY_READ_FILES for finish in finishes)
        if reads_files or len(finishes) > MANY:
            broker.in_thread(work, answered)
        else:
            answered(answer_of(work))

    def _judged(self, finishes: Sequence[Finish], errors: Sequence[PenstockError | None]) -> list[PenstockError | None]:
        """Of finishes that were sent before, those that the first try has ended are accepted."""
        return [
            None if isinstance(error, LeaseLost) and self._was_ended_by(finish) else error
            for finish, error in zip(finishes, errors, strict=True)
        ]

    def _was_ended_by(self, finish: Finish) -> bool:
        """Whether this finish has ended its run. Nobody else can have ended it so, with the attempt and the outcome."""
        try:
            view = self._session.tasks.task(finish.task_id)
        except TaskNotFound:
            return False
        if view.queue != finish.receipt.queue:  # access was asked for the queue of the receipt
            return False
        return any(run.attempt == finish.receipt.attempt and run.outcome in _ENDS[finish.outcome] for run in view.runs)

    def note_progress(self, client: Client, operation: ops.NoteProgress, on_reply: OnReply) -> None:
        if self._broker.refuse(client, Action.CONSUME, (operation.receipt.queue,), on_reply, even_draining=True):
            return
        answer = answer_of(lambda: self._session.run(operation))
        on_reply(self._broker.count(operation.receipt.queue, answer) if isinstance(answer, PenstockError) else None)

    # workers

    def heartbeat(self, client: Client, operation: ops.HeartbeatWorker, on_reply: OnReply) -> None:
        if self._broker.refuse(client, Action.CONSUME, operation.queues(), on_reply):
            return
        answer = answer_of(lambda: self._session.run(operation, owner=client.owner))
        on_reply(answer if isinstance(answer, PenstockError) else answer[0])

    def news(self, client: Client, operation: ops.AwaitNews, on_reply: OnReply) -> Wait | None:
        if self._broker.refuse(client, Action.CONSUME, operation.queues(), on_reply):
            return None
        worker_id = owned(client.owner, operation.worker_id)
        return self._wait(ExpectedNews(self._session.tasks.registry, worker_id), operation.wait_seconds, on_reply)

    # one task

    def wait(self, client: Client, operation: ops.WaitTask, on_reply: OnReply) -> Wait | None:
        refused = self._broker.draining()
        if refused is not None:
            on_reply(refused)
            return None
        allowed = partial(self._allowed, client, Action.READ, operation.task_id)
        expected = ExpectedTask(self._session, operation.task_id, allowed)
        return self._wait(expected, operation.wait_seconds, lambda answer: on_reply(self._shown(client, answer)))

    async def list(self, client: Client, operation: ops.ListTasks) -> TaskPage:
        """Search the tasks of the queues that the client may read."""
        filter = operation.filter
        page = await self._search(client, operation, filter, lambda index, may: index.page(filter, may))
        shown: TaskPage = await self._broker.authorisation.visible(client, operation, page)
        return shown

    async def suggest(self, client: Client, operation: ops.SuggestTasks) -> builtins.list[Suggestion]:
        """Complete a search of tasks, from those that the client may find by it."""
        filter = TaskFilter(argument="") if operation.field == "kwargs" else TaskFilter()
        about = (operation.field, operation.prefix, operation.limit)
        return await self._search(client, operation, filter, lambda index, may: index.suggest(*about, may))

    async def workflows(
        self, client: Client, operation: ops.ListWorkflows | ops.FindWorkflow
    ) -> WorkflowPage | WorkflowView:
        """Look at workflows, as far as their tasks are in queues that the client may read."""

        def look(index: TaskIndex, may: May) -> WorkflowPage | WorkflowView:
            if isinstance(operation, ops.FindWorkflow):
                return index.workflow(operation.workflow, may)
            return index.workflows(operation.limit, operation.cursor, may)

        found = await self._search(client, operation, TaskFilter(), look)
        shown: WorkflowPage | WorkflowView = await self._broker.authorisation.visible(client, operation, found)
        return shown

    async def _search(
        self,
        client: Client,
        operation: ops.Operation[Any],
        filter: TaskFilter,
        look: Callable[[TaskIndex, May], T],
    ) -> T:
        """Look into the task index, as far as the client may find tasks by such a filter."""
        broker = self._broker
        broker.authorisation.require(client, operation)
        broker.flush()
        with broker.counting(filter.queue or ""):
            may = broker.authorisation.tasks_filter(client, filter)
            return await asyncio.to_thread(lambda: look(self._session.tasks.caught_up(), may))

    def _shown(self, client: Client, answer: Any) -> Any:
        return self._broker.authorisation.task(client.principal, answer) if isinstance(answer, TaskView) else answer

    async def of_one(self, client: Client, operation: ops.FindTask | ops.CancelTask | ops.RetryTask) -> TaskView:
        """Look at a task, cancel it, or have it run once more."""
        try:
            return await self._of_one(client, operation)
        except PenstockError as error:
            self._broker.count("", error)
            raise

    async def _of_one(self, client: Client, operation: ops.FindTask | ops.CancelTask | ops.RetryTask) -> TaskView:
        action = operation.spec.action
        if action is not Action.READ:
            raised(self._broker.draining())
        view = await asyncio.to_thread(self._find, client, action, operation.task_id)
        if action is Action.READ:
            return await self._masked(client, view)
        view, ticket = await asyncio.to_thread(
            self._session.run, operation, client.identity, self._broker.audit.caller(client)
        )
        await self._broker.confirmer.confirmed(ticket)
        if not client.principal.may(Action.READ, view.queue):  # who may cancel it need not see what it holds
            return mask_of(EVERYTHING).task(view)
        return await self._masked(client, view)

    async def why(self, client: Client, operation: ops.WhyTask) -> TaskWait:
        """Why a task does not run. Parents in queues that the client may not read are left out."""
        broker = self._broker
        with broker.counting(""):
            view = await asyncio.to_thread(self._find, client, Action.READ, operation.task_id)
            found, ticket = await asyncio.to_thread(self._session.run, operation)
        await broker.confirmer.confirmed(ticket)
        principal = client.principal
        if not principal.may_everywhere(Action.READ):
            known = await asyncio.to_thread(self._session.tasks.queues_of, [task.task_id for task in found.parents])
            parents = [task for task in found.parents if principal.may(Action.READ, known.get(task.task_id, ""))]
            found = msgspec.structs.replace(found, parents=parents)
        mask = broker.authorisation.mask(principal, view.queue)
        return found if mask is None else msgspec.structs.replace(found, reasons=list(map(mask.reason, found.reasons)))

    async def _masked(self, client: Client, view: TaskView) -> TaskView:
        mask = self._broker.authorisation.mask(client.principal, view.queue)
        return view if mask is None else await asyncio.to_thread(mask.task, view)

    def _find(self, client: Client, action: Action, task_id: str) -> TaskView:
        """The task, if the client may do this with it."""
        try:
            return self._allowed(client, action, task_id, self._session.tasks.task(task_id))
        except TaskNotFound as error:
            return self._allowed(client, action, task_id, error)

    def _allowed(self, client: Client, action: Action, task_id: str, view: TaskView | PenstockError) -> TaskView:
        """The task that was looked up. Raises its error; access is checked before `TaskNotFound` is raised."""
        if isinstance(view, PenstockError) and not isinstance(view, TaskNotFound):
            raise view
        queue = view.queue if isinstance(view, TaskView) else ""
        self._broker.authorisation.require_hidden(client, action, f"task {task_id}", queue)
        if isinstance(view, TaskNotFound):
            raise view
        return view

    # helpers

    def _run(self, work: Callable[[], tuple[Any, int]], reads_files: bool, queue: str, on_reply: OnReply) -> None:
        broker = self._broker

        def answered(answer: Any) -> None:
            if isinstance(answer, PenstockError):
                on_reply(broker.count(queue, answer))
            else:
                broker.confirmer.after(answer[1], on_reply, answer[0])

        if reads_files:
            broker.in_thread(work, answered)
        else:
            answered(answer_of(work))

    def _wait(self, expected: Expected, seconds: float, on_reply: OnReply) -> Wait:
        wait = Wait(self._broker, expected, on_reply)
        wait.start(seconds)
        return wait


def _takes_long(tasks: Sequence[TaskSubmission]) -> bool:
    """Whether the event loop should not wait for it: the task index may have to be asked for parents."""
    return len(tasks) > MANY or any(task.depends_on for task in tasks)


# Operations that run on the event loop and call back, instead of running in a thread.
BEGUN: Final[dict[type, Callable[..., Wait | None]]] = {
    ops.SubmitTasks: Tasks.submit,
    ops.FinishTasks: Tasks.finish,
    ops.NoteProgress: Tasks.note_progress,
    ops.HeartbeatWorker: Tasks.heartbeat,
    ops.AwaitNews: Tasks.news,
    ops.WaitTask: Tasks.wait,
}
# Operations that the broker does not hand to the session as they are.
SPECIAL: Final[dict[type, Callable[..., Awaitable[Any]]]] = {
    **dict.fromkeys(BEGUN, Tasks.begun),
    **dict.fromkeys((ops.FindTask, ops.CancelTask, ops.RetryTask), Tasks.of_one),
    ops.ListTasks: Tasks.list,
    ops.SuggestTasks: Tasks.suggest,
    **dict.fromkeys((ops.ListWorkflows, ops.FindWorkflow), Tasks.workflows),
    ops.WhyTask: Tasks.why,
}
