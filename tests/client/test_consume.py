"""Consumption without end: how many messages are taken at a time, who keeps the leases, what is given back."""

from __future__ import annotations

import asyncio
import random
import threading
from contextlib import aclosing, asynccontextmanager, closing
from typing import Any

import pytest

import penstock
from penstock import aio
from penstock.client._sync.delivery import Leased
from penstock.client.values import BatchSize
from penstock.clock import ManualClock
from penstock.embedded.asynchronous import AsyncSession
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.errors import InvalidField
from penstock.replies import LeaseReply
from tests.support.brokers import BrokerThread

SECONDS = 60  # nothing here takes that long; a hang fails instead of hanging


@pytest.fixture(params=["embedded", "penstock", "http"])
def ps(request):
    session = Session(None, durability="os", rng=random.Random(1))
    if request.param == "embedded":
        yield penstock.Penstock(BlockingSession(session))
    else:
        broker = BrokerThread(session, protocol=request.param)
        with penstock.connect(broker.url) as connected:
            yield connected
        broker.stop()
    session.close()


def leased(batch_max=0):
    return Leased(None, LeaseReply("q", "default", 1, 0, (), 1, 30.0, batch_max))


def worked(size, clock, seconds, batch_max=0):
    """The size of the next lease, after one that took so long."""
    size.begin()
    clock.advance(seconds)
    size.end(leased(batch_max))
    return size.size


def test_a_batch_grows_while_the_work_is_quick_and_begins_again_when_it_is_not():
    clock = ManualClock()
    size = BatchSize(None, clock)

    assert size.size == 1
    assert [worked(size, clock, 0.9) for _ in range(8)] == [2, 4, 8, 16, 32, 64, 64, 64]
    assert worked(size, clock, 1.1) == 1
    assert worked(size, clock, 1.0) == 2
    assert worked(size, clock, 0, batch_max=1) == 1


def test_a_batch_that_was_asked_for_stays_as_it_is():
    clock = ManualClock()
    size = BatchSize(7, clock)

    assert [worked(size, clock, seconds) for seconds in (0, 5, 0)] == [7, 7, 7]


@pytest.mark.parametrize("batch", [0, -1, True, 1.5, "4", 10**9])
def test_a_batch_that_is_none_is_refused(ps, batch):
    queue = ps.create_queue("jobs")

    with pytest.raises(InvalidField):
        next(queue.consume(batch=batch))


ONE_BY_ONE: list[dict[str, Any]] = [
    {"ordering": "key"},
    {"ordering": "partition"},
    {"max_attempts": 1},
    {"max_in_flight": 1000},
    {"key_max_in_flight": 10},
    {"lease_per_second": 100_000},
    {"client_lease_per_second": 100_000},
    {"key_lease_per_second": 100_000},
]


@pytest.mark.parametrize("options", [{}, *ONE_BY_ONE], ids=str)
def test_the_queue_says_whether_a_batch_may_grow(ps, options, monkeypatch):
    queue = ps.create_queue("jobs", **options)
    queue.push_many([penstock.Message(payload=b"%d" % n, key=f"k{n}") for n in range(20)])
    sizes = []
    lease = penstock.Queue.lease

    def counting(queue, max, *rest, **options):
        sizes.append(max)
        return lease(queue, max, *rest, **options)

    monkeypatch.setattr(penstock.Queue, "lease", counting)
    with closing(queue.consume()) as deliveries:
        seen = [next(deliveries).payload for _ in range(20)]

    assert len(set(seen)) == 20
    assert sizes[:5] == ([1, 1, 1, 1, 1] if options else [1, 2, 4, 8, 16])


def test_consuming_asks_for_no_options_and_takes_one_thread(ps, monkeypatch):
    queue = ps.create_queue("jobs")
    queue.push_many([b"a"] * 30)
    started: list[str] = []
    asked: list[str] = []
    start = threading.Thread.start

    def counting(thread):
        started.append(thread.name)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", counting)
    monkeypatch.setattr(ps._session, "options", asked.append, raising=False)

    first, second = queue.consume(batch=1), queue.consume()
    with closing(first), closing(second):
        for _ in range(15):
            next(first)
            next(second)

    assert [name for name in started if name == "penstock-lease"] == ["penstock-lease"]
    assert not asked
    assert not [thread for thread in threading.enumerate() if thread.name == "penstock-lease"]


