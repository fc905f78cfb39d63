"""Pushes of one turn of the event loop: they share a batch, and each is answered as if it were alone."""

from __future__ import annotations

import asyncio
import random

import pytest

from penstock import aio
from penstock import operations as ops
from penstock.embedded.session import Session
from penstock.errors import Closed, QueueFull, RateLimited
from penstock.model import ContentType
from penstock.remote import linger
from penstock.remote.exchange import Exchange
from penstock.wire.frames import Type
from tests.support.brokers import BrokerThread
from tests.support.operations import run_operation

SECONDS = 100  # nothing here takes that long; a hang fails instead of hanging
PUSHES = (Type.PUSH_ONE, Type.PUSH_TYPED, Type.PUSH)


@pytest.fixture
def session():
    made = Session(None, durability="os", rng=random.Random(1))
    yield made
    made.close()


@pytest.fixture
def broker(session):
    running = BrokerThread(session)
    yield running
    running.stop()


@pytest.fixture
def sent(monkeypatch):
    """The types of the pushes that were sent."""
    kinds = []
    put = Exchange.put

    def noted(self, request):
        if request.kind in PUSHES:
            kinds.append(request.kind)
        return put(self, request)

    monkeypatch.setattr(Exchange, "put", noted)
    return kinds


def pushed(broker, push, **options):
    """What `push(queue)` returns, on a new connection that has pushed one message before."""

    async def run():
        async with aio.connect(broker.url, **options) as ps:
            await ps.queue("other").push(b"connected")
            return await push(ps.queue("mail"))

    return asyncio.run(asyncio.wait_for(run(), SECONDS))


def together(*pushes):
    return asyncio.gather(*pushes, return_exceptions=True)


def stored(session):
    return [message.payload for message in run_operation(session, ops.Read("mail", 0, None, None, 1_000))[0]]


@pytest.mark.parametrize(
    ("payload", "content"), [(b"1", ContentType.BYTES), ("1", ContentType.TEXT), (1, ContentType.JSON)]
)
def test_pushes_of_one_turn_are_one_request_and_each_returns_its_own_id(broker, session, sent, payload, content):
    ids = pushed(broker, lambda queue: together(*(queue.push(payload) for _ in range(64))))

    assert [id.offset for id in ids] == list(range(64))
    assert sent == [Type.PUSH_ONE, Type.PUSH]
    messages = run_operation(session, ops.Read("mail", 0, None, None, 1_000))[0]
    assert {(message.payload, message.content_type) for message in messages} == {(b"1", content)}


def test_a_push_that_comes_alone_is_sent_alone(broker, sent):
    async def push(queue):
        for n in range(3):
            await queue.push(b"%d" % n)
        await queue.push("text")

    pushed(broker, push)

    assert sent == [Type.PUSH_ONE] * 4 + [Type.PUSH_TYPED]


def test_with_a_batch_of_one_nothing_is_gathered(broker, sent):
    pushed(broker, lambda queue: together(*(queue.push(b"a") for _ in range(5))), batch_max=1)

    assert sent == [Type.PUSH_ONE] * 6


def test_messages_of_one_turn_keep_their_order_whatever_they_are(broker, session):
    def push(queue):
        return together(
            queue.push(b"0"), queue.push(b"1"), queue.push("2"), queue.push("3"), queue.push(b"4"),
            queue.push(b"5", key="k"), queue.push(b"6"), queue.push_many([b"7", b"8"]), queue.push(b"9"),
        )  # fmt: skip

    pushed(broker, push)

    assert stored(session) == [b"%d" % n for n in range(10)]


def test_a_lease_of_the_same_turn_finds_what_was_pushed_before_it(broker):
    async def push(queue):
        *_, leased = await together(queue.push(b"a"), queue.push(b"b"), queue.lease(max=10))
        return [delivery.payload for delivery in leased]

    assert pushed(broker, push) == [b"a", b"b"]


def test_a_queue_that_is_full_refuses_those_for_whom_there_is_no_room(broker, session):
    run_operation(session, ops.CreateQueue("mail", {"max_length": 5}, exist_ok=False))

    answers = pushed(broker, lambda queue: together(*(queue.push(b"%d" % n) for n in range(8))))

    assert [id.offset for id in answers[:5]] == list(range(5))
    assert all(isinstance(answer, QueueFull) for answer in answers[5:])
    assert stored(session) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_rate_limit_refuses_those_for_whom_there_is_no_token(broker, session):
    options = {"push_per_second": 0.01, "push_burst": 5}
    run_operation(session, ops.CreateQueue("mail", options, exist_ok=False))

    async def push(queue):
        await queue.push(b"first")
        return await together(*(queue.push(b"%d" % n) for n in range(5)))

    answers = pushed(broker, push, rate_limit_seconds=0)

    assert [isinstance(answer, RateLimited) for answer in answers] == [False] * 4 + [True]
    assert stored(session) == [b"first", b"0", b"1", b"2", b"3"]


def test_a_push_that_is_cancelled_leaves_the_others_alone(broker):
    async def push(queue):
        tasks = [asyncio.ensure_future(queue.push(b"%d" % n)) for n in range(10)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        return await together(*tasks)

    answers = pushed(broker, push)

    assert all(isinstance(answer, asyncio.CancelledError) for answer in answers[::2])
    assert len({answer.offset for answer in answers[1::2]}) == 5


def test_closing_sends_what_this_turn_has_pushed(broker, session):
    async def run():
        ps = aio.connect(broker.url)
        await ps.queue("mail").push(b"0")
        tasks = [asyncio.ensure_future(ps.queue("mail").push(b"%d" % n)) for n in range(1, 5)]
        await asyncio.sleep(0)
        await ps.close()
        with pytest.raises(Closed):
            await ps.queue("mail").push(b"late")
        return await asyncio.gather(*tasks)

    assert [id.offset for id in asyncio.run(asyncio.wait_for(run(), SECONDS))] == [1, 2, 3, 4]
    assert len(stored(session)) == 5


def test_closing_waits_for_a_batch_that_was_refused_and_is_pushed_one_by_one(broker, session):
    run_operation(session, ops.CreateQueue("mail", {"max_length": 3}, exist_ok=False))

    async def run():
        ps = aio.connect(broker.url)
        await ps.queue("other").push(b"connected")
        tasks = [asyncio.ensure_future(ps.queue("mail").push(b"%d" % n)) for n in range(5)]
        await asyncio.sleep(0)
        await ps.close()
        return await together(*tasks)

    answers = asyncio.run(asyncio.wait_for(run(), SECONDS))

    assert [isinstance(answer, QueueFull) for answer in answers] == [False] * 3 + [True] * 2


@pytest.mark.parametrize(("options", "bytes_max"), [({"batch_max": 10}, linger.BYTES_MAX), ({}, 200)])
def test_a_batch_has_no_more_messages_or_bytes_than_it_may(broker, session, sent, monkeypatch, options, bytes_max):
    monkeypatch.setattr(linger, "BYTES_MAX", bytes_max)

    ids = pushed(broker, lambda queue: together(*(queue.push(b"x" * 20) for _ in range(30))), **options)

    assert [id.offset for id in ids] == list(range(30))
    assert sent == [Type.PUSH_ONE, *[Type.PUSH] * 3]


def test_a_connection_that_is_lost_under_a_batch_stores_it_once(broker, session):
    async def push(queue):
        pushes = together(*(queue.push(b"%d" % n) for n in range(50)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.to_thread(broker.cut)
        return await pushes

    assert len({id.offset for id in pushed(broker, push)}) == 50
    assert sorted(stored(session)) == sorted(b"%d" % n for n in range(50))
