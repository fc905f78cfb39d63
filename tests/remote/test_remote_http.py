"""The client over HTTP: connections that are lost at any point, brokers that are none, time-outs, batching, the end."""

from __future__ import annotations

import asyncio
import http.client
import random
import re
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import penstock
from penstock import Message, aio
from penstock import operations as ops
from penstock.embedded.session import Session
from penstock.errors import (
    BadRequest,
    Closed,
    InvalidField,
    LeaseLost,
    PenstockError,
    ProducerFenced,
    RateLimited,
    TooLarge,
    Unavailable,
)
from penstock.model import MessageId, Outcome
from penstock.remote import blocking
from penstock.remote.settings import settings
from penstock.requests import Settling
from penstock.wire.answers import PLACE
from penstock.wire.errors import ErrorReply
from penstock.wire.frames import HEAD, MEDIA_TYPE, PROTOCOL_VERSION, Splitter, Type, frame
from penstock.wire.requests import Welcome, encode
from tests.support.broker_restarts import held_port, hold_a_port
from tests.support.brokers import BrokerThread
from tests.support.cut_proxy import EVERYTHING, CuttingProxy, NoPause, close_server
from tests.support.operations import run_operation

SECONDS = 60


@pytest.fixture
def session():
    opened = Session(None, durability="os", rng=random.Random(1))
    yield opened
    opened.close()


@pytest.fixture
def broker(session):
    running = BrokerThread(session, protocol="http")
    yield running
    running.stop()


@pytest.fixture
def cut(broker):
    """A wire to the broker whose first connections are cut."""
    proxies = []

    def make(*limits):
        proxies.append(CuttingProxy(broker.server.port, list(limits)))
        return proxies[-1].url.replace("penstock://", "http://")

    yield make
    for proxy in proxies:
        proxy.close()


def connect(url, **options):
    return penstock.connect(url, rng=NoPause(7), timeout=SECONDS, connect_seconds=SECONDS, **options)


def payloads(session, queue):
    return [message.payload for message in run_operation(session, ops.Read(queue, 0, None, None, 100))[0]]


def waiters(session):
    return len(session.shard.waiters)


def on_a_loop(work):
    return asyncio.run(asyncio.wait_for(work, SECONDS))


async def until(condition):
    while not condition():  # noqa: ASYNC110  what is waited for happens in another thread, which has no event for it
        await asyncio.sleep(0)


Answer = bytes | Callable[[bytes], bytes] | None  # also made of the body of the request


class Script:
    """A server that answers the requests of each connection as it is told, and hangs up where it is told None."""

    def __init__(self, *connections: list[Answer]) -> None:
        self._connections = connections
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.heard: list[bytes] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def _serve(self) -> None:
        for answers in self._connections:
            with suppress(OSError):
                client, _ = self._listener.accept()
                self._open.append(client)
                for answer in answers:
                    self.heard.append(self._request(client))
                    made = answer(self.heard[-1].partition(b"\r\n\r\n")[2]) if callable(answer) else answer
                    client.sendall(made) if made is not None else client.shutdown(socket.SHUT_RDWR)

    @staticmethod
    def _request(client: socket.socket) -> bytes:
        head, body, length = b"", b"", 0
        while not head or len(body) < length:
            data = client.recv(1 << 16)
            if not data:
                raise ConnectionError("the client has hung up")
            body += data
            if not head and b"\r\n\r\n" in body:
                head, _, body = body.partition(b"\r\n\r\n")
                found = re.search(rb"content-length: (\d+)", head.lower())
                length = int(found[1]) if found else 0
        return head + b"\r\n\r\n" + body

    def close(self) -> None:
        close_server(self._listener, self._thread, self._open)


@pytest.fixture
def script():
    made = []

    def make(*connections):
        made.append(Script(*connections))
        return made[-1]

    yield make
    for server in made:
        server.close()


def response(status: str, body: bytes, media: str = "text/html") -> bytes:
    head = b"HTTP/1.1 %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"
    return head % (status.encode(), media.encode(), len(body)) + body


def answered(kind: Type, body: bytes) -> Callable[[bytes], bytes]:
    """Every frame of a request is answered alike."""

    def answer(asked: bytes) -> bytes:
        cuts = Splitter(1 << 20).feed(asked)[1]
        return response("200 OK", b"".join(frame(kind, correlation, body) for _, correlation, _, _ in cuts), MEDIA_TYPE)

    return answer


def sent(heard: bytes) -> bytes:
    """The body of the only frame of a request: without its correlation, which differs when it is sent again."""
    return heard.partition(b"\r\n\r\n")[2][HEAD.size :]


