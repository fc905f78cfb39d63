"""Many tasks that push at once over one connection: each is woken when it may go on, and by nobody else's answer."""

from __future__ import annotations

import asyncio
import random
import sys
from contextlib import contextmanager

import pytest

from penstock import aio
from penstock.embedded.session import Session
from penstock.remote.asynchronous import AsyncSession
from tests.support.brokers import BrokerThread

SECONDS = 100  # nothing here takes that long; a hang fails instead of hanging
FEW, MANY = 2_000, 6_000  # both well above what may be under way at a time
EACH_WAY = pytest.mark.parametrize("options", [{}, {"key": "k"}], ids=["gathered", "each by itself"])


@pytest.fixture
def broker():
    session = Session(None, durability="os", rng=random.Random(1))
    running = BrokerThread(session)
    yield running
    running.stop()
    session.close()


def on_a_loop(work):
    return asyncio.run(asyncio.wait_for(work, SECONDS))


@contextmanager
def counting():
    """How often a push was begun or went on: a list of one number."""
    steps = [0]
    codes = {AsyncSession.room.__code__, AsyncSession.ask_push.__code__, AsyncSession.answered.__code__}

    def note(frame, event, argument):
        if event == "call" and frame.f_code in codes:
            steps[0] += 1

    sys.setprofile(note)
    try:
        yield steps
    finally:
        sys.setprofile(None)


def test_the_steps_of_concurrent_pushes_are_linear(broker):
    async def steps_of(count):
        async with aio.connect(broker.url) as ps:
            queue = ps.queue("jobs")
            with counting() as steps:
                ids = await asyncio.gather(*(queue.push(b"a", key="k") for _ in range(count)))
            assert len(set(ids)) == count
            return steps[0]

    few, many = on_a_loop(steps_of(FEW)), on_a_loop(steps_of(MANY))
    assert many / few < 1.3 * MANY / FEW


@EACH_WAY
def test_pushes_that_are_cancelled_while_they_wait_hold_nobody_up(broker, options):
    async def run():
        async with aio.connect(broker.url) as ps:
            queue = ps.queue("jobs")
            pushes = [asyncio.ensure_future(queue.push(b"%d" % n, **options)) for n in range(FEW)]
            await asyncio.sleep(0)
            for push in pushes[::2]:
                push.cancel()
            done = await asyncio.gather(*pushes, return_exceptions=True)
            assert all(not isinstance(answer, BaseException) for answer in done[1::2])
            await queue.push(b"last")
            return (await queue.stats()).ready

    assert FEW // 2 + 1 <= on_a_loop(run()) <= FEW + 1


@EACH_WAY
def test_a_connection_that_is_lost_under_many_pushes_loses_and_doubles_none(broker, options):
    async def run():
        async with aio.connect(broker.url) as ps:
            queue = ps.queue("jobs")
            await queue.push(b"first")
            pushes = asyncio.gather(*(queue.push(b"%d" % n, **options) for n in range(FEW)))
            for _ in range(3):
                await asyncio.sleep(0)
                await asyncio.to_thread(broker.cut)
            assert len(set(await pushes)) == FEW
            return (await queue.stats()).ready

    assert on_a_loop(run()) == FEW + 1