def test_leases_of_slow_consumers_are_extended_for_as_long_as_it_takes(ps, monkeypatch):
    queue = ps.create_queue("jobs", lease_seconds=2.0)
    queue.push_many([b"a", b"b"])
    extended = threading.Semaphore(0)
    extend = Leased.extend

    def noting(leased, seconds):
        extend(leased, seconds)
        extended.release()

    monkeypatch.setattr(Leased, "extend", noting)
    with closing(queue.consume()) as first, closing(queue.consume()) as second:
        taken = [next(first), next(second)]
        for _ in range(6):
            assert extended.acquire(timeout=SECONDS)
        assert not queue.lease()
        assert [delivery.attempt for delivery in taken] == [1, 1]
        for delivery in taken:
            delivery.ack()


@pytest.mark.parametrize("way", ["close", "stop", "error"])
def test_what_was_never_handed_out_is_released_uncounted(ps, way):
    queue = ps.create_queue("jobs", max_attempts=5, backoff_base_seconds=0)
    queue.push_many([b"%d" % n for n in range(8)])
    stop = threading.Event()
    deliveries = queue.consume(batch=8, stop=stop)
    next(deliveries).ack()
    next(deliveries).ack()
    if way == "stop":
        stop.set()
        assert list(deliveries) == []
    elif way == "error":
        with pytest.raises(RuntimeError):
            deliveries.throw(RuntimeError("the program failed"))
    else:
        deliveries.close()

    rest = queue.lease(8)
    assert [(delivery.payload, delivery.attempt) for delivery in rest] == [(b"%d" % n, 1) for n in range(2, 8)]


def test_asyncio_consumers_adapt_too_and_ask_for_no_options(monkeypatch):
    sizes = []
    lease = aio.Queue.lease

    async def counting(queue, max, *rest, **options):
        sizes.append(max)
        return await lease(queue, max, *rest, **options)

    async def run():
        async with aio.open_in_memory() as ps:
            queue = await ps.create_queue("jobs")
            await queue.push_many([b"a"] * 20)
            monkeypatch.setattr(aio.Queue, "lease", counting)
            monkeypatch.setattr(aio.Queue, "options", None)
            return [delivery.attempt async for delivery in queue.consume(idle_seconds=0.01)]

    assert asyncio.run(asyncio.wait_for(run(), SECONDS)) == [1] * 20
    assert sizes[:5] == [1, 2, 4, 8, 16]


@asynccontextmanager
async def opened(kind):
    session = Session(None, durability="os", rng=random.Random(1))
    broker = None if kind == "embedded" else await asyncio.to_thread(BrokerThread, session, 0, kind)
    async with aio.Penstock(lambda: AsyncSession(session)) if broker is None else aio.connect(broker.url) as ps:
        yield ps
    if broker is not None:
        await asyncio.to_thread(broker.stop)
    session.close()


async def take_two(queue, way, taken):
    """Handle two messages, then end in some way."""
    async with aclosing(queue.consume(batch=8)) as deliveries:
        for _ in range(2):
            await (await anext(deliveries)).ack()
        taken.set()
        if way == "error":
            raise RuntimeError("the program failed")
        if way == "cancel":
            await asyncio.Event().wait()


@pytest.mark.parametrize("way", ["close", "cancel", "error"])
@pytest.mark.parametrize("kind", ["embedded", "penstock", "http"])
def test_what_an_asyncio_consumer_was_never_handed_is_released_uncounted(kind, way):
    async def run():
        async with opened(kind) as ps:
            queue = await ps.create_queue("jobs", max_attempts=5, backoff_base_seconds=0)
            await queue.push_many([b"%d" % n for n in range(8)])
            taken = asyncio.Event()
            consumer = asyncio.ensure_future(take_two(queue, way, taken))
            await taken.wait()
            if way == "cancel":
                consumer.cancel()
            await asyncio.gather(consumer, return_exceptions=True)
            rest: list[tuple[Any, int]] = []
            while len(rest) < 6:
                rest += [(each.payload, each.attempt) for each in await queue.lease(8, wait=SECONDS)]
            return rest

    assert asyncio.run(asyncio.wait_for(run(), SECONDS)) == [(b"%d" % n, 1) for n in range(2, 8)]
