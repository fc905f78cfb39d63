"""What dashboards cost a broker: the CPU time of its process, and what pushes beside them take.

Run it as `python -m bench.dashboards`. A broker has 500 queues. One process pushes 200 messages a second to one queue
in ten of them and measures each push; another one opens 20 WebSockets and subscribes to live events, as the page does.
Spans with nobody listening and spans with everybody take turns, so that what else the machine does falls on both. The
spans with nobody are compared with each other as well: a difference below that spread says nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import websockets

import penstock

TICKS = os.sysconf("SC_CLK_TCK")
TOPICS = ["queues", "task_counts", "operations", "dead_letters", "schedules"]
PUSHES_PER_SECOND = 200
QUEUES_PER_ACTIVE = 10


class Span(NamedTuple):
    """What was measured in one span."""

    cpu_share: float  # of a core
    push_seconds: list[float]


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


async def listen(url: str, token: str, count: int) -> None:
    """Open the sockets, write a line when all of them have received something, and read until the process is ended."""
    ready = asyncio.Barrier(count + 1)

    async def one() -> None:
        headers = {"Authorization": f"Bearer {token}"}
        async with websockets.connect(url, max_size=None, additional_headers=headers) as connection:
            about = {"topics": TOPICS, "interval_ms": 1000, "changed_only": True}
            await connection.send(json.dumps({"type": "events", "subscription": "d", **about}))
            await connection.recv()
            await ready.wait()
            async for _ in connection:
                pass

    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(one())
        await ready.wait()
        print("ready", flush=True)


def push(url: str, queue_count: int, seconds: float) -> None:
    """Push at a steady rate and write how long each push took, as JSON."""
    took = []
    with penstock.connect(url) as ps:
        queues = [ps.queue(f"q{number}") for number in range(0, queue_count, QUEUES_PER_ACTIVE)]
        began = time.perf_counter()
        for number in range(int(seconds * PUSHES_PER_SECOND)):
            time.sleep(max(0.0, began + number / PUSHES_PER_SECOND - time.perf_counter()))
            started = time.perf_counter()
            queues[number % len(queues)].push(b"x")
            took.append(time.perf_counter() - started)
    print(json.dumps(took))


def child(*words: str) -> subprocess.Popen[str]:
    """This program as another process, with another task."""
    return subprocess.Popen([sys.executable, "-m", "bench.dashboards", *words], stdout=subprocess.PIPE, text=True)


def measure(broker: subprocess.Popen[bytes], url: str, queue_count: int, seconds: float) -> Span:
    """The share of a core that the broker took while another process pushed, and how long each push took."""
    pusher = child("push", url, str(queue_count), str(seconds))
    before, began = cpu_seconds(broker.pid), time.monotonic()
    took, _ = pusher.communicate()
    return Span((cpu_seconds(broker.pid) - before) / (time.monotonic() - began), json.loads(took))


@contextmanager
def listening(url: str, token: str, count: int) -> Iterator[None]:
    """Dashboards, open from the time when all of them have their first numbers."""
    process = child("listen", url, token, str(count))
    assert process.stdout is not None
    try:
        process.stdout.readline()
        yield
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def p99_ms(spans: Sequence[Span]) -> float:
    """The 99th percentile of the pushes of all spans."""
    return 1000 * statistics.quantiles([push for span in spans for push in span.push_seconds], n=100)[98]


def report(alone: list[Span], beside: list[Span], sockets: int) -> None:
    """Print what was measured."""
    for name, spans in (("nobody listens", alone), (f"{sockets} dashboards", beside)):
        share = 100 * statistics.mean(span.cpu_share for span in spans)
        print(f"{name:>15}: {share:5.1f} % of a core, push p99 {p99_ms(spans):.3f} ms")
    cost = 100 * (statistics.mean(s.cpu_share for s in beside) - statistics.mean(s.cpu_share for s in alone))
    spread = 100 * (p99_ms(alone[1::2]) / p99_ms(alone[::2]) - 1)
    change = 100 * (p99_ms(beside) / p99_ms(alone) - 1)
    print(f"the dashboards: {cost:+.1f} % of a core, push p99 {change:+.1f} %; nobody against nobody {spread:+.1f} %")


def free_port() -> int:
    """A port that nobody uses just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answering(port: int) -> None:
    """Return when somebody answers at a port."""
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.1)
        else:
            return


def run(queue_count: int, sockets: int, seconds: float, rounds: int) -> None:
    """Start a broker, measure in turns, and print the result."""
    with tempfile.TemporaryDirectory() as folder:
        tcp, http = free_port(), free_port()
        ports = ["--tcp-port", str(tcp), "--http-port", str(http), "--grpc-port", "off"]
        command = [sys.executable, "-m", "penstock", "serve", "--data", folder, "--durability", "os", *ports]
        broker = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        try:
            for port in (tcp, http):
                answering(port)
            url = f"penstock://127.0.0.1:{tcp}"
            with penstock.connect(url) as ps:
                for number in range(queue_count):
                    ps.create_queue(f"q{number}")
                token = ps.access.create_key("dashboard", ["monitor:*"]).key
            measure(broker, url, queue_count, 2)  # what is slow the first time is not measured
            alone, beside = [], []
            for _ in range(rounds):
                alone.append(measure(broker, url, queue_count, seconds))
                with listening(f"ws://127.0.0.1:{http}/api/v1/stream", token, sockets):
                    beside.append(measure(broker, url, queue_count, seconds))
            report(alone, beside, sockets)
        finally:
            broker.terminate()
            broker.wait()


def main() -> None:
    """Read the flags, and run it."""
    if sys.argv[1:2] == ["push"]:
        push(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
        return
    if sys.argv[1:2] == ["listen"]:
        asyncio.run(listen(sys.argv[2], sys.argv[3], int(sys.argv[4])))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--queues", type=int, default=500)
    parser.add_argument("--dashboards", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each span")
    parser.add_argument("--rounds", type=int, default=8, help="spans of each kind; an even number")
    flags = parser.parse_args()
    run(flags.queues, flags.dashboards, flags.seconds, flags.rounds)


if __name__ == "__main__":
    main()
