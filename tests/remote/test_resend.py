"""A wire that is cut at every byte of an exchange, and brokers that stop: what a client asked for happens once."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

import pytest

import penstock
from penstock import aio
from penstock import operations as ops
from penstock.client.handles import AsyncPenstock, Penstock
from penstock.clock import ManualClock
from penstock.delivery.entries import Produced, Push
from penstock.embedded.session import Session
from penstock.errors import BadRequest, InvalidField, LeaseLost, PenstockError, RateLimited, Unavailable
from penstock.model import Outcome
from penstock.remote import request as asking
from penstock.remote.exchange import Exchange
from penstock.remote.producer import Producer
from penstock.remote.request import PENDING
from penstock.requests import ACK, LeaseRequest, QueueChoice, Settling
from penstock.wire.errors import to_reply
from penstock.wire.frames import Type, frame
from penstock.wire.requests import Welcome, encode
from tests.support.brokers import BrokerThread
from tests.support.cut_proxy import EVERYTHING, CuttingProxy, NoPause
from tests.support.dose import dose
from tests.support.operations import push_bytes, run_operation

SECONDS = 60
STEP = dose(ci=3, nightly=1)
WELCOME = frame(Type.OK, 1, encode(Welcome(2, "script", 1 << 20)))
STOPPING = encode(to_reply(Unavailable("the broker is stopping")))
Limit = tuple[int, int]
seeds = count()  # every client is a producer of its own


class World:
    """A broker in memory, and clients whose first connection is cut somewhere."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.session = Session(None, durability="os", rng=random.Random(1), clock=self.clock, background=False)
        self.broker = BrokerThread(self.session)
        self.numbers = count()

    def close(self) -> None:
        self.broker.stop()
        self.session.close()

    def queue(self) -> str:
        """A name that is new."""
        return f"queue-{next(self.numbers)}"

    def payloads(self, queue: str) -> list[Any]:
        return [message.payload for message in run_operation(self.session, ops.Read(queue, 0, None, None, 100))[0]]

    @contextmanager
    def cut(self, *limits: Limit) -> Iterator[CuttingProxy]:
        proxy = CuttingProxy(self.broker.server.port, list(limits))
        try:
            yield proxy
        finally:
            proxy.close()


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def blocking(proxy: CuttingProxy, work: Callable[[Penstock], Any]) -> Any:
    with penstock.connect(proxy.url, rng=NoPause(next(seeds)), timeout=SECONDS, connect_seconds=SECONDS) as ps:
        return work(ps)


def on_a_loop(proxy: CuttingProxy, work: Callable[[AsyncPenstock], Any]) -> Any:
    async def run() -> Any:
        async with aio.connect(proxy.url, rng=NoPause(next(seeds)), timeout=SECONDS, connect_seconds=SECONDS) as ps:
            return await work(ps)

    return asyncio.run(asyncio.wait_for(run(), SECONDS))


FACES = [blocking, on_a_loop]


def every_cut(world: World, face: Any, work: Callable[[Any], Any]) -> Iterator[Limit]:
    """Every byte of both directions, as many as pass when nothing is cut; in CI every third."""
    with world.cut() as proxy:
        face(proxy, work)
        up, down = (max(each[way] for each in proxy.bytes) for way in (0, 1))
    yield from ((number, EVERYTHING) for number in range(0, up + 1, STEP))
    yield from ((EVERYTHING, number) for number in range(0, down + 1, STEP))


@pytest.mark.parametrize("face", FACES)
def test_a_push_is_stored_once_wherever_the_wire_is_cut(world, face):
    def push(queue):
        return lambda ps: ps.queue(queue).push(b"a")

    for limit in every_cut(world, face, push(world.queue())):
        queue = world.queue()
        with world.cut(limit, limit) as proxy:
            assert str(face(proxy, push(queue))) == f"{queue}/0/0"
        assert world.payloads(queue) == [b"a"], limit


@pytest.mark.parametrize("face", FACES)
def test_a_batch_is_stored_once_wherever_the_wire_is_cut(world, face):
    def push(queue):
        return lambda ps: ps.queue(queue).push_many([b"a", b"b", b"c"])

    for limit in every_cut(world, face, push(world.queue())):
        queue = world.queue()
        with world.cut(limit, limit) as proxy:
            assert [id.offset for id in face(proxy, push(queue)).ids] == [0, 1, 2]
        assert world.payloads(queue) == [b"a", b"b", b"c"], limit