WELCOME = answered(Type.OK, encode(Welcome(PROTOCOL_VERSION, "penstock/1", 1 << 20)))
LEASE_LOST = answered(Type.ERROR, encode(ErrorReply("lease_lost", "over", "")))
STOPPING = response(
    "503 Service Unavailable",
    b'{"error": {"code": "unavailable", "message": "stopping", "hint": ""}}',
    "application/json",
)
PUSHED = answered(Type.PLACED, PLACE.pack(7) + b"0")
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CUTS = [0, 1, 60, *range(120, 700, 40)]


@pytest.mark.parametrize("bytes_cut", CUTS)
@pytest.mark.parametrize("way", ["up", "down"])
def test_a_push_over_a_wire_that_is_cut_anywhere_is_stored_once(cut, session, way, bytes_cut):
    limit = (bytes_cut, EVERYTHING) if way == "up" else (EVERYTHING, bytes_cut)
    with connect(cut(limit)) as ps:
        id = ps.queue("mail").push(b"a")
        second = ps.queue("mail").push_many([b"b", Message(payload={"c": 1}, key="k")])

    assert payloads(session, "mail") == [b"a", b"b", b'{"c":1}']
    assert [each.offset for each in (id, *second.ids)] == [0, 1, 2]


@pytest.mark.parametrize("bytes_cut", CUTS)
def test_tasks_whose_wires_are_cut_anywhere_store_each_message_once(cut, session, bytes_cut):
    async def push():
        async with aio.connect(cut(*[(EVERYTHING, bytes_cut)] * 4), rng=NoPause(7), connect_seconds=SECONDS) as ps:
            return await asyncio.gather(*(ps.queue("mail").push(str(number).encode()) for number in range(10)))

    ids = on_a_loop(push())

    assert sorted(int(each) for each in payloads(session, "mail")) == list(range(10))
    assert sorted(id.offset for id in ids) == list(range(10))


@pytest.mark.parametrize("bytes_cut", range(200, 500, 30))
def test_a_transaction_over_a_wire_that_is_cut_happens_once(broker, cut, session, bytes_cut):
    with connect(broker.url) as ps, connect(cut((EVERYTHING, bytes_cut), (EVERYTHING, bytes_cut))) as other:
        ps.queue("source").push(b"a")
        (delivery,) = ps.queue("source").lease(1)
        with other.transaction() as tx:
            tx.ack(delivery)
            tx.push("sink", b"out")

        assert [str(id) for ids in tx.ids for id in ids] == ["sink/0/0"]
        assert ps.queue("source").stats().acked == 1
    assert payloads(session, "sink") == [b"out"]


def test_an_operation_that_must_not_be_done_twice_says_that_nobody_knows(script):
    server = script([WELCOME, None], [WELCOME])
    with connect(server.url) as ps, pytest.raises(Unavailable, match="may or may not"):
        ps.queue("mail").purge()

    assert len(server.heard) == 2


def test_an_operation_that_must_not_be_done_twice_is_sent_again_if_it_was_not_run(script):
    server = script([WELCOME, STOPPING], [WELCOME, answered(Type.OK, b"\xc0")])
    with connect(server.url) as ps:
        ps.queue("mail").purge()

    assert sent(server.heard[1]) == sent(server.heard[3])


def test_an_ack_whose_answer_is_lost_is_made_again_and_finds_itself_done(script):
    server = script([WELCOME, None], [WELCOME, LEASE_LOST])
    remote = blocking.Session(settings(server.url, rng=NoPause(7)))
    with pytest.raises(LeaseLost, match="first try"):
        remote.settle_lease(255, Settling(Outcome.ACKED))
    remote.close()

    assert sent(server.heard[1]) == sent(server.heard[3])


def test_a_broker_that_stops_and_a_gateway_without_one_are_tried_again(script):
    gateway = response("502 Bad Gateway", b"<html>")
    server = script([WELCOME, STOPPING], [gateway], [WELCOME, gateway], [WELCOME, PUSHED])
    with connect(server.url) as ps:
        assert str(ps.queue("mail").push(b"a")) == "mail/0/7"

    assert sent(server.heard[1]) == sent(server.heard[4]) == sent(server.heard[6])


def blocking_push(url: str) -> MessageId:
    with connect(url) as ps:
        id: MessageId = ps.queue("mail").push(b"a")
        return id


