"""Slow, half-open, vanishing and too many peers against one real broker: it stays small and serves everybody else."""

from __future__ import annotations

import os
import resource
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

import pytest

import penstock
from penstock.client.handles import Penstock
from penstock.errors import Unavailable
from penstock.wire.answers import decode_leased
from penstock.wire.frames import HEAD, PROTOCOL_VERSION, Type, frame
from penstock.wire.requests import Hello, Lease, encode, encode_push_one
from tests.support.broker_process import PATIENCE_SECONDS, QUIET, Caller, Served

SLOW_CONSUMERS = 50
PAYLOAD_BYTES = 1 << 18
MESSAGES = 100  # times their size, times the slow consumers: 1.3 GB, if it were all kept for them
GROWTH_BYTES_MAX = 400 << 20
HALF_OPEN = 100  # of each kind
HTTP_CONNECTIONS = 500
HELLO = frame(Type.HELLO, 1, encode(Hello(PROTOCOL_VERSION, "test")))
PUSH = frame(Type.PUSH_ONE, 2, encode_push_one(b"mail", 0, b"payload"))
HTTP_PUSH = (
    b"POST /api/v1/queues/mail/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b'Content-Length: 32\r\n\r\n{"messages": [{"payload": "a"}]}'
)
HALVES = {
    "a greeting": ("tcp", HELLO[:-3]),
    "a frame that will be large": ("tcp", HELLO + HEAD.pack(30 << 20, Type.PUSH_ONE, 2) + bytes(1000)),
    "headers": ("http", HTTP_PUSH[:50]),
    "a body that will be large": (
        "http",
        HTTP_PUSH.replace(b"Length: 32", b"Length: 9000000")[:-10],
    ),
}


@pytest.fixture
def served(tmp_path) -> Iterator[Served]:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with Served(tmp_path, "--http-port", "0", "--grpc-port", "off") as made:
        yield made
        assert made.stop() == 0


def rss_bytes(served: Served) -> int:
    status = Path(f"/proc/{served.process.pid}/status").read_text(encoding="ascii")
    (line,) = [line for line in status.splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) * 1024


def files(served: Served) -> int:
    return len(os.listdir(f"/proc/{served.process.pid}/fd"))


def until(holds: Callable[[], bool], ps: Penstock) -> None:
    """Keep the broker busy with small questions until something holds."""
    for turn in count():
        if holds():
            return
        assert turn < 20_000, "it never did"
        ps.queues()


@contextmanager
def connected(served: Served, protocol: str, many: int) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        address = ("127.0.0.1", served.port(protocol))
        yield [stack.enter_context(socket.create_connection(address, timeout=PATIENCE_SECONDS)) for _ in range(many)]


def is_well(ps: Penstock) -> None:
    """Somebody who behaves is served."""
    queue = ps.queue("well")
    queue.push(b"a")
    (delivery,) = queue.lease(1)
    delivery.ack()


def test_consumers_that_do_not_read_are_not_kept_for(served):
    with penstock.connect(served.url("tcp")) as ps, ExitStack() as stack:
        queue = ps.queue("slow")
        for number in range(MESSAGES):
            queue.push(number.to_bytes(4) * (PAYLOAD_BYTES // 4))
        for number in range(SLOW_CONSUMERS):
            queue.create_group(f"group-{number}")
        before = rss_bytes(served)
        callers = [stack.enter_context(Caller(served.port())) for _ in range(SLOW_CONSUMERS)]
        for number, caller in enumerate(callers):
            for _ in range(MESSAGES):
                caller.send(Type.LEASE, encode(Lease("slow", f"group-{number}")))
            assert caller.has_more(PATIENCE_SECONDS)
        for _ in range(20):
            is_well(ps)

        assert rss_bytes(served) - before < GROWTH_BYTES_MAX
        for caller in (callers[0], callers[-1]):
            bodies = (caller.receive()[2] for _ in range(MESSAGES))
            pieces = [piece for body in bodies for piece in decode_leased(memoryview(body)).pieces]
            assert [piece.offsets[0] for piece in pieces] == list(range(MESSAGES))
        group = queue.stats().groups["group-7"]
        assert 0 < group.leased < MESSAGES  # nothing is leased for a consumer that cannot take it
        assert group.leased + group.ready == MESSAGES
        for caller in callers:
            caller.close()


def test_requests_that_never_end_cost_little_and_hold_up_nobody(served):
    with penstock.connect(served.url("tcp")) as ps, ExitStack() as stack:
        is_well(ps)
        before = rss_bytes(served)
        idle = files(served)
        for protocol, half in HALVES.values():
            for one in stack.enter_context(connected(served, protocol, HALF_OPEN)):
                one.sendall(half)
        until(lambda: files(served) >= idle + HALF_OPEN * len(HALVES), ps)
        is_well(ps)

        assert rss_bytes(served) - before < GROWTH_BYTES_MAX
        stack.close()
        until(lambda: files(served) <= idle + 2, ps)
        is_well(ps)


def test_many_connections_at_once_are_all_served_over_http(served):
    with connected(served, "http", HTTP_CONNECTIONS) as sockets:
        for one in sockets:
            one.sendall(HTTP_PUSH)
        answers = [one.recv(1 << 16).split(b"\r\n")[0] for one in sockets]

        assert set(answers) == {b"HTTP/1.1 201 Created"}
    with penstock.connect(served.url("tcp")) as ps:
        assert ps.queue("mail").stats().ready == HTTP_CONNECTIONS


@pytest.mark.parametrize(
    ("protocol", "request_bytes"), [("tcp", HELLO + PUSH), ("http", HTTP_PUSH)], ids=["tcp", "http"]
)
def test_clients_that_vanish_at_any_point_have_asked_for_nothing(served, protocol, request_bytes):
    idle = files(served)
    for length in range(len(request_bytes)):
        with socket.create_connection(("127.0.0.1", served.port(protocol)), timeout=PATIENCE_SECONDS) as one:
            one.sendall(request_bytes[:length])
            if length % 2:  # without a farewell
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with penstock.connect(served.url("tcp")) as ps:
        until(lambda: files(served) <= idle + 2, ps)
        assert "mail" not in ps.queues()
        is_well(ps)


def test_connections_over_the_limit_are_notified_and_the_others_go_on(tmp_path):
    with Served(tmp_path, *QUIET, "--connections-max", "40") as served:
        with penstock.connect(served.url("tcp")) as ps:
            is_well(ps)
            with connected(served, "tcp", 200) as sockets:
                farewells = [one.recv(1 << 16) for one in sockets[-100:]]
                is_well(ps)
            assert all(b"too many connections" in each for each in farewells)
            with pytest.raises(Unavailable, match="too many connections"), connected(served, "tcp", 40):
                penstock.connect(served.url("tcp"), connect_seconds=0.5)
            with penstock.connect(served.url("tcp")) as another:
                is_well(another)
        assert served.stop() == 0