def refuse_after_a_push(world: World, times: int) -> None:
    """Once something was pushed, pushes are refused so many times: the store has gone away for a moment."""
    journal: Any = world.session.shard.journal
    left = [0]

    def pushed(entry: Any) -> None:
        journal.disk_full, left[0] = True, times

    def refusal() -> PenstockError:
        left[0] -= 1
        journal.disk_full = left[0] > 0
        return Unavailable("the store does not answer", retry_after_seconds=0.001)

    journal.push_refusal = refusal
    for kind in (Push, Produced):
        world.session.shard.core.observe(kind, pushed)


@pytest.mark.parametrize("many", [1, 3])
@pytest.mark.parametrize("face", FACES)
def test_a_push_whose_answer_is_lost_and_whose_next_tries_are_refused_for_now_is_stored_once(world, face, many):
    payloads = [b"%d" % number for number in range(many)]

    def push(queue):
        return lambda ps: ps.queue(queue).push(b"0") if many == 1 else ps.queue(queue).push_many(payloads)

    cuts = list(every_cut(world, face, push(world.queue())))
    refuse_after_a_push(world, times=2)
    for limit in cuts:
        queue = world.queue()
        with world.cut(limit) as proxy:
            face(proxy, push(queue))
        assert world.payloads(queue) == payloads, limit
        world.session.shard.journal.disk_full = False


def transact(face: Any, delivery: Any, sink: str) -> Callable[[Any], Any]:
    def with_threads(ps: Penstock) -> Any:
        with ps.transaction() as tx:
            tx.ack(delivery)
            tx.push(sink, b"out")
        return tx.ids

    async def with_tasks(ps: AsyncPenstock) -> Any:
        async with ps.transaction() as tx:
            tx.ack(delivery)
            tx.push(sink, b"out")
        return tx.ids

    return with_threads if face is blocking else with_tasks


@pytest.mark.parametrize("face", FACES)
def test_a_transaction_happens_once_wherever_the_wire_is_cut(world, face):
    with penstock.connect(world.broker.url) as ps:

        def delivery() -> tuple[str, Any]:
            source = world.queue()
            ps.queue(source).push(b"in")
            return source, ps.queue(source).lease(1)[0]

        for limit in every_cut(world, face, transact(face, delivery()[1], world.queue())):
            (source, held), sink = delivery(), world.queue()
            with world.cut(limit, limit) as proxy:
                assert [str(id) for (id,) in face(proxy, transact(face, held, sink))] == [f"{sink}/0/0"]
            assert ps.queue(source).stats().acked == 1, limit
            assert world.payloads(sink) == [b"out"], limit


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("how", [ACK, Settling(Outcome.REJECTED)])
def test_a_settle_counts_once_wherever_the_wire_is_cut(world, face, how):
    """When its answer is lost the second try finds the lease gone, and says what that may mean."""
    session = world.session

    def settle(queue):
        push_bytes(session, queue, b"a")
        nonce = session.lease(queue, "default", LeaseRequest())[0].nonce
        return lambda ps: ps._session.settle_lease(nonce, how)

    for limit in every_cut(world, face, settle(world.queue())):
        queue = world.queue()
        with world.cut(limit) as proxy, suppress(LeaseLost):
            face(proxy, settle(queue))
        account = run_operation(session, ops.Stats(queue))[0].groups["default"]
        assert (account.acked, account.dead, account.leased) == ((1, 0, 0) if how is ACK else (0, 1, 0)), limit


@pytest.mark.parametrize("face", FACES)
def test_a_lease_whose_answer_is_cut_is_made_again_and_nothing_is_leased_for_ever(world, face):
    def lease(queue):
        push_bytes(world.session, queue, b"a")
        push_bytes(world.session, queue, b"b")
        return lambda ps: ps.queue(queue).lease(1, lease_seconds=30)

    for limit in every_cut(world, face, lease(world.queue())):
        queue = world.queue()
        with world.cut(limit) as proxy:
            leased = face(proxy, lease(queue))
        stats = run_operation(world.session, ops.Stats(queue))[0]
        assert leased.payloads() in ([b"a"], [b"b"]), limit
        assert stats.leased == (1 if leased.payloads() == [b"a"] else 2), limit
    world.clock.advance(seconds=31)
    world.session.timekeeper.tick()
    assert not world.session.shard.core.leases


@pytest.mark.parametrize(
    "refusal", [Unavailable("away", retry_after_seconds=1), RateLimited("slow", retry_after_seconds=1)]
)
def test_a_refusal_ends_only_its_own_try(refusal):
    producer = Producer(1, 1)
    exchange = Exchange(producer)
    push = asking.push_one("mail", b"a")
    exchange.put(push)
    (again,) = exchange.lost("the wire was cut")
    exchange.put(again)
    exchange.received(frame(Type.ERROR, push.correlation, encode(to_reply(refusal))))

    push.renew()
    exchange.put(push)

    assert push.sequence == 1  # the broker knows it by this
    assert list(producer._under_way) == [1]
    exchange.received(frame(Type.ERROR, push.correlation, encode(to_reply(InvalidField("mail: no")))))
    assert not producer._under_way