def asyncio_push(url: str) -> MessageId:
    async def push() -> MessageId:
        async with aio.connect(url, rng=NoPause(7), connect_seconds=SECONDS) as ps:
            return await ps.queue("mail").push(b"a")

    id: MessageId = on_a_loop(push())
    return id


FACES = pytest.mark.parametrize("push", [blocking_push, asyncio_push])


@FACES
def test_a_broker_that_says_goodbye_is_left_and_the_push_made_elsewhere(script, push):
    def leave(asked: bytes) -> bytes:
        stopping = answered(Type.ERROR, encode(ErrorReply("unavailable", "the broker is stopping", "")))(asked)
        body = frame(Type.GOODBYE, 0) + stopping.partition(b"\r\n\r\n")[2]
        return response("200 OK", body, MEDIA_TYPE)

    server = script([WELCOME, leave, WELCOME, PUSHED], [WELCOME, PUSHED])
    assert str(push(server.url)) == "mail/0/7"
    assert sent(server.heard[1]) == sent(server.heard[3])


@FACES
def test_a_proxy_that_takes_no_large_bodies_is_named(script, push):
    server = script([WELCOME, response("413 Request Entity Too Large", b"<html>")])
    with pytest.raises(TooLarge, match="in front of the broker"):
        push(server.url)


@FACES
def test_an_answer_that_ends_early_is_asked_for_again(script, push):
    nothing = response("200 OK", b"", MEDIA_TYPE)
    server = script([WELCOME, nothing, WELCOME, PUSHED], [WELCOME, PUSHED])
    assert str(push(server.url)) == "mail/0/7"


@FACES
def test_the_protocol_version_of_another_broker_is_refused(script, push):
    server = script([answered(Type.OK, encode(Welcome(PROTOCOL_VERSION + 1, "penstock/9", 1 << 20)))])
    with pytest.raises(BadRequest, match=f"protocol {PROTOCOL_VERSION + 1}"):
        push(server.url)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"\xff" * 64 + b"\r\n\r\n", "does not speak HTTP"),
        (response("200 OK", b"<html>hello</html>"), "not from a broker"),
        (response("404 Not Found", b"nothing here"), "status 404"),
        (response("503 Service Unavailable", b"not yet"), "status 503"),
        (response("200 OK", b'{"another": "service"}', "application/json"), "not from a broker"),
        (response("200 OK", b"not a frame", MEDIA_TYPE), "127.0.0.1"),
    ],
    ids=["garbage", "a page", "nothing there", "a gateway", "another service", "no frames"],
)
def test_what_is_no_broker_is_distinguished(script, answer, text):
    server = script(*[[answer] * 50] * 50)
    with pytest.raises(Unavailable, match=text):
        penstock.connect(server.url, connect_seconds=0.5)

    async def enter():
        async with aio.connect(server.url, connect_seconds=0.5):
            pass

    with pytest.raises(Unavailable, match=text):
        on_a_loop(enter())


def test_a_broker_that_is_not_there_is_named_in_the_error():
    with hold_a_port(random.Random(5)) as held:
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(Unavailable, match=url):
            penstock.connect(url, connect_seconds=0.05)
        with pytest.raises(Unavailable, match=url):
            on_a_loop(aio.connect(url, timeout=0.05).queue("mail").push(b"a"))


@pytest.mark.parametrize("url", ["http://", "http://h:99999", "http://h/path", "http://h,penstock://h", "http://u:p@h"])
def test_a_wrong_url_is_refused(url):
    with pytest.raises(InvalidField, match="url"):
        penstock.connect(url)


def test_a_broker_that_does_not_answer_is_not_waited_for_for_ever(script):
    server = script([WELCOME, b""], [WELCOME, b""])
    with penstock.connect(server.url, timeout=0.3) as ps, pytest.raises(Unavailable, match="does not answer"):
        ps.queue("mail").push(b"a")

    async def push():
        async with aio.connect(server.url, timeout=0.3) as ps:
            await ps.queue("mail").push(b"a")

    with pytest.raises(Unavailable, match="does not answer"):
        on_a_loop(push())


def test_who_asks_is_in_the_headers_of_every_request(script):
    server = script([WELCOME, PUSHED], [WELCOME])
    with connect(server.url, token="secret", client="bücher\r\nx: y") as ps:
        ps.queue("mail").push(b"a")
    penstock.connect(server.url).close()

    hello, push, nameless = (heard.partition(b"\r\n\r\n")[0].lower() + b"\r\n" for heard in server.heard)
    for heard in (hello, push):
        assert b"authorization: bearer secret\r\n" in heard
        assert b"penstock-client: b%c3%bccher%0d%0ax%3a y\r\n" in heard
        assert b"penstock-protocol: 2\r\n" in heard
        assert re.search(rb"penstock-producer: \d+/1\r\n", heard)
        assert b"user-agent: penstock/" in heard
    assert b"authorization" not in nameless
    assert b"penstock-client" not in nameless


