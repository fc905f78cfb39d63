"""Tasks over the wire: waiting in parts, and answers that tell of each part."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

from penstock import operations as ops
from penstock.client._async.task_calls import wait_task as await_task
from penstock.client._sync.task_calls import wait_task
from penstock.clock import ManualClock
from penstock.model import Receipt
from penstock.model_tasks import Finish, Submitted, TaskState, TaskSubmission, TaskView
from penstock.remote.request import Request, execute
from penstock.remote.session import RemoteSession
from penstock.wire import requests
from penstock.wire.requests import encode

TASK = "0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"
OTHER = "0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5c"
PROOF = Receipt("mail", "0", 0, 1, 7)


def view(state: TaskState) -> TaskView:
    return TaskView(task_id=TASK, task_type="send", queue="mail", state=state, submitted_at=datetime.now(UTC))


class Asked:
    """Answers with states, one for each request, after the time that it was allowed."""

    def __init__(self, *states: TaskState) -> None:
        self.clock: Any = ManualClock()
        self.states = list(states)
        self.seconds: list[float] = []

    def answer(self, request: Request) -> TaskView:
        self.seconds.append(request.wait_seconds)
        self.clock.advance(request.wait_seconds)
        return view(self.states.pop(0))


class Blocking(Asked, RemoteSession):
    def ask(self, request: Request) -> Any:
        return self.answer(request)


class OnALoop(Asked, RemoteSession):
    async def ask(self, request: Request) -> Any:
        return self.answer(request)


def test_a_long_wait_is_made_of_short_ones():
    blocking: Any = Blocking(*[TaskState.RUNNING] * 3)
    assert wait_task(blocking, TASK, 150.0).state is TaskState.RUNNING
    assert blocking.seconds == [60.0, 60.0, 30.0]

    on_a_loop: Any = OnALoop(TaskState.RUNNING, TaskState.COMPLETED)
    assert asyncio.run(await_task(on_a_loop, TASK, 150.0)).state is TaskState.COMPLETED
    assert on_a_loop.seconds == [60.0, 60.0]


def test_a_look_without_patience_is_one_request():
    blocking: Any = Blocking(TaskState.PENDING)
    assert wait_task(blocking, TASK, 0.0).state is TaskState.PENDING
    assert blocking.seconds == [0.0]


def test_an_id_that_nobody_chose_is_new():
    tasks = [
        TaskSubmission(task_id=TASK, task_type="send", queue="mail"),
        TaskSubmission(task_id=TASK, task_type="send", queue="mail", is_named=True),
        TaskSubmission(task_id=TASK, task_type="send", queue="mail", unique_key="k"),
    ]
    reported = [Submitted(TASK, False), Submitted(TASK, False), Submitted(OTHER, False)]

    reply = execute(ops.SubmitTasks(tasks)).read(memoryview(encode(reported)))

    assert reply == [Submitted(TASK), Submitted(TASK, False), Submitted(OTHER, False)]


def test_a_finish_says_when_it_is_sent_again():
    request = execute(ops.FinishTasks([Finish(receipt=PROOF, task_id=TASK, outcome="completed")]))

    def is_again():
        call = requests.decode(b"".join(request.encode(0)), requests.Call)
        return requests.decode(bytes(call.arguments), ops.FinishTasks).is_again

    assert not is_again()
    request.sent = 1
    assert is_again()
