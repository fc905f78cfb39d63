"""Options of calls, jobs found again, queues and schedules that an app declares."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock import App, current_task
from penstock.clock import ManualClock
from penstock.errors import (
    InvalidField,
    InvalidName,
    ScheduleNotFound,
    TaskCancelled,
    TaskConflict,
    TaskNotFound,
    UnknownOption,
)
from penstock.model import to_datetime

NOON = int(datetime(2030, 1, 31, 12, tzinfo=UTC).timestamp()) * 1_000_000


@pytest.fixture
def clock():
    return ManualClock(NOON)


@pytest.fixture
def app(clock):
    with App.in_memory(clock=clock) as app:
        yield app


@pytest.fixture
def ran():
    return []


@pytest.fixture
def work(app, ran):
    @app.task
    def work(name: str = "", **more: Any) -> str:
        ran.append(name)
        return name

    return work


class TestOptions:
    def test_delay_and_deliver_at(self, app, work, ran):
        job = work.options(delay=60).enqueue("delayed")
        work.options(deliver_at=to_datetime(NOON) + timedelta(hours=1)).enqueue("at")
        work.options(deliver_at="2030-01-31T14:00:00Z").enqueue("text")
        assert job.status() == "scheduled"
        assert app.run_pending() == 0
        for seconds in (60, 3540, 3600):
            app.advance(seconds)
            app.run_pending()
        assert ran == ["delayed", "at", "text"]

    def test_priority(self, app, work, ran):
        for priority in ("low", "critical", 128):
            work.options(priority=priority).enqueue(str(priority))
        app.run_pending()
        assert ran == ["critical", "128", "low"]

    def test_a_task_whose_time_to_live_is_over_does_not_run(self, app, work):
        work.options(ttl=10).enqueue()
        app.advance(11)
        assert app.run_pending() == 0

    def test_options_add_up_and_leave_the_task_as_it_was(self, app, work):
        configured = work.options(queue="other", delay=5).options(delay=0, timeout=3)
        info = configured.enqueue().info()
        assert (info.queue, info.timeout_seconds, info.state) == ("other", 3.0, "pending")
        assert work.enqueue().info().queue == "default"
        assert app.run_pending() == 2

    def test_a_chosen_id_makes_enqueueing_repeatable(self, app, work, ran):
        id = uuid.uuid4()
        first, second = work.options(task_id=id).enqueue("a"), work.options(task_id=str(id)).enqueue("a")
        assert first == second == app.job(id)
        assert app.run_pending() == 1

    def test_a_key_comes_from_an_argument_a_function_or_the_call(self, app):
        @app.task(key="customer")
        def by_name(customer: int, amount: int = 0) -> None: ...

        @app.task(key=lambda order: order["customer"])
        def by_function(order: dict[str, str]) -> None: ...

        assert by_name.enqueue(7).info().key == "7"
        assert by_name.enqueue(customer=8).info().key == "8"
        assert by_name.enqueue_many([(9,), {"customer": 10}])[1].info().key == "10"
        assert by_function.enqueue({"customer": "x"}).info().key == "x"
        assert by_name.options(key="own").enqueue(7).info().key == "own"

        @app.task(key="nobody")
        def wrong(customer: int) -> None: ...

        with pytest.raises(InvalidField, match="argument 'nobody': the function has no such parameter"):
            wrong.enqueue(1)

    @pytest.mark.parametrize(
        ("options", "error", "text"),
        [
            ({"dealy": 1}, UnknownOption, "did you mean 'delay'"),
            ({"delay": -1}, InvalidField, "delay"),
            ({"delay": "1"}, InvalidField, "delay"),
            ({"deliver_at": datetime(2030, 1, 1)}, InvalidField, "deliver_at"),  # noqa: DTZ001 - that it has no zone
            ({"deliver_at": "tomorrow"}, InvalidField, "deliver_at"),
            ({"priority": 256}, InvalidField, "priority"),
            ({"key": 7}, InvalidField, "key"),
            ({"task_id": "7"}, InvalidField, "task_id"),
            ({"ttl": 0}, InvalidField, "ttl"),
            ({"queue": ""}, InvalidName, "queue"),
            ({"on_parent_failure": "ignore"}, InvalidField, "on_parent_failure"),
            ({"unique": 0.0}, InvalidField, "unique"),
            ({"headers": {"a": 1}}, InvalidField, "headers"),
            ({"timeout": float("nan")}, InvalidField, "timeout"),
        ],
    )
    def test_an_option_that_is_wrong_is_named(self, work, options, error, text):
        with pytest.raises(error, match=text):
            work.options(**options)

    def test_trace_and_headers_go_with_the_task_and_its_offspring(self, app, work):
        traces = []

        @app.task
        def parent() -> None:
            traces.append(current_task().trace)
            traces.append(work.enqueue().info().trace)

        trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
        parent.options(trace=trace, headers={"a": "b"}).enqueue()
        assert app.penstock.queue("default").read()[0].headers == {"a": "b"}
        app.run_pending()
        assert traces == [trace, trace]


class TestTransactions:
    def test_a_task_is_stored_with_the_rest_or_not_at_all(self, app, work, ran):
        orders = app.penstock.queue("orders")
        orders.push(b"x")
        (order,) = orders.lease()
        with suppress(ZeroDivisionError), app.penstock.transaction() as tx:
            work.enqueue_in(tx, "never")
            raise ZeroDivisionError
        with app.penstock.transaction() as tx:
            tx.ack(order)
            job = work.options(priority="high", key="k").enqueue_in(tx, "x")
            with pytest.raises(TaskNotFound):
                job.info()
        assert (job.info().priority, job.info().key) == (192, "k")
        assert app.run_pending() == 1
        assert (job.result(), ran, orders.stats().acked) == ("x", ["x"], 1)

    def test_what_needs_more_than_its_queue_is_refused(self, app, work):
        with app.penstock.transaction() as tx:
            for options in ({"unique": True}, {"depends_on": work.enqueue()}):
                with pytest.raises(InvalidField, match="part of a transaction"):
                    work.options(**options).enqueue_in(tx)
            with pytest.raises(InvalidField, match="argument 'name'"):
                work.enqueue_in(tx, 1)


class TestUnique:
    def test_one_at_a_time_by_arguments_however_they_are_given(self, app):
        @app.task(unique=True)
        def sync(user: int, full: bool = False) -> None: ...

        first = sync.enqueue(1)
        assert sync.enqueue(user=1) == first == sync.enqueue(1, full=False)
        assert sync.enqueue(2) != first
        assert sync.enqueue(1, True) != first
        assert app.run_pending() == 3
        assert sync.enqueue(1) != first

    def test_one_in_a_while(self, app):
        @app.task(unique=60)
        def sync(user: int) -> None: ...

        first = sync.enqueue(1)
        app.run_pending()
        assert sync.enqueue(1) == first
        app.advance(61)
        assert sync.enqueue(1) != first

    def test_by_a_key_of_ones_own(self, app):
        @app.task(unique=True, unique_key="user")
        def by_name(user: int, at: int) -> None: ...

        @app.task(unique=True, unique_key=lambda user, at: at)
        def by_function(user: int, at: int) -> None: ...

        assert by_name.enqueue(1, 2) == by_name.enqueue(1, 3) != by_name.enqueue(2, 3)
        assert by_function.enqueue(1, 2) != by_function.enqueue(1, 3) == by_function.enqueue(2, 3)
        assert by_name.options(unique=False).enqueue(1, 2) != by_name.enqueue(1, 2)
        assert len(set(by_name.enqueue_many([(5, 1), (5, 2), (6, 1)]))) == 2


class TestJobs:
    def test_jobs_are_found_by_what_is_known_of_them(self, app, work):
        @app.task(queue="mail", max_attempts=1)
        def fail(to: str) -> None:
            raise ValueError(f"cannot reach {to}")

        works = [work.enqueue("a"), work.options(delay=9).enqueue("b")]
        fails = [fail.enqueue("x"), fail.enqueue("y")]
        app.run_pending()
        found = lambda **wanted: {job.id for job in app.jobs(**wanted)}  # noqa: E731
        assert found() == {job.id for job in works + fails}
        assert found(status="dead") == found(queue="mail") == found(task_type=fail) == {job.id for job in fails}
        assert found(status=["completed", "scheduled"]) == found(task_type="work") == {job.id for job in works}
        assert found(argument="x") == found(error_contains="reach x") == {fails[0].id}
        assert found(submitted_since=to_datetime(NOON + 1)) == set()
        assert {job.view.state for job in app.jobs(task_type=fail) if job.view} == {"dead"}

    def test_pages_follow_each_other(self, app, work, monkeypatch):
        monkeypatch.setattr("penstock.tasks.job_search.PAGE", 3)
        jobs = work.enqueue_many(["x"] * 8)
        assert {job.id for job in app.jobs()} == {job.id for job in jobs}
        assert len(list(app.jobs(limit=5))) == 5
        assert len(list(app.jobs(limit=2))) == 2

        async def listed() -> list[str]:
            return [job.id async for job in app.ajobs(limit=7)]

        assert len(set(asyncio.run(listed()))) == 7

    @pytest.mark.parametrize(
        ("wanted", "error", "text"),
        [
            ({"state": "dead"}, UnknownOption, "did you mean 'status'"),
            ({"status": "ded"}, InvalidField, "did you mean 'dead'"),
            ({"limit": 0}, InvalidField, "limit"),
            ({"submitted_since": "yesterday"}, InvalidField, "submitted_since"),
        ],
    )
    def test_a_filter_that_is_wrong_is_named(self, app, wanted, error, text):
        with pytest.raises(error, match=text):
            app.jobs(**wanted)

    def test_a_job_can_be_cancelled_once(self, app, work):
        job = work.enqueue()
        assert job.cancel().state == "cancelled"
        assert app.run_pending() == 0
        with pytest.raises(TaskCancelled):
            job.result()

    def test_a_completed_job_is_not_retried(self, app, work):
        job = work.enqueue("x")
        app.run_pending()
        with pytest.raises(TaskConflict):
            job.retry()
        assert job.result() == "x"

    def test_a_job_that_nobody_knows(self, app):
        with pytest.raises(TaskNotFound):
            app.job(uuid.uuid4()).status()
        with pytest.raises(InvalidField, match="id: 'x' is not a UUID"):
            app.job("x")

    def test_the_result_of_a_job_found_by_id_has_its_type(self, app):
        @app.task
        def now() -> datetime:
            return datetime(2030, 1, 1, tzinfo=UTC)

        job = app.job(now.enqueue().id)
        app.run_pending()
        assert job.result() == datetime(2030, 1, 1, tzinfo=UTC)

    def test_jobs_can_be_forgotten(self, app, work):
        work.enqueue("a")
        app.run_pending()
        waiting = work.enqueue("b")
        assert app.purge(status="completed") == 1
        assert [job.id for job in app.jobs()] == [waiting.id]

    def test_the_same_on_an_event_loop(self, app):
        @app.task
        async def double(n: int) -> int:
            current_task().progress(n)
            return 2 * n

        async def scenario() -> list[Any]:
            one = await double.aenqueue(1)
            many = await double.aenqueue_many([2, 3])
            unique = await double.options(unique=True).aenqueue(4)
            late = await double.options(delay=60).aenqueue(5)
            reported: list[Any] = [await late.astatus(), await app.arun_pending()]
            reported += [await job.aresult() for job in (one, *many, unique)]
            reported += [await one.aprogress(), (await one.ainfo()).attempt]
            reported += [(await late.acancel()).state, (await late.aretry()).state]
            reported += [await app.apurge(status="completed")]
            return reported

        reported = asyncio.run(scenario())
        assert reported == ["scheduled", 4, 2, 4, 6, 8, 1, 1, "cancelled", "pending", 4]

    def test_an_async_task_under_a_running_loop_says_what_to_do(self, app):
        @app.task
        async def work() -> None: ...

        async def scenario() -> None:
            job = work.enqueue()
            with pytest.raises(InvalidField, match="arun_pending"):
                app.run_pending()
            await app.arun_pending()
            assert job.status() == "completed"

        asyncio.run(scenario())


class TestQueues:
    def test_a_declared_queue_has_its_options_from_the_first_use_on(self, app):
        mail = app.queue("mail", max_attempts=2, key_max_in_flight=1)

        @app.task(queue=mail)
        def send(to: str) -> None: ...

        assert app.queues == {"mail": {"max_attempts": 2, "key_max_in_flight": 1}}
        assert app.penstock.queues() == []
        send.enqueue("x")
        assert app.penstock.queue("mail").options().key_max_in_flight == 1

    def test_a_queue_that_is_there_is_brought_to_the_declared_options(self, app):
        app.penstock.create_queue("mail", max_attempts=9, lease_seconds=77)
        app.queue("mail", max_attempts=2)
        app.declare()
        options = app.penstock.queue("mail").options()
        assert (options.max_attempts, options.lease_seconds) == (2, 77)

    def test_a_declaration_that_is_wrong_is_refused_at_once(self, app):
        with pytest.raises(UnknownOption, match="max_attempts"):
            app.queue("mail", max_attempt=2)
        app.queue("mail", max_attempts=2)
        with pytest.raises(InvalidField, match="already declared"):
            app.queue("mail", max_attempts=3)
        assert app.queue("mail").options == {"max_attempts": 2}

    def test_tasks_that_name_no_queue_go_to_that_of_the_app(self):
        with App.in_memory(queue="mine") as app:

            @app.task
            def work() -> None: ...

            assert work.enqueue().info().queue == "mine"


class TestSchedules:
    def test_a_task_with_a_cron_runs_once_per_tick(self, app):
        ticks = []

        @app.task(cron="0 * * * *", timezone="Europe/Berlin")
        def hourly() -> None:
            ticks.append(current_task().scheduled_at)

        assert app.run_pending() == 0
        assert [view.spec.name for view in app.schedules()] == ["hourly"]
        for _ in range(2):
            app.advance(3600)
            app.run_pending()
            app.run_pending()
        assert ticks == [datetime(2030, 1, 31, 13, tzinfo=UTC), datetime(2030, 1, 31, 14, tzinfo=UTC)]

    def test_a_schedule_by_hand_with_arguments(self, app, work, ran):
        view = app.schedule("eu", "30 12 * * *", work.options(priority="high").s("eu"), timezone="UTC")
        assert view.next_at == datetime(2030, 1, 31, 12, 30, tzinfo=UTC)
        app.advance(1800)
        app.run_pending()
        assert ran == ["eu"]
        assert next(iter(app.jobs(schedule="eu"))).info().priority == 192
        app.delete_schedule("eu")
        assert app.schedules() == []
        with pytest.raises(ScheduleNotFound):
            app.delete_schedule("eu")

    def test_ticks_that_were_missed(self, app, work, ran):
        app.schedule("skip", "0 * * * *", work.s("skip"))
        app.schedule("all", "0 * * * *", work.s("all"), missed="catch_up")
        app.schedule("none", "0 * * * *", work.s("none"), is_paused=True)
        app.advance(3 * 3600)
        app.run_pending()
        assert ran.count("all") == 3
        assert ran.count("skip") <= 1
        assert "none" not in ran

    def test_a_paused_schedule_stays_paused_when_it_is_declared_again(self, app, ran):
        @app.task(cron="0 * * * *")
        def hourly() -> None:
            ran.append(1)

        app.declare()
        assert app.pause_schedule("hourly").next_at is None
        app.declare()
        app.advance(7200)
        app.run_pending()
        assert ran == []
        assert app.resume_schedule("hourly").next_at == datetime(2030, 1, 31, 15, tzinfo=UTC)
        app.advance(3600)
        app.run_pending()
        assert ran == [1]
        with pytest.raises(ScheduleNotFound, match="'daily'"):
            app.pause_schedule("daily")

    def test_those_that_the_code_declares_no_more_are_ended_when_somebody_says_so(self, app, work):
        def nothing() -> None: ...

        for name in ("stays", "goes"):
            app.task(name=name, cron="@hourly")(nothing)
        app.declare()
        app.schedule("by_hand", "@hourly", work.s("x"))
        app.pause_schedule("goes")
        newer, other = App(), App(queue="others")
        newer.task(name="stays", cron="@hourly")(nothing)
        other.task(name="others", cron="@hourly")(nothing)
        newer._sessions = other._sessions = app._sessions
        other.declare()
        newer.declare()
        assert len(app.schedules()) == 4

        assert newer.prune_schedules() == ["goes"]

        assert [view.spec.name for view in app.schedules()] == ["by_hand", "others", "stays"]
        assert newer.prune_schedules() == asyncio.run(newer.aprune_schedules()) == []
        app.declare()
        assert asyncio.run(newer.aprune_schedules()) == ["goes"]

    def test_the_same_on_an_event_loop(self, app, work):
        async def scenario() -> list[str]:
            await app.aschedule("eu", "@hourly", work)
            assert (await app.apause_schedule("eu")).next_at is None
            assert (await app.aresume_schedule("eu")).next_at is not None
            found = [view.spec.name for view in await app.aschedules()]
            await app.adelete_schedule("eu")
            return found + [view.spec.name for view in await app.aschedules()]

        assert asyncio.run(scenario()) == ["eu"]

    def test_a_schedule_that_is_wrong_is_refused(self, app, work):
        @app.task
        def needs(name: str) -> None: ...

        for arguments, options, text in [
            (("x", "61 * * * *", work), {}, "cron"),
            (("x", "* * * * *", work), {"timezone": "Mars/Olympus"}, "timezone"),
            (("x", "* * * * *", work), {"missed": "never"}, "missed"),
            (("x", "* * * * *", needs), {}, "without arguments"),
            (("x", "* * * * *", needs.s(1)), {}, "argument 'name'"),
            (("x", "* * * * *", work.options(delay=5)), {}, "delay cannot be used with a schedule"),
            (("x", "* * * * *", "work"), {}, "neither a task nor a step"),
        ]:
            with pytest.raises(InvalidField, match=text):
                app.schedule(*arguments, **options)
        with pytest.raises(InvalidName):
            app.schedule("no name", "* * * * *", work)
        assert app.schedules() == []