def test_a_token_that_no_header_can_hold_is_refused():
    with pytest.raises(InvalidField, match="token"):
        penstock.connect("http://localhost:1", token="a\r\nb")


def test_a_client_goes_on_when_its_broker_comes_back(session):
    with held_port(1) as port:
        first = BrokerThread(session, port, protocol="http")
        with connect(first.url) as ps:
            queue = ps.queue("mail")
            queue.push(b"a")
            first.stop()
            again = BrokerThread(session, port, protocol="http")
            queue.push(b"b")
            queue.purge()

            assert payloads(session, "mail") == [b"a", b"b"]
            again.stop()


def test_a_client_that_found_no_broker_may_be_used_when_there_is_one(session):
    first = BrokerThread(session, protocol="http")
    url, port = first.url, first.server.port
    first.stop()

    async def push():
        ps = aio.connect(url, timeout=SECONDS, connect_seconds=0.1)
        with pytest.raises(Unavailable):
            await ps.__aenter__()
        second = await asyncio.to_thread(BrokerThread, session, port, "http")
        await ps.queue("mail").push(b"b")
        await ps.close()
        await asyncio.to_thread(second.stop)

    on_a_loop(push())

    assert payloads(session, "mail") == [b"b"]


def test_a_client_fails_over_when_its_broker_stops(broker, session):
    first = BrokerThread(session, protocol="http")
    urls = [first.url, broker.url]

    async def push():
        async with aio.connect(urls, rng=NoPause(8)) as ps:
            await ps.queue("mail").push(b"a")
            await asyncio.to_thread(first.stop)
            await ps.queue("mail").push(b"b")

    on_a_loop(push())
    with connect(",".join(urls)) as ps:
        ps.queue("mail").push(b"c")

    assert payloads(session, "mail") == [b"a", b"b", b"c"]


def test_a_successor_of_the_same_name_fences_a_producer(broker, session):
    async def succeed():
        async with aio.connect(broker.url, producer="importer") as second:
            await second.queue("mail").push(b"b")

    with connect(broker.url, producer="importer") as first:
        first.queue("mail").push(b"a")
        on_a_loop(succeed())
        with pytest.raises(ProducerFenced):
            first.queue("mail").push(b"c")

    assert payloads(session, "mail") == [b"a", b"b"]


def test_threads_that_push_together_share_batches(broker, session):
    with connect(broker.url, linger_ms=5) as ps, ThreadPoolExecutor(16) as threads:
        queue = ps.queue("mail")
        ids = list(threads.map(lambda number: queue.push(str(number).encode()), range(200)))

    found = run_operation(session, ops.Read("mail", 0, None, None, 500))[0]
    assert all(found[id.offset].payload == str(number).encode() for number, id in enumerate(ids))
    assert len(session.shard.core.by_name["mail"].partitions[0].extents) < 200


def test_tasks_that_push_together_share_batches_and_closing_sends_the_rest(broker, session):
    async def push():
        ps = aio.connect(broker.url, linger_ms=10_000, batch_max=100)
        tasks = [asyncio.create_task(ps.queue("mail").push(str(number).encode())) for number in range(950)]
        await asyncio.sleep(0)
        await ps.close()
        return await asyncio.gather(*tasks)

    ids = on_a_loop(push())

    found = run_operation(session, ops.Read("mail", 0, None, None, 1_500))[0]
    assert all(found[id.offset].payload == str(number).encode() for number, id in enumerate(ids))
    assert len(session.shard.core.by_name["mail"].partitions[0].extents) <= 12


def test_more_pushes_than_a_producer_may_have_under_way_wait_their_turn(broker, session, monkeypatch):
    monkeypatch.setattr("penstock.remote.producer.UNDER_WAY_MAX", 4)

    async def push():
        async with aio.connect(broker.url) as ps:
            return await asyncio.gather(*(ps.queue("mail").push(b"a") for _ in range(40)))

    assert sorted(id.offset for id in on_a_loop(push())) == list(range(40))


