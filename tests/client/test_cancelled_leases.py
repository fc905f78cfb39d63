"""A lease that is cancelled leaves nothing behind, whenever that happens: what it took is ready again, uncounted."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import pytest

from penstock import aio
from penstock import operations as ops
from penstock.batch import encode_one
from penstock.embedded.session import Session
from penstock.remote.asynchronous import AsyncSession
from penstock.requests import LeaseRequest
from tests.support.broker_loop import SOMEONE, broker_on, on_uvloop, until
from tests.support.brokers import BrokerThread
from tests.support.operations import run_operation

SECONDS = 60  # nothing here takes that long; a hang fails instead of hanging
HELD_SECONDS = 3600.0  # what is kept is not back before the test ends
TURNS = 40  # of the loop: more than a lease takes in this process


def on_a_loop(work):
    return asyncio.run(asyncio.wait_for(work, SECONDS))


@asynccontextmanager
async def connected(tmp_path, protocol):
    session = await asyncio.to_thread(Session, tmp_path / "data")
    broker = await asyncio.to_thread(BrokerThread, session, 0, protocol)
    try:
        async with aio.connect(broker.url) as ps:
            yield ps
    finally:
        await asyncio.to_thread(broker.stop)
        await asyncio.to_thread(session.close)


@asynccontextmanager
async def embedded(tmp_path):
    async with aio.open(tmp_path / "data") as ps:
        yield ps


WAYS: dict[str, Any] = {
    "embedded": embedded,
    "tcp": partial(connected, protocol="penstock"),
    "http": partial(connected, protocol="http"),
}


@pytest.fixture(params=WAYS)
def opened(request, tmp_path):
    return WAYS[request.param](tmp_path)


async def cancelled_after(turns, work):
    """Let a coroutine run for so many turns of the loop, then cancel it."""
    task = asyncio.ensure_future(work)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        leased = await task
        await leased.release()


async def is_untouched(queue, count=1):
    """Whether everything is there for whoever comes next, as if nobody had asked before."""
    found: list[int] = []
    while len(found) < count:
        leased = await queue.lease(count, wait=SECONDS, lease_seconds=HELD_SECONDS)
        assert leased
        found += [delivery.attempt for delivery in leased]
    await leased.release()
    return found == [1] * count


def test_a_lease_that_is_cancelled_at_any_turn_of_the_loop_takes_nothing(opened):
    async def run():
        async with opened as ps:
            queue = ps.queue("jobs")
            await queue.push(b"a")
            for turns in range(TURNS):
                await cancelled_after(turns, queue.lease(lease_seconds=HELD_SECONDS))
                assert await is_untouched(queue), turns

    on_a_loop(run())


def test_a_lease_that_waits_and_is_cancelled_while_something_comes_takes_nothing(opened):
    async def run():
        async with opened as ps:
            queue = ps.queue("jobs")
            for turns in range(TURNS):
                await ps.create_queue("jobs")
                waiting = asyncio.ensure_future(queue.lease(wait=SECONDS, lease_seconds=HELD_SECONDS))
                pushing = asyncio.ensure_future(queue.push(b"a"))
                await cancelled_after(turns, waiting)
                await pushing
                assert await is_untouched(queue), turns
                await ps.delete_queue("jobs")

    on_a_loop(run())


def test_a_cancelled_lease_of_stored_messages_takes_nothing(tmp_path):
    async def run():
        async with aio.open(tmp_path / "data") as ps:
            queue = ps.queue("jobs")
            await queue.push_many([b"a", b"b"])
            await ps.seal()
            for turns in range(TURNS // 4):
                await cancelled_after(turns, queue.lease(2, lease_seconds=HELD_SECONDS))
                assert await is_untouched(queue, 2), turns

    on_a_loop(run())


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("protocol", ["penstock", "http"])
def test_an_answer_in_the_turn_of_the_cancellation_is_given_back(tmp_path, monkeypatch, protocol, moment):
    async def run():
        async with connected(tmp_path, protocol) as ps:
            queue = ps.queue("jobs")
            await queue.push(b"a")
            received = AsyncSession.received
            leasing = asyncio.ensure_future(queue.lease(lease_seconds=HELD_SECONDS))

            def cancelling(session, data, *stream):
                if moment == "before":
                    leasing.cancel()
                received(session, data, *stream)
                leasing.cancel()

            with monkeypatch.context() as patch:
                patch.setattr(AsyncSession, "received", cancelling)
                with pytest.raises(asyncio.CancelledError):
                    await leasing
            assert await is_untouched(queue)

    on_a_loop(run())


@pytest.mark.parametrize("protocol", ["penstock", "http"])
def test_any_number_of_leases_may_be_cancelled_at_once(tmp_path, protocol):
    count = 1_500

    async def run():
        async with connected(tmp_path, protocol) as ps:
            queue = ps.queue("jobs")
            await queue.push_many([b"a"] * count)
            leases = [asyncio.ensure_future(queue.lease(lease_seconds=HELD_SECONDS)) for _ in range(count)]
            await asyncio.sleep(0)
            for lease in leases:
                lease.cancel()
            await asyncio.gather(*leases, return_exceptions=True)
            assert await is_untouched(queue, count)

    on_a_loop(run())


@on_uvloop
async def test_in_the_broker_what_comes_in_the_turn_of_the_cancellation_is_given_back():
    async with broker_on() as broker:
        session = broker.session
        run_operation(session, ops.CreateQueue("jobs", {}, exist_ok=False))
        request = LeaseRequest(lease_seconds=HELD_SECONDS)
        waiting = asyncio.ensure_future(broker.leased(SOMEONE, "jobs", "default", request, SECONDS))
        await until(lambda: session.shard.waiters)
        session.confirm(session.push_one("jobs", encode_one(b"a"))[1])
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await until(lambda: not session.shard.core.leases)
        assert session.lease("jobs", "default", request)[0].pieces[0].attempt(0) == 1
