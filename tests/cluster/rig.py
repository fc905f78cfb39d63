"""Two nodes of Penstock on a store, under load, with faults; and what must be true in the end.

The load is the crowd of `client_load`: producers and consumers of every kind that know both nodes. Faults are given as
functions. After each, pushes must be confirmed again within `PATIENCE_SECONDS`; how long it took is noted. In the end
everything is drained, and the checkers of the promises look at all that clients were told.
"""

from __future__ import annotations

import random
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any, Final, Self

import penstock
from tests.support import client_load
from tests.support.broker_restarts import hold_a_port
from tests.support.client_load import Crowd
from tests.support.nodes import NodeProcess
from tests.support.recorded import problems

PATIENCE_SECONDS: Final = 90.0
ROUND: Final = 150  # operations of the load between two faults
NAMES: Final = ("a", "b")


class Line:
    """A wire to a port that can be cut: what is sent then gets lost, and nobody is told."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open = threading.Event()
        self._open.set()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._spawn(self._accept)

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def cut(self) -> None:
        self._open.clear()

    def mend(self) -> None:
        """Connections from before are lost: whoever waits on one is told so now."""
        for each in list(self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._open.set()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()  # so that no connection comes after this
        self.mend()
        for thread in self._threads:
            thread.join()
        for each in (self._listener, *list(self._sockets)):
            each.close()

    def _spawn(self, work: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self._sockets.append(near)
                self._spawn(self._connect, near)

    def _connect(self, near: socket.socket) -> None:
        self._open.wait()
        try:
            far = socket.create_connection(("127.0.0.1", self._port))
        except OSError:
            near.close()
            self._sockets.remove(near)
            return
        self._sockets.append(far)
        back = threading.Thread(target=self._pump, args=(near, far), daemon=True)
        back.start()
        self._pump(far, near)
        back.join()
        for each in (near, far):  # there are many in a long run
            each.close()
            self._sockets.remove(each)

    def pass_on(self, data: bytes, sink: socket.socket) -> None:
        self._open.wait()
        sink.sendall(data)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self.pass_on(data, sink)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class Nodes:
    """Two nodes, always at the same ports. As a `Broker` of the load it is always up, wherever it is."""

    def __init__(self, store_of: Callable[[str], str], folder: Path, rng: random.Random) -> None:
        self.up = threading.Event()
        self.up.set()
        self._store_of = store_of  # the URL of the store for a node
        self._folder = folder
        self._holders = {name: hold_a_port(rng) for name in NAMES}
        self._turns = count()
        self.processes: dict[str, NodeProcess] = {}

    @property
    def url(self) -> str:
        return ",".join(f"penstock://127.0.0.1:{self._port(name)}" for name in NAMES)

    @property
    def port(self) -> int:
        """Now one, now the other: who speaks frames does not follow."""
        return self._port(NAMES[next(self._turns) % len(NAMES)])

    def start(self, name: str) -> None:
        flags = ("--tcp-port", str(self._port(name)), "--grpc-port", "off")
        if name in self.processes:
            self.processes[name].close()
        self.processes[name] = NodeProcess(self._store_of(name), name, self._folder, *flags)

    def start_all(self) -> None:
        for name in NAMES:
            if name not in self.processes or self.processes[name].process.poll() is not None:
                self.start(name)

    def owner(self) -> str:
        """The node that serves; waited for."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            for name, process in self.processes.items():
                if process.process.poll() is None and process.status() == "ok":
                    return name
        raise AssertionError("nobody owns the shard")

    def signal(self, name: str, number: signal.Signals) -> None:
        self.processes[name].signal(number)

    def kill(self, name: str) -> None:
        self.processes[name].kill()

    def close(self) -> None:
        for process in self.processes.values():
            process.close()
        for holder in self._holders.values():
            holder.close()

    def _port(self, name: str) -> int:
        return int(self._holders[name].getsockname()[1])


Fault = Callable[[], object]


class UnderLoad:
    """Nodes with a crowd at work, and a probe that says when pushes are confirmed."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self.record = client_load.record()
        self.times: dict[str, list[float]] = {}  # seconds until pushes were confirmed again, by fault
        self.store_times: dict[str, list[float]] = {}  # seconds until the store itself took a commit, where it is known
        client_load.prepare(nodes.url)
        self._crowd = Crowd(nodes, self.record)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._crowd.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def suffer(self, name: str, fault: Fault, commit: Callable[[], object] | None = None) -> float:
        """Let it work, do something bad, and wait until pushes are confirmed; how long that took.

        `commit` returns when the store itself has taken a commit: what is left is the part of the nodes and clients.
        """
        self.record.until(more=ROUND)
        begun = time.monotonic()
        fault()
        committing = threading.Thread(target=lambda: self._time_commit(name, begun, commit))
        committing.start()
        with penstock.connect(self._nodes.url, timeout=PATIENCE_SECONDS, connect_seconds=PATIENCE_SECONDS) as ps:
            ps.queue("probe").push(name.encode())
        took = time.monotonic() - begun
        self.times.setdefault(name, []).append(took)
        committing.join()
        return took

    def _time_commit(self, name: str, begun: float, commit: Callable[[], object] | None) -> None:
        if commit is not None:
            commit()
            self.store_times.setdefault(name, []).append(time.monotonic() - begun)

    def figures(self) -> str:
        """How long it took until pushes were confirmed again, by fault."""
        lines = [f"{name}: {_summary(times)}" for name, times in self.times.items()]
        lines += [f"{name}, the store itself: {_summary(times)}" for name, times in self.store_times.items()]
        return "".join(f"\n{line}" for line in sorted(lines))

    def problems(self) -> list[str]:
        """Have everybody finish, and compare all that they were told."""
        self.record.until(more=ROUND)
        self._crowd.stop()
        client_load.drain(self._nodes.url, self.record)
        return problems(self.record.history, client_load.one_result)


def _summary(times: list[float]) -> str:
    return f"median {median(times):.1f} s, at most {max(times):.1f} s ({len(times)})"
