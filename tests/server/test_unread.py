"""Requests that are never whole: they make progress or end, share one budget, and have turns with everybody else."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.seats import AddressBudget
from penstock.embedded.session import Session
from penstock.wire.frames import HEAD, PROTOCOL_VERSION, Splitter, Type, frame
from penstock.wire.requests import Hello, encode
from tests.support.http import request
from tests.support.watchdog import SECONDS, Watched, watched

HELLO = frame(Type.HELLO, 1, encode(Hello(PROTOCOL_VERSION, "test")))
HALF_FRAME = HEAD.pack(30 << 20, Type.PUSH, 2) + bytes(100)
HALF_BODY = request("POST", "/api/v1/queues/mail/messages", content_length="30000000") + b"{"


@pytest.fixture
def broker() -> Iterator[Watched]:
    soon = {"headers_seconds": 0.3, "progress_seconds": 0.3, "lingering_seconds": 0.2, "keep_alive_seconds": 0.5}
    with closing(Session(None)) as session, watched(session, None, **soon) as made:
        made.tcp.progress_seconds = 0.3
        made.tcp.tick_seconds = 0.1
        yield made


def to_end(sock: socket.socket) -> bytes:
    received = b""
    try:
        while piece := sock.recv(1 << 16):
            received += piece
    except ConnectionError:
        pass
    return received


@pytest.mark.parametrize(("protocol", "half"), [("tcp", HELLO + HALF_FRAME), ("http", HALF_BODY)])
def test_half_a_request_is_ended_although_a_byte_comes_now_and_then(broker, protocol, half):
    port = broker.tcp.port if protocol == "tcp" else broker.http.port
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as sock:
        sock.sendall(half)
        sock.settimeout(0.05)
        received = b""
        while b"did not arrive in time" not in received:
            sock.send(b"x")
            try:
                received += sock.recv(1 << 16)
            except TimeoutError:
                continue
        sock.settimeout(SECONDS)
        to_end(sock)
    assert broker.broker.unread.total == 0


def test_a_frame_that_grows_fast_enough_may_take_long(broker, monkeypatch):
    monkeypatch.setattr("penstock.limits.progress_bytes", 10)
    body = bytes(3000)
    with socket.create_connection(("127.0.0.1", broker.tcp.port), timeout=SECONDS) as sock:
        sock.sendall(HELLO + HEAD.pack(len(body) + 5, Type.PING, 7))
        for at in range(0, len(body), 100):
            sock.sendall(body[at : at + 100])
            end = broker.loop.time() + 0.03
            broker.until(lambda end=end: broker.loop.time() > end)
        received = b""
        while HEAD.pack(5, Type.PONG, 7) not in received:
            received += sock.recv(1 << 16)


@pytest.mark.parametrize("protocol", ["tcp", "http"])
def test_requests_that_are_not_whole_share_one_budget(broker, protocol):
    broker.broker.unread.total_max = 1 << 20
    broker.tcp.progress_seconds = 60.0
    half = HELLO + HALF_FRAME if protocol == "tcp" else HALF_BODY
    port = broker.tcp.port if protocol == "tcp" else broker.http.port
    with ExitStack() as stack:
        socks = [stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=SECONDS)) for _ in range(6)]
        for sock in socks:
            with suppress(ConnectionError):
                sock.sendall(half + bytes(400_000))
        connections = broker.tcp._connections if protocol == "tcp" else broker.http._site.connections
        broker.until(lambda: len(connections) <= 2)
        assert broker.broker.unread.total <= 1 << 20
    broker.until(lambda: not broker.broker.unread.total)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 60)), max_size=40))
def test_the_budget_is_kept_and_nobody_is_refused_within_their_share(steps):
    unread = AddressBudget(100)
    held: dict[str, int] = {}
    for address, count in steps:
        if unread.take(address, count):
            held[address] = held.get(address, 0) + count
        else:
            assert held.get(address, 0) + count > 100 // 3
        assert unread.total == sum(held.values()) <= 100 + 50 + 34
    for address, count in held.items():
        unread.give_back(address, count)
    assert (unread.total, unread._by_address) == (0, {})


def test_many_frames_that_came_together_leave_turns_to_others(broker):
    count = 2_000
    with socket.create_connection(("127.0.0.1", broker.tcp.port), timeout=SECONDS) as sock:
        broker.forget()
        sock.sendall(HELLO + b"".join(frame(Type.PING, number, b"") for number in range(2, count)))
        received = b""
        while HEAD.pack(5, Type.PONG, count - 1) not in received:
            received += sock.recv(1 << 16)
    answers = Splitter(1 << 20).feed(received)[1]
    assert [correlation for kind, correlation, _, _ in answers if kind == Type.PONG] == list(range(2, count))


@given(st.binary(min_size=1, max_size=300), st.lists(st.integers(1, 40), min_size=1))
def test_a_frame_in_pieces_of_any_size_is_what_it_was(body, sizes):
    whole = frame(Type.PING, 3, body)
    splitter, at = Splitter(1 << 20), 0
    found = []
    while at < len(whole):
        size = sizes[at % len(sizes)]
        data, cuts = splitter.feed(whole[at : at + size])
        found += [data[start:stop] for _, _, start, stop in cuts]
        at += size
    assert found == [body]
    assert splitter.held_bytes == 0
