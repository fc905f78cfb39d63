"""Tasks, workers and schedules, asked for by clients.

What takes the shard's lock only for a moment runs on the event loop, as pushes do; what may read a file, or the
task index, runs in a thread; waits hold no thread. Whether somebody may do something with a task depends on its queue,
which is looked up first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from penstock import operations as ops
from penstock.broker.access import Client
from penstock.broker.answers import Told, answer_of, raised, resolve
from penstock.broker.waits import Expected, ExpectedNews, ExpectedTask, Wait
from penstock.errors import LeaseLost, PenstockError, TaskNotFound
from penstock.model_tasks import Finish, TaskSubmission, TaskView
from penstock.operations import Action

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

MANY: Final = 1_000  # tasks of one request: so many take longer than a turn of the event loop should
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
    """See the module's rules. The callback forms tell once, and never raise."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._session = broker.session

    def begin(self, client: Client, given: ops.Operation[Any], told: Told) -> Wait | None:
        """One of the operations of `BEGUN`; what it answers with can be taken back while it is not over."""
        found: Wait | None = BEGUN[type(given)](self, client, given, told)
        return found

    async def begun(self, client: Client, given: ops.Operation[Any]) -> Any:
        """The same, awaited; raises."""
        future: asyncio.Future[Any] = self._broker.loop.create_future()
        wait = self.begin(client, given, partial(resolve, future))
        try:
            return raised(await future)
        except asyncio.CancelledError:
            if wait is not None:
                wait.cancel()
            raise

    # submitting and finishing

    def submit(self, client: Client, given: ops.SubmitTasks, told: Told) -> None:
        broker, tasks = self._broker, given.tasks
        refused = self._refused(client, Action.PUSH, (task.queue for task in tasks))
        if refused is not None:
            told(refused)
            return
        if broker.is_holding:
            broker.hold(partial(self.submit, client, given, told))
            return
        broker.flush()
        work = partial(self._session.run, given, client.identity)
        self._run(work, _takes_long(tasks), min((task.queue for task in tasks), default=""), told)

    def finish(self, client: Client, given: ops.FinishTasks, told: Told) -> None:
        finishes = given.finishes
        refused = self._refused(client, Action.CONSUME, (each.receipt.queue for each in finishes), even_draining=True)
        if refused is not None:
            told(refused)
            return
        broker, started = self._broker, self._broker.clock.monotonic()

        def answered(answer: Any) -> None:
            if isinstance(answer, PenstockError):
                told(broker.count("", answer))
                return
            errors, ticket = answer
            broker.meter.finished(
                [
                    (each.task_type, each.outcome, each.run_seconds)
                    for each, error in zip(finishes, errors, strict=True)
                    if error is None
                ]
            )
            tell = partial(broker.timed, "settle", started, told)
            if given.is_again and any(isinstance(each, LeaseLost) for each in errors):
                judged = partial(self._judged, finishes, errors)
                broker.in_thread(judged, lambda refusals: broker.confirmer.after(ticket, tell, refusals))
            else:
                broker.confirmer.after(ticket, tell, errors)

        work = partial(self._session.run, given)
        reads_files = broker.shard.store is not None and any(each.outcome in _MAY_READ_FILES for each in finishes)
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
        return any(run.attempt == finish.receipt.attempt and run.outcome in _ENDS[finish.outcome] for run in view.runs)

    def note_progress(self, client: Client, given: ops.NoteProgress, told: Told) -> None:
        refused = self._refused(client, Action.CONSUME, (given.receipt.queue,), even_draining=True)
        if refused is not None:
            told(refused)
            return
        answer = answer_of(lambda: self._session.run(given))
        told(self._broker.count(given.receipt.queue, answer) if isinstance(answer, PenstockError) else None)

    # workers

    def heartbeat(self, client: Client, given: ops.HeartbeatWorker, told: Told) -> None:
        refused = self._refused(client, Action.CONSUME, given.info.queues or ("",))
        if refused is not None:
            told(refused)
            return
        answer = answer_of(lambda: self._session.run(given))
        told(answer if isinstance(answer, PenstockError) else answer[0])

    def news(self, client: Client, given: ops.AwaitNews, told: Told) -> Wait | None:
        refused = self._refused(client, Action.CONSUME, ("",))
        if refused is not None:
            told(refused)
            return None
        return self._wait(ExpectedNews(self._session.tasks.registry, given.worker_id), given.seconds, told)

    # one task

    def wait(self, client: Client, given: ops.WaitTask, told: Told) -> Wait | None:
        refused = self._broker.draining()
        if refused is not None:
            told(refused)
            return None
        allowed = partial(self._allowed, client, Action.READ)
        return self._wait(ExpectedTask(self._session, given.task_id, allowed), given.seconds, told)

    async def of_one(self, client: Client, given: ops.FindTask | ops.CancelTask | ops.RetryTask) -> TaskView:
        """Look at a task, cancel it, or have it run once more."""
        try:
            return await self._of_one(client, given)
        except PenstockError as error:
            self._broker.count("", error)
            raise

    async def _of_one(self, client: Client, given: ops.FindTask | ops.CancelTask | ops.RetryTask) -> TaskView:
        action = given.spec.action
        if action is not Action.READ:
            raised(self._broker.draining())
        view = await asyncio.to_thread(self._find, client, action, given.task_id)
        if action is Action.READ:
            return view
        view, ticket = await asyncio.to_thread(self._session.run, given)
        await self._broker.confirmer.confirmed(ticket)
        return view

    def _find(self, client: Client, action: Action, task_id: str) -> TaskView:
        """The task, if the client may do this with it."""
        try:
            return self._allowed(client, action, self._session.tasks.task(task_id))
        except TaskNotFound as error:
            return self._allowed(client, action, error)

    def _allowed(self, client: Client, action: Action, found: TaskView | PenstockError) -> TaskView:
        """The same for what was found, or not."""
        if isinstance(found, PenstockError) and not isinstance(found, TaskNotFound):
            raise found
        self._broker.authorise(client.principal, action, found.queue if isinstance(found, TaskView) else "")
        if isinstance(found, TaskNotFound):
            raise found
        return found

    # helpers

    def _refused(
        self, client: Client, action: Action, queues: Iterable[str], *, even_draining: bool = False
    ) -> PenstockError | None:
        for queue in dict.fromkeys(queues):
            refused = self._broker.refused(client, action, queue, even_draining=even_draining)
            if refused is not None:
                return refused
        return None

    def _run(self, work: Callable[[], tuple[Any, int]], reads_files: bool, queue: str, told: Told) -> None:
        broker = self._broker

        def answered(answer: Any) -> None:
            if isinstance(answer, PenstockError):
                told(broker.count(queue, answer))
            else:
                broker.confirmer.after(answer[1], told, answer[0])

        if reads_files:
            broker.in_thread(work, answered)
        else:
            answered(answer_of(work))

    def _wait(self, expected: Expected, seconds: float, told: Told) -> Wait:
        wait = Wait(self._broker, expected, told)
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
}
