"""One run of `bench.compare`, on whichever tree is on the path: prints CPU seconds per message. Public names only."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import process_time
from typing import Any

import penstock
from penstock import aio

PAYLOAD = b"x" * 100


def measured(count: int, work: Callable[[], object], *others: int) -> float:
    """CPU seconds per message, of this process and the others."""
    gc.collect()
    gc.disable()
    began, theirs = process_time(), sum(map(cpu_of, others))
    work()
    return (process_time() - began + sum(map(cpu_of, others)) - theirs) / count


def cpu_of(pid: int) -> float:
    """CPU seconds of another process so far, to the nanosecond where the kernel tells it."""
    return (
        sum(int(Path(path, "schedstat").read_text().split()[0]) for path in Path(f"/proc/{pid}/task").iterdir()) / 1e9
    )


def repeated(work: Callable[[], None], times: int) -> None:
    """Do something many times."""
    for _ in range(times):
        work()


@contextmanager
def broker(directory: str) -> Iterator[tuple[int, dict[str, int]]]:
    """A broker on a directory: its pid and its ports."""
    command = [sys.executable, "-m", "penstock", "serve", "--json", "--data", f"{directory}/data"]
    command += ["--log-level", "warning", "--tcp-port=0", "--http-port=0", "--grpc-port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ports: dict[str, int] = {}
        while not ports:
            said = json.loads(process.stdout.readline())
            ports = {name: address["port"] for name, address in said.get("addresses", {}).items()}
        try:
            yield process.pid, ports
        finally:
            process.terminate()


def embedded(row: str, directory: str) -> float:
    with penstock.open(f"{directory}/data", durability="os") as ps:
        queue = ps.queue("mail")
        queue.push_many([PAYLOAD] * 1_000)
        queue.lease(1_000).ack()
        if row == "push, one at a time":
            return measured(20_000, lambda: [queue.push(PAYLOAD) for _ in range(20_000)])
        if row == "push_many of 1,000":
            items = [PAYLOAD] * 1_000
            return measured(300_000, lambda: [queue.push_many(items) for _ in range(300)])
        if row == "lease(1) + ack":
            queue.push_many([PAYLOAD] * 6_000)
            return measured(6_000, lambda: repeated(lambda: queue.lease(1)[0].ack(), 6_000))
        for _ in range(200):
            queue.push_many([PAYLOAD] * 1_000)

        def drain() -> None:
            for _ in range(200):
                leased = queue.lease(1_000)
                for delivery in leased:
                    _ = delivery.payload
                leased.ack()

        return measured(200_000, drain)


async def concurrently(ps: Any, count: int) -> None:
    queue = ps.queue("mail")

    async def push(times: int) -> None:
        for _ in range(times):
            await queue.push(PAYLOAD)

    await asyncio.gather(*(push(count // 64) for _ in range(64)))


def on_a_loop(directory: str) -> float:
    async def main() -> float:
        async with aio.open(f"{directory}/data", durability="os") as ps:
            await concurrently(ps, 640)
            began = process_time()
            await concurrently(ps, 32_000)
            return (process_time() - began) / 32_000

    return asyncio.run(main())


def over_the_wire(row: str, directory: str) -> float:
    with broker(directory) as (pid, ports):
        if row == "TCP: 64 pushes at a time":

            async def main() -> float:
                async with aio.connect(f"penstock://127.0.0.1:{ports['tcp']}") as ps:
                    await concurrently(ps, 640)
                    began, theirs = process_time(), cpu_of(pid)
                    await concurrently(ps, 19_200)
                    return (process_time() - began + cpu_of(pid) - theirs) / 19_200

            return asyncio.run(main())
        scheme, protocol = ("http", "http") if row.startswith("HTTP") else ("penstock", "tcp")
        with penstock.connect(f"{scheme}://127.0.0.1:{ports[protocol]}") as ps:
            queue = ps.queue("mail")
            items = [PAYLOAD] * 1_000
            queue.push_many(items)
            queue.lease(1_000).ack()
            if "push_many" in row:
                return measured(100_000, lambda: [queue.push_many(items) for _ in range(100)], pid)
            for _ in range(100):
                queue.push_many(items)
            return measured(100_000, lambda: repeated(lambda: queue.lease(1_000).ack(), 100), pid)


def tasks(directory: str) -> float:
    Path(directory, "compare_app.py").write_text(
        "import os, penstock\n"
        "app = penstock.App(os.environ['BENCH_URL'])\n"
        "@app.task(queue='work')\n"
        "async def work(number: int) -> int:\n"
        "    return number\n",
        encoding="utf-8",
    )
    with broker(directory) as (pid, ports):
        os.environ["BENCH_URL"] = url = f"penstock://127.0.0.1:{ports['tcp']}"
        sys.path.insert(0, directory)
        app_module: Any = __import__("compare_app")
        path = os.pathsep.join((os.environ["PYTHONPATH"], directory))
        environment = {**os.environ, "PYTHONPATH": path, "BENCH_URL": url}
        command = [sys.executable, "-m", "penstock", "worker", "compare_app:app", "--log-level", "warning"]
        with subprocess.Popen(command, env=environment) as worker:
            try:
                app_module.work.enqueue(0).result(timeout=30)

                def submit() -> None:
                    for first in range(0, 5_000, 1_000):
                        jobs = app_module.work.enqueue_many([(n,) for n in range(first, first + 1_000)])
                    jobs[-1].result(timeout=60)
                    with penstock.connect(url) as ps:
                        while ps.queue("work").stats().groups["default"].lag:
                            pass

                return measured(5_000, submit, pid, worker.pid)
            finally:
                worker.terminate()


def main() -> None:
    row, directory = sys.argv[1:]
    if row.startswith("tasks"):
        seconds = tasks(directory)
    elif row.startswith("asyncio"):
        seconds = on_a_loop(directory)
    elif row.startswith(("TCP", "HTTP")):
        seconds = over_the_wire(row, directory)
    else:
        seconds = embedded(row, directory)
    sys.stdout.write(json.dumps(seconds) + "\n")


if __name__ == "__main__":
    main()
