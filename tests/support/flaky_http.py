"""A proxy before an HTTP server that fails in documented ways. It forwards bytes, and understands none of them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

BUSY = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class FlakyProxy:
    """`fault` is what happens to what clients send from now on:

    "" it is forwarded; "503" the server is busy; "cut" a part of it is forwarded, and the connection ends; "lost" it is
    forwarded, and no answer comes back; "hang" nothing happens to it at all.
    """

    def __init__(self, port: int) -> None:
        self.fault = ""
        self._behind = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = [self._listener]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for each in list(self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in list(self._threads):
            thread.join()
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._behind))
                self._sockets += [client, server]
                for pump in (self._requests, self._replies):
                    self._threads.append(threading.Thread(target=pump, args=(client, server)))
                    self._threads[-1].start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(1 << 16):
                if self.fault == "hang":
                    continue
                if self.fault == "503":
                    client.sendall(BUSY)
                    break
                server.sendall(data[: len(data) // 2] if self.fault == "cut" else data)
                if self.fault == "cut":
                    break
        self._end(client, server)

    def _replies(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 16):
                if self.fault == "lost":
                    break
                client.sendall(data)
        self._end(client, server)

    def _end(self, *sockets: socket.socket) -> None:
        for each in sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@contextmanager
def flaky_proxy(port: int) -> Iterator[FlakyProxy]:
    """A proxy before a port, until the end of the block."""
    proxy = FlakyProxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
