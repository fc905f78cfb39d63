"""Any bytes on any port, then silence or an end: afterwards nothing of them is left, and the loop was never held.

What is sent is drawn from a seed: requests as they should be, or broken here and there, cut into pieces, or noise.
Deadlines are short here. What may stay for as long as it likes is a TCP connection that has said who it is and owes
nothing: that one is left when its client closes it.
"""

from __future__ import annotations

import errno
import gc
import json
import logging
import random
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any

import pytest

from penstock.access.authenticator import Authenticator
from penstock.access.discovery import new_entry
from penstock.embedded.session import Session
from penstock.operations import Queues
from penstock.server.http.connection import HttpConnection
from penstock.server.http.exchange import Exchange
from penstock.server.tcp.connection import TcpConnection
from penstock.server.websocket.conversation import Conversation
from penstock.server.websocket.socket import Socket
from penstock.wire.frames import HEAD, PROTOCOL_VERSION, JsonType, Type, frame
from penstock.wire.requests import Hello, encode, encode_push_one
from tests.support.dose import dose
from tests.support.http import request
from tests.support.watchdog import SECONDS, Watched, watched

SEEDS = dose(100, 2_000)
STRANGE_SEEDS = dose(60, 1_000)
AT_ONCE = 20
HELD_SECONDS_MAX = 0.1
KINDS = (HttpConnection, Exchange, TcpConnection, Conversation, Socket)
HELLO = frame(Type.HELLO, 1, encode(Hello(PROTOCOL_VERSION, "test")))
PUSH = "/api/v1/queues/mail/messages"
LEASE = "/api/v1/queues/mail/lease"
ONE = b'{"messages":[{"payload":1}]}'
HANDSHAKE = request(
    "GET",
    "/api/v1/stream",
    connection="upgrade",
    upgrade="websocket",
    sec_websocket_version="13",
    sec_websocket_key="x3JJHMbDL1EzLkh9GBhXDw==",
)
SAYINGS: list[dict[str, Any]] = [
    {"type": "subscribe", "subscription": "s", "queue": "mail", "credit": 5},
    {"type": "events", "subscription": "e", "interval_ms": 100},
    {"type": "push", "queue": "mail", "messages": [{"payload": 1}]},
    {"type": "ack", "receipts": ["mail:0:0:1:0000000000000000"]},
    {"type": "unsubscribe", "subscription": "s"},
    {"type": "ping", "id": 1},
]


