"""Connections that are lost at any point of an exchange: nothing is done twice, nothing confirmed is missing."""

from __future__ import annotations

import asyncio
import random

import pytest

import penstock
from penstock import aio
from penstock import operations as ops
from penstock.embedded.session import Session
from penstock.errors import LeaseLost, ProducerFenced, Unavailable
from tests.support.broker_restarts import held_port
from tests.support.brokers import BrokerThread
from tests.support.cut_proxy import EVERYTHING, CuttingProxy, NoPause
from tests.support.operations import push_bytes, run_operation

SECONDS = 60
# Cut after so many bytes: before, within and behind the greeting (27 up, 25 down or so) and the push behind it.
CUTS = [0, 1, 9, 20, *range(24, 90, 3), 120, 200]


@pytest.fixture
def session():
    opened = Session(None, durability="os", rng=random.Random(1))
    yield opened
    opened.close()


@pytest.fixture
def broker(session):
    running = BrokerThread(session)
    yield running
    running.stop()


@pytest.fixture
def cut(broker):
    """A wire to the broker whose first connections are cut."""
    proxies = []

    def make(*limits):
        proxies.append(CuttingProxy(broker.server.port, list(limits)))
        return proxies[-1]

    yield make
    for proxy in proxies:
        proxy.close()


def connect(url, **options):
    return penstock.connect(url, rng=NoPause(7), timeout=SECONDS, connect_seconds=SECONDS, **options)


def payloads(session, queue):
    return [message.payload for message in run_operation(session, ops.Read(queue, 0, None, None, 100))[0]]


def on_a_loop(work):
    return asyncio.run(asyncio.wait_for(work, SECONDS))


@pytest.mark.parametrize("bytes_cut", CUTS)
@pytest.mark.parametrize("way", ["up", "down"])
def test_a_push_over_a_wire_that_is_cut_anywhere_is_stored_once(cut, session, way, bytes_cut):
    limit = (bytes_cut, EVERYTHING) if way == "up" else (EVERYTHING, bytes_cut)
    with connect(cut(limit).url) as ps:
        id = ps.queue("mail").push(b"a")
        second = ps.queue("mail").push_many([b"b", b"c"])

    assert payloads(session, "mail") == [b"a", b"b", b"c"]
    assert [each.offset for each in (id, *second.ids)] == [0, 1, 2]


@pytest.mark.parametrize("bytes_cut", CUTS)
@pytest.mark.parametrize("way", ["up", "down"])
def test_tasks_whose_wire_is_cut_anywhere_store_each_message_once(cut, session, way, bytes_cut):
    limit = (bytes_cut, EVERYTHING) if way == "up" else (EVERYTHING, bytes_cut)

    async def push():
        async with aio.connect(cut(limit).url, rng=NoPause(7), connect_seconds=SECONDS) as ps:
            queue = ps.queue("mail")
            return await asyncio.gather(*(queue.push(str(number).encode()) for number in range(10)))

    ids = on_a_loop(push())

    assert sorted(int(each) for each in payloads(session, "mail")) == list(range(10))
    assert sorted(id.offset for id in ids) == list(range(10))


@pytest.mark.parametrize("bytes_cut", range(30, 100, 3))
def test_a_transaction_over_a_wire_that_is_cut_happens_once(broker, cut, session, bytes_cut):
    with connect(broker.url) as ps, connect(cut((EVERYTHING, bytes_cut), (EVERYTHING, bytes_cut)).url) as other:
        ps.queue("source").push(b"a")
        (delivery,) = ps.queue("source").lease(1)
        with other.transaction() as tx:
            tx.ack(delivery)
            tx.push("sink", b"out")

        assert [str(id) for ids in tx.ids for id in ids] == ["sink/0/0"]
        assert ps.queue("source").stats().acked == 1
    assert payloads(session, "sink") == [b"out"]


def size_of(cut, work):
    """How many bytes pass up and down on the first connection of a client that does this."""
    proxy = cut()
    with connect(proxy.url) as ps:
        work(ps)
        return list(proxy.bytes[0])


def test_an_operation_that_must_not_be_done_twice_says_that_nobody_knows(cut, session):
    push_bytes(session, "mail", b"a")
    _, down = size_of(cut, lambda ps: ps.queue("mail").stats())
    with connect(cut((EVERYTHING, down + 1)).url) as ps:
        ps.queue("mail").stats()
        with pytest.raises(Unavailable, match="may or may not"):
            ps.queue("mail").purge()

        assert ps.queue("mail").stats().ready == 0


def test_an_ack_whose_answer_is_lost_is_made_again_and_finds_itself_done(cut, session):
    push_bytes(session, "mail", b"a")
    push_bytes(session, "mail", b"b")
    _, down = size_of(cut, lambda ps: ps.queue("mail").lease(1))
    with connect(cut((EVERYTHING, down + 1)).url) as ps:
        leased = ps.queue("mail").lease(1)
        assert leased.payloads() == [b"b"]
        with pytest.raises(LeaseLost, match="first try"):
            leased.ack()

        assert ps.queue("mail").stats().acked == 1


def test_consuming_goes_on_over_a_wire_that_is_cut(cut, broker):
    with connect(broker.url) as ps:
        ps.queue("mail").push_many([str(number).encode() for number in range(50)])
    with connect(cut((EVERYTHING, 800), (EVERYTHING, 1500), (2000, EVERYTHING)).url) as ps:
        seen = [delivery.payload for delivery in ps.queue("mail").consume(batch=5, idle_seconds=0.05)]
        stats = ps.queue("mail").stats()

    assert {int(payload) for payload in seen} <= set(range(50))
    assert stats.acked + stats.leased + stats.ready == 50
    assert stats.acked >= 40


def test_a_client_goes_on_when_its_broker_comes_back(session):
    with held_port(1) as port:
        first = BrokerThread(session, port)
        with connect(first.url) as ps:
            queue = ps.queue("mail")
            queue.push(b"a")
            first.stop()
            again = BrokerThread(session, port)
            queue.push(b"b")
            queue.purge()  # not one to be sent twice: the client notices first that its connection is gone

            assert payloads(session, "mail") == [b"a", b"b"]
            again.stop()


def test_every_url_is_tried_in_turn(broker, session):
    gone = BrokerThread(session)
    urls = f"{gone.url},{broker.url}"
    gone.stop()
    with connect(urls) as ps:
        ps.queue("mail").push(b"a")

    assert payloads(session, "mail") == [b"a"]


def test_a_client_fails_over_when_its_broker_stops(broker, session):
    first = BrokerThread(session)

    async def push():
        async with aio.connect([first.url, broker.url], rng=NoPause(7)) as ps:
            await ps.queue("mail").push(b"a")
            await asyncio.to_thread(first.stop)
            await ps.queue("mail").push(b"b")

    on_a_loop(push())

    assert payloads(session, "mail") == [b"a", b"b"]


def test_a_successor_of_the_same_name_fences_a_producer(broker, session):
    with connect(broker.url, producer="importer") as first:
        first.queue("mail").push(b"a")
        with connect(broker.url, producer="importer") as second:
            second.queue("mail").push(b"b")
            with pytest.raises(ProducerFenced):
                first.queue("mail").push(b"c")

    assert payloads(session, "mail") == [b"a", b"b"]
