"""Tasks, workers and schedules, asked for by clients.

What takes the shard's lock only for a moment runs on the event loop, as pushes do; what may read a file, or the
catalogue, runs in a thread; waits hold no thread. Whether somebody may do something with a task depends on its queue,
which is looked up first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from penstock import validation
from penstock.broker.access import Action, Client
from penstock.broker.answers import Told, answer_of, raised, resolve
from penstock.broker.waits import Expected, ExpectedNews, ExpectedTask, Wait
from penstock.errors import LeaseLost, PenstockError, TaskNotFound
from penstock.model_tasks import Finish, TaskSubmission, TaskView
from penstock.wire import calls
from penstock.wire.errors import ErrorReply, to_reply

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

    def begin(self, client: Client, given: calls.Arguments, told: Told) -> Wait | None:
        """One of the operations of `BEGUN`; what it answers with can be taken back while it is not over."""
        found: Wait | None = BEGUN[type(given)](self, client, given, told)
        return found

    async def begun(self, client: Client, given: calls.Arguments) -> Any:
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

    def submit(self, client: Client, given: calls.SubmitTasks, told: Told) -> None:
        broker, tasks = self._broker, given.tasks
        refused = self._refused(client, Action.PUSH, (task.queue for task in tasks))
        if refused is not None:
            told(refused)
            return
        if broker.is_holding:
            broker.hold(partial(self.submit, client, given, told))
            return
        broker.flush()
        work = partial(self._session.submit_tasks, tasks, client.identity)
        self._run(work, _takes_long(tasks), min((task.queue for task in tasks), default=""), told)

    def finish(self, client: Client, given: calls.FinishTasks, told: Told) -> None:
        finishes = given.finishes
        refused = self._refused(client, Action.SETTLE, (each.receipt.queue for each in finishes), even_draining=True)
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
                broker.confirmer.after(ticket, tell, _refusals(errors))

        work = partial(self._session.finish_tasks, finishes)
        reads_files = broker.shard.store is not None and any(each.outcome in _MAY_READ_FILES for each in finishes)
        if reads_files or len(finishes) > MANY:
            broker.in_thread(work, answered)
        else:
            answered(answer_of(work))

    def _judged(self, finishes: Sequence[Finish], errors: Sequence[PenstockError | None]) -> dict[int, ErrorReply]:
        """The same for finishes that were sent before: those that the first try has ended are accepted."""
        return _refusals(
            [
                None if isinstance(error, LeaseLost) and self._was_ended_by(finish) else error
                for finish, error in zip(finishes, errors, strict=True)
            ]
        )

    def _was_ended_by(self, finish: Finish) -> bool:
        """Whether this finish has ended its run. Nobody else can have ended it so, with the attempt and the outcome."""
        try:
            view, _ = self._session.task(finish.task_id)
        except TaskNotFound:
            return False
        return any(run.attempt == finish.receipt.attempt and run.outcome in _ENDS[finish.outcome] for run in view.runs)

    def note_progress(self, client: Client, given: calls.NoteProgress, told: Told) -> None:
        refused = self._refused(client, Action.SETTLE, (given.receipt.queue,), even_draining=True)
        if refused is not None:
            told(refused)
            return
        answer = answer_of(lambda: self._session.note_progress(given.receipt, given.task_id, given.progress))
        told(self._broker.count(given.receipt.queue, answer) if isinstance(answer, PenstockError) else None)

    # workers

    def heartbeat(self, client: Client, given: calls.HeartbeatWorker, told: Told) -> None:
        refused = self._refused(client, Action.LEASE, given.info.queues or ("",))
        if refused is not None:
            told(refused)
            return
        answer = answer_of(lambda: self._session.heartbeat_worker(given.info))
        told(answer if isinstance(answer, PenstockError) else answer[0])

    def news(self, client: Client, given: calls.AwaitNews, told: Told) -> Wait | None:
        refused = self._refused(client, Action.LEASE, ("",))
        seconds = answer_of(lambda: validation.worker_id(given.worker_id) and validation.wait_seconds(given.seconds))
        if refused is not None or isinstance(seconds, PenstockError):
            told(refused or seconds)
            return None
        return self._wait(ExpectedNews(self._session.desk.registry, given.worker_id), seconds, told)

    # one task

    def wait(self, client: Client, given: calls.WaitTask, told: Told) -> Wait | None:
        seconds = answer_of(lambda: self._checked_wait(given))
        refused = self._broker.draining()
        if refused is not None or isinstance(seconds, PenstockError):
            told(refused or seconds)
            return None
        allowed = partial(self._allowed, client, Action.READ)
        return self._wait(ExpectedTask(self._session, validation.task_id(given.task_id), allowed), seconds, told)

    async def of_one(self, client: Client, given: calls.FindTask | calls.CancelTask | calls.RetryTask) -> TaskView:
        """Look at a task, cancel it, or have it run once more."""
        try:
            return await self._of_one(client, given)
        except PenstockError as error:
            self._broker.count("", error)
            raise

    async def _of_one(self, client: Client, given: calls.FindTask | calls.CancelTask | calls.RetryTask) -> TaskView:
        action, change = self._changes(given)
        if action is not Action.READ:
            raised(self._broker.draining())
        answer = await asyncio.to_thread(self._find, client, action, given.task_id)
        if change is not None:
            answer = await asyncio.to_thread(change, given.task_id)
        view, ticket = answer
        await self._broker.confirmer.confirmed(ticket)
        return view

    def _changes(self, given: Any) -> tuple[Action, Callable[[str], tuple[TaskView, int]] | None]:
        if isinstance(given, calls.CancelTask):
            return Action.ADMIN, self._session.cancel_task
        if isinstance(given, calls.RetryTask):
            return Action.ADMIN, self._session.retry_task
        return Action.READ, None

    def _find(self, client: Client, action: Action, task_id: str) -> tuple[TaskView, int]:
        """The task, if the client may do this with it."""
        try:
            view, ticket = self._session.task(task_id)
        except TaskNotFound as error:
            return self._allowed(client, action, error), 0
        return self._allowed(client, action, view), ticket

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

    @staticmethod
    def _checked_wait(given: calls.WaitTask) -> float:
        validation.task_id(given.task_id)
        return validation.wait_seconds(given.seconds)

    def _wait(self, expected: Expected, seconds: float, told: Told) -> Wait:
        wait = Wait(self._broker, expected, told)
        wait.start(seconds)
        return wait


def _takes_long(tasks: Sequence[TaskSubmission]) -> bool:
    """Whether the event loop should not wait for it: the catalogue may have to be asked for parents."""
    return len(tasks) > MANY or any(task.depends_on for task in tasks)


def _refusals(errors: Sequence[PenstockError | None]) -> dict[int, ErrorReply]:
    return {place: to_reply(error) for place, error in enumerate(errors) if error is not None}


# What is begun on the event loop and told, instead of being run in a thread.
BEGUN: Final[dict[type, Callable[..., Wait | None]]] = {
    calls.SubmitTasks: Tasks.submit,
    calls.FinishTasks: Tasks.finish,
    calls.NoteProgress: Tasks.note_progress,
    calls.HeartbeatWorker: Tasks.heartbeat,
    calls.AwaitNews: Tasks.news,
    calls.WaitTask: Tasks.wait,
}
