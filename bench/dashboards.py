"""What dashboards cost a broker: the CPU time of its process with many of them open on many queues.

Run it as `python -m bench.dashboards`. A broker is started with 500 queues, 20 WebSockets subscribe to live events, and
a producer pushes to one queue in ten each second. The CPU time of the broker is read before and after, with nobody
listening and with everybody, in the same run; so is the 99th percentile of a push.
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
from pathlib import Path

import websockets

import penstock

TICKS = os.sysconf("SC_CLK_TCK")
TOPICS = ["queues", "task_counts", "operations", "dead_letters", "schedules"]


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


async def dashboards(
    url: str, headers: dict[str, str], count: int, topics: list[str], *, changed_only: bool, until: float
) -> int:
    """Open so many sockets, and read what comes; returns the bytes."""
    received = 0

    async def one() -> None:
        nonlocal received
        async with websockets.connect(url, max_size=None, additional_headers=headers) as connection:
            about = {"topics": topics, "interval_ms": 1000, "changed_only": changed_only}
            await connection.send(json.dumps({"type": "events", "subscription": "d", **about}))
            while (left := until - time.monotonic()) > 0:
                try:
                    frame = await asyncio.wait_for(connection.recv(), left)
                except TimeoutError:
                    return
                received += len(frame)

    await asyncio.gather(*(one() for _ in range(count)))
    return received


async def pushes(queues: list[penstock.Queue], until: float) -> list[float]:
    """Push to one queue in ten each second; how long each push took."""
    took = []
    while time.monotonic() < until:
        begun = time.monotonic()
        for queue in queues[::10]:
            started = time.perf_counter()
            await asyncio.to_thread(queue.push, b"x")
            took.append(time.perf_counter() - started)
        await asyncio.sleep(max(0.0, 1.0 - (time.monotonic() - begun)))
    return took


async def measure(
    pid: int, queues: list[penstock.Queue], url: str, token: str, count: int, seconds: float, *, changed_only: bool
) -> tuple[float, float, int]:
    """The share of a core that the broker took, the 99th percentile of a push, and the bytes that were sent."""
    await asyncio.sleep(1)
    before, started = cpu_seconds(pid), time.monotonic()
    until = started + seconds
    headers = {"Authorization": f"Bearer {token}"}
    listening = dashboards(url, headers, count, TOPICS, changed_only=changed_only, until=until)
    took, sent = await asyncio.gather(pushes(queues, until), listening)
    share = (cpu_seconds(pid) - before) / (time.monotonic() - started)
    return share, statistics.quantiles(took, n=100)[98], sent


def free_port() -> int:
    """A port that nobody uses just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def listening(port: int) -> None:
    """Return when somebody answers at a port."""
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.1)
        else:
            writer.close()
            return


def run(queue_count: int, sockets: int, seconds: float) -> None:
    """Start a broker, and print a line for each case."""
    with tempfile.TemporaryDirectory() as folder:
        tcp, http = free_port(), free_port()
        ports = ["--tcp-port", str(tcp), "--http-port", str(http), "--grpc-port", "off"]
        command = [sys.executable, "-m", "penstock", "serve", "--data", folder, "--durability", "os", *ports]
        broker = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        try:
            asyncio.run(listening(tcp))
            asyncio.run(listening(http))
            ps = penstock.connect(f"penstock://127.0.0.1:{tcp}")
            queues = [ps.create_queue(f"q{number}") for number in range(queue_count)]
            token = ps.access.create_key("dashboard", ["monitor:*"]).key
            url = f"ws://127.0.0.1:{http}/api/v1/stream"
            for name, count, changed in (("nobody", 0, True), ("changed only", sockets, True), ("all", sockets, False)):
                case = measure(broker.pid, queues, url, token, count, seconds, changed_only=changed)
                share, p99, sent = asyncio.run(case)
                print(
                    f"{name:>14}: {100 * share:5.1f} % of a core, push p99 {1000 * p99:.2f} ms, {sent / 1024:,.0f} KiB"
                )
            ps.close()
        finally:
            broker.terminate()
            broker.wait()


def main() -> None:
    """Read the flags, and run it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--queues", type=int, default=500)
    parser.add_argument("--dashboards", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=10.0)
    flags = parser.parse_args()
    run(flags.queues, flags.dashboards, flags.seconds)


if __name__ == "__main__":
    main()
