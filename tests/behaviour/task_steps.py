"""Steps of the scenarios about tasks: a caller who submits them, and a worker who runs them, over any session."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec

from penstock import Penstock
from penstock import operations as ops
from penstock.client._sync.delivery import Delivery
from penstock.envelopes import new_task_id, parse_envelope, tasks_batch
from penstock.errors import PenstockError
from penstock.model_tasks import Finish, TaskFilter, TaskSubmission, TaskView
from tests.behaviour.ways import Way
from tests.support.operations import confirm, run_operation, wait_task

T = TypeVar("T")
QUEUE = "mail"


class Run:
    """A task that a worker has leased."""

    def __init__(self, office: Office, delivery: Delivery) -> None:
        self._office = office
        self.delivery = delivery
        self.envelope = parse_envelope(delivery.payload)
        self.task_id = self.envelope.task_id

    def ending(self, outcome: Any, result: Any = None, **fields: Any) -> Finish:
        encoded = msgspec.json.encode(result)
        return Finish(
            receipt=self.delivery.proof, task_id=self.task_id, outcome=outcome, **{"result": encoded, **fields}
        )

    def finish(self, outcome: str = "completed", result: Any = None, **fields: Any) -> None:
        (refusal,) = self._office.finish([self.ending(outcome, result, **fields)])
        if refusal is not None:
            raise refusal

    def progress(self, value: Any) -> None:
        session = self._office.session
        confirm(
            session,
            run_operation(session, ops.NoteProgress(self.delivery.proof, self.task_id, msgspec.json.encode(value))),
        )


class Office:
    """Both sides of some tasks. Whatever returns is durable, as a user's call is."""

    def __init__(self, ps: Penstock) -> None:
        self.ps = ps
        self.session: Any = ps._session

    def confirmed(self, answer: tuple[T, int]) -> T:
        confirm(self.session, answer[1])
        return answer[0]

    # the caller

    def new(self, task_type: str = "send", **options: Any) -> TaskSubmission:
        task_id = options.pop("task_id", None) or new_task_id(0)
        return TaskSubmission(**{"task_id": task_id, "task_type": task_type, "queue": QUEUE, **options})

    def push(self, *tasks: TaskSubmission) -> list[str]:
        """As plain tasks are stored."""
        batch = tasks_batch(tasks)
        self.session.push(tasks[0].queue, batch, None, None)
        return [task.task_id for task in tasks]

    def enqueue(self, task_type: str = "send", **options: Any) -> str:
        (task_id,) = self.push(self.new(task_type, **options))
        return task_id

    def submit(self, *tasks: TaskSubmission) -> list[str]:
        """As those are stored that the queue alone cannot take care of."""
        return [each.task_id for each in self.confirmed(run_operation(self.session, ops.SubmitTasks(tasks)))]

    def task(self, task_id: str) -> TaskView:
        view: TaskView = self.confirmed(run_operation(self.session, ops.FindTask(task_id)))
        return view

    def state(self, task_id: str) -> str:
        return str(self.task(task_id).state)

    def wait(self, task_id: str, seconds: float = 0) -> TaskView:
        view: TaskView = self.confirmed(wait_task(self.session, task_id, seconds))
        return view

    def cancel(self, task_id: str) -> TaskView:
        view: TaskView = self.confirmed(run_operation(self.session, ops.CancelTask(task_id)))
        return view

    def retry(self, task_id: str) -> TaskView:
        view: TaskView = self.confirmed(run_operation(self.session, ops.RetryTask(task_id)))
        return view

    def ids(self, **wanted: Any) -> list[str]:
        """The ids of a whole listing, page by page."""
        found: list[str] = []
        cursor = None
        while True:
            page = self.confirmed(run_operation(self.session, ops.ListTasks(TaskFilter(cursor=cursor, **wanted))))
            found += [view.task_id for view in page.tasks]
            cursor = page.cursor
            if cursor is None:
                return found

    # the worker

    def lease(self, max: int = 100, queue: str = QUEUE, worker: str = "w1") -> list[Run]:
        return [Run(self, delivery) for delivery in self.ps.queue(queue).lease(max, consumer=worker)]

    def lease_one(self, **options: Any) -> Run:
        (run,) = self.lease(1, **options)
        return run

    def finish(self, finishes: list[Finish]) -> list[PenstockError | None]:
        refusals: list[PenstockError | None] = self.confirmed(run_operation(self.session, ops.FinishTasks(finishes)))
        return refusals

    def work(self, **options: Any) -> list[str]:
        """Complete whatever is there to be done; in what order."""
        done = []
        while runs := self.lease(1, **options):
            runs[0].finish(result=f"result of {runs[0].envelope.task_type}")
            done.append(runs[0].task_id)
        return done


def in_thread(call: Callable[[], T]) -> Future[T]:
    """The answer of a call in a thread of its own."""
    threads = ThreadPoolExecutor(1)
    future = threads.submit(call)
    threads.shutdown(wait=False)
    return future


def waiting(way: Way, call: Callable[[], T]) -> Future[T]:
    """As `in_thread`; returns once the shard knows that somebody waits for a task or a notification."""
    desk = way.session.tasks
    known = threading.Event()
    add, listen = desk.waiters.add, desk.registry.listen

    def note(register: Callable[..., Any]) -> Callable[..., Any]:
        def registered(*arguments: Any) -> Any:
            answer = register(*arguments)
            known.set()
            return answer

        return registered

    desk.waiters.add, desk.registry.listen = note(add), note(listen)  # type: ignore[method-assign]
    try:
        future = in_thread(call)
        assert known.wait(30)
    finally:
        desk.waiters.add, desk.registry.listen = add, listen  # type: ignore[method-assign]
    return future
