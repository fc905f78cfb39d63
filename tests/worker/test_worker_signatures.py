"""A worker of an app that signs: what nobody with a key has submitted is a dead letter that says why."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock import operations as ops
from penstock.clock import ManualClock
from penstock.envelopes import new_task_id, tasks_batch
from penstock.model_letters import DEAD_ERROR
from penstock.model_tasks import TaskState, TaskSubmission
from penstock.tasks.app import App
from penstock.tasks.signing import Signer
from tests.support.broker_loop import on_uvloop
from tests.support.workers import an_app, drained, view_of

KEY, OTHER, NEW = b"k" * 32, b"o" * 32, b"n" * 32
MISMATCH = "the signature of the task does not match it"


def with_work(app: App) -> list[int]:
    """The numbers with which the app's tasks have run."""
    ran: list[int] = []

    @app.task(name="work", max_attempts=3)
    async def work(number: int) -> None:
        ran.append(number)

    @app.task(name="other", max_attempts=3)
    async def other(number: int) -> None:
        ran.append(-number)

    @app.task(name="elsewhere", queue="elsewhere")
    async def elsewhere(number: int) -> None:
        ran.append(-number)

    return ran


def submission(clock: ManualClock, **fields: Any) -> TaskSubmission:
    known = {"task_id": new_task_id(clock.now()), "task_type": "work", "queue": "default", "args": b"[5]"}
    return TaskSubmission(**known | fields)


async def push(app: App, task: TaskSubmission) -> None:
    """As anybody does who may push to the queue."""
    session = await app.open_async_session()
    await session.push(task.queue, tasks_batch([task]), None, None)


async def error_of(app: App, task: TaskSubmission) -> str:
    session = await app.open_async_session()
    view = await session.execute(ops.FindTask(task.task_id))
    assert view.state == TaskState.DEAD
    letters = await session.execute(ops.DeadLetters(task.queue))
    assert [(letter.headers or {})[DEAD_ERROR] for letter in letters] == [view.error]
    return str(view.error)


@on_uvloop
async def test_a_task_without_a_signature_is_not_run():
    clock = ManualClock()
    async with an_app(clock, sign=KEY) as app:
        ran = with_work(app)
        task = submission(clock)
        await push(app, task)
        await drained(app)
        assert await error_of(app, task) == "the task is not signed"
    assert ran == []


@on_uvloop
async def test_a_task_that_another_key_signed_is_not_run():
    clock = ManualClock()
    async with an_app(clock, sign=KEY) as app:
        ran = with_work(app)
        task = Signer(OTHER).signed(submission(clock), clock.now())
        await push(app, task)
        await drained(app)
        assert await error_of(app, task) == MISMATCH
    assert ran == []


@pytest.mark.parametrize(
    "change",
    [
        {"task_id": "01a00000-0000-7000-8000-000000000000"},
        {"queue": "elsewhere"},
        {"task_type": "other"},
        {"args": b"[6]"},
    ],
    ids=["id", "queue", "type", "arguments"],
)
@on_uvloop
async def test_a_signature_that_was_copied_to_another_task_is_worth_nothing(change):
    clock = ManualClock()
    async with an_app(clock, sign=KEY) as app:
        ran = with_work(app)
        signed = Signer(KEY).signed(submission(clock), clock.now())
        copied = msgspec.structs.replace(signed, **change)
        await push(app, copied)
        await drained(app)
        assert await error_of(app, copied) == MISMATCH
        assert ran == []
        await push(app, signed)
        await drained(app)
    assert ran == [5]


@on_uvloop
async def test_a_signature_whose_time_is_over_is_worth_nothing():
    clock = ManualClock()
    async with an_app(clock, sign=KEY) as app:
        ran = with_work(app)
        signed = Signer(KEY).signed(submission(clock, ttl_seconds=60), clock.now())
        clock.advance(seconds=61)
        await push(app, msgspec.structs.replace(signed, ttl_seconds=None))  # whoever has copied it leaves that out
        await drained(app)
        assert await error_of(app, signed) == "the signature of the task has expired"
    assert ran == []


@on_uvloop
async def test_while_a_key_is_replaced_tasks_of_both_run_and_none_of_the_old_one_afterwards():
    clock = ManualClock()
    async with an_app(clock, sign=[NEW, KEY]) as app:
        ran = with_work(app)
        await push(app, Signer(KEY).signed(submission(clock, args=b"[1]"), clock.now()))
        job = await app.tasks["work"].aenqueue(2)
        await drained(app)
        assert sorted(ran) == [1, 2]
        assert (await view_of(app, job)).state == TaskState.COMPLETED
    async with an_app(clock, sign=[NEW]) as app:
        ran = with_work(app)
        late = Signer(KEY).signed(submission(clock), clock.now())
        await push(app, late)
        await drained(app)
        assert await error_of(app, late) == MISMATCH
    assert ran == []
