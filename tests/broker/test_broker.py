"""The broker: told once, when durable; folded, waited for, given back, refused."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from penstock import operations as ops
from penstock import validation
from penstock.batch import Batch
from penstock.broker.streams import StreamRequest
from penstock.errors import (
    InvalidName,
    LeaseLost,
    NotAuthorised,
    QueueFull,
    QueueNotFound,
    Unavailable,
)
from penstock.model import MessageId, Outcome, Receipt
from penstock.model_tasks import Finish, ScheduleSpec, TaskFilter, TaskSubmission, WorkerInfo
from penstock.operations import Action
from penstock.requests import LeaseRequest, PushOperation, SettleOperation
from tests.support.broker_loop import SOMEONE, broker_on, on_uvloop, until
from tests.support.operations import run_operation

ACK = validation.settling(Outcome.ACKED)
NACK = validation.settling(Outcome.RETRIED, 0)


def reply_recorder():
    """A place for an answer, and who to tell it."""
    answers: list[Any] = []
    return answers, answers.append


async def push(broker, *payloads: bytes, queue="mail"):
    return await broker.pushed(SOMEONE, queue, Batch.build(list(payloads)))


async def lease(broker, count=1, wait=0.0, queue="mail", group="default"):
    return await broker.leased(SOMEONE, queue, group, LeaseRequest(count), wait)


def payloads(reply) -> list[bytes]:
    return [payload for piece in reply.pieces for payload in piece.payloads()]


def receipts(reply) -> list[Receipt]:
    return [
        Receipt(reply.queue, piece.partition(i), offset, piece.attempt(i), reply.nonce)
        for piece in reply.pieces
        for i, offset in enumerate(piece.offsets)
    ]


def stats(broker, queue="mail"):
    return run_operation(broker.session, ops.Stats(queue))[0]


def hold_syncs(journal: Any, may_sync: threading.Event) -> None:
    """From now on no sync begins before it may."""
    sync = journal.sync

    def held() -> None:
        may_sync.wait()
        sync()

    journal.sync = held


# pushing


@on_uvloop
async def test_single_pushes_of_one_turn_become_one_batch_and_each_receives_its_own_id(tmp_path):
    async with broker_on(tmp_path) as broker:
        answers, tell = reply_recorder()
        before = broker.shard.journal.sequence
        for index in range(10):
            broker.push_one(SOMEONE, "mail", b"%d" % index, None, tell)

        await until(lambda: len(answers) == 10)

        assert answers == [("0", index) for index in range(10)]
        assert broker.shard.journal.sequence == before + 1
        assert payloads(await lease(broker, 10)) == [b"%d" % index for index in range(10)]


@on_uvloop
async def test_nobody_is_notified_before_it_is_durable(tmp_path):
    async with broker_on(tmp_path) as broker:
        journal, may_sync = broker.shard.journal, threading.Event()
        hold_syncs(journal, may_sync)
        answers, tell = reply_recorder()

        broker.push_one(SOMEONE, "mail", b"a", None, tell)
        broker.push(SOMEONE, "mail", Batch.build([b"b"]), None, None, None, tell)
        broker.lease(SOMEONE, "mail", "default", LeaseRequest(2), 0, tell)
        for _ in range(50):
            await asyncio.sleep(0)
        assert answers == []

        may_sync.set()
        await until(lambda: len(answers) == 3)
        assert journal.durable_sequence >= journal.sequence - 1


@on_uvloop
async def test_a_fold_that_does_not_fit_is_taken_as_far_as_it_does(tmp_path):
    async with broker_on(tmp_path) as broker:
        run_operation(broker.session, ops.CreateQueue("mail", {"max_length": 3}, exist_ok=False))
        answers, tell = reply_recorder()

        for index in range(5):
            broker.push_one(SOMEONE, "mail", b"%d" % index, None, tell)
        await until(lambda: len(answers) == 5)

        assert sum(isinstance(answer, QueueFull) for answer in answers) == 2
        assert stats(broker).ready == 3


@on_uvloop
async def test_single_pushes_stand_before_a_batch_that_came_after_them(tmp_path):
    async with broker_on(tmp_path) as broker:
        answers, tell = reply_recorder()
        broker.push_one(SOMEONE, "mail", b"first", None, tell)
        broker.push(SOMEONE, "mail", Batch.build([b"second"]), None, None, None, tell)
        await until(lambda: len(answers) == 2)

        assert payloads(await lease(broker, 2)) == [b"first", b"second"]


@on_uvloop
async def test_pushes_wait_for_the_sealer_without_holding_up_the_loop(tmp_path):
    async with broker_on(tmp_path) as broker:
        answers, tell = reply_recorder()
        broker.shard.throttle.clear()

        broker.push_one(SOMEONE, "mail", b"a", None, tell)
        broker.push(SOMEONE, "mail", Batch.build([b"b"]), None, None, None, tell)
        await broker.execute(SOMEONE, ops.Queues())
        assert answers == []

        broker.shard.throttle.set()
        await until(lambda: len(answers) == 2)
        assert payloads(await lease(broker, 2)) == [b"a", b"b"]


# leasing


@on_uvloop
async def test_a_waiting_lease_is_woken_by_a_push(tmp_path):
    async with broker_on(tmp_path) as broker:
        await push(broker, b"gone")
        await lease(broker)
        waiting = asyncio.ensure_future(lease(broker, wait=60))
        await until(lambda: broker.waiting)

        await push(broker, b"a")

        assert payloads(await waiting) == [b"a"]
        assert not broker.waiting


@on_uvloop
async def test_a_waiting_lease_is_woken_by_a_release_and_by_a_resume(tmp_path):
    async with broker_on(tmp_path) as broker:
        await push(broker, b"a")
        held = await lease(broker)
        waiting = asyncio.ensure_future(lease(broker, wait=60))
        await until(lambda: broker.waiting)
        await broker.settled_lease(SOMEONE, held.nonce, validation.settling(Outcome.RELEASED))
        assert payloads(await waiting) == [b"a"]

        await broker.execute(SOMEONE, ops.Pause("mail"))
        await push(broker, b"b")
        waiting = asyncio.ensure_future(lease(broker, wait=60))
        await until(lambda: broker.waiting)
        await broker.execute(SOMEONE, ops.Resume("mail"))
        assert payloads(await waiting) == [b"b"]


@on_uvloop
async def test_those_who_wait_are_served_in_the_order_in_which_they_came(tmp_path):
    async with broker_on(tmp_path) as broker:
        await broker.execute(SOMEONE, ops.CreateQueue("mail"))
        order: list[int] = []

        async def one(number):
            await lease(broker, wait=60)
            order.append(number)

        waiting = []
        for number in range(5):
            waiting.append(asyncio.ensure_future(one(number)))
            await until(lambda: len(broker.waiting) == len(waiting))
        for _ in range(5):
            await push(broker, b"x")
        await asyncio.gather(*waiting)

        assert order == [0, 1, 2, 3, 4]


@on_uvloop
async def test_a_cancelled_lease_takes_nothing(tmp_path):
    async with broker_on(tmp_path) as broker:
        await broker.execute(SOMEONE, ops.CreateQueue("mail"))
        waiting = asyncio.ensure_future(lease(broker, wait=60))
        await until(lambda: broker.waiting)
        waiting.cancel()
        await until(waiting.done)

        await push(broker, b"a")

        assert payloads(await lease(broker)) == [b"a"]
        assert not broker.waiting


@on_uvloop
async def test_what_was_leased_for_somebody_who_left_is_given_back_uncounted(tmp_path):
    async with broker_on(tmp_path) as broker:
        await push(broker, b"a")
        journal, may_sync = broker.shard.journal, threading.Event()
        hold_syncs(journal, may_sync)
        answers, tell = reply_recorder()
        broker.push_one(SOMEONE, "mail", b"b", None, tell)
        pending = broker.lease(SOMEONE, "mail", "default", LeaseRequest(2), 0, tell)  # must wait for the push

        pending.cancel()
        may_sync.set()
        await until(lambda: len(answers) == 1)
        await until(lambda: not broker.shard.core.leases)

        again = await lease(broker, 2)
        assert [piece.attempt(0) for piece in again.pieces] == [1] * len(again.pieces)
        assert again.count == 2


@on_uvloop
async def test_sealed_messages_are_read_off_the_loop(tmp_path):
    async with broker_on(tmp_path) as broker:
        await push(broker, *[b"%d" % index for index in range(100)])
        await asyncio.to_thread(run_operation, broker.session, ops.Seal())

        assert payloads(await lease(broker, 100)) == [b"%d" % index for index in range(100)]


@on_uvloop
async def test_a_lease_of_a_queue_that_is_not_there_is_refused(tmp_path):
    async with broker_on(tmp_path) as broker:
        with pytest.raises(QueueNotFound):
            await lease(broker, wait=60)
        assert not broker.waiting


def large(count: int) -> list[bytes]:
    return [bytes([index]) * (5 << 20) for index in range(count)]


@on_uvloop
async def test_a_lease_gets_as_much_as_fits_and_the_rest_stands_where_it_stood(tmp_path):
    async with broker_on(tmp_path) as broker:
        for payload in large(5):
            await push(broker, payload)

        first = await lease(broker, 5)
        second = await lease(broker, 5)

        assert payloads(first) + payloads(second) == large(5)
        assert first.count == 3
        assert [piece.attempt(0) for piece in second.pieces] == [1, 1]


@on_uvloop
async def test_nothing_that_does_not_fit_is_acknowledged(tmp_path):
    async with broker_on(tmp_path) as broker:
        for payload in large(5):
            await push(broker, payload)

        for expected in (3, 2, 0):
            reply = await broker.leased(SOMEONE, "mail", "default", LeaseRequest(5, auto_ack=True))
            assert reply.count == expected
        assert stats(broker).acked == 5


@on_uvloop
async def test_a_listing_stops_where_an_answer_is_full(tmp_path):
    async with broker_on(tmp_path) as broker:
        for payload in large(5):
            await push(broker, payload)

        assert len(await broker.execute(SOMEONE, ops.Read("mail"))) == 3
        assert len(await broker.execute(SOMEONE, ops.Peek("mail", 5))) == 3


# settling


@on_uvloop
async def test_settling_each_tells_good_from_stale(tmp_path):
    async with broker_on(tmp_path) as broker:
        await push(broker, b"a", b"b", b"c")
        proofs = receipts(await lease(broker, 3))
        await broker.settled(SOMEONE, proofs[1:2], ACK)

        answers = await broker.settled_each(SOMEONE, proofs, ACK)

        assert [type(answer) for answer in answers] == [type(None), LeaseLost, type(None)]
        assert stats(broker).acked == 3


@on_uvloop
async def test_a_nack_of_a_sealed_message_does_not_hold_up_the_loop(tmp_path):
    async with broker_on(tmp_path) as broker:
        run_operation(broker.session, ops.CreateQueue("mail", {"max_attempts": 1}, exist_ok=False))
        await push(broker, b"a")
        await asyncio.to_thread(run_operation, broker.session, ops.Seal())
        reply = await lease(broker)

        await broker.settled(SOMEONE, receipts(reply), NACK)

        assert stats(broker).dead == 1


# streams


def stream(broker, **options):
    deliveries: list[Any] = []
    ends: list[Any] = []
    opened = broker.stream(SOMEONE, StreamRequest("mail", **options), deliveries.append, ends.append)
    return opened, deliveries, ends


def delivered(deliveries) -> int:
    return sum(reply.count for reply in deliveries)


@on_uvloop
async def test_a_stream_delivers_within_its_credit(tmp_path):
    async with broker_on(tmp_path) as broker:
        await push(broker, *[b"x"] * 10)
        opened, deliveries, _ = stream(broker, batch=2)

        opened.credit(3)
        await until(lambda: delivered(deliveries) == 3)
        assert [reply.count for reply in deliveries] == [2, 1]

        opened.credit(100)
        await until(lambda: delivered(deliveries) == 10)
        await push(broker, b"later")
        await until(lambda: delivered(deliveries) == 11)


@on_uvloop
async def test_a_stream_that_is_paused_delivers_nothing(tmp_path):
    async with broker_on(tmp_path) as broker:
        await push(broker, b"a")
        opened, deliveries, _ = stream(broker)
        opened.pause()
        opened.credit(10)
        await broker.execute(SOMEONE, ops.Queues())
        assert not deliveries

        opened.resume()
        await until(lambda: deliveries)


@on_uvloop
async def test_a_stream_that_goes_gives_back_what_was_not_settled(tmp_path):
    async with broker_on(tmp_path) as broker:
        await push(broker, b"a", b"b")
        opened, deliveries, _ = stream(broker)
        opened.credit(10)
        await until(lambda: deliveries)
        await broker.settled(SOMEONE, receipts(deliveries[0])[:1], ACK)

        opened.close()

        again = await lease(broker, 10)
        assert payloads(again) == [b"b"]
        assert again.pieces[0].attempt(0) == 1


@on_uvloop
async def test_a_stream_ends_with_its_queue(tmp_path):
    async with broker_on(tmp_path) as broker:
        await broker.execute(SOMEONE, ops.CreateQueue("mail"))
        opened, _, ends = stream(broker)
        opened.credit(1)

        await broker.execute(SOMEONE, ops.DeleteQueue("mail"))

        await until(lambda: ends)
        assert isinstance(ends[0], QueueNotFound)


# access and the end


@on_uvloop
async def test_every_operation_asks_whether_it_may(tmp_path):
    asked: list[tuple[str, str]] = []

    def refuse(principal, action, queue):
        asked.append((action, queue))
        raise NotAuthorised("no")

    async with broker_on(tmp_path, authorise=refuse) as broker:
        answers, tell = reply_recorder()
        proof = Receipt("mail", "0", 0, 1, 7)
        broker.push_one(SOMEONE, "mail", b"a", None, tell)
        broker.push(SOMEONE, "mail", Batch.build([b"a"]), None, None, None, tell)
        broker.lease(SOMEONE, "mail", "default", LeaseRequest(), 60, tell)
        broker.settle(SOMEONE, [proof], ACK, tell)
        broker.settle_each(SOMEONE, [proof], ACK, tell)
        with pytest.raises(NotAuthorised):
            broker.stream(SOMEONE, StreamRequest("mail"), tell, tell)
        for kind in ops.TABLE.values():
            if kind in LISTS:
                continue
            with pytest.raises(NotAuthorised):
                await broker.execute(SOMEONE, example(kind))
        steps: list[PushOperation | SettleOperation] = [
            PushOperation("mail", Batch.build([b"a"])),
            SettleOperation(proof, ACK),
        ]
        with pytest.raises(NotAuthorised):
            await broker.transact(SOMEONE, steps)

        assert [isinstance(each, NotAuthorised) for each in answers[:4]] == [True] * 4
        assert isinstance(answers[4][0], NotAuthorised)
        assert {action for action, _ in asked} == set(Action) - {Action.UNMASK}  # which narrows what a reader sees
        assert run_operation(broker.session, ops.Queues())[0] == []


# They touch no queue: they show what may be seen (tests/access/test_visibility.py).
LISTS = (
    ops.Info,
    ops.Me,
    ops.Queues,
    ops.Pauses,
    ops.Workers,
    ops.Schedules,
    ops.ListTasks,
    ops.ListOperations,
    ops.CountTasks,
    ops.SuggestTasks,
    ops.ListWorkflows,
    ops.FindWorkflow,
    ops.ListDataKeys,
    ops.GetTrace,
    ops.AllSignatures,
)


def example(kind):
    """Arguments of a call that mean nothing."""
    id = "0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"
    proof = Receipt("mail", "0", 0, 1, 7)
    given = {
        "id": "mail/0/0", "options": {}, "changes": {}, "generation": 1, "to": "earliest",
        "batch": 0 if kind is ops.CommitSink else b"",
        "ids": [MessageId("mail.dlq", "0", 0)],
        "progress": b"1", "action": "purge", "position": 0, "length": 1, "data": b"", "names": [],
        "task_id": id, "receipt": proof, "wait_seconds": 0.0, "filter": TaskFilter(), "info": WorkerInfo(worker_id="w"),
        "tasks": [TaskSubmission(task_id=id, task_type="send", queue="mail")],
        "finishes": [Finish(receipt=proof, task_id=id, outcome="completed")],
        "grants": ["push:mail"], "field": "queue", "trace": "t", "connection_id": "1", "what": "cpu", "run": "r",
        "state": "done",
        "schedule": ScheduleSpec(name="nightly", cron="@daily", task_type="send", queue="mail"),
    }  # fmt: skip
    return kind(
        **{
            name: given.get(name, "mail")
            for name in kind.__struct_fields__[: len(kind.__struct_fields__) - len(kind.__struct_defaults__)]
        }
    )


@on_uvloop
async def test_a_broker_that_drains_answers_those_who_wait_and_takes_nothing_new(tmp_path):
    async with broker_on(tmp_path) as broker:
        await push(broker, b"a")
        held = await lease(broker)
        waiting = asyncio.ensure_future(lease(broker, wait=60))
        await until(lambda: broker.waiting)
        opened, _, ends = stream(broker)
        opened.credit(1)

        await broker.drain()

        assert (await waiting).count == 0
        assert ends == [None]
        with pytest.raises(Unavailable):
            await push(broker, b"b")
        await broker.settled(SOMEONE, receipts(held), ACK)


@on_uvloop
async def test_a_push_to_a_bad_name_is_refused_and_its_neighbours_are_not_disturbed(tmp_path):
    async with broker_on(tmp_path) as broker:
        answers, tell = reply_recorder()
        broker.push_one(SOMEONE, "bad name", b"a", None, tell)
        broker.push_one(SOMEONE, "mail", b"a", None, tell)

        await until(lambda: len(answers) == 2)

        assert isinstance(answers[0], InvalidName)
        assert answers[1] == ("0", 0)


@on_uvloop
async def test_who_waits_is_notified_although_another_thread_synced_first(tmp_path):
    async with broker_on(tmp_path / "data") as broker:
        await push(broker, b"first")
        _, ticket = broker.session.push("mail", Batch.build([b"second"]), None, None)
        answers, tell = reply_recorder()
        broker.confirmer.after(ticket, tell, "durable")
        broker.shard.journal.sync()  # before the confirmer's own thread has heard of it

        await until(lambda: answers)
        assert answers == ["durable"]
