"""Where an app keeps its tasks: a directory, a broker over TCP or HTTP, memory; from threads, loops and forks."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator

import pytest

from penstock import App, chain, group
from penstock.embedded.session import Session
from penstock.errors import Closed, InvalidField, TaskUnfinished
from penstock.tasks.sessions import SessionFactory, Sessions
from penstock.worker import Worker
from tests.support.brokers import BrokerThread


@pytest.fixture(params=["penstock", "http"])
def url(request) -> Iterator[str]:
    session = Session(None, durability="os")
    broker = BrokerThread(session, protocol=request.param)
    yield broker.url
    broker.stop()
    session.close()


def adding(app: App):
    @app.task(queue="sums")
    def add(a: int, b: int = 1) -> int:
        return a + b

    return add


def drain(app: App) -> None:
    """A worker on a loop of its own does everything there is to do."""

    async def work() -> None:
        await Worker(app, drain=True).run()
        await app.aclose_loop()

    asyncio.run(work())


def test_tasks_in_a_directory_survive_the_app(tmp_path):
    with App(tmp_path / "data") as app:
        job = adding(app).enqueue(1, 2)
        flow = chain(adding(app).s(1), adding(app).s(5)).enqueue()
    with App(str(tmp_path / "data")) as app:
        adding(app)
        drain(app)
        assert app.job(job.id).result(timeout=30) == 3
        assert app.job(flow.end_ids[0]).result() == 7


def test_tasks_at_a_broker(url):
    with App(url) as app, App(url) as workers:
        add = adding(app)
        adding(workers)
        job = add.enqueue(1)
        many = add.enqueue_many([(n, n) for n in range(50)])
        once = add.options(unique=True, delay=3600).enqueue(9)
        flow = group(add.s(1), add.s(2)).enqueue()
        with pytest.raises(TaskUnfinished):
            job.result(timeout=0)
        drain(workers)
        assert app.workers() == []
        assert job.result(timeout=30) == 2
        assert [each.result() for each in many] == [2 * n for n in range(50)]
        assert flow.result() == [2, 3]
        assert (job.status(), job.progress()) == ("completed", None)
        assert (once.status(), once.cancel().state, once.retry().state) == ("scheduled", "cancelled", "pending")
        assert len(list(app.jobs(status="completed", task_type=add))) == 53
        app.schedule("nightly", "0 3 * * *", add.s(1), timezone="Europe/Berlin")
        assert [view.spec.name for view in app.schedules()] == ["nightly"]
        with pytest.raises(InvalidField, match="cron"):
            app.schedule("nightly", "never", add.s(1))


def test_tasks_at_a_broker_from_an_event_loop(url):
    async def scenario() -> list[object]:
        async with App(url) as app:
            add = adding(app)
            worker = Worker(app)
            working = asyncio.create_task(worker.run())
            jobs = await asyncio.gather(*(add.aenqueue(n) for n in range(20)))
            results = await asyncio.gather(*(job.aresult(timeout=30) for job in jobs))
            flow = await chain(add.s(1), add.s(2)).aenqueue()
            reported = [results, await flow.aresult(timeout=30)]
            assert [view.info.queues for view in await app.aworkers()] == [("sums",)]
            worker.stop()
            await working
            return reported

    assert asyncio.run(scenario()) == [list(range(1, 21)), 4]


def test_whoever_waits_for_a_result_is_woken(tmp_path):
    """The wait begins before there is a worker; nothing but the result can end it."""
    with App(tmp_path / "data") as app:
        job = adding(app).enqueue(1)
        results: list[int] = []
        waiting = threading.Thread(target=lambda: results.append(job.result()))
        waiting.start()
        drain(app)
        waiting.join(60)
        assert results == [2]


def test_threads_share_one_session_and_loops_have_their_own(tmp_path):
    opened: list[object] = []

    class Counted(SessionFactory):
        def open(self):
            opened.append(None)
            return super().open()

    sessions = Sessions(Counted(tmp_path / "data", clock=App().clock))
    start = threading.Barrier(8)
    seen = []

    def ask() -> None:
        start.wait()
        seen.append(sessions.blocking())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    async def ask_twice():
        return await asyncio.gather(sessions.asynchronous(), sessions.asynchronous())

    first, second = asyncio.run(ask_twice()), asyncio.run(ask_twice())
    assert len(opened) == 1
    assert len({id(session) for session in seen}) == 1
    assert first[0] is first[1] is not second[0]
    sessions.close()


def test_a_forked_process_opens_its_own(monkeypatch, url):
    app = App(url)
    before = app.open_session()
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    after = app.open_session()
    assert after is not before
    assert after is app.open_session()
    app.close()
    before.close()


def test_a_closed_app_opens_nothing_any_more(tmp_path):
    app = App(tmp_path / "data")
    adding(app).enqueue(1)

    async def scenario() -> None:
        await app.open_async_session()
        await app.aclose()
        with pytest.raises(Closed):
            await app.open_async_session()

    asyncio.run(scenario())
    with pytest.raises(Closed):
        app.open_session()


def test_an_address_that_is_none_is_refused_at_once():
    with pytest.raises(InvalidField, match="url"):
        App("ftp://localhost")
    with pytest.raises(InvalidField, match="url"):
        App([])


def test_an_app_may_name_several_brokers():
    assert SessionFactory(["penstock://a:1", "penstock://b:1"], clock=App().clock).is_remote
    assert not SessionFactory("./data", clock=App().clock).is_remote