class Peer:
    """One connection, all of whose bytes and whose end come from its seed."""

    def __init__(self, seed: int, broker: Watched, stack: ExitStack) -> None:
        self._rng = random.Random(seed)
        self.protocol = self._rng.choice(["tcp", "http", "websocket"])
        self.end = self._rng.choice(["silence", "silence", "close", "half", "reset"])
        port = broker.tcp.port if self.protocol == "tcp" else broker.http.port
        self.sock = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=SECONDS))
        self.sock.setblocking(False)

    def act(self) -> None:
        """Send everything, as far as it is taken: nobody reads the answers."""
        sent = b"".join(self._sent())
        while sent:
            size = self._rng.choice([1, 10, 100, 1_000, 100_000])
            with suppress(BlockingIOError, ConnectionError):
                self.sock.send(sent[:size])
            sent = sent[size:]
        if self.end == "half":
            with suppress(OSError):
                self.sock.shutdown(socket.SHUT_WR)
        elif self.end == "reset":
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if self.end in {"close", "reset"}:
            self.sock.close()

    def _sent(self) -> Iterator[bytes]:
        makers = {"tcp": self._of_tcp, "http": self._of_http, "websocket": self._of_websocket}
        if self.protocol == "websocket":
            yield HANDSHAKE if self._rng.random() < 0.9 else self._broken(HANDSHAKE)
        elif self.protocol == "tcp" and self._rng.random() < 0.7:
            yield HELLO
        for _ in range(self._rng.choice([0, 1, 1, 2, 5, 30])):
            one = makers[self.protocol]()
            yield self._rng.choice([one, one, self._broken(one), self._rng.randbytes(self._rng.randrange(200))])

    def _broken(self, data: bytes) -> bytes:
        made = bytearray(data)
        for _ in range(self._rng.choice([1, 1, 2, 8])):
            at = self._rng.randrange(len(made) + 1)
            what = self._rng.randrange(4)
            if what == 0:
                made[at : at + 1] = self._rng.randbytes(1)
            elif what == 1:
                del made[at : at + self._rng.choice([1, 4, 100])]
            elif what == 2:
                made[at:at] = self._rng.randbytes(self._rng.choice([1, 4, 100]))
            else:
                del made[at:]
        return bytes(made)

    def _of_tcp(self) -> bytes:
        rng = self._rng
        kind, number = rng.choice([*Type, *JsonType]), rng.randrange(1 << 16)
        return rng.choice(
            [
                HELLO,
                frame(Type.PING, number, b""),
                frame(Type.PUSH_ONE, number, encode_push_one(b"mail", 0, bytes(rng.randrange(300)))),
                frame(kind, number, rng.randbytes(rng.randrange(60))),
                frame(rng.choice([*JsonType]), number, json.dumps({"queue": "mail", "task_type": "t"}).encode()),
                HEAD.pack(rng.choice([0, 5, 1000, 30 << 20, (1 << 32) - 1]), kind, number) + bytes(rng.randrange(3000)),
            ]
        )

    def _of_http(self) -> bytes:
        rng = self._rng
        chunked = request("POST", PUSH, transfer_encoding="chunked")
        chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(ONE), ONE)
        return rng.choice(
            [
                request("POST", PUSH, ONE),
                request("POST", LEASE, b'{"max":3,"wait_ms":%d}' % rng.randrange(300)),
                request("GET", rng.choice(["/api/v1/queues", "/metrics", "/docs", "/livez", "/%ff", "/a?%zz"])),
                chunked + chunks,
                chunked + b"zz\r\n",
                request("POST", PUSH, content_length=str(rng.choice([1, 1_000_000, 30_000_000, 1 << 40]))) + b"{",
                request("POST", PUSH, expect="100-continue", content_length="10"),
                request("GET", "/", upgrade="other", connection="upgrade"),
                request("POST", PUSH, ONE, connection="close"),
                b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * rng.randrange(3_000),
            ]
        )

    def _of_websocket(self) -> bytes:
        rng = self._rng
        body = json.dumps(rng.choice(SAYINGS)).encode() if rng.random() < 0.8 else rng.randbytes(rng.randrange(150))
        code = rng.choice([1, 1, 1, 1, 2, 0, 8, 9, 10, 3])
        first = bytes([rng.choice([0x80, 0x80, 0x80, 0, 0xC0]) | code])
        mask = rng.randbytes(4)
        masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(body))
        declared = rng.choice([len(body)] * 8 + [1 << 20, 1 << 40])
        if declared < 126:
            return first + bytes([0x80 | declared]) + mask + masked
        if declared < 1 << 16:
            return first + bytes([0x80 | 126]) + struct.pack(">H", declared) + mask + masked
        return first + bytes([0x80 | 127]) + struct.pack(">Q", declared) + mask + masked


@contextmanager
def quick_broker(*, is_closed: bool = False) -> Iterator[Watched]:
    """A broker with short deadlines; one that is closed asks everybody who they are."""
    soon = dict.fromkeys(("headers", "progress", "lingering", "keep_alive", "write", "paused", "ping"), 0.3)
    with closing(Session(None)) as session:
        authenticator = Authenticator(session.access, session.clock, new_entry()) if is_closed else None
        gc.freeze()  # a collection of what others have left would count as ours
        with watched(session, authenticator, **{f"{name}_seconds": seconds for name, seconds in soon.items()}) as made:
            made.tcp.progress_seconds = made.tcp.stalled_seconds = made.tcp.hello_seconds = 0.3
            made.tcp.tick_seconds = 0.1
            yield made
        gc.unfreeze()


@pytest.fixture
def broker() -> Iterator[Watched]:
    with quick_broker() as made:
        yield made


