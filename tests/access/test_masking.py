"""Masked fields: who may read, and not unmask, sees "•••" in their place, wherever a payload is shown."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from penstock import operations as ops
from penstock.access.grants import Principal, parse_grants
from penstock.access.masking import MASK, Mask, mask_of
from penstock.batch import Batch
from penstock.broker.access import LOCAL, Client
from penstock.broker.broker import Broker
from penstock.embedded.session import Session
from penstock.errors import InvalidField, NotAuthorised
from penstock.model import Message, MessageId, Outcome, Receipt, queue_options
from penstock.model_letters import LetterFilter, MessageFilter
from penstock.model_tasks import Finish, ScheduleSpec, TaskFilter, TaskSubmission
from penstock.requests import LeaseRequest, Settling
from tests.support.broker_loop import on_uvloop

OWNER = Client(LOCAL, "", "127.0.0.1", "tcp")
SECRET = "4111-1111"
TASK = "0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"
CARD = {"card": {"number": SECRET, "kind": "visa"}}


def client(*grants: str) -> Client:
    return Client(Principal("bob", parse_grants(grants)), "", "10.0.0.8", "tcp")


READER, TRUSTED = client("read,monitor,manage,push:*"), client("read,monitor,unmask:*")


@asynccontextmanager
async def masked_queue() -> AsyncIterator[Broker]:
    broker = Broker(Session(None, background=False))
    try:
        await broker.execute(OWNER, ops.CreateQueue("q", {"masked_fields": ["card.number"], "max_attempts": 1}))
        await broker.execute(OWNER, ops.CreateQueue("plain"))
        yield broker
    finally:
        await broker.drain()
        broker.close()
        await asyncio.to_thread(broker.session.close)


async def push(broker: Broker, queue: str, *values: Any, **options: Any) -> None:
    messages = [Message(payload=msgspec.json.encode(value), **options) for value in values]
    await broker.pushed(OWNER, queue, Batch.build(messages))


def masked(fields: list[str], value: Any) -> Any:
    return msgspec.json.decode(mask_of(tuple(fields)).payload(msgspec.json.encode(value)))


@pytest.mark.parametrize(
    ("fields", "value", "shown"),
    [
        (["a"], {"a": 1, "b": 2}, {"a": MASK, "b": 2}),
        (["a.b"], {"a": {"b": {"c": 1}, "d": 2}}, {"a": {"b": MASK, "d": 2}}),
        (
            ["*.email"],
            {"x": {"email": "e"}, "y": {"email": "f", "n": 1}},
            {"x": {"email": MASK}, "y": {"email": MASK, "n": 1}},
        ),
        (
            ["items.price"],
            {"items": [{"price": 1}, {"price": 2, "n": 3}]},
            {"items": [{"price": MASK}, {"price": MASK, "n": 3}]},
        ),
        (["items.1"], {"items": [1, 2, 3]}, {"items": [1, MASK, 3]}),
        (["items.7.x", "none.at.all", "b.c.d"], {"items": [1], "b": 5}, {"items": [1], "b": 5}),
        (["a"], [[{"a": 1}], {"a": 2}], [[{"a": MASK}], {"a": MASK}]),
        (["a", "b.c"], {"a": None, "b": {"c": [1, {"x": 2}]}}, {"a": MASK, "b": {"c": MASK}}),
    ],
)
def test_paths(fields, value, shown):
    assert masked(fields, value) == shown


@pytest.mark.parametrize(
    "payload", [b"", b"\xff\x00", b"not JSON", b'"4111-1111"', b"41111111", b"{" * 100_000, b"[" * 100_000]
)
def test_what_is_no_object_and_no_list_is_hidden_as_a_whole(payload):
    assert mask_of(("a",)).payload(payload) == MASK.encode()


def test_fields_that_are_no_paths_are_refused():
    for bad in (["a..b"], [""], [".a"], ["x" * 300], "card", ["a"] * 101, [1]):
        with pytest.raises(InvalidField, match="masked_fields"):
            queue_options({"masked_fields": bad})
    assert queue_options({"masked_fields": ["a.b", "c.*.0"]}).masked_fields == ("a.b", "c.*.0")


@on_uvloop
async def test_every_way_to_look_at_messages_masks():
    async with masked_queue() as broker:
        await push(broker, "q", CARD)
        await push(broker, "q", CARD, delay=3600.0)
        lease = await broker.leased(OWNER, "q", "default", LeaseRequest())
        assert SECRET.encode() in bytes(next(iter(lease.pieces[0].payloads())))  # consumers need it
        proof = Receipt("q", "0", lease.pieces[0].offsets[0], 1, lease.nonce)
        await broker.settled(OWNER, [proof], Settling(Outcome.REJECTED, error=f"bad card {SECRET}"))
        await push(broker, "q", CARD)
        looks: list[ops.Operation[list[Message]]] = [
            ops.Read("q"), ops.Peek("q"), ops.Delayed("q"), ops.DeadLetters("q"), ops.Read("q.dlq"), ops.Peek("q.dlq"),
        ]  # fmt: skip
        for look in looks:
            messages = await broker.execute(READER, look)
            assert messages, look
            for message in messages:
                assert message.json() == {"card": {"number": MASK, "kind": "visa"}}
                assert SECRET not in str(message)
            assert SECRET in str(await broker.execute(TRUSTED, look))
            assert SECRET in str(await broker.execute(OWNER, look))


@on_uvloop
async def test_tasks_are_masked_with_their_results_progress_and_errors():
    async with masked_queue() as broker:
        kwargs = msgspec.json.encode(CARD)
        args = msgspec.json.encode([CARD, "x"])
        submission = TaskSubmission(task_id=TASK, task_type="pay", queue="q", args=args, kwargs=kwargs)
        await broker.execute(OWNER, ops.SubmitTasks([submission]))
        lease = await broker.leased(OWNER, "q", "default", LeaseRequest())
        proof = Receipt("q", "0", lease.pieces[0].offsets[0], 1, lease.nonce)
        await broker.execute(OWNER, ops.NoteProgress(proof, TASK, msgspec.json.encode(CARD)))
        await broker.execute(
            OWNER,
            ops.FinishTasks(
                [Finish(receipt=proof, task_id=TASK, outcome="completed", result=msgspec.json.encode(CARD))]
            ),
        )
        dead = "0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5c"
        await broker.execute(OWNER, ops.SubmitTasks([msgspec.structs.replace(submission, task_id=dead)]))
        lease = await broker.leased(OWNER, "q", "default", LeaseRequest())
        proof = Receipt("q", "0", lease.pieces[0].offsets[0], 1, lease.nonce)
        await broker.execute(
            OWNER, ops.FinishTasks([Finish(receipt=proof, task_id=dead, outcome="dead", error=f"bad card {SECRET}")])
        )
        views = [
            await broker.execute(READER, ops.FindTask(TASK)),
            await broker.execute(READER, ops.FindTask(dead)),
            await broker.execute(READER, ops.WaitTask(TASK, 0.0)),
            *(await broker.execute(READER, ops.ListTasks())).tasks,
            await broker.execute(READER, ops.CancelTask(await _another(broker, submission))),
        ]
        assert len(views) == 6
        for view in views:
            assert SECRET not in str(view)
            assert "visa" in str(view.kwargs)
        assert msgspec.json.decode(views[0].result or b"") == {"card": {"number": MASK, "kind": "visa"}}
        assert (views[1].error, views[1].runs[0].error) == (MASK, MASK)
        assert str(await broker.execute(TRUSTED, ops.FindTask(TASK))).count(SECRET) == 4
        assert SECRET not in str(await broker.execute(READER, ops.Read("q")))  # the envelopes


async def _another(broker: Broker, submission: TaskSubmission) -> str:
    task_id = "0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5d"
    await broker.execute(OWNER, ops.SubmitTasks([msgspec.structs.replace(submission, task_id=task_id)]))
    return task_id


@on_uvloop
async def test_who_may_cancel_and_not_read_sees_nothing_of_what_a_task_holds():
    async with masked_queue() as broker:
        args = msgspec.json.encode(["a secret"])
        await broker.execute(
            OWNER, ops.SubmitTasks([TaskSubmission(task_id=TASK, task_type="t", queue="plain", args=args)])
        )
        view = await broker.execute(client("manage:plain"), ops.CancelTask(TASK))
        assert (view.args, view.task_id) == (msgspec.json.encode([MASK]), TASK)


@on_uvloop
async def test_a_search_is_no_oracle():
    async with masked_queue() as broker:
        kwargs = msgspec.json.encode(CARD)
        for queue, task_id in (("q", TASK), ("plain", TASK[:-1] + "c")):
            await broker.execute(
                OWNER, ops.SubmitTasks([TaskSubmission(task_id=task_id, task_type="t", queue=queue, kwargs=kwargs)])
            )
        inside = TaskFilter(argument=f"kwargs.card.number={SECRET}")
        found = await broker.execute(READER, ops.ListTasks(inside))
        assert [task.queue for task in found.tasks] == ["plain"]
        assert len((await broker.execute(TRUSTED, ops.ListTasks(inside))).tasks) == 2
        for operation in (
            ops.ListTasks(TaskFilter(queue="q", argument=SECRET)),
            ops.ListTasks(TaskFilter(queue="q", error_contains=SECRET)),
            ops.DeadLetters("q", LetterFilter(error_contains=SECRET)),
            ops.Redrive("q", LetterFilter(error_contains=SECRET)),
            ops.BeginOperation("cancel", TaskFilter(queue="q", argument=SECRET)),
            ops.BeginOperation("cancel", TaskFilter(argument=SECRET)),
        ):
            with pytest.raises(NotAuthorised, match="unmask"):
                await broker.execute(READER, operation)
        assert (await broker.execute(READER, ops.ListTasks(TaskFilter(queue="plain", argument=SECRET)))).tasks


@on_uvloop
async def test_nobody_lays_open_what_they_may_not_see():
    async with masked_queue() as broker:
        kwargs = msgspec.json.encode(CARD)
        await broker.execute(
            OWNER, ops.SubmitTasks([TaskSubmission(task_id=TASK, task_type="t", queue="q", kwargs=kwargs)])
        )
        for operation in (ops.UpdateQueue("q", {"masked_fields": []}), ops.DeleteQueue("q"), ops.GetDataKeys("q")):
            with pytest.raises(NotAuthorised, match="unmask"):
                await broker.execute(READER, operation)
        await broker.execute(READER, ops.UpdateQueue("q", {"max_attempts": 3}))
        await broker.execute(READER, ops.DeleteQueue("plain"))
        child = TaskSubmission(task_id=TASK[:-1] + "c", task_type="t", queue="mine", depends_on=(TASK,), takes="one")
        with pytest.raises(NotAuthorised, match="unmask"):
            await broker.execute(READER, ops.SubmitTasks([child]))
        await broker.execute(OWNER, ops.DeleteQueue("q"))  # its tasks are still shown
        assert "visa" not in str(await broker.execute(READER, ops.FindTask(TASK)))


@on_uvloop
async def test_arguments_of_schedules_are_for_readers():
    async with masked_queue() as broker:
        kwargs = msgspec.json.encode(CARD)
        spec = ScheduleSpec(name="s", cron="0 3 * * *", task_type="t", queue="q", kwargs=kwargs)
        await broker.execute(OWNER, ops.SetSchedule(spec))
        (schedule,) = await broker.execute(READER, ops.Schedules())
        assert msgspec.json.decode(schedule.spec.kwargs) == {"card": {"number": MASK, "kind": "visa"}}
        (schedule,) = await broker.execute(client("monitor:q"), ops.Schedules())
        assert msgspec.json.decode(schedule.spec.kwargs) == {"card": MASK}


@on_uvloop
async def test_events_of_tasks_are_masked():
    async with masked_queue() as broker:
        listeners = []
        for who in (READER, TRUSTED):
            news, ready = asyncio.Event(), asyncio.Event()
            listener = broker.listen(who, None, 1.0, news.set, {"tasks"})
            listener.when_ready(ready.set)
            await ready.wait()
            listeners.append((listener, news))
        await broker.execute(OWNER, ops.SubmitTasks([TaskSubmission(task_id=TASK, task_type="t", queue="q")]))
        lease = await broker.leased(OWNER, "q", "default", LeaseRequest())
        proof = Receipt("q", "0", lease.pieces[0].offsets[0], 1, lease.nonce)
        await broker.execute(
            OWNER, ops.FinishTasks([Finish(receipt=proof, task_id=TASK, outcome="dead", error=SECRET)])
        )
        errors = []
        for listener, news in listeners:
            seen: set[str] = set()
            async with asyncio.timeout(20):
                while not any(seen):
                    await news.wait()
                    news.clear()
                    seen |= {event.task.error for event in listener.take() if event.task is not None}
            errors.append(max(seen))
            listener.close()
        assert errors == [MASK, SECRET]


@on_uvloop
async def test_large_replies_are_masked_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = set()
    hide = Mask._hide

    def noted(mask: Mask, roots: Any) -> None:
        threads.add(threading.get_ident())
        hide(mask, roots)

    monkeypatch.setattr(Mask, "_hide", noted)

    async with masked_queue() as broker:
        await push(broker, "q", CARD)
        submission = TaskSubmission(task_id=TASK, task_type="t", queue="q", kwargs=msgspec.json.encode(CARD))
        await broker.execute(OWNER, ops.SubmitTasks([submission]))
        for operation in (ops.Peek("q"), ops.ListTasks(TaskFilter()), ops.FindTask(TASK)):
            threads.clear()
            await broker.execute(READER, operation)
            assert threads
            assert threading.get_ident() not in threads


@on_uvloop
async def test_a_search_shows_nothing_that_is_masked_and_is_no_way_to_guess_it():
    async with masked_queue() as broker:
        await broker.execute(OWNER, ops.UpdateQueue("q", {"max_attempts": 1}))
        await push(broker, "q", CARD, key="k")
        lease = await broker.leased(OWNER, "q", "default", LeaseRequest())
        await broker.settled_lease(OWNER, lease.nonce, Settling(Outcome.REJECTED, error=SECRET))
        for queue in ("q", "q.dlq"):
            shown = await broker.execute(READER, ops.SearchMessages(queue, MessageFilter(key="k")))
            assert len(shown.messages) == 1
            assert SECRET not in str(shown)
            for inside in (MessageFilter(text=SECRET), MessageFilter(headers={"penstock-error": SECRET})):
                with pytest.raises(NotAuthorised):
                    await broker.execute(READER, ops.SearchMessages(queue, inside))
                await broker.execute(TRUSTED, ops.SearchMessages(queue, inside))


@on_uvloop
async def test_the_error_of_a_retry_is_masked():
    async with masked_queue() as broker:
        await broker.execute(OWNER, ops.UpdateQueue("q", {"max_attempts": 5}))
        await push(broker, "q", CARD, key="k")
        lease = await broker.leased(OWNER, "q", "default", LeaseRequest())
        await broker.settled_lease(OWNER, lease.nonce, Settling(Outcome.RETRIED, 60.0, f"bad card {SECRET}"))
        id = MessageId("q", "0", 0)
        looks = [ops.Delayed("q", include="retries"), ops.Why(id), ops.GetMessage(id), ops.Events(id)]
        for look in [*looks, ops.FindMessages("q", key="k")]:
            assert SECRET in str(await broker.execute(TRUSTED, look))
            shown = await broker.execute(READER, look)
            assert shown
            assert SECRET not in str(shown)
            assert MASK in str(shown)
