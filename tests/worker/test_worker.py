"""A worker over an app in memory: what it makes of tasks, and of everything that can go wrong with one."""

from __future__ import annotations

import asyncio
import sys
import threading

import pytest

from penstock import Message
from penstock import operations as ops
from penstock.clock import ManualClock
from penstock.errors import InputError
from penstock.model import ContentType, MessageId
from penstock.model_tasks import TaskState
from penstock.tasks.context import current_task
from penstock.tasks.endings import Cancel, Retry, Snooze
from penstock.tasks.middleware import Middleware
from penstock.worker import Worker
from tests.support.broker_loop import on_uvloop, until
from tests.support.workers import an_app, drained, extended, final, view_of, working


@on_uvloop
async def test_async_and_plain_functions_are_run_and_their_results_stored():
    async with an_app() as app:

        @app.task
        async def add(a: int, b: int) -> int:
            return a + b

        @app.task
        def multiply(a: int, b: int) -> int:
            return a * b

        jobs = [await each.aenqueue(20, number) for number in range(20) for each in (add, multiply)]
        worker = await drained(app, concurrency=4)

        views = [await view_of(app, job) for job in jobs]
    assert [view.state for view in views] == [TaskState.COMPLETED] * 40
    assert [view.result for view in views[:4]] == [b"20", b"0", b"21", b"20"]
    assert {view.worker for view in views} == {worker.settings.worker_id}
    assert worker.runtime.dispatcher.completed == 40


@on_uvloop
async def test_a_waiting_worker_starts_a_task_as_soon_as_it_is_there():
    async with an_app() as app:

        @app.task
        async def double(number: int) -> int:
            return 2 * number

        async with working(app):
            for number in range(3):
                job = await double.aenqueue(number)
                assert (await final(app, job)).result == str(2 * number).encode()


@on_uvloop
async def test_a_failure_is_reported_with_its_traceback_and_tried_again_until_it_is_dead():
    clock = ManualClock()
    async with an_app(clock) as app:

        @app.task(max_attempts=2)
        async def fail() -> None:
            raise ValueError("no such luck")

        job = await fail.aenqueue()
        await drained(app)
        view = await view_of(app, job)
        assert view.state == TaskState.FAILED
        assert 'raise ValueError("no such luck")' in view.error
        assert "penstock/worker" not in view.error

        clock.advance(seconds=5)
        await drained(app)
        assert (await view_of(app, job)).state == TaskState.DEAD


@on_uvloop
async def test_snooze_cancel_and_retry_are_not_failures():
    clock = ManualClock()
    async with an_app(clock) as app:

        @app.task(max_attempts=2)
        def end(how: str) -> None:
            raise {"snooze": Snooze(60), "cancel": Cancel("not needed"), "retry": Retry(delay=30)}[how]

        jobs = [await end.aenqueue(how) for how in ("snooze", "cancel", "retry")]
        await drained(app)
        snoozed, cancelled, retried = [await view_of(app, job) for job in jobs]

    assert (cancelled.state, cancelled.error) == (TaskState.CANCELLED, "not needed")
    assert snoozed.due_at is not None
    assert retried.due_at is not None
    assert round(snoozed.due_at.timestamp() * 1e6 - clock.now()) == 60_000_000
    assert round(retried.due_at.timestamp() * 1e6 - clock.now()) == 30_000_000


@on_uvloop
async def test_a_task_of_another_app_is_left_alone_and_why_says_that_no_worker_knows_it():
    async with an_app() as app:

        @app.task
        async def known() -> None: ...

        @app.task
        async def forgotten() -> None: ...

        job, own = await forgotten.aenqueue(), await known.aenqueue()
        task = app._tasks.pop(forgotten.name)
        async with working(app):
            await final(app, own)
            id = MessageId.parse((await view_of(app, job)).message_id)
            (reason,) = await (await app.open_async_session()).execute(ops.Why(id))
        left = await view_of(app, job)
        app._tasks[forgotten.name] = task
        await drained(app)
        view = await view_of(app, job)

    assert (left.state, left.attempt) == (TaskState.PENDING, 0)
    assert reason.code == "no_worker"
    assert repr(forgotten.name) in reason.text
    assert (view.state, view.attempt) == (TaskState.COMPLETED, 1)


@on_uvloop
async def test_two_apps_on_one_queue_do_not_take_each_others_tasks():
    async with an_app() as app:
        ran: list[str] = []

        @app.task
        async def mail(n: int) -> None:
            ran.append("mail")

        @app.task
        async def report(n: int) -> None:
            ran.append("report")

        mails = [await mail.aenqueue(n) for n in range(20)]
        reports = [await report.aenqueue(n) for n in range(20)]
        tasks = app._tasks
        app._tasks = {mail.name: tasks[mail.name]}
        async with working(app):
            app._tasks = {report.name: tasks[report.name]}
            async with working(app):
                views = [await final(app, job) for job in (*mails, *reports)]

    assert {(view.state, view.attempt) for view in views} == {(TaskState.COMPLETED, 1)}
    assert sorted(ran) == ["mail"] * 20 + ["report"] * 20


