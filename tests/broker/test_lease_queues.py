"""Leases over several queues at a broker: access to each queue, changes while somebody waits, streams."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import limits, validation
from penstock import operations as ops
from penstock.access.grants import Principal, parse_grants
from penstock.batch import Batch
from penstock.broker.access import Client
from penstock.broker.streams import StreamRequest
from penstock.embedded.session import Session
from penstock.errors import NotAuthorised, Unavailable
from penstock.requests import LeaseRequest
from penstock.shard.queue_leases import lease_queues
from penstock.shard.queue_sets import set_key
from tests.support.broker_loop import SOMEONE, broker_on, on_uvloop, until


def someone(*grants: str) -> Client:
    return Client(Principal("ann", parse_grants(grants)), "", "10.0.0.8", "tcp")


async def push(broker, queue, *payloads):
    await broker.pushed(SOMEONE, queue, Batch.build(list(payloads)))


async def lease(broker, client, *names, count=100, wait=0.0):
    return await broker.leased_queues(client, validation.queue_choice(names), "default", LeaseRequest(count), wait)


def queues(reply) -> dict[str, int]:
    return {lease.queue: lease.count for lease in reply.leases}


@on_uvloop
async def test_a_prefix_yields_only_queues_that_may_be_consumed():
    async with broker_on() as broker:
        for name in ("shop.a", "shop.b", "other"):
            await push(broker, name, b"x")
        ann = someone("consume:shop.a", "read:*")

        assert queues(await lease(broker, ann, "*")) == {"shop.a": 1}
        assert queues(await lease(broker, SOMEONE, "*")) == {"shop.b": 1, "other": 1}


@on_uvloop
async def test_a_queue_that_is_named_and_may_not_be_consumed_is_refused_and_noted():
    async with broker_on() as broker:
        await push(broker, "mine", b"x")
        await push(broker, "yours", b"x")

        with pytest.raises(NotAuthorised):
            await lease(broker, someone("consume:mine"), "mine", "yours")
        assert broker.shard.leased_count() == 0


@on_uvloop
async def test_a_grant_that_is_taken_away_while_somebody_waits_acts():
    async with broker_on() as broker:
        await push(broker, "shop.a")
        ann = someone("consume:shop.*")
        waiting = asyncio.ensure_future(lease(broker, ann, "shop.*", wait=30))
        await until(lambda: len(broker.shard.waiters) == 1)

        ann.principal.change(parse_grants(("consume:shop.b",)), "")
        await push(broker, "shop.a", b"not for ann")
        await push(broker, "shop.b", b"for ann")

        assert queues(await waiting) == {"shop.b": 1}


@on_uvloop
async def test_a_grant_to_a_named_queue_that_is_taken_away_ends_the_wait():
    async with broker_on() as broker:
        await broker.execute(SOMEONE, ops.CreateQueue("shop", {}))
        ann = someone("consume:shop")
        waiting = asyncio.ensure_future(lease(broker, ann, "shop", wait=30))
        await until(lambda: len(broker.shard.waiters) == 1)

        ann.principal.change(parse_grants(("push:shop",)), "")
        await push(broker, "shop", b"x")

        with pytest.raises(NotAuthorised):
            await waiting
        assert broker.shard.leased_count() == 0


@on_uvloop
async def test_who_waits_no_longer_gives_back_what_was_leased():
    async with broker_on() as broker:
        waiting = asyncio.ensure_future(lease(broker, SOMEONE, "*", wait=30))
        await until(lambda: len(broker.shard.waiters) == 1)
        await push(broker, "a", b"x")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await until(lambda: broker.shard.leased_count() == 0)

        assert len(broker.shard.waiters) == 0
        assert queues(await lease(broker, SOMEONE, "*")) == {"a": 1}


@on_uvloop
async def test_a_broker_that_drains_answers_those_who_wait_and_takes_no_more():
    async with broker_on() as broker:
        waiting = asyncio.ensure_future(lease(broker, SOMEONE, "*", wait=30))
        await until(lambda: len(broker.shard.waiters) == 1)

        await broker.drain()

        assert (await waiting).count == 0
        with pytest.raises(Unavailable):
            await lease(broker, SOMEONE, "*")


@on_uvloop
async def test_a_stream_delivers_from_several_queues_within_one_credit():
    async with broker_on() as broker:
        delivered: list[Any] = []
        await push(broker, "shop.a", b"1", b"2")
        request = StreamRequest("", queues=validation.queue_choice(["shop.*"]))
        stream = broker.stream(SOMEONE, request, delivered.append, lambda error: None)
        stream.credit(4)
        await push(broker, "shop.b", b"3", b"4", b"5")
        await until(lambda: sum(reply.count for reply in delivered) == 4)

        assert {reply.queue for reply in delivered} == {"shop.a", "shop.b"}
        stream.close()
        assert broker.shard.leased_count() == 0


@on_uvloop
async def test_what_does_not_fit_into_an_answer_is_given_back_uncounted():
    async with broker_on() as broker:
        large = bytes(6 * limits.MIB)
        for name in "abcd":
            await push(broker, name, large)

        first = await lease(broker, SOMEONE, "*")
        second = await lease(broker, SOMEONE, "*")

        assert 1 <= first.count < 4
        assert first.count + second.count == 4
        assert {piece.attempt(0) for reply in second.leases for piece in reply.pieces} == {1}


def opened(count: int) -> Session:
    session = Session(None, background=False)
    for number in range(count):
        session.run(ops.CreateQueue(f"q{number}", {}))
    return session


def test_a_lease_looks_at_the_queues_that_may_have_something_and_at_no_others(monkeypatch):
    session = opened(200)
    looked: list[str] = []
    shard = session.shard
    lease_locked = shard.lease_locked

    def noted(name, *more):
        looked.append(name)
        return lease_locked(name, *more)

    monkeypatch.setattr(shard, "lease_locked", noted)
    request = LeaseRequest(10)
    key = set_key(validation.queue_choice("q*"), "default", request)
    lease_queues(shard, key, request)
    looked.clear()

    for number in (7, 7, 150):
        shard.push(f"q{number}", Batch.build([b"x"]))
    lease_queues(shard, key, request)
    lease_queues(shard, key, request)

    assert sorted(looked) == ["q150", "q7"]
    session.close()


def test_sets_that_nobody_uses_are_dropped_and_rebuilt():
    session = opened(3)
    sets = session.shard.waiters.sets
    request = LeaseRequest(10)
    for number in range(limits.queue_sets_max + 50):
        lease_queues(
            session.shard, set_key(validation.queue_choice(f"q{number % 3}"), "default", request, number), request
        )

    assert len(sets.by_key) <= limits.queue_sets_max
    session.shard.push("q0", Batch.build([b"x"]))
    reply = lease_queues(session.shard, set_key(validation.queue_choice("q0"), "default", request, 0), request)
    assert reply is not None
    assert reply[0].count == 1
    session.close()


def test_queues_that_are_deleted_leave_nothing_behind():
    session = opened(0)
    request = LeaseRequest(10)
    key = set_key(validation.queue_choice("q*"), "default", request)
    for number in range(50):
        lease_queues(session.shard, key, request)
        session.shard.push(f"q{number}", Batch.build([b"x"]))
        session.run(ops.DeleteQueue(f"q{number}"))
    lease_queues(session.shard, key, request)

    (queue_set,) = session.shard.waiters.sets.by_key.values()
    assert not queue_set.has_more()
    session.close()
