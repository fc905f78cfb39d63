"""Live events of topics that are sampled: all rows at once, then what has changed, to who may see it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, Self

from penstock import operations as ops
from penstock.batch import Batch
from penstock.broker.sampled_topics import SAMPLES
from penstock.model import Outcome
from penstock.model_tasks import BulkOptions, ScheduleSpec
from penstock.requests import LeaseRequest, Settling
from tests.server.test_websocket import Talk, serving
from tests.server.test_websocket_tasks import submit, task
from tests.support.broker_loop import SOMEONE, on_uvloop


async def hear(talk: Talk, event: str) -> dict[str, Any]:
    """The next event of this kind."""
    while True:
        heard = await talk.hear("event")
        if heard["event"] == event:
            return heard


async def kill(broker: Any, queue: str) -> None:
    """Push a message and reject it."""
    await broker.pushed(SOMEONE, queue, Batch.build([b"a"]))
    reply = await broker.leased(SOMEONE, queue, "default", LeaseRequest(1))
    await broker.settled_lease(SOMEONE, reply.nonce, Settling(Outcome.REJECTED, error="no"))


@on_uvloop
async def test_counts_of_tasks_come_at_once_and_when_they_change():
    async with serving() as (broker, _, connect), connect() as talk:
        await submit(broker, task("mail"), task("sms"))
        await talk.ask("events", "subscribed", subscription="t", topics=["task_counts"])
        first = await hear(talk, "task_counts")
        await submit(broker, task("mail"))
        second = await hear(talk, "task_counts")

        assert {row["queue"]: row["pending"] for row in first["counts"]} == {"mail": 1, "sms": 1}
        assert [(row["queue"], row["pending"]) for row in second["counts"]] == [("mail", 2)]


@on_uvloop
async def test_operations_dead_letters_and_schedules_are_reported_when_they_change():
    async with serving() as (broker, _, connect), connect() as talk:
        await talk.ask(
            "events", "subscribed", subscription="t", topics=["operations", "dead_letters", "schedules", "cluster"]
        )
        firsts = {name: await hear(talk, name) for name in ("operations", "dead_letters", "schedules", "cluster")}
        assert [firsts[name][name] for name in ("operations", "dead_letters", "schedules")] == [[], [], []]
        assert firsts["cluster"]["cluster"][0]["location"] == ""

        await kill(broker, "mail")
        assert (await hear(talk, "dead_letters"))["dead_letters"] == [{"queue": "mail", "dead": 1}]
        view = await broker.execute(SOMEONE, ops.DiscardLetters("mail"))
        heard = (await hear(talk, "operations"))["operations"]
        assert (heard[0]["operation_id"], heard[0]["action"]) == (view.operation_id, "discard")
        spec = ScheduleSpec(name="nightly", cron="0 3 * * *", queue="mail", task_type="tidy", args=b'["secret"]')
        await broker.execute(SOMEONE, ops.SetSchedule(spec))
        (schedule,) = (await hear(talk, "schedules"))["schedules"]
        assert (schedule["name"], schedule["args"]) == ("nightly", [])
        await broker.execute(SOMEONE, ops.DeleteSchedule("nightly"))
        assert (await hear(talk, "schedules"))["gone"] == ["nightly"]


@on_uvloop
async def test_only_queues_that_were_asked_for_are_in_it():
    async with serving() as (broker, _, connect), connect() as talk:
        await kill(broker, "mail")
        await kill(broker, "sms")
        await talk.ask("events", "subscribed", subscription="t", topics=["dead_letters"], queues=["sms"])

        assert (await hear(talk, "dead_letters"))["dead_letters"] == [{"queue": "sms", "dead": 1}]


@on_uvloop
async def test_all_counters_come_each_time_to_who_wants_that():
    async with serving() as (broker, _, connect), connect() as talk:
        await broker.execute(SOMEONE, ops.CreateQueue("a"))
        await broker.execute(SOMEONE, ops.CreateQueue("b"))
        await talk.ask("events", "subscribed", subscription="t", changed_only=False, interval_ms=100)

        for _ in range(3):
            assert {row["name"] for row in (await hear(talk, "counters"))["counters"]} >= {"a", "b"}


async def kill_many(broker: Any, queue: str, count: int) -> None:
    """Push messages and reject them all."""
    await broker.pushed(SOMEONE, queue, Batch.build([b"a"] * count))
    reply = await broker.leased(SOMEONE, queue, "default", LeaseRequest(count))
    await broker.settled_lease(SOMEONE, reply.nonce, Settling(Outcome.REJECTED, error="no"))


async def hear_until(talk: Talk, state: str) -> dict[str, Any]:
    """The operation, as soon as an event shows it in this state."""
    while True:
        for row in (await hear(talk, "operations"))["operations"]:
            if row["status"] == state:
                return dict(row)


@on_uvloop
async def test_an_operation_that_was_continued_is_reported_until_it_is_done():
    async with serving() as (broker, _, connect), connect() as talk:
        await kill_many(broker, "mail", 600)
        await talk.ask("events", "subscribed", subscription="t", topics=["operations"])
        assert (await hear(talk, "operations"))["operations"] == []
        options = BulkOptions(canary=5, rate=200)
        view = await broker.execute(SOMEONE, ops.RedriveLetters("mail", options=options))
        waiting = await asyncio.wait_for(hear_until(talk, "waiting_for_canary"), 10)
        await broker.execute(SOMEONE, ops.ContinueOperation(view.operation_id))
        running = await asyncio.wait_for(hear_until(talk, "running"), 10)
        done = await asyncio.wait_for(hear_until(talk, "done"), 10)

        assert (waiting["done"], done["done"], done["matched"]) == (5, 600, 600)
        assert 5 <= running["done"] < 600


class SlowLook:
    """The first look at dead letters since `with` has its rows, and ends when it is let go."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.let_go = threading.Event()
        self._real = SAMPLES["dead_letters"]

    def __enter__(self) -> Self:
        SAMPLES["dead_letters"] = self._look
        return self

    def __exit__(self, *_: object) -> None:
        self.let_go.set()
        SAMPLES["dead_letters"] = self._real

    def _look(self, session: Any) -> Any:
        rows = self._real(session)
        self.began.set()
        assert self.let_go.wait(30)
        return rows


