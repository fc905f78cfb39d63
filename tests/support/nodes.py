"""Nodes of a store: processes of their own, or threads of this one."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from penstock.config import Settings
from penstock.server.node import Node


def status_of(url: str) -> str:
    """What readyz says; nothing while the listeners are replaced."""
    try:
        status: str = httpx.get(f"{url}/readyz", timeout=10).json()["status"]
    except httpx.TransportError:
        return ""
    return status


class NodeProcess:
    """`penstock serve --store`, started; `ready` is what it said then."""

    def __init__(self, url: str, name: str, directory: Path, *flags: str, **environment: str) -> None:
        self.name = name
        command = [sys.executable, "-m", "penstock", "serve", "--node", name, "--data", str(directory / name)]
        ports = ["--tcp-port", "0", "--http-port", "0", "--grpc-port", "0", "--auth", "off", "--json"]
        variables = {**os.environ, "PENSTOCK_STORE": url, "PYTHONUNBUFFERED": "1", **environment}
        self._log = (directory / f"{name}.log").open("ab")
        self.process = subprocess.Popen(
            [*command, *ports, "--drain-seconds", "2", *flags],
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=variables,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.close()
            raise RuntimeError(f"{name} did not start: {(directory / f'{name}.log').read_text()[-3000:]}")
        self.ready: dict[str, Any] = json.loads(line)

    def url(self, protocol: str = "tcp") -> str:
        url: str = self.ready["addresses"][protocol]["url"]
        return url

    def status(self) -> str:
        """What readyz says: ok for an owner, spare for a spare."""
        return status_of(self.url("http"))

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._log.close()


class NodeThread:
    """A node in a thread of this process: as good as a process, unless it is to be killed or stopped by a signal."""

    def __init__(self, url: str, name: str, directory: Path, **settings: Any) -> None:
        ports = {"tcp_port": 0, "http_port": 0, "grpc_port": 0}
        given = {"store": url, "node": name, "data": str(directory / name), "auth": "off", "drain_seconds": 2.0}
        self._settings = Settings(**{**ports, **given, **settings})
        self._is_ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"node-{name}")
        self._thread.start()
        self._is_ready.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure

    def url(self, protocol: str = "tcp") -> str:
        return next(address.url for address in self.started.addresses if address.protocol == protocol)

    def status(self) -> str:
        """What readyz says: ok for an owner, spare for a spare."""
        return status_of(self.url("http"))

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self.node.over.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - raised in the test
            self._failure = error
        finally:
            self._is_ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.node = Node(self._settings)
        self.started = await self.node.start()
        self._is_ready.set()
        try:
            await self.node.wait()
        finally:
            await self.node.stop()
