"""`penstock.App` as users hold it: declaring tasks, enqueueing them, and how their runs end."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import Any

import msgspec
import pytest

import penstock
from penstock import App, Cancel, Middleware, Retry, Snooze, current_task
from penstock.errors import (
    Closed,
    InvalidField,
    InvalidName,
    ResultLost,
    TaskCancelled,
    TaskDied,
    TaskUnfinished,
    UnknownOption,
)


@pytest.fixture
def app():
    with App.in_memory() as app:
        yield app


class TestDeclaring:
    def test_a_task_stays_a_function(self, app):
        @app.task
        def add(a: int, b: int = 2) -> int:
            """Add."""
            return a + b

        assert add(1) == 3
        assert add.__name__ == "add"
        assert add.__doc__ == "Add."

    def test_an_async_task_stays_an_async_function(self, app):
        @app.task(queue="mail")
        async def send(to: str) -> str:
            return to

        coroutine = send("x")
        with pytest.raises(StopIteration) as ended:
            coroutine.send(None)
        assert ended.value.value == "x"

    def test_declaring_opens_nothing(self, tmp_path):
        app = App(tmp_path / "data")

        @app.task(cron="0 3 * * *")
        def nightly() -> None: ...

        app.queue("mail", max_attempts=2)
        assert not (tmp_path / "data").exists()

    def test_two_functions_cannot_share_a_name(self, app):
        @app.task(name="send")
        def first() -> None: ...

        with pytest.raises(InvalidField, match=r"'send': .*second would replace .*first"):

            @app.task(name="send")
            def second() -> None: ...

    def test_the_same_function_may_be_declared_again(self, app):
        def send() -> None: ...

        app.task(send)
        app.task(send)
        assert list(app.tasks) == ["send"]

    @pytest.mark.parametrize(
        ("options", "error", "text"),
        [
            ({"que": "mail"}, UnknownOption, "did you mean 'queue'"),
            ({"queue": "no such/name"}, InvalidName, "queue"),
            ({"priority": "urgent"}, InvalidField, "priority"),
            ({"max_attempts": 0}, InvalidField, "max_attempts"),
            ({"timeout": 0}, InvalidField, "timeout"),
            ({"timeout": "1"}, InvalidField, "timeout"),
            ({"unique": -1}, InvalidField, "unique"),
            ({"key": 3}, InvalidField, "key"),
            ({"takes": "some"}, InvalidField, "takes"),
            ({"fatal": "ValueError"}, InvalidField, "fatal"),
            ({"backoff_multiplier": 0.5}, InvalidField, "backoff_multiplier"),
            ({"timezone": "UTC"}, InvalidField, "cron"),
            ({"cron": "* * * * *", "missed": "later"}, InvalidField, "missed"),
            ({"cron": 5}, InvalidField, "cron"),
            ({"cron": "0 0 30 2 *"}, InvalidField, "schedule 'work': cron"),
            ({"cron": "0 3 * * *", "timezone": "Mars/Olympus"}, InvalidField, "schedule 'work': timezone"),
            ({"name": "<lambda>"}, InvalidName, "task"),
        ],
    )
    def test_an_option_that_is_wrong_is_named(self, app, options, error, text):
        def work() -> None: ...

        with pytest.raises(error, match=text):
            app.task(**options)(work)
        assert not app.tasks

    def test_a_function_without_a_name_asks_for_one(self, app):
        with pytest.raises(InvalidName, match="name="):
            app.task(lambda: None)

    def test_what_is_no_function_is_refused(self, app):
        with pytest.raises(InvalidField, match="not a function"):
            app.task("mail")

    def test_generators_are_refused(self, app):
        def some():
            yield 1

        async def more():
            yield 1

        for function in (some, more):
            with pytest.raises(InvalidField, match="is a generator"):
                app.task(function)

    def test_a_function_may_be_a_task_of_two_apps(self, app):
        with App.in_memory() as other:

            @app.task
            @other.task
            async def work() -> int:
                return 1

            job = work.enqueue()
            app.run_pending()
            assert job.result() == 1
            assert other.tasks["work"].is_async

    def test_a_schedule_needs_a_task_that_can_be_called_without_arguments(self, app):
        with pytest.raises(InvalidField, match="cannot be called without arguments"):

            @app.task(cron="* * * * *")
            def report(region: str) -> None: ...


class TestRunning:
    def test_a_result_comes_back(self, app):
        @app.task
        def add(a: int, b: int = 2) -> int:
            return a + b

        @app.task(queue="mail")
        async def send(to: str) -> str:
            return f"to {to}"

        jobs = [add.enqueue(1), add.enqueue(1, b=5), send.enqueue(to="x")]
        assert [job.status() for job in jobs] == ["pending"] * 3
        assert app.run_pending() == 3
        assert [job.result() for job in jobs] == [3, 6, "to x"]

    def test_a_failed_task_waits_for_its_backoff_and_dies_after_its_last_attempt(self, app):
        @app.task(max_attempts=2, backoff_base_seconds=10, backoff_jitter=0)
        def fail() -> None:
            raise ZeroDivisionError("on purpose")

        job = fail.enqueue()
        assert app.run_pending() == 1
        assert job.status() == "failed"
        app.advance(9)
        assert app.run_pending() == 0
        app.advance(1)
        assert app.run_pending() == 1
        with pytest.raises(
            TaskDied, match=r"(?s)'fail'.*died after 2 attempts.*in fail.*ZeroDivisionError: on purpose$"
        ):
            job.result()
        assert "penstock/tasks" not in job.info().error

    def test_dead_and_cancelled_tasks_can_be_retried(self, app):
        outcomes = iter([ValueError("no"), Cancel("not now"), None])

        @app.task(max_attempts=1)
        def work() -> str:
            outcome = next(outcomes)
            if outcome:
                raise outcome
            return "done"

        job = work.enqueue()
        states = []
        for _ in range(3):
            app.run_pending()
            states.append(job.status())
            if states[-1] != "completed":
                job.retry()
        assert states == ["dead", "cancelled", "completed"]
        assert job.result() == "done"

    @pytest.mark.parametrize("how", ["raise", "return"])
    def test_snooze_cancel_and_retry_are_raised_or_returned(self, app, how):
        wanted: list[Any] = [Snooze(60), Retry("again", delay=3), Cancel("enough")]
        attempts = []

        @app.task
        def work() -> Any:
            attempts.append(current_task().attempt)
            ending = wanted.pop(0)
            if how == "raise":
                raise ending
            return ending

        job = work.enqueue()
        app.run_pending()
        assert job.status() in ("scheduled", "pending")
        app.advance(60)
        app.run_pending()
        assert (job.status(), job.info().error) == ("failed", "again")
        app.advance(3)
        app.run_pending()
        with pytest.raises(TaskCancelled, match="enough"):
            job.result()
        assert attempts == [1, 1, 2]

    def test_what_is_meant_as_a_delay_is_not_taken_for_a_reason(self):
        for wrong in (lambda: Retry(3), lambda: Cancel(3), lambda: Snooze("60"), lambda: Retry(delay=-1)):  # type: ignore[arg-type]
            with pytest.raises(InvalidField):
                wrong()

    def test_an_error_that_no_attempt_would_mend_kills_at_once(self, app):
        @app.task(fatal=(KeyError, ValueError))
        def work() -> None:
            int("x")

        job = work.enqueue()
        app.run_pending()
        assert job.status() == "dead"

    def test_a_result_that_is_not_json_is_a_clear_failure(self, app):
        runs = []

        @app.task
        def work() -> object:
            runs.append(1)
            return object()

        job = work.enqueue()
        app.run_pending()
        with pytest.raises(ResultLost, match="'work', result: object cannot be written as JSON"):
            job.result()
        app.advance(3600)
        assert app.run_pending() == 0
        assert runs == [1]

    def test_a_result_over_the_limit_is_a_clear_failure(self, app):
        @app.task
        def work() -> str:
            return "x" * (1 << 20)

        job = work.enqueue()
        app.run_pending()
        with pytest.raises(ResultLost, match="1,048,578 bytes are over task_result_bytes_max, 1,048,576"):
            job.result()

    def test_a_task_that_leaves_the_process_fails(self, app):
        @app.task
        def work() -> None:
            sys.exit(3)

        job = work.enqueue()
        app.run_pending()
        assert (job.status(), job.info().error.splitlines()[-1]) == ("failed", "SystemExit: 3")

    def test_an_async_task_that_takes_too_long_is_broken_off_and_fails(self, app):
        import asyncio

        @app.task(timeout=0.001)
        async def work() -> None:
            await asyncio.Event().wait()

        job = work.enqueue()
        app.run_pending()
        assert job.status() == "failed"
        assert "longer than its timeout of 0.001 s" in job.info().error

    def test_a_kind_of_task_that_is_not_registered_is_refused_by_name(self, app):
        @app.task
        def known() -> None: ...

        @app.task
        def gone() -> None: ...

        job = gone.enqueue()
        del app._tasks["gone"]
        app.run_pending()
        assert job.status() == "failed"
        assert "'gone' is not a task of this app; known: known" in job.info().error

    def test_arguments_are_checked_again_where_they_run(self, app):
        @app.task
        def work(a: int) -> None: ...

        job = work.enqueue(1)
        del app._tasks["work"]

        @app.task(name="work")
        def changed(a: str) -> None: ...

        app.run_pending()
        assert "task 'work', argument 'a': expected `str`, got `int`" in job.info().error

    def test_progress_is_seen_from_outside(self, app):
        seen = []

        @app.task
        def work() -> None:
            current_task().progress({"done": 1, "of": 2})
            seen.append(app.job(current_task().id).progress())

        job = work.enqueue()
        assert job.progress() is None
        app.run_pending()
        assert seen == [{"done": 1, "of": 2}] == [job.progress()]

    def test_a_task_that_was_cancelled_while_it_ran_stays_cancelled(self, app):
        @app.task
        def work() -> int:
            app.job(current_task().id).cancel()
            return 1

        job = work.enqueue()
        app.run_pending()
        assert job.status() == "cancelled"

    def test_current_task_is_a_stand_in_where_nothing_runs(self, app):
        @app.task
        def work() -> int:
            current_task().progress(0.5)
            current_task().stop_if_cancelled()
            return current_task().attempt

        assert work() == 1
        assert current_task().id == ""

    def test_a_long_error_keeps_its_end(self, app):
        @app.task
        def work() -> None:
            raise ValueError("é" * 5000 + "the end")

        job = work.enqueue()
        app.run_pending()
        error = job.info().error
        assert error.startswith("…\n")
        assert error.endswith("the end")
        assert len(error.encode()) <= 4096

    def test_waiting_in_memory_says_what_to_do(self, app):
        @app.task
        def work() -> None: ...

        with pytest.raises(TaskUnfinished, match=r"is pending .*run_pending"):
            work.enqueue().result(timeout=5)

    def test_run_pending_leaves_other_messages_alone(self, app):
        app.penstock.queue("other").push(b"hello")
        assert app.run_pending() == 0
        assert app.penstock.queue("other").stats().ready == 1

    def test_a_message_that_is_no_task_is_rejected(self, app):
        @app.task
        def work() -> None: ...

        app.penstock.queue("default").push_many([b"hello", b"{}"])
        work.enqueue()
        assert app.run_pending() == 1
        assert len(app.penstock.queue("default").dlq.list()) == 2

    def test_run_pending_stops_at_its_limit(self, app):
        @app.task
        def again() -> None:
            raise Snooze(0)

        again.enqueue()
        assert app.run_pending(limit=7) == 7


class TestMiddleware:
    def test_hooks_run_around_the_task_in_order(self):
        reported: list[Any] = []

        class Told(Middleware):
            def __init__(self, name: str) -> None:
                self.name = name

            def enqueue(self, task):
                reported.append((self.name, "enqueue"))
                return msgspec.structs.replace(task, headers={**(task.headers or {}), self.name: "1"})

            def before(self, context):
                reported.append((self.name, "before", context.task_type))

            def after(self, context, ending):
                reported.append((self.name, "after", ending.outcome))

        with App.in_memory(middleware=[Told("a"), Told("b")]) as app:

            @app.task
            def work() -> None:
                reported.append("run")

            work.enqueue_many([()])
            app.run_pending()
        assert reported == [
            ("a", "enqueue"), ("b", "enqueue"), ("a", "before", "work"), ("b", "before", "work"), "run",
            ("b", "after", "completed"), ("a", "after", "completed"),
        ]  # fmt: skip

    def test_what_before_raises_is_how_the_run_ends(self):
        class Closed(Middleware):
            def before(self, context):
                raise Snooze(60)

        with App.in_memory(middleware=[Closed()]) as app:

            @app.task
            async def work() -> None:
                raise AssertionError("it must not run")

            job = work.enqueue()
            app.run_pending()
            assert job.info().error == ""
            assert job.status() == "scheduled"

    def test_what_is_no_middleware_is_refused(self):
        with pytest.raises(InvalidField, match="middleware"):
            App.in_memory(middleware=[Middleware])  # type: ignore[list-item]

    def test_what_after_raises_changes_nothing(self, caplog):
        class Broken(Middleware):
            def after(self, context, ending):
                raise ValueError("on purpose")

        with App.in_memory(middleware=[Broken()]) as app, caplog.at_level(logging.ERROR):

            @app.task
            def work() -> int:
                return 1

            job = work.enqueue()
            app.run_pending()
            assert job.result() == 1
        assert "after() of Broken failed" in caplog.text

    def test_a_run_that_is_broken_off_is_reported_to_the_middleware(self):
        outcomes = []

        class Told(Middleware):
            def after(self, context, ending):
                outcomes.append(ending.outcome)

        with App.in_memory(middleware=[Told()]) as app:

            @app.task(timeout=0.001)
            async def work() -> None:
                import asyncio

                await asyncio.Event().wait()

            work.enqueue()
            app.run_pending()
        assert outcomes == ["failed"]


def test_a_closed_app_says_so():
    app = App.in_memory()

    @app.task
    def work() -> None: ...

    app.close()
    app.close()
    with pytest.raises(Closed, match="App"):
        work.enqueue()


def test_importing_penstock_stays_light():
    script = (
        "import sys, penstock; print(*sorted({'numpy', 'pyarrow', 'asyncio', 'penstock.tasks.app'} & set(sys.modules)))"
    )
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert loaded.split() == []


def test_every_public_name_is_there():
    assert [name for name in penstock.__all__ if getattr(penstock, name, None) is None] == []
