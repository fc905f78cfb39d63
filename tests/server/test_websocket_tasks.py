"""Live events of tasks and workers, over a WebSocket: who asks hears of them, and nobody else."""

from __future__ import annotations

from typing import Any

from penstock import operations as ops
from penstock.broker.events import CHANGES_MAX
from penstock.envelopes import new_task_id, parse_envelope
from penstock.errors import NotAuthorised
from penstock.model import Receipt
from penstock.model_tasks import Finish, TaskSubmission, WorkerInfo
from penstock.requests import LeaseRequest
from tests.server.test_websocket import Talk, serving
from tests.support.broker_loop import SOMEONE, broker_on, on_uvloop, until


def task(queue: str = "mail", task_type: str = "send", **more: Any) -> TaskSubmission:
    return TaskSubmission(task_id=new_task_id(1), task_type=task_type, queue=queue, **more)


async def submit(broker, *tasks):
    await broker.execute(SOMEONE, ops.SubmitTasks(list(tasks)))


async def run(broker, queue: str = "mail") -> str:
    """Lease a task and complete it; its id."""
    reply = await broker.leased(SOMEONE, queue, "default", LeaseRequest(1, consumer="w-1"))
    piece = reply.pieces[0]
    receipt = Receipt(queue, piece.partition(0), piece.offsets[0], piece.attempt(0), reply.nonce)
    task_id = parse_envelope(piece.payloads()[0]).task_id
    finish = Finish(receipt=receipt, task_id=task_id, outcome="completed", result=b'{"big": 1}')
    assert await broker.execute(SOMEONE, ops.FinishTasks([finish])) == [None]
    return task_id


async def reported(talk: Talk, task_id: str, status: str) -> dict[str, Any]:
    """The event that tells of a task in this state."""
    while True:
        event = await talk.hear("event")
        if event["event"] == "task" and (event["task"]["task_id"], event["task"]["status"]) == (task_id, status):
            return event


@on_uvloop
async def test_who_asks_for_tasks_hears_what_becomes_of_them():
    async with serving() as (broker, _, connect), connect() as talk, connect() as queues:
        await talk.ask("events", "subscribed", subscription="t", topics=["tasks"])
        await queues.ask("events", "subscribed", subscription="q")
        first = task(args=b'["a@b.c"]', key="k")
        await submit(broker, first)
        pending = await reported(talk, first.task_id, "pending")
        await run(broker)
        done = await reported(talk, first.task_id, "completed")

        assert (pending["subscription"], pending["queue"], pending["task"]["key"]) == ("t", "mail", "k")
        assert (done["task"]["worker"], done["task"]["attempt"]) == ("w-1", 1)
        assert not {"args", "kwargs", "result", "runs"} & set(done["task"])
        heard = {(await queues.hear("event"))["event"] for _ in range(3)}
        assert "task" not in heard | {event["event"] for event in queues.kept if event["type"] == "event"}


@on_uvloop
async def test_tasks_are_chosen_by_queue_type_id_and_workflow():
    async with serving() as (broker, _, connect), connect() as talk:
        named = task("other", "other")
        choices: dict[str, Any] = {"q": {"queues": ["mail"]}, "t": {"task_types": ["report"]}, "w": {"workflow": "f"}}
        for name, choice in {**choices, "i": {"task_ids": [named.task_id]}}.items():
            await talk.ask("events", "subscribed", subscription=name, topics=["tasks"], **choice)
        wanted = [task("mail"), task("other", "report"), task("other", "send", workflow="f"), named]
        await submit(broker, task("other"), *wanted)
        heard = {}
        for _ in wanted:
            event = await talk.hear("event")
            heard[event["subscription"]] = event["task"]["task_id"]

        assert heard == dict(zip("qtwi", [each.task_id for each in wanted], strict=True))


@on_uvloop
async def test_who_asks_for_workers_hears_when_they_come_and_go():
    async with serving() as (broker, _, connect), connect() as talk:
        await broker.execute(SOMEONE, ops.HeartbeatWorker(WorkerInfo(worker_id="w-1", host="h")))
        await talk.ask("events", "subscribed", subscription="w", topics=["workers"])
        came = await talk.hear("event")
        async with connect() as late:
            await late.ask("events", "subscribed", subscription="w", topics=["workers"])
            there = await late.hear("event")
        stopping = WorkerInfo(worker_id="w-1", host="h", is_stopping=True)
        await broker.execute(SOMEONE, ops.HeartbeatWorker(stopping))
        stops = await talk.hear("event")
        await broker.execute(SOMEONE, ops.ForgetWorker("w-1"))
        gone = await talk.hear("event")

        assert (came["event"], came["worker"]["worker_id"], came["worker"]["status"]) == ("worker", "w-1", "alive")
        assert there["worker"]["worker_id"] == "w-1"
        assert (stops["worker"]["status"], "is_gone" in stops) == ("stopping", False)
        assert gone["is_gone"] is True


@on_uvloop
async def test_nothing_is_followed_while_nobody_listens_and_slow_ones_keep_the_last():
    async with broker_on() as broker:
        news: list[int] = []
        listener = broker.listen(SOMEONE, None, 1.0, lambda: news.append(1), {"tasks"})
        hub = broker.events._tasks
        await until(lambda: listener.is_ready)
        await submit(broker, *(task() for _ in range(CHANGES_MAX + 5)))
        await until(lambda: len(news) > CHANGES_MAX + 4)
        taken = listener.take()

        assert (len(taken), taken[0].missed) == (CHANGES_MAX, 5)
        assert hub._following is not None
        listener.close()
        assert hub._following is None
        await submit(broker, task())
        assert listener.take() == []


@on_uvloop
async def test_who_may_not_read_hears_of_no_tasks_and_wrong_topics_are_refused():
    def may(principal, action, queue):
        if action == "read":
            raise NotAuthorised("no")

    async with serving(authorise=may) as (_, _, connect), connect() as talk:
        assert (await talk.refusal("events", id=1, subscription="t", topics=["tasks"])) == (1, "not_authorised")
        assert (await talk.refusal("events", id=2, subscription="t", topics=["rumours"])) == (2, "invalid_field")
        assert (await talk.refusal("events", id=3, subscription="t", topics=[])) == (3, "invalid_field")
        assert (await talk.refusal("events", id=4, subscription="t", task_ids=["x"])) == (4, "invalid_field")
        await talk.ask("events", "subscribed", subscription="q")
