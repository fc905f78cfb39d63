"""A wire that is cut after so many bytes, in either direction: what a lost connection looks like at any point."""

from __future__ import annotations

import random
import socket
import threading
from contextlib import suppress

EVERYTHING = 1 << 60


class NoPause(random.Random):
    """Backs off by nothing, so that tests do not wait."""

    def uniform(self, a: float, b: float) -> float:
        return 0.0


class CuttingProxy:
    """Passes bytes on to a port. The first connections are cut as `limits` says: (bytes up, bytes down) of each."""

    def __init__(self, port: int, limits: list[tuple[int, int]]) -> None:
        self._port = port
        self._limits = list(limits)
        self.bytes: list[list[int]] = []  # that passed on each connection: up, down
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"penstock://127.0.0.1:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        close_server(self._listener, self._thread, self._sockets)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._port))
                self._sockets += [client, server]
                up, down = self._limits.pop(0) if self._limits else (EVERYTHING, EVERYTHING)
                passed = [0, 0]
                self.bytes.append(passed)
                for way, source, sink, limit in ((0, client, server, up), (1, server, client, down)):
                    pump = threading.Thread(target=_pump, args=(source, sink, limit, passed, way), daemon=True)
                    pump.start()


def _pump(source: socket.socket, sink: socket.socket, limit: int, passed: list[int], way: int) -> None:
    with suppress(OSError):
        while passed[way] < limit:
            data = source.recv(1 << 16)[: limit - passed[way]]
            if not data:
                break
            passed[way] += len(data)  # before it can be seen at the other end
            sink.sendall(data)
    _end(source)
    _end(sink)


def close_server(listener: socket.socket, thread: threading.Thread, accepted: list[socket.socket]) -> None:
    """Close a server. Its thread ends first, so that a connection it accepts at the last moment is closed too."""
    with suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
    for each in list(accepted):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)  # wakes recv()
    thread.join()
    for each in (listener, *accepted):
        _end(each)


def _end(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
