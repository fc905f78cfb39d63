"""The asyncio face: the same methods, awaited; nothing blocks the loop, nothing polls."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from functools import wraps
from typing import Any

import pytest

import penstock
from penstock import Message, aio
from penstock import operations as ops
from penstock.clock import ManualClock
from penstock.embedded.session import Session
from penstock.errors import Closed, LeaseLost, QueueFull, QueueNotFound
from tests.support.brokers import BrokerThread
from tests.support.embedded_session import session_of
from tests.support.operations import run_operation

SECONDS = 60  # nothing here takes that long; a hang fails instead of hanging


def on_a_loop(test):
    """Run a coroutine as a test."""

    @wraps(test)
    def run(*arguments, **options):
        asyncio.run(asyncio.wait_for(test(*arguments, **options), SECONDS))

    return run


@pytest.fixture(params=["memory", "file", "tcp"])
def opened(request, tmp_path):
    """What `async with` enters."""
    if request.param != "tcp":
        yield aio.open_in_memory() if request.param == "memory" else aio.open(tmp_path / "data")
        return
    session = Session(tmp_path / "data")
    broker = BrokerThread(session)
    ps: Any = aio.connect(broker.url)
    ps.shard = session.shard
    yield ps
    broker.stop()
    session.close()


async def drain(queue, **options):
    seen = []
    while leased := await queue.lease(100, **options):
        seen += leased.payloads()
        await leased.ack()
    return seen


@on_a_loop
async def test_a_message_goes_round(opened):
    async with opened as ps:
        queue = ps.queue("mail")
        id = await queue.push(b"hello", key="k", headers={"a": "b"})
        many = await queue.push_many([b"x", {"n": 1}])
        leased = await queue.lease(10)

        assert [delivery.id for delivery in leased] == [id, *many.ids]
        assert (leased[0].payload, leased[0].key, leased[0].headers) == (b"hello", "k", {"a": "b"})
        await leased[0].ack()
        await leased[1].nack(delay=60)
        await leased[2].reject("bad")
        stats = await queue.stats()
        assert (stats.acked, stats.waiting, stats.dead) == (1, 1, 1)
        with pytest.raises(LeaseLost):
            await leased[0].ack()


@on_a_loop
async def test_every_way_of_settling(opened):
    async with opened as ps:
        queue = ps.queue("mail")
        await queue.push_many([b"a", b"b", b"c", b"d"])
        released, snoozed, extended, _ = await queue.lease(4)
        await released.release()
        await snoozed.snooze(60)
        await extended.extend(100)
        again = await queue.lease(4)
        assert again.payloads() == [b"a"]
        await again.release()
        await (await queue.lease(4)).nack(delay=60)
        stats = await queue.stats()

    assert (stats.leased, stats.waiting) == (2, 2)


@on_a_loop
async def test_browsing_and_operating(opened):
    async with opened as ps:
        queue = await ps.create_queue("mail", max_attempts=3)
        ids = (await queue.push_many([b"a", b"b", Message(payload=b"later", delay=60)])).ids
        await queue.create_group("audit", start="latest")

        assert [m.payload for m in await queue.read()] == [b"a", b"b", b"later"]
        assert [m.payload for m in await queue.peek()] == [b"a"]
        assert [m.payload for m in await queue.delayed()] == [b"later"]
        assert {reason.group: reason.code for reason in await queue.why(ids[2])}["default"] == "not_due"
        await queue.cancel(ids[2])
        await queue.pause()
        assert len(await queue.lease(1)) == 0
        await queue.resume()
        await ps.update_queue("mail", max_attempts=1)
        assert (await queue.options()).max_attempts == 1
        await (await queue.lease(1))[0].nack(error="bad")
        assert [letter.payload for letter in await queue.dlq.list()] == [b"a"]
        assert await queue.dlq.redrive(reason="dead") == 1
        await queue.seek("default", 1)
        assert await drain(queue) == [b"b"]
        assert set(await queue.groups()) == {"default", "audit"}
        await queue.delete_group("audit")
        await queue.purge()
        await queue.dlq.purge()
        assert await ps.queues() == ["mail", "mail.dlq"]
        await ps.compact()
        await ps.delete_queue("mail")
        assert await ps.queues() == []
        with pytest.raises(QueueNotFound):
            await queue.lease()


@on_a_loop
async def test_a_transaction_is_whole_or_nothing(opened):
    async with opened as ps:
        source = ps.queue("source")
        await source.push_many([b"a", b"b"])
        first, second = await source.lease(2)
        async with ps.transaction() as tx:
            tx.ack(first)
            tx.push("sink", b"out")
        assert [str(id) for ids in tx.ids for id in ids] == ["sink/0/0"]

        async def failing():
            async with ps.transaction() as tx:
                tx.ack(second)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await failing()
        stats = await source.stats()

    assert (stats.acked, stats.leased) == (1, 1)


@on_a_loop
async def test_many_tasks_share_their_syncs(tmp_path, monkeypatch):
    async with aio.open(tmp_path / "data") as ps:
        queue = await ps.create_queue("mail")
        journal = session_of(ps).shard.journal
        syncs: list[int] = []
        sync_once = journal.sync

        def counted():
            syncs.append(journal.sequence)
            sync_once()

        monkeypatch.setattr(journal, "sync", counted)
        ids = await asyncio.gather(*(queue.push(str(n).encode()) for n in range(200)))
        pushed = len(syncs)
        seen = await asyncio.gather(*(queue.lease(5) for _ in range(40)))
        await asyncio.gather(*(leased.ack() for leased in seen))
        stats = await queue.stats()

    assert sorted(id.offset for id in ids) == list(range(200))
    assert pushed < 50
    assert sorted(int(p) for leased in seen for p in leased.payloads()) == list(range(200))
    assert stats.acked == 200


@on_a_loop
async def test_a_push_wakes_whoever_waits(opened):
    async with opened as ps:
        queue = await ps.create_queue("mail")
        await queue.create_group("other")
        waiting = [asyncio.create_task(queue.lease(1, wait=SECONDS, group=group)) for group in ("default", "other")]
        await until(lambda: waiters(ps) == 2)
        await queue.push(b"a")

        assert [(await task).payloads() for task in waiting] == [[b"a"], [b"a"]]
        assert waiters(ps) == 0


@on_a_loop
async def test_a_lease_that_waits_in_vain_is_empty(opened):
    async with opened as ps:
        queue = await ps.create_queue("mail")

        assert len(await queue.lease(1, wait=0.01)) == 0
        assert waiters(ps) == 0


@on_a_loop
async def test_a_due_time_wakes_whoever_waits():
    clock = ManualClock()
    async with aio.open_in_memory(clock=clock) as ps:
        queue = ps.queue("mail")
        await queue.push(b"later", delay=60)
        task = asyncio.create_task(queue.lease(1, wait=SECONDS))
        await until(lambda: waiters(ps) == 1)
        clock.advance(61)

        assert (await task).payloads() == [b"later"]


@pytest.mark.parametrize("turns", range(5))
@on_a_loop
async def test_a_wait_that_is_cancelled_while_it_is_being_woken_is_cancelled_all_the_same(turns):
    async with aio.open_in_memory() as ps:
        queue = await ps.create_queue("a")
        waiting = asyncio.create_task(queue.lease(wait=SECONDS))
        await until(lambda: session_of(ps).shard.waiters)
        await queue.push(b"x")
        for _ in range(turns):
            await asyncio.sleep(0)

        if waiting.cancel():
            with pytest.raises(asyncio.CancelledError):
                await waiting


@on_a_loop
async def test_a_cancelled_wait_passes_its_turn_on(opened):
    async with opened as ps:
        queue = await ps.create_queue("mail")
        first = asyncio.create_task(queue.lease(1, wait=SECONDS))
        await until(lambda: waiters(ps) == 1)
        second = asyncio.create_task(queue.lease(1, wait=SECONDS))
        await until(lambda: waiters(ps) == 2)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        await queue.push(b"a")

        assert (await second).payloads() == [b"a"]


@on_a_loop
async def test_the_loop_is_free_while_a_lease_waits(opened):
    async with opened as ps:
        queue = await ps.create_queue("mail")
        task = asyncio.create_task(queue.lease(1, wait=SECONDS))
        other = ps.queue("other")
        for number in range(20):
            await other.push(str(number).encode())
        assert len(await drain(other)) == 20
        assert not task.done()
        await queue.push(b"a")
        await task


@on_a_loop
async def test_consuming_acknowledges_what_the_loop_is_done_with(opened):
    async with opened as ps:
        queue = ps.queue("mail")
        await queue.push_many([str(n).encode() for n in range(7)])
        seen = [delivery.payload async for delivery in queue.consume(batch=3, idle_seconds=0.01)]
        stats = await queue.stats()

    assert seen == [str(n).encode() for n in range(7)]
    assert stats.acked == 7


@on_a_loop
async def test_leaving_the_loop_gives_back_what_was_not_begun(opened):
    async with opened as ps:
        queue = await ps.create_queue("mail", backoff_base_seconds=100)
        await queue.push_many([b"done", b"at hand", b"not begun", b"not begun"])
        async with aclosing(queue.consume(batch=4)) as deliveries:
            async for delivery in deliveries:
                if delivery.payload == b"at hand":
                    break
        stats = await queue.stats()

    assert (stats.acked, stats.waiting, stats.ready, stats.leased) == (1, 1, 2, 0)


@on_a_loop
async def test_what_was_settled_by_hand_is_left_alone(opened):
    async with opened as ps:
        queue = ps.queue("mail")
        await queue.push_many([b"a", b"b"])
        async for delivery in queue.consume(batch=2, idle_seconds=0.01):
            await (delivery.reject() if delivery.payload == b"a" else delivery.ack())
        stats = await queue.stats()

    assert (stats.acked, stats.dead) == (1, 1)


@on_a_loop
async def test_sealed_messages_are_read_off_the_loop(tmp_path):
    async with aio.open(tmp_path / "data") as ps:
        queue = ps.queue("mail")
        await queue.push_many([Message(payload=str(n).encode(), key=str(n), priority=n % 3) for n in range(100)])
        await asyncio.to_thread(run_operation, session_of(ps), ops.Seal())
        seen = await drain(queue)

        assert sorted(int(p) for p in seen) == list(range(100))
        assert len(await queue.read(limit=200)) == 100


@on_a_loop
async def test_errors_come_through(opened):
    async with opened as ps:
        queue = await ps.create_queue("mail", max_length=1)
        await queue.push(b"a")
        with pytest.raises(QueueFull):
            await queue.push(b"b")
        with pytest.raises(penstock.PenstockError, match="wait"):
            await queue.lease(wait=100)
        with pytest.raises(penstock.PenstockError, match="durability"):
            await queue.push(b"b", durability="never")
        with pytest.raises(penstock.PenstockError, match="since"):
            await queue.dlq.list(since="yesterday")
        with pytest.raises(penstock.PenstockError, match="limit"):
            await queue.dlq.redrive(limit=0)


@on_a_loop
async def test_closing_ends_what_waits(opened):
    async with opened as ps:
        queue = await ps.create_queue("mail")
        task = asyncio.create_task(queue.lease(1, wait=SECONDS))
        await until(lambda: waiters(ps) == 1)
        await ps.close()
        with pytest.raises(Closed):
            await task
        with pytest.raises(Closed):
            await queue.push(b"a")
        await ps.close()


@on_a_loop
async def test_what_was_awaited_is_there_after_closing(tmp_path):
    async with aio.open(tmp_path / "data") as ps:
        await ps.queue("mail").push(b"a")
    async with aio.open(tmp_path / "data") as ps:
        assert await drain(ps.queue("mail")) == [b"a"]


def waiters(ps):
    """How many leases wait."""
    shard = getattr(ps, "shard", None) or ps._session.shard
    return len(shard.waiters)


async def until(condition):
    """Let other tasks run until something holds; they all run on this loop or are woken by it."""
    while not condition():  # noqa: ASYNC110  what is waited for has no event: a lease has sat down to wait
        await asyncio.sleep(0)