@on_uvloop
async def test_arguments_that_do_not_fit_are_fatal_and_the_error_names_the_argument():
    async with an_app() as app:

        @app.task(name="later")
        async def before(count: str) -> None: ...

        job = await before.aenqueue("many")

        @app.task(name="now")
        async def after(count: int) -> None: ...

        app._tasks["later"] = after
        await drained(app)
        view = await view_of(app, job)

    assert view.state == TaskState.DEAD
    assert "'count'" in view.error


@on_uvloop
async def test_results_that_cannot_be_stored_are_no_results():
    async with an_app() as app:

        @app.task
        async def give(what: str) -> object:
            return object() if what == "object" else "x" * (2 << 20)

        jobs = [await give.aenqueue("object"), await give.aenqueue("text")]
        await drained(app)
        views = [await view_of(app, job) for job in jobs]

    assert [(view.state, view.error) for view in views] == [(TaskState.COMPLETED, "")] * 2  # their work is done
    assert "object" in views[0].result_error
    assert "2097154 bytes" in views[1].result_error.replace(",", "")


@on_uvloop
async def test_a_message_that_is_no_task_is_left_alone_and_a_task_that_cannot_be_read_becomes_a_dead_letter():
    async with an_app() as app:

        @app.task(queue="mail")
        async def send() -> None: ...

        broken = Message(payload=b"{broken", content_type=ContentType.TASK)
        queue = app.penstock.queue("mail")
        await asyncio.to_thread(queue.push_many, [b"hello", broken])
        await drained(app)
        letters = await asyncio.to_thread(queue.dlq.list)
        left = (await asyncio.to_thread(queue.lease, 10)).payloads()

    assert [letter.payload for letter in letters] == [b"{broken"]
    assert left == [b"hello"]


@on_uvloop
async def test_a_handler_that_wants_to_exit_fails_and_the_worker_goes_on():
    async with an_app() as app:

        @app.task(max_attempts=1)
        async def leave() -> None:
            sys.exit(3)

        @app.task(max_attempts=1)
        def leave_plainly() -> None:
            raise KeyboardInterrupt

        @app.task(max_attempts=1)
        async def cancel_itself() -> None:
            raise asyncio.CancelledError

        jobs = [await each.aenqueue() for each in (leave, leave_plainly, cancel_itself)]
        await drained(app)
        views = [await view_of(app, job) for job in jobs]

    assert [view.state for view in views] == [TaskState.DEAD] * 3
    assert "SystemExit: 3" in views[0].error
    assert "KeyboardInterrupt" in views[1].error


@on_uvloop
async def test_no_more_run_at_once_than_there_are_slots():
    running, most = 0, 0
    lock = threading.Lock()
    async with an_app() as app:

        def count(step: int) -> None:
            nonlocal running, most
            with lock:
                running += step
                most = max(most, running)

        @app.task
        async def waits() -> None:
            count(1)
            await asyncio.sleep(0)
            count(-1)

        @app.task
        def works() -> None:
            count(1)
            count(-1)

        for task in (waits, works):
            await task.aenqueue_many([()] * 100)
        worker = await drained(app, concurrency=3, threads=2)

    assert worker.runtime.dispatcher.completed == 200
    assert most <= 3


@on_uvloop
async def test_a_worker_whose_threads_are_few_takes_at_most_one_that_cannot_start():
    go = threading.Event()
    async with an_app() as app:

        @app.task
        async def waits() -> None: ...

        @app.task
        def works() -> None:
            go.wait()

        jobs = await works.aenqueue_many([()] * 8)
        async with working(app, concurrency=8, threads=1) as worker:
            dispatcher = worker.runtime.dispatcher
            await until(lambda: dispatcher.buffered)
            held = dispatcher.running, dispatcher.buffered, dispatcher.room_for("default")
            go.set()
            states = [(await final(app, job)).state for job in jobs]

    assert held == (1, 1, 0)
    assert states == [TaskState.COMPLETED] * 8


@on_uvloop
async def test_every_queue_gets_its_turn():
    seen = []
    async with an_app() as app:

        @app.task(queue="busy")
        async def busy() -> None:
            seen.append("busy")

        @app.task(queue="calm")
        async def calm() -> None:
            seen.append("calm")

        await busy.aenqueue_many([()] * 500)
        jobs = await calm.aenqueue_many([()] * 3)
        async with working(app, concurrency=2, prefetch_max=10):
            for job in jobs:
                await final(app, job)

    assert seen.index("calm") < 100