@on_uvloop
async def test_a_look_that_had_to_wait_does_not_silence_its_topic():
    async with serving() as (broker, _, connect), connect() as talk:
        await talk.ask("events", "subscribed", subscription="t", topics=["dead_letters"])
        await hear(talk, "dead_letters")
        with SlowLook() as look:
            assert await asyncio.to_thread(look.began.wait, 10)
            await kill(broker, "mail")
            loop = asyncio.get_running_loop()
            until = loop.time() + 1
            async with connect() as other:
                await other.ask("events", "subscribed", subscription="c", changed_only=False, interval_ms=100)
                while loop.time() < until:
                    await hear(other, "counters")

        heard = await asyncio.wait_for(hear(talk, "dead_letters"), 10)
        assert heard["dead_letters"] == [{"queue": "mail", "dead": 1}]


@on_uvloop
async def test_who_subscribes_while_a_look_is_under_way_gets_all_rows():
    async with serving() as (broker, _, connect), connect() as early, connect() as late:
        await kill(broker, "mail")
        await early.ask("events", "subscribed", subscription="t", topics=["dead_letters"])
        await hear(early, "dead_letters")
        with SlowLook() as look:
            assert await asyncio.to_thread(look.began.wait, 10)
            await late.ask("events", "subscribed", subscription="t", topics=["dead_letters"])

        heard = await asyncio.wait_for(hear(late, "dead_letters"), 10)
        assert heard["dead_letters"] == [{"queue": "mail", "dead": 1}]
