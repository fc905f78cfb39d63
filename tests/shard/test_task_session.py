"""The tasks of an embedded session: on an event loop, in the background, and for those who have none."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from functools import partial, wraps
from types import SimpleNamespace
from typing import Any

import pytest

from penstock import Penstock, aio
from penstock import operations as ops
from penstock.client._async import task_calls
from penstock.client._async.queue import Queue as AsyncQueue
from penstock.clock import ManualClock
from penstock.embedded.asynchronous import AsyncSession
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.envelopes import new_task_id, parse_envelope, tasks_batch
from penstock.errors import Closed, InvalidField, LeaseLost, StorageError, TaskNotFound
from penstock.model import Receipt
from penstock.model_tasks import Finish, ScheduleSpec, TaskFilter, TaskState, TaskSubmission, WorkerInfo
from penstock.shard.tasks import service
from penstock.task_index import database
from tests.behaviour.task_steps import Office, Run, in_thread, waiting
from tests.support.brokers import BrokerThread
from tests.support.operations import confirm, run_operation

SECONDS = 60  # nothing here takes that long; a hang fails instead of hanging


def on_a_loop(test):
    """Run a coroutine as a test."""

    @wraps(test)
    def run(*arguments, **options):
        asyncio.run(asyncio.wait_for(test(*arguments, **options), SECONDS))

    return run


@pytest.fixture(params=["memory", "file", "tcp", "http"])
def opened(request, tmp_path):
    """An asyncio handle, of which the tests use the session; and the session with the shard."""
    inside = Session(None if request.param == "memory" else tmp_path / "data")
    if request.param in ("memory", "file"):
        yield AsyncSession(inside), inside
    else:
        broker = BrokerThread(inside, protocol="penstock" if request.param == "tcp" else "http")
        yield aio.connect(broker.url)._session, inside
        broker.stop()
    inside.close()


def new(task_type: str = "send", **options) -> TaskSubmission:
    return TaskSubmission(**{"task_id": new_task_id(0), "task_type": task_type, "queue": "mail", **options})


async def lease(session, worker: str = "w1") -> list[tuple[str, Receipt]]:
    leased = await AsyncQueue(session, "mail").lease(100, wait=30, consumer=worker)
    return [(parse_envelope(delivery.payload).task_id, delivery.proof) for delivery in leased]


async def until(is_so) -> None:
    """Let everybody else run until something is so."""
    while not is_so():  # noqa: ASYNC110  what is waited for has no event: somebody has sat down to wait
        await asyncio.sleep(0)


@on_a_loop
async def test_the_whole_life_of_tasks_on_a_loop(opened):
    session, inside = opened
    await session.start()
    parent, child = new("parent"), new("child")
    child = new("child", task_id=child.task_id, depends_on=(parent.task_id,))
    assert [each.is_new for each in await session.execute(ops.SubmitTasks([child, parent]))] == [True, True]
    (late,) = await session.execute(ops.SubmitTasks([new("late", depends_on=(parent.task_id,))]))
    waits = asyncio.create_task(session.execute(ops.WaitTask(child.task_id, 60)))
    await until(lambda: len(inside.tasks.waiters))

    ((task_id, receipt),) = await lease(session)
    await session.execute(ops.NoteProgress(receipt, task_id, b"50"))
    assert (await session.execute(ops.FindTask(task_id))).progress == b"50"
    finish = Finish(receipt=receipt, task_id=task_id, outcome="completed", result=b"1")
    assert await session.execute(ops.FinishTasks([finish])) == [None]
    runs = dict(await lease(session))
    assert set(runs) == {child.task_id, late.task_id}
    done = Finish(receipt=runs[child.task_id], task_id=child.task_id, outcome="completed", result=b'"r"')
    assert await session.execute(ops.FinishTasks([done])) == [None]

    assert (await waits).result == b'"r"'
    assert len(inside.tasks.waiters) == 0
    assert (await session.execute(ops.CancelTask(late.task_id))).state is TaskState.CANCELLED
    (refusal,) = await session.execute(
        ops.FinishTasks([Finish(receipt=runs[late.task_id], task_id=late.task_id, outcome="completed")])
    )
    assert isinstance(refusal, LeaseLost)
    assert (await session.execute(ops.RetryTask(late.task_id))).state is TaskState.PENDING
    page = await session.execute(ops.ListTasks(TaskFilter(states=(TaskState.COMPLETED,))))
    assert {view.task_id for view in page.tasks} == {parent.task_id, child.task_id}
    view = await task_calls.run_operation(session, "purge", TaskFilter())
    assert view.purged == 3
    await session.close()


@on_a_loop
async def test_workers_and_schedules_on_a_loop(opened):
    session, inside = opened
    await session.start()
    await session.execute(ops.HeartbeatWorker(WorkerInfo(worker_id="w1")))
    task = new()
    await session.push("mail", tasks_batch([task]), None, None)
    ((task_id, _),) = await lease(session)
    news = asyncio.create_task(session.execute(ops.AwaitNews("w1", 60)))
    await until(lambda: inside.tasks.registry._mail)

    await session.execute(ops.CancelTask(task_id))

    assert (await news).cancelled == (task_id,)
    assert (await session.execute(ops.AwaitNews("w1", 0))).cancelled == ()
    assert [view.info.worker_id for view in await session.execute(ops.Workers())] == ["w1"]
    await session.execute(ops.ForgetWorker("w1"))
    assert await session.execute(ops.Workers()) == []
    spec = ScheduleSpec(name="tidy", cron="0 3 * * *", task_type="tidy", queue="mail")
    view = await session.execute(ops.SetSchedule(spec))
    assert await session.execute(ops.Schedules()) == [view]
    await session.execute(ops.DeleteSchedule("tidy"))
    assert await session.execute(ops.Schedules()) == []
    await session.close()


@on_a_loop
async def test_what_an_operator_wants_of_a_worker_wakes_whoever_waits_for_news_on_a_loop(opened):
    session, inside = opened
    await session.execute(ops.HeartbeatWorker(WorkerInfo(worker_id="w1")))
    news = asyncio.create_task(session.execute(ops.AwaitNews("w1", 60)))
    await until(lambda: any(box.wakes for box in inside.tasks.registry._mail.values()))

    await session.execute(ops.QuietWorker("w1"))

    assert (await asyncio.wait_for(news, SECONDS / 2)).requested == "quiet"
    await session.close()


@on_a_loop
async def test_hundreds_wait_at_once_and_whoever_stops_waiting_leaves_nothing():
    inside = Session(None)
    session = AsyncSession(inside)
    tasks = [new() for _ in range(300)]
    await session.push("mail", tasks_batch(tasks), None, None)
    waits = [asyncio.create_task(session.execute(ops.WaitTask(task.task_id, 60))) for task in tasks]
    given_up = asyncio.create_task(session.execute(ops.WaitTask(tasks[0].task_id, 60)))
    await until(lambda: len(inside.tasks.waiters) == len(tasks))
    given_up.cancel()

    finishes = [
        Finish(receipt=receipt, task_id=task_id, outcome="completed", result=f'"{task_id}"'.encode())
        for runs in [await lease(session) for _ in range(3)]
        for task_id, receipt in runs
    ]
    assert await session.execute(ops.FinishTasks(finishes)) == [None] * len(tasks)

    views = await asyncio.gather(*waits)
    assert [view.result for view in views] == [f'"{task.task_id}"'.encode() for task in tasks]
    await asyncio.gather(given_up, return_exceptions=True)
    assert len(inside.tasks.waiters) == 0
    await session.close()


@on_a_loop
async def test_closing_tells_whoever_waits_on_a_loop():
    inside = Session(None)
    session = AsyncSession(inside)
    task = new()
    await session.push("mail", tasks_batch([task]), None, None)
    waits = asyncio.create_task(session.execute(ops.WaitTask(task.task_id, 60)))
    news = asyncio.create_task(session.execute(ops.AwaitNews("w1", 60)))
    await until(lambda: len(inside.tasks.waiters) and inside.tasks.registry._mail)

    await session.close()

    for each in (waits, news):
        with pytest.raises(Closed):
            await each
    with pytest.raises(Closed):
        await session.execute(ops.FindTask(task.task_id))


# in the background


@pytest.fixture
def lazy_clerk(monkeypatch):
    """One that does nothing unless it is woken."""
    monkeypatch.setattr("penstock.shard.tasks.service.FOLLOW_SECONDS", 3600.0)


@pytest.fixture
def waits(tmp_path, lazy_clerk):
    """An office, and a way to wait in it for as long as it takes, which is over when the test is."""
    with Penstock(BlockingSession(Session(tmp_path))) as ps:
        office = Office(ps)
        rig: Any = SimpleNamespace(session=office.session.session)
        yield office, lambda task_id: waiting(rig, lambda: office.wait(task_id, 3600)).result


def test_the_clerk_tells_at_once_of_a_death_that_nobody_else_sees(waits, monkeypatch):
    monkeypatch.setattr("penstock.limits.task_attempts_lost_max", 1)
    office, wait = waits
    office.ps.create_queue("mail", lease_seconds=0.05, max_attempts=1)
    task_id = office.enqueue()
    office.lease_one()

    assert wait(task_id)(SECONDS).state is TaskState.DEAD


def test_the_clerk_tells_at_once_that_time_is_over_or_the_queue_is_empty_or_gone(waits):
    office, wait = waits
    expires = office.enqueue(ttl_seconds=0.05)
    assert wait(expires)(SECONDS).error == "it expired before it was run"

    for end in (ops.Purge, ops.DeleteQueue):
        answer = wait(office.enqueue())
        confirm(office.session, run_operation(office.session, end("mail")))
        assert answer(SECONDS).state is TaskState.CANCELLED


def test_the_timekeeper_gives_up_silent_workers(waits, monkeypatch):
    monkeypatch.setattr("penstock.shard.worker_registry.DEAD_US", 50_000)
    monkeypatch.setattr("penstock.limits.task_attempts_lost_max", 1)
    office, wait = waits
    office.ps.create_queue("mail", lease_seconds=3600, max_attempts=1)
    task_id = office.enqueue()
    office.lease_one(worker="w1")
    run_operation(office.session, ops.HeartbeatWorker(WorkerInfo(worker_id="w1")))

    assert wait(task_id)(SECONDS).state is TaskState.DEAD
    assert run_operation(office.session, ops.Workers())[0][0].state == "dead"


def test_a_task_index_from_before_is_followed_from_the_start(tmp_path):
    session = Session(tmp_path)
    office = Office(Penstock(BlockingSession(session)))
    task_id = office.enqueue()
    office.ids()
    session.close()

    session = Session(tmp_path)

    assert "penstock-clerk" in {thread.name for thread in threading.enumerate()}
    assert Office(Penstock(BlockingSession(session))).state(task_id) == "pending"
    session.close()
    assert "penstock-clerk" not in {thread.name for thread in threading.enumerate()}


# for those who have none


def test_who_has_no_tasks_pays_for_none(tmp_path):
    session = Session(tmp_path)
    queue = Penstock(BlockingSession(session)).queue("mail")
    queue.push(b"a")
    queue.lease()[0].ack()

    assert not (tmp_path / service.DIRECTORY).exists()
    assert "penstock-clerk" not in {thread.name for thread in threading.enumerate()}
    session.close()


def test_sqlite_is_loaded_by_those_who_have_tasks():
    code = "import sys, penstock; penstock.open_in_memory().close(); assert 'sqlite3' not in sys.modules"

    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_desk_knows_where_the_task_index_is():
    assert database.DIRECTORY == service.DIRECTORY


def test_final_tasks_are_kept_for_as_long_as_they_shall_be(tmp_path):
    clock = ManualClock()
    session = Session(tmp_path, clock=clock, background=False, task_retention_seconds=60)
    office = Office(Penstock(BlockingSession(session)))
    done, waits = office.push(office.new(), office.new())
    office.lease_one().finish()
    office.ids()

    clock.advance(61)
    session.tasks.follow()

    assert office.ids() == [waits]
    with pytest.raises(TaskNotFound):
        office.task(done)
    session.close()
    with pytest.raises(InvalidField, match="task_retention_seconds"):
        Session(None, task_retention_seconds=-1)


def test_results_reach_whoever_waits_whatever_comes_first(tmp_path):
    session = Session(tmp_path, durability="os")
    office = Office(Penstock(BlockingSession(session)))
    session.confirm(run_operation(session, ops.CreateQueue("mail", {}, exist_ok=False)))
    is_over = threading.Event()

    def work(worker: str) -> None:
        while not is_over.is_set():
            for delivery in office.ps.queue("mail").lease(3, wait=0.05, consumer=worker):
                run = Run(office, delivery)
                run.finish(result=run.task_id)

    def call() -> None:
        for _ in range(40):
            task_id = office.enqueue()
            assert office.state(task_id) in {"pending", "running", "completed"}
            assert office.wait(task_id, SECONDS).result == f'"{task_id}"'.encode()
            assert office.state(task_id) == "completed"

    workers = [in_thread(partial(work, f"w{number}")) for number in range(2)]
    for caller in [in_thread(call) for _ in range(4)]:
        caller.result(SECONDS)
    is_over.set()
    for worker in workers:
        worker.result(SECONDS)
    assert len(session.tasks.waiters) == 0
    session.close()


def test_a_task_index_that_cannot_be_used_holds_up_no_sealer_and_loses_nothing(tmp_path):
    path = tmp_path / "data"
    with Penstock(BlockingSession(Session(path, background=False))) as ps:
        first, second = Office(ps).push(new(), new())
        run_operation(ps.session, ops.Seal())
    in_its_way = path / database.NAME
    in_its_way.mkdir(parents=True)

    with Penstock(BlockingSession(Session(path, background=False))) as ps:
        office = Office(ps)
        office.lease_one().finish(result=1)
        with pytest.raises(StorageError, match=database.NAME):
            office.task(first)
        assert run_operation(office.session, ops.Seal()) == 1
    in_its_way.rmdir()

    with Penstock(BlockingSession(Session(path, background=False))) as ps:
        assert [Office(ps).state(task_id) for task_id in (first, second)] == ["completed", "pending"]
