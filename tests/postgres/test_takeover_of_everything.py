"""An owner is killed while clients do all that they can do: each goes on, and nothing is lost, doubled or stuck."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import grpc
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect as connect_websocket

import penstock
from penstock.server.grpc.generated import queues_pb2
from penstock.tasks.app import App
from penstock.worker import Worker
from tests.postgres.test_nodes import until
from tests.support.grpc_stub import Stub

pb: Any = queues_pb2
BEFORE, AFTER = [b"%d" % number for number in range(40)], [b"%d" % number for number in range(40, 80)]
TICK = -1  # of the schedule, among the numbers of tasks
PATIENT: dict[str, Any] = {"timeout": 60, "connect_seconds": 60}


class Everything:
    """Threads that consume in every way; what each got is in `got`, by its name."""

    def __init__(self, urls: list[str]) -> None:
        self._urls = urls
        self.got: dict[str, Counter[bytes]] = {}
        self.failures: list[BaseException] = []
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, name: str, work: Callable[[penstock.Penstock, Counter[bytes], threading.Event], object]) -> None:
        got = self.got.setdefault(name, Counter())

        def run() -> None:
            try:
                with penstock.connect(self._urls, **PATIENT) as ps:
                    work(ps, got, self._over)
            except BaseException as error:  # noqa: BLE001 - raised by the test
                self.failures.append(error)

        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def has(self, name: str, payloads: list[bytes]) -> bool:
        if self.failures:
            raise self.failures[0]
        return set(payloads) <= set(self.got[name])

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), f"{thread.name} is stuck"
        if self.failures:
            raise self.failures[0]


def be_a_member(ps: Any, got: Counter[bytes], over: threading.Event) -> None:
    for delivery in ps.queue("shared").subscribe("readers", start="earliest", stop=over):
        got[delivery.payload] += 1


def consume(ps: Any, got: Counter[bytes], over: threading.Event) -> None:
    for delivery in ps.queue("plain").consume(stop=over):
        got[delivery.payload] += 1


def consume_secrets(ps: Any, got: Counter[bytes], over: threading.Event) -> None:
    for delivery in ps.queue("secret").consume(stop=over):
        got[delivery.payload] += 1


def transform(ps: Any, got: Counter[bytes], over: threading.Event) -> None:
    """Settle and push in one transaction: whatever happens, each message has one result."""
    while not over.is_set():
        leased = ps.queue("in").lease(max=5, wait=0.2)
        try:
            with ps.transaction() as tx:
                for delivery in leased:
                    tx.ack(delivery)
                    tx.push("out", delivery.payload)
        except (penstock.errors.LeaseLost, penstock.errors.Unavailable, penstock.errors.OutcomeUnknown):
            continue  # it comes again, unless it was done


def stage(ps: Any, got: Counter[bytes], over: threading.Event) -> None:
    ps.stream("source").map(lambda value: value).to("staged").run(stop=over)


def wait_long(ps: Any, got: Counter[bytes], over: threading.Event) -> None:
    """One long poll that begins before the owner dies, and ends after."""
    for delivery in ps.queue("awaited").lease(max=100, wait=50):
        got[delivery.payload] += 1
        delivery.ack()


@contextmanager
def a_worker(urls: list[str]) -> Iterator[tuple[App, Counter[int]]]:
    app, done = App(urls, timeout=60), Counter[int]()

    @app.task
    def count(number: int) -> int:
        done[number] += 1
        return number

    @app.task(cron="* * * * * *")
    def tick() -> None:
        done[TICK] += 1

    worker = Worker(app, concurrency=2)

    async def work() -> None:
        try:
            await worker.run()
        finally:
            await app.aclose()

    thread = threading.Thread(target=lambda: asyncio.run(work()), daemon=True)
    thread.start()
    app.count = count  # type: ignore[attr-defined]
    try:
        yield app, done
    finally:
        worker.stop()
        thread.join(60)
        app.close()
        assert not thread.is_alive(), "the worker is stuck"


def begin(ps: Any, everything: Everything) -> None:
    """Queues, and whoever consumes from them."""
    ps.create_queue("shared", partitions=4)
    ps.create_queue("secret", encryption=True)
    ps.create_queue("source", partitions=2)
    for name in ("plain", "in", "out", "awaited", "streamed"):
        ps.create_queue(name)
    everything.start("member 1", be_a_member)
    everything.start("member 2", be_a_member)
    for name, work in {
        "plain": consume,
        "secret": consume_secrets,
        "in": transform,
        "source": stage,
        "awaited": wait_long,
    }.items():
        everything.start(name, work)


def test_everything_goes_on_when_the_owner_is_killed(start_node, tmp_path):
    key = tmp_path / "master.key"
    key.write_text(base64.b64encode(os.urandom(32)).decode())
    key.chmod(0o600)
    nodes = [start_node(name, PENSTOCK_MASTER_KEY=str(key)) for name in "ab"]
    urls = [node.url() for node in nodes]
    everything = Everything(urls)
    with penstock.connect(urls, **PATIENT) as ps, a_worker(urls) as (app, done):
        begin(ps, everything)
        until(lambda: "readers" in ps.queue("shared").groups())  # made by the first member that joins
        until(lambda: len(ps.queue("shared").members("readers")) == 2)
        streams = Streams(nodes[0])

        def push(payloads: list[bytes]) -> None:
            for name in ("shared", "plain", "secret", "in"):
                ps.queue(name).push_many(payloads)
            ps.queue("source").push_many(
                [penstock.Message(payload=json.dumps(int(each)).encode()) for each in payloads]
            )

        push(BEFORE)
        jobs = [app.count.enqueue(number) for number in range(10)]  # type: ignore[attr-defined]
        until(lambda: everything.has("plain", BEFORE) and len(done) == 11)
        nodes[0].kill()
        ticks = done[TICK]
        push(AFTER)
        ps.queue("awaited").push(b"late")
        jobs += [app.count.enqueue(number) for number in range(10, 20)]  # type: ignore[attr-defined]

        streams.end()  # they end, and open again at the next owner
        Streams(nodes[1]).take(ps)
        members = everything.got["member 1"], everything.got["member 2"]
        until(lambda: set(BEFORE + AFTER) <= set(members[0]) | set(members[1]))
        for name in ("plain", "secret"):
            until(lambda name=name: everything.has(name, BEFORE + AFTER))
        until(lambda: everything.has("awaited", [b"late"]))
        until(lambda: ps.queue("out").stats().messages == len(BEFORE + AFTER))
        until(lambda: ps.queue("staged").stats().messages == len(BEFORE + AFTER))
        assert [job.result(timeout=60) for job in jobs] == list(range(20))
        until(lambda: done[TICK] > ticks + 1)
        until(lambda: len(ps.queue("shared").members("readers")) == 2)  # they have joined again
        everything.stop()

        check_the_end(ps)


def check_the_end(ps: Any) -> None:
    """One result each, whatever was leased twice; and nothing waits for anybody."""
    assert Counter(m.payload for m in ps.queue("out").read(limit=1000)) == Counter(BEFORE + AFTER)
    staged = [
        m.payload
        for lag in ps.queue("staged").groups()["default"]
        for m in ps.queue("staged").read(partition=lag.partition, limit=1000)
    ]
    assert Counter(map(int, staged)) == Counter(range(80))
    for name in ("plain", "secret", "in", "awaited"):
        account = ps.queue(name).stats().groups["default"]
        assert (account.ready, account.leased, account.waiting) == (0, 0, 0), name
    assert ps.queue("secret").options().encryption


class Streams:
    """A gRPC stream and a WebSocket to one node."""

    def __init__(self, node: Any) -> None:
        self._channel = grpc.insecure_channel(node.url("grpc"))
        self._asked = threading.Event()
        self._over = threading.Event()
        self._call = Stub(self._channel).Stream(self._requests())
        self._stack = ExitStack()
        self._socket = self._stack.enter_context(
            connect_websocket(f"{node.url('http').replace('http', 'ws', 1)}/api/v1/stream")
        )

    def _requests(self) -> Iterator[Any]:
        yield pb.StreamRequest(open=pb.StreamOpen(queue="streamed", credit=10))
        self._over.wait(100)

    def take(self, ps: Any) -> None:
        """What is pushed comes along the stream."""
        ps.queue("streamed").push(b"1")
        for response in self._call:
            if response.WhichOneof("response") == "lease":
                assert [delivery.payload for delivery in response.lease.deliveries] == [b"1"]
                break
        self.close()

    def end(self) -> None:
        """The node is gone: nobody who reads waits for ever."""
        with pytest.raises(grpc.RpcError):
            list(self._call)
        with pytest.raises(ConnectionClosed):
            self._drain()
        self.close()

    def _drain(self) -> None:
        while True:
            self._socket.recv(timeout=60)

    def close(self) -> None:
        self._over.set()
        self._call.cancel()
        self._channel.close()
        self._stack.close()