def test_a_push_that_was_refused_at_its_first_try_begins_anew():
    exchange = Exchange(Producer(1, 1))
    push = asking.push_one("mail", b"a")
    exchange.put(push)
    exchange.received(frame(Type.ERROR, push.correlation, encode(to_reply(Unavailable("away", retry_after_seconds=1)))))
    push.renew()
    exchange.put(push)
    assert (push.sequence, push.sent) == (2, 1)


def test_only_the_request_that_an_older_broker_does_not_know_fails_when_it_hangs_up():
    exchange = Exchange(Producer(1, 1))
    push, lease = asking.push_one("mail", b"a"), asking.lease("mail", "default", LeaseRequest(), 5.0)
    several = asking.lease_queues(QueueChoice(("mail", "more")), "default", LeaseRequest(), 5.0)
    for request in (push, lease, several):
        exchange.put(request)

    exchange.received(frame(Type.ERROR, 0, encode(to_reply(BadRequest("type 28 is no request")))))

    assert exchange.lost("it has gone") == [push, lease]
    assert isinstance(several.answer, BadRequest)
    assert "LEASE_QUEUES" in several.answer.message
    assert (push.answer, lease.answer) == (PENDING, PENDING)


# brokers that stop


def test_what_a_broker_refuses_because_it_stops_is_asked_of_the_next():
    exchange = Exchange(Producer(1, 1))
    waiting, refused = asking.lease("mail", "default", LeaseRequest(), 5.0), asking.execute(ops.Purge("mail"))
    exchange.put(waiting)
    exchange.put(refused)

    exchange.received(frame(Type.GOODBYE, 0) + frame(Type.ERROR, refused.correlation, STOPPING))

    assert refused.answer is PENDING
    assert exchange.lost("it has gone") == [waiting, refused]


def stopping() -> str:
    """The URL of a broker that stops as soon as somebody asks something of it."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        client, _ = listener.accept()
        listener.close()
        with client:
            for answer in (WELCOME, frame(Type.GOODBYE, 0) + frame(Type.ERROR, 2, STOPPING)):
                client.recv(1 << 16)
                client.sendall(answer)
            client.recv(1 << 16)  # until the client hangs up

    url = f"penstock://127.0.0.1:{listener.getsockname()[1]}"
    threading.Thread(target=serve, daemon=True).start()
    return url


def test_nobody_notices_that_a_broker_stops_while_they_push(world):
    with penstock.connect([stopping(), world.broker.url], rng=NoPause(next(seeds))) as ps:
        assert str(ps.queue("mail").push(b"a")) == "mail/0/0"

    async def push() -> Any:
        async with aio.connect([stopping(), world.broker.url], rng=NoPause(next(seeds))) as ps:
            return await ps.queue("mail").push(b"b")

    assert str(asyncio.run(asyncio.wait_for(push(), SECONDS))) == "mail/0/1"


def drain(world: World) -> None:
    async def stop() -> None:
        world.broker.server.stop_accepting()
        await world.broker.broker.drain()

    world.broker.run(stop())


def test_whoever_holds_messages_settles_them_with_the_broker_that_stops(world):
    with penstock.connect(world.broker.url) as ps:
        ps.queue("mail").push_many([b"a", b"b", b"c"])
        first, second, third = ps.queue("mail").lease(3)
        drain(world)
        first.ack()
        second.extend(60)
        with ps.transaction() as tx:
            tx.ack(second)
            tx.push("results", b"r")
        third.nack()

    assert run_operation(world.session, ops.Stats("mail"))[0].acked == 2
    assert world.payloads("results") == [b"r"]


def test_tasks_that_hold_messages_settle_them_with_the_broker_that_stops(world):
    async def work() -> None:
        async with aio.connect(world.broker.url, timeout=1) as ps:
            await ps.queue("mail").push_many([b"a", b"b"])
            first, second = await ps.queue("mail").lease(2)
            await asyncio.to_thread(drain, world)
            late = asyncio.create_task(ps.queue("mail").push(b"late"))  # has to wait for the next broker
            await first.ack()
            await second.ack()
            with pytest.raises(Unavailable):
                await late

    asyncio.run(asyncio.wait_for(work(), SECONDS))
    assert run_operation(world.session, ops.Stats("mail"))[0].acked == 2
