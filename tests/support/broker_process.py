"""`penstock serve` as a process of its own, and a client that speaks bare frames to it."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from penstock.replies import LeaseReply
from penstock.wire.answers import decode_leased, decode_placed
from penstock.wire.frames import HEAD, PROTOCOL_VERSION, Type, frame
from penstock.wire.requests import Hello, Lease, Settle, encode, encode_push_one

PATIENCE_SECONDS = 100.0
QUIET = ("--http-port", "off", "--grpc-port", "off")


class Served:
    """A broker in a process. `ready` is what it said about itself; its logs are in a file."""

    def __init__(self, folder: Path, *flags: str, **environment: str) -> None:
        self.log_path = folder / "serve.log"
        # Most tests speak to it in bare frames and requests; those of access control say `--auth on`.
        words = [sys.executable, "-m", "penstock", "serve", "--json", "--auth", "off", "--tcp-port", "0", *flags]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                words, cwd=folder, env=clean | environment, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert '"addresses"' in line, f"it did not start: {line} {self.log_path.read_text()}"
        self.ready: dict[str, Any] = json.loads(line)

    def port(self, protocol: str = "tcp") -> int:
        return int(self.ready["addresses"][protocol]["port"])

    def url(self, protocol: str) -> str:
        return str(self.ready["addresses"][protocol]["url"])

    def logs(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log_path.read_text().splitlines()]

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal; the exit code."""
        self.process.send_signal(number)
        return self.ended()

    def ended(self) -> int:
        code = self.process.wait(PATIENCE_SECONDS)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.ended()


class Caller:
    """One connection, used by one thread; every request is sent by itself and answered in order of reading."""

    def __init__(self, port: int, token: str = "") -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS)
        self._correlation = 0
        try:
            self.answer(self.send(Type.HELLO, encode(Hello(PROTOCOL_VERSION, "test", token))))
        except BaseException:
            self.close()
            raise

    def has_more(self, seconds: float) -> bool:
        """Whether something comes within so long."""
        return bool(select.select([self._socket], [], [], seconds)[0])

    def send(self, kind: int, body: bytes) -> int:
        """Send a request; its correlation."""
        self._correlation += 1
        self._socket.sendall(frame(kind, self._correlation, body))
        return self._correlation

    def receive(self) -> tuple[int, int, bytes]:
        """The next frame: type, correlation, body."""
        length, kind, correlation = HEAD.unpack(self._exactly(HEAD.size))
        return kind, correlation, self._exactly(length - 5)

    def answer(self, correlation: int) -> tuple[int, bytes]:
        """The answer to one request; other frames are passed over."""
        while True:
            kind, found, body = self.receive()
            if found == correlation and kind != Type.GOODBYE:
                return kind, body

    def push(self, queue: str, payload: bytes) -> int:
        kind, body = self.answer(self.send(Type.PUSH_ONE, encode_push_one(queue.encode(), 0, payload)))
        assert kind == Type.PLACED, body
        return decode_placed(body)[1]

    def ask_lease(self, queue: str, count: int = 1, wait_seconds: float = 0.0) -> int:
        return self.send(Type.LEASE, encode(Lease(queue, "default", count, wait_seconds)))

    def lease(self, queue: str, count: int = 1, wait_seconds: float = 0.0) -> LeaseReply:
        kind, body = self.answer(self.ask_lease(queue, count, wait_seconds))
        assert kind == Type.LEASED, body
        return decode_leased(memoryview(body))

    def settle(self, nonce: int, outcome: int = 1) -> None:
        assert self.answer(self.send(Type.SETTLE, encode(Settle(outcome, lease=nonce))))[0] == Type.OK

    def is_closed(self) -> bool:
        """Whether the other side has closed; what comes before that is passed over."""
        try:
            while self._socket.recv(65536):
                pass
        except ConnectionError:
            pass
        return True

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self._socket.recv(count - len(data))
            if not part:
                raise ConnectionError("the broker closed the connection")
            data += part
        return data