@pytest.fixture
def closed_broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    for module in ("tcp.listener", "http.connection", "websocket.conversation"):
        monkeypatch.setattr(f"penstock.server.{module}.STRANGER_SECONDS", 0.3)
    with quick_broker(is_closed=True) as made:
        yield made


def idlers(broker: Watched) -> set[TcpConnection]:
    """Those that may stay: they have greeted, or speak JSON, and have no request that is not whole."""
    return {
        each
        for each in broker.tcp._connections
        if (each.is_greeted or each.is_json) and not each._splitter.held_bytes and each._full_since is None
    }


def accept_all(broker: Watched) -> None:
    """Return when everybody who came before now has been let in: they are let in in order."""
    for port, asked in ((broker.tcp.port, HELLO), (broker.http.port, request("GET", "/livez"))):
        with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as sock:
            sock.sendall(asked)
            assert sock.recv(1)


def left(broker: Watched) -> list[str]:
    """What is still kept of any connection."""
    gc.collect()
    return [type(each).__name__ for each in gc.get_objects() if isinstance(each, KINDS)]


def test_any_bytes_then_silence_or_an_end_leave_nothing_behind(broker, caplog):
    anything(broker, caplog, SEEDS)

    with socket.create_connection(("127.0.0.1", broker.http.port), timeout=SECONDS) as sock:
        sock.sendall(request("POST", PUSH, ONE))
        assert sock.recv(1 << 16).startswith(b"HTTP/1.1 201")


def test_any_bytes_of_strangers_leave_nothing_behind_and_change_nothing(closed_broker, caplog):
    broker = closed_broker
    anything(broker, caplog, STRANGE_SEEDS)

    assert broker.session.run(Queues())[0] == []
    assert broker.broker.logins._strangers == {}
    with socket.create_connection(("127.0.0.1", broker.http.port), timeout=SECONDS) as sock:
        sock.sendall(request("POST", PUSH, ONE))
        assert sock.recv(1 << 16).startswith(b"HTTP/1.1 401")


def anything(broker: Watched, caplog: pytest.LogCaptureFixture, seeds: int) -> None:
    """Peers send anything; in the end nothing is left of them."""
    for first in range(0, seeds, AT_ONCE):
        broker.forget()
        with caplog.at_level(logging.ERROR), ExitStack() as stack:
            peers = [Peer(seed, broker, stack) for seed in range(first, min(first + AT_ONCE, seeds))]
            for peer in peers:
                peer.act()
            where = f"seeds {first} to {first + len(peers) - 1}"
            accept_all(broker)
            broker.until(lambda: not broker.http.connections)
            broker.until(lambda: broker.tcp._connections == idlers(broker))
        broker.until(lambda: not broker.tcp._connections)
        assert not [record.getMessage() for record in caplog.records], where
        assert broker.broker.unread.total == 0, where
        assert broker.broker.meter.connections_open == 0, where
        assert broker.longest <= HELD_SECONDS_MAX, (where, broker.culprit)
    timers = broker.loop.time() + broker.tcp.hello_seconds + 0.2  # which still know connections that are gone
    broker.until(lambda: broker.loop.time() > timers)
    assert left(broker) == []


@pytest.mark.parametrize(
    ("protocol", "wrong"), [("tcp", HEAD.pack(1 << 31, Type.PING, 1)), ("http", b"nonsense\r\n\r\n")]
)
def test_a_client_that_resets_while_it_is_refused_leaves_nothing(broker, monkeypatch, protocol, wrong):
    refused = []

    def gone(transport: Any) -> None:
        refused.append(transport)
        raise OSError(errno.ENOTCONN, "it has gone")

    monkeypatch.setattr("asyncio.selector_events._SelectorSocketTransport.write_eof", gone)
    port = broker.tcp.port if protocol == "tcp" else broker.http.port
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as sock:
        sock.sendall(wrong)
        broker.until(lambda: bool(refused))
        broker.until(lambda: not broker.http.connections and not broker.tcp._connections)
