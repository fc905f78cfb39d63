"""The client over TCP: connecting, batching, limits, time-outs, and brokers that are none."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import penstock
from penstock import aio
from penstock import operations as ops
from penstock.embedded.session import Session
from penstock.errors import (
    BadRequest,
    Closed,
    InvalidField,
    InvalidName,
    PenstockError,
    QueueFull,
    RateLimited,
    TooLarge,
    Unavailable,
)
from penstock.remote import linger
from penstock.remote.settings import addresses
from penstock.wire.frames import Type, frame
from penstock.wire.requests import Welcome, encode
from tests.support.broker_restarts import hold_a_port
from tests.support.brokers import BrokerThread
from tests.support.cut_proxy import NoPause, close_server
from tests.support.operations import push_bytes, run_operation

SECONDS = 60


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


def on_a_loop(work):
    return asyncio.run(asyncio.wait_for(work, SECONDS))


def waiters(session):
    return len(session.shard.waiters)


async def until(condition):
    while not condition():  # noqa: ASYNC110  what is waited for happens in another thread, which has no event for it
        await asyncio.sleep(0)


class Script:
    """A server that answers every connection with the same bytes, once it has heard something."""

    def __init__(self, *answers: bytes) -> None:
        self._answers = answers
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        self.url = f"penstock://127.0.0.1:{self._listener.getsockname()[1]}"

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                self._open.append(client)
                for answer in self._answers:
                    client.recv(1 << 16)
                    client.sendall(answer)
            except OSError:
                return

    def close(self) -> None:
        close_server(self._listener, self._thread, self._open)


WELCOME = frame(Type.OK, 1, encode(Welcome(2, "script", 1 << 20)))


@pytest.mark.parametrize(
    "url",
    ["", "localhost", "ftp://localhost", "penstock://", "penstock://:7710", "penstock://h:99999", "penstock://h/path",
     "penstock://h,", "penstock://u:p@h", [], [7710]],
)  # fmt: skip
def test_a_wrong_url_is_refused_and_the_right_form_is_shown(url):
    with pytest.raises(InvalidField) as caught:
        penstock.connect(url)
    assert "penstock://localhost:7710" in caught.value.hint


@pytest.mark.parametrize("place", ["./data", "/var/lib/penstock", "data", "~/data"])
@pytest.mark.parametrize("connect", [penstock.connect, aio.connect])
def test_who_connects_to_a_directory_is_referred_to_open(connect, place):
    with pytest.raises(InvalidField, match="url: ") as caught:
        connect(place)
    assert f"penstock.open({place!r})" in caught.value.hint


@pytest.mark.parametrize(
    "url",
    ["penstock://localhost:7710", "http://localhost:7711", "https://h", "mysql://u:secret@h/db", "redis://h",
     "file:///tmp/data", Path("penstock://localhost:7710")],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("open_it", [penstock.open, aio.open])
def test_who_opens_a_url_is_referred_to_connect(open_it, url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidField, match="path: ") as caught:
        open_it(url)
    assert "penstock.connect(" in caught.value.hint
    assert "secret" not in caught.value.message + caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_a_url_may_leave_out_its_scheme_and_never_shows_its_password():
    found = [str(each) for each in addresses("localhost:7710,[::1]:7")]
    assert found == ["penstock://localhost:7710", "penstock://[::1]:7"]
    with pytest.raises(InvalidField) as caught:
        penstock.connect("penstock://me:secret@host:7710")
    assert "secret" not in caught.value.message + caught.value.hint
    assert "penstock://…@host:7710" in caught.value.message


def test_an_app_reaches_a_broker_by_host_and_port(broker):
    with penstock.App(broker.url.removeprefix("penstock://")) as app:
        assert app.penstock.queues() == []


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"batch_max": 0}, InvalidField),
        ({"linger_ms": -1}, InvalidField),
        ({"timeout": "long"}, InvalidField),
        ({"token": 7}, InvalidField),
        ({"producer": "no/name"}, InvalidName),
    ],
)
def test_a_wrong_option_is_refused(options, error):
    with pytest.raises(error, match=next(iter(options))):
        penstock.connect("penstock://localhost", **options)


def test_a_broker_that_is_not_there_is_named_in_the_error():
    async def enter(url: str):
        async with aio.connect(url, connect_seconds=0.05):
            pass

    with hold_a_port(random.Random(4)) as held:
        url = f"penstock://127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(Unavailable, match=url):
            penstock.connect(url, connect_seconds=0.05)
        with pytest.raises(Unavailable, match=url):
            on_a_loop(enter(url))


@pytest.mark.parametrize(
    ("answers", "error", "text"),
    [
        ((b"HTTP/1.1 400 Bad Request\r\n\r\n",), Unavailable, "no broker answers"),
        ((bytes(200),), Unavailable, "no broker answers"),
        ((frame(Type.PUSHED, 1, b"x"),), Unavailable, "no broker answers"),
        ((frame(Type.OK, 1, encode(Welcome(3, "newer", 1 << 20))),), BadRequest, "protocol 3"),
        ((frame(Type.ERROR, 1, encode({"code": "bad_request", "message": "protocol 1 is old"})),), BadRequest, "old"),
    ],
)
def test_what_is_no_broker_or_another_version_is_distinguished(answers, error, text):
    server = Script(*answers)
    patience = 0.05 if error is Unavailable else SECONDS  # what is no broker now may be one soon
    with pytest.raises(error, match=text):
        penstock.connect(server.url, connect_seconds=patience, rng=NoPause(1))

    async def enter():
        async with aio.connect(server.url, connect_seconds=patience, rng=NoPause(1)):
            pass

    with pytest.raises(error, match=text):
        on_a_loop(enter())
    server.close()


def test_garbage_in_the_middle_of_a_conversation_is_an_error_for_whoever_waits():
    server = Script(WELCOME, b"\xff" * 64)
    with penstock.connect(server.url) as ps, pytest.raises(Unavailable, match="does not speak the broker protocol"):
        ps.queue("mail").push(b"a")

    async def push():
        async with aio.connect(server.url) as ps:
            await ps.queue("mail").push(b"a")

    with pytest.raises(Unavailable, match="does not speak the broker protocol"):
        on_a_loop(push())
    server.close()


def test_a_broker_that_does_not_answer_is_not_waited_for_for_ever():
    server = Script(WELCOME, b"")
    with penstock.connect(server.url, timeout=0.3) as ps, pytest.raises(Unavailable, match="does not answer"):
        ps.queue("mail").push(b"a")

    async def push():
        async with aio.connect(server.url, timeout=0.3) as ps:
            await ps.queue("mail").push(b"a")

    with pytest.raises(Unavailable, match="does not answer"):
        on_a_loop(push())
    server.close()


def test_threads_that_push_together_share_batches(broker, session):
    with penstock.connect(broker.url, linger_ms=5) as ps, ThreadPoolExecutor(16) as threads:
        queue = ps.queue("mail")
        ids = list(threads.map(lambda number: queue.push(str(number).encode()), range(400)))

    found = run_operation(session, ops.Read("mail", 0, None, None, 500))[0]
    assert len(found) == len(set(ids)) == 400
    assert all(found[id.offset].payload == str(number).encode() for number, id in enumerate(ids))
    assert len(session.shard.core.by_name["mail"].partitions[0].extents) < 400


def test_tasks_that_push_together_share_batches(broker, session):
    async def push():
        async with aio.connect(broker.url, linger_ms=5, batch_max=100) as ps:
            queue = ps.queue("mail")
            return await asyncio.gather(*(queue.push(str(number).encode()) for number in range(1_000)))

    ids = on_a_loop(push())

    found = run_operation(session, ops.Read("mail", 0, None, None, 1_500))[0]
    assert all(found[id.offset].payload == str(number).encode() for number, id in enumerate(ids))
    assert len(session.shard.core.by_name["mail"].partitions[0].extents) <= 12


def test_a_message_that_is_refused_does_not_take_others_along(broker, session):
    run_operation(session, ops.CreateQueue("mail", {"max_length": 5}, exist_ok=False))

    async def push():
        async with aio.connect(broker.url, linger_ms=0) as ps:
            queue = ps.queue("mail")
            pushes = [queue.push(b"x" * (11 << 20)), *(queue.push(b"a") for _ in range(8))]
            return await asyncio.gather(*pushes, return_exceptions=True)

    large, *others = on_a_loop(push())

    assert isinstance(large, TooLarge)
    assert sum(isinstance(each, QueueFull) for each in others) == 3
    assert run_operation(session, ops.Stats("mail"))[0].messages == 5


def test_pushes_beyond_the_buffer_wait_for_room(broker, session, monkeypatch):
    monkeypatch.setattr(linger, "BUFFER_MAX", 10)

    async def push():
        async with aio.connect(broker.url, linger_ms=1) as ps:
            await asyncio.gather(*(ps.queue("mail").push(b"a") for _ in range(300)))

    on_a_loop(push())

    assert run_operation(session, ops.Stats("mail"))[0].messages == 300


def test_more_pushes_than_a_producer_may_have_under_way_wait_their_turn(broker, session):
    async def push():
        async with aio.connect(broker.url) as ps:
            return await asyncio.gather(*(ps.queue("mail").push(b"a") for _ in range(3_000)))

    assert sorted(id.offset for id in on_a_loop(push())) == list(range(3_000))


def test_closing_sends_what_has_gathered(broker, session):
    async def push():
        ps = aio.connect(broker.url, linger_ms=10_000)
        tasks = [asyncio.create_task(ps.queue("mail").push(b"a")) for _ in range(20)]
        await asyncio.sleep(0)
        await ps.close()
        return await asyncio.gather(*tasks)

    assert len(on_a_loop(push())) == 20
    assert run_operation(session, ops.Stats("mail"))[0].messages == 20


def test_a_limit_is_waited_for_politely(broker, session):
    run_operation(session, ops.CreateQueue("mail", {"push_per_second": 50, "push_burst": 1}, exist_ok=False))
    with penstock.connect(broker.url) as ps:
        for _ in range(4):
            ps.queue("mail").push(b"a")

    async def push():
        async with aio.connect(broker.url) as ps:
            await asyncio.gather(*(ps.queue("mail").push(b"a") for _ in range(3)))

    on_a_loop(push())
    assert run_operation(session, ops.Stats("mail"))[0].messages == 7


def test_a_limit_that_takes_too_long_is_an_error(broker, session):
    run_operation(session, ops.CreateQueue("mail", {"push_per_second": 0.01, "push_burst": 1}, exist_ok=False))
    with penstock.connect(broker.url, rate_limit_seconds=0.01) as ps:
        ps.queue("mail").push(b"a")
        with pytest.raises(RateLimited):
            ps.queue("mail").push(b"b")


def test_a_cancelled_lease_leaves_nothing_leased(broker, session):
    run_operation(session, ops.CreateQueue("mail", {}, exist_ok=False))

    async def lease():
        async with aio.connect(broker.url) as ps:
            task = asyncio.create_task(ps.queue("mail").lease(1, wait=SECONDS))
            await until(lambda: waiters(session) == 1)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await until(lambda: waiters(session) == 0)
            await ps.queue("mail").push(b"a")
            # One that is cancelled while its answer is on the way: what comes is given back.
            racing = asyncio.create_task(ps.queue("mail").lease(1))
            await asyncio.sleep(0)
            racing.cancel()
            await asyncio.gather(racing, return_exceptions=True)
            assert racing.cancelled()
            return (await ps.queue("mail").lease(1, wait=SECONDS)).payloads()

    assert on_a_loop(lease()) == [b"a"]


def test_closing_ends_a_call_that_waits(broker, session):
    run_operation(session, ops.CreateQueue("mail", {}, exist_ok=False))
    ps = penstock.connect(broker.url)
    caught: list[PenstockError] = []

    def wait():
        try:
            ps.queue("mail").lease(1, wait=SECONDS)
        except PenstockError as error:
            caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    on_a_loop(until(lambda: waiters(session) == 1))
    ps.close()
    thread.join(SECONDS)

    assert [type(error) for error in caught] == [Closed]
    with pytest.raises(Closed):
        ps.queue("mail").push(b"a")
    ps.close()


def test_a_client_may_be_used_without_being_entered(broker, session):
    async def push():
        ps = aio.connect(broker.url)
        await ps.queue("mail").push(b"a")
        await ps.close()
        with pytest.raises(Closed):
            await ps.queue("mail").push(b"b")

    on_a_loop(push())
    assert run_operation(session, ops.Stats("mail"))[0].messages == 1


def test_a_loop_body_that_takes_longer_than_the_lease_keeps_it(broker, session):
    push_bytes(session, "mail", b"a")
    extended = threading.Event()
    extend = session.extend

    def noticed(*call):
        extended.set()
        return extend(*call)

    session.extend = noticed
    with penstock.connect(broker.url) as ps:
        queue = ps.queue("mail")
        for delivery in queue.consume(lease_seconds=3, idle_seconds=0.01):
            assert extended.wait(SECONDS)
            assert delivery.attempt == 1

        assert queue.stats().acked == 1


def test_consuming_tasks_keep_their_leases_too(broker, session):
    push_bytes(session, "mail", b"a")
    extended = threading.Event()
    extend = session.extend

    def noticed(*call):
        extended.set()
        return extend(*call)

    session.extend = noticed

    async def consume():
        async with aio.connect(broker.url) as ps:
            queue = ps.queue("mail")
            async for delivery in queue.consume(lease_seconds=3, idle_seconds=0.01):
                await until(extended.is_set)
                assert delivery.attempt == 1
            return await queue.stats()

    assert on_a_loop(consume()).acked == 1
