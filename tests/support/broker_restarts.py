"""A broker in a process of its own that is killed and started again, always on the same port and directory."""

from __future__ import annotations

import random
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from tests.support.broker_process import QUIET, Served

PORTS = range(20_000, 32_000)  # below those that the system gives to clients: a client must not take the port meanwhile


def hold_a_port(rng: random.Random) -> socket.socket:
    """A port that nobody else has, and that nobody else gets: held, not listened on, until the socket is closed."""
    while True:
        holder = socket.socket()
        try:
            holder.bind(("127.0.0.1", rng.choice(PORTS)))  # alone: refused where anybody is bound
        except OSError:
            holder.close()
            continue
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # and now a broker may listen on it too
        return holder


@contextmanager
def held_port(seed: int) -> Iterator[int]:
    """A port held for brokers in this process: one after the other may listen there."""
    with hold_a_port(random.Random(seed)) as held:
        yield int(held.getsockname()[1])


class Restarting:
    """One address, one process after another. `up` is set while there is one that listens."""

    def __init__(self, folder: Path, rng: random.Random, *flags: str) -> None:
        self._holder = hold_a_port(rng)
        self.up = threading.Event()
        self._folder = folder
        self._flags = ("--tcp-port", str(self.port), *QUIET, *flags)
        self._served: Served | None = None

    @property
    def port(self) -> int:
        return int(self._holder.getsockname()[1])

    @property
    def url(self) -> str:
        return f"penstock://127.0.0.1:{self.port}"

    @property
    def served(self) -> Served:
        assert self._served is not None
        return self._served

    def start(self) -> None:
        self._served = Served(self._folder, *self._flags)
        self.up.set()

    def kill(self) -> None:
        """Without a warning."""
        self.up.clear()
        assert self.served.stop(signal.SIGKILL) == -signal.SIGKILL

    def stop(self) -> int:
        """In good order; the exit code."""
        self.up.clear()
        return self.served.stop()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self._holder.close()
            raise
        return self

    def __exit__(self, *details: object) -> None:
        with self._holder:
            self.served.__exit__(*details)