def test_a_limit_is_waited_for_politely_unless_that_takes_too_long(broker, session):
    run_operation(session, ops.CreateQueue("mail", {"push_per_second": 50, "push_burst": 1}, exist_ok=False))
    run_operation(session, ops.CreateQueue("slow", {"push_per_second": 0.01, "push_burst": 1}, exist_ok=False))

    async def push():
        async with aio.connect(broker.url) as ps:
            await asyncio.gather(*(ps.queue("mail").push(b"a") for _ in range(3)))

    on_a_loop(push())
    with connect(broker.url, rate_limit_seconds=1) as ps:
        ps.queue("mail").push(b"a")
        ps.queue("slow").push(b"a")
        with pytest.raises(RateLimited):
            ps.queue("slow").push(b"b")

    assert run_operation(session, ops.Stats("mail"))[0].messages == 4


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
            assert (await ps.queue("mail").lease(1)).payloads() == [b"a"]

    on_a_loop(lease())


def test_closing_ends_calls_that_wait(broker, session):
    run_operation(session, ops.CreateQueue("mail", {}, exist_ok=False))
    ps = connect(broker.url)
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


def test_closing_ends_tasks_that_wait(broker, session):
    run_operation(session, ops.CreateQueue("mail", {}, exist_ok=False))

    async def close():
        ps = aio.connect(broker.url)
        task = asyncio.create_task(ps.queue("mail").lease(1, wait=SECONDS))
        await until(lambda: waiters(session) == 1)
        await ps.close()
        with pytest.raises(Closed):
            await task
        with pytest.raises(Closed):
            await ps.queue("mail").push(b"a")

    on_a_loop(close())


def test_tasks_consume_until_nothing_comes(broker, session):
    async def consume():
        async with aio.connect(broker.url) as ps:
            queue = ps.queue("mail")
            await queue.push_many([str(number).encode() for number in range(25)])
            return [int(each.payload) async for each in queue.consume(batch=10, idle_seconds=0.01)]

    assert on_a_loop(consume()) == list(range(25))
    assert run_operation(session, ops.Stats("mail"))[0].acked == 25


def test_whatever_a_message_holds_comes_back(broker, session):
    kinds = [
        Message(payload=b"\x00\xff", key="k\u2028", headers={"h": "\ud55c"}, trace=TRACE, dedup_key="d"),
        Message(payload={"a": [1, 2.50]}, priority="high", max_attempts=3),
        Message(payload="text", ttl=3600.000001),
        Message(payload=b' {"spaced": 1}\n', content_type=penstock.ContentType.JSON),
        Message(payload=b"not json", content_type=penstock.ContentType.JSON),
    ]
    with connect(broker.url) as ps:
        queue = ps.queue("mail")
        queue.push_many(kinds)
        assert queue.read(limit=9) == run_operation(session, ops.Read("mail", 0, None, None, 9))[0]
        leased = {each.id.offset: each for each in queue.lease(9)}

    for message in run_operation(session, ops.Read("mail", 0, None, None, 9))[0]:
        delivery = leased[message.id.offset]
        for name in ("payload", "key", "trace", "dedup_key", "content_type", "priority", "pushed_at"):
            assert getattr(delivery, name) == getattr(message, name)
        assert delivery.headers == (message.headers or {})


class BufferingProxy(BaseHTTPRequestHandler):
    """Speaks HTTP/1.0 to the broker and passes a response on when it is whole, on a connection that it closes."""

    port = 0

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        upstream = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        upstream._http_vsn, upstream._http_vsn_str = 10, "HTTP/1.0"  # type: ignore[attr-defined]
        upstream.request("POST", self.path, body, dict(self.headers.items()))
        with upstream.getresponse() as answer:
            whole = answer.read()
            self.send_response(answer.status)
            self.send_header("content-type", answer.headers["content-type"])
            self.end_headers()  # no length: the body ends with the connection
            self.wfile.write(whole)
        upstream.close()

    def log_message(self, *_: object) -> None:
        """Says nothing."""


def test_a_proxy_that_buffers_and_closes_every_connection_only_costs_time(broker, session):
    handler = type("Handler", (BufferingProxy,), {"port": broker.server.port})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{proxy.server_address[1]}"
        with connect(url) as ps:
            queue = ps.queue("mail")
            queue.push(b"a")
            queue.push_many([b"b", b"c"])
            queue.lease(3, wait=1).ack()
            assert not queue.lease(1, wait=0.05)

        async def push():
            async with aio.connect(url) as ps:
                await asyncio.gather(*(ps.queue("mail").push(b"d") for _ in range(20)))
                assert len(await ps.queue("mail").lease(20, wait=1)) == 20

        on_a_loop(push())
        proxy.shutdown()
    assert len(payloads(session, "mail")) == 23