@on_uvloop
async def test_progress_is_kept_with_the_task():
    go = asyncio.Event()
    async with an_app() as app:

        @app.task
        async def build() -> None:
            for percent in range(0, 101, 10):
                current_task().progress({"percent": percent})
            await go.wait()

        @app.task
        def pack() -> None:
            current_task().progress("packing")

        built, packed = await build.aenqueue(), await pack.aenqueue()
        async with working(app):
            while (await view_of(app, built)).progress != b'{"percent":100}':  # noqa: ASYNC110 - it is asked for
                await asyncio.sleep(0)
            go.set()
            await final(app, built)
            await final(app, packed)


@on_uvloop
async def test_what_a_task_tells_right_before_it_ends_is_kept():
    async with an_app() as app:

        @app.task
        async def build() -> None:
            for number in range(20):
                current_task().progress(number)
                await asyncio.sleep(0)

        @app.task
        def pack() -> None:
            for number in range(20):
                current_task().progress(number)

        jobs = [*await build.aenqueue_many([()] * 20), *await pack.aenqueue_many([()] * 20)]
        async with working(app):
            for job in jobs:
                await final(app, job)

        assert {(await view_of(app, job)).progress for job in jobs} == {b"19"}


@on_uvloop
async def test_a_child_gets_the_results_of_its_parents():
    async with an_app() as app:

        @app.task
        async def number(value: int) -> int:
            return value

        @app.task
        def total(numbers: list[int]) -> int:
            return sum(numbers)

        parents = [await number.aenqueue(value) for value in (3, 4)]
        child = await total.options(depends_on=parents, takes="all").aenqueue()  # type: ignore[call-arg]
        async with working(app):
            assert (await final(app, child)).result == b"7"


@on_uvloop
async def test_middleware_sees_every_run_and_the_worker_itself():
    seen = []

    class Noting(Middleware):
        def before(self, context):
            seen.append(f"before {context.attempt}")

        def after(self, context, ending):
            seen.append(f"after {ending.outcome}")

        def worker_started(self, worker_id):
            seen.append(f"started {worker_id}")

        def worker_stopped(self, worker_id):
            seen.append(f"stopped {worker_id}")

    async with an_app(middleware=[Noting()]) as app:

        @app.task
        def work() -> None: ...

        await work.aenqueue()
        await drained(app, worker_id="w-1")

    assert seen == ["started w-1", "before 1", "after completed", "stopped w-1"]


@on_uvloop
async def test_a_worker_is_seen_while_it_works_and_gone_when_it_has_stopped():
    clock = ManualClock()
    async with an_app(clock) as app:

        @app.task(queue="mail")
        async def send() -> None: ...

        session = await app.open_async_session()
        async with working(app, worker_id="w-1", concurrency=7, clock=clock):
            (seen,) = await session.execute(ops.Workers())
            for _ in range(4):
                clock.advance(seconds=15)
                before, seen = seen, (await session.execute(ops.Workers()))[0]
                while seen.last_heartbeat_at == before.last_heartbeat_at:
                    await asyncio.sleep(0)
                    (seen,) = await session.execute(ops.Workers())
        assert await session.execute(ops.Workers()) == []

    assert (seen.state, seen.info.worker_id, seen.info.queues) == ("alive", "w-1", ("mail",))
    assert (seen.info.concurrency, seen.info.task_types) == (7, (send.name,))
    assert seen.info.memory_bytes > 1_000_000


@on_uvloop
async def test_a_worker_whose_clock_is_wrong_by_hours_does_the_same():
    here, there = ManualClock(), ManualClock(1_000_000)
    go = asyncio.Event()
    async with an_app(here) as app:

        @app.task(timeout=3600)
        async def work() -> str:
            await go.wait()
            return "done"

        job = await work.aenqueue()
        async with working(app, clock=there):
            for _ in range(9):
                here.advance(seconds=10)
                there.advance(seconds=10)
                await extended(app, here)
            go.set()
            view = await final(app, job)

    assert (view.result, view.attempt) == (b'"done"', 1)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"threads": True}, "threads"),
        ({"processes": -1}, "processes"),
        ({"processes": 1}, "processes"),
        ({"lease_seconds": 0.1}, "lease_seconds"),
        ({"stop_seconds": -1}, "stop_seconds"),
        ({"queues": "mail"}, "queues"),
        ({"queues": []}, "queues"),
        ({"queues": ["no way"]}, "queue"),
        ({"worker_id": "a/b"}, "worker_id"),
    ],
)
@on_uvloop
async def test_options_that_make_no_sense_are_refused_by_name(options, field):
    async with an_app() as app:

        @app.task
        async def work() -> None: ...

        with pytest.raises(InputError, match=f"^{field}: "):
            Worker(app, **options)
