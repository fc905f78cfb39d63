"""Processes of a run: the broker, and the bare servers that it is compared with, all on the first core."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.fresh import ROOT
from bench.measure import directory

# The load speaks bare frames and requests, without logging in; `bench.security` measures what that costs.
PORTS = ("--tcp-port=0", "--http-port=0", "--grpc-port=0", "--auth=off")


class Running:
    """A server that is ready."""

    def __init__(self, process: subprocess.Popen[str], said: dict[str, Any]) -> None:
        self.pid = process.pid
        self.said = said

    def port(self, protocol: str) -> int:
        """Where a broker listens."""
        return int(self.said["addresses"][protocol]["port"])

    @property
    def url(self) -> str:
        return f"penstock://127.0.0.1:{self.port('tcp')}"

    def resident_mb(self) -> float:
        """Memory of the process now."""
        for line in Path(f"/proc/{self.pid}/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
        raise LookupError("VmRSS")


@contextmanager
def broker(*options: str) -> Iterator[Running]:
    """`penstock serve` on an empty directory of the real disk."""
    with directory() as path:
        data = str(path / "data")
        command = [sys.executable, "-m", "penstock", "serve", "--json", "--data", data, "--log-level", "warning"]
        with running([*command, *PORTS, *options]) as ready:
            ready.said["data"] = data
            yield ready


@contextmanager
def bare(kind: str) -> Iterator[Running]:
    """A bare server of `bench.server.bare`."""
    with running([sys.executable, "-m", "bench.server.bare", kind]) as ready:
        yield ready


@contextmanager
def running(command: Sequence[str]) -> Iterator[Running]:
    """A process on the first core that says in JSON when it is ready; this one moves to the others."""
    cores = sorted(os.sched_getaffinity(0))
    # A broker takes every PENSTOCK_ variable for a setting, and those of a run are none.
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    started = subprocess.Popen(command, cwd=ROOT, env=clean, stdout=subprocess.PIPE, text=True)
    if len(cores) > 1:
        os.sched_setaffinity(started.pid, {cores[0]})
        os.sched_setaffinity(0, set(cores[1:]))
    try:
        assert started.stdout is not None
        yield Running(started, json.loads(started.stdout.readline()))
    finally:
        os.sched_setaffinity(0, set(cores))
        started.send_signal(signal.SIGTERM)
        started.wait(60)
