"""The disk of the PostgreSQL server is full: pushes are refused, nothing is lost, and it recovers by itself."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import penstock
from examples.patroni.rig import until
from penstock.errors import DiskFull, OutcomeUnknown, Unavailable
from tests.support.nodes import NodeProcess, NodeThread
from tests.support.postgres import PostgresServer

MIB = 1 << 20
STOP_SECONDS = 30


class SmallDisk:
    """A store on a file system of its own where one can be made, which takes root; else on a disk that never fills."""

    def __init__(self, directory: Path, url: str) -> None:
        self.url = url
        self._directory = directory
        self._filler = directory / "filler"
        self.confirmed: list[bytes] = []

    def push(self, queue: Any) -> None:
        payload = os.urandom(MIB)
        queue.push(payload)
        self.confirmed.append(payload)

    def fill(self, queue: Any) -> None:
        """Leave little space, and push until pushes are refused for it."""
        if os.geteuid() == 0:
            self._filler.write_bytes(bytes(shutil.disk_usage(self._directory).free - 6 * MIB))
            with pytest.raises(DiskFull):
                self._push_many(queue)

    def _push_many(self, queue: Any) -> None:
        for _ in range(60):
            with suppress(Unavailable, OutcomeUnknown):  # the first that does not fit gets no answer
                self.push(queue)

    def free(self) -> None:
        self._filler.unlink(missing_ok=True)

    def is_confirmed(self, queue: Any) -> bool:
        with suppress(DiskFull, Unavailable, OutcomeUnknown):
            self.push(queue)
            return True
        return False

    def check(self, queue: Any) -> None:
        """Everything confirmed is there, and nothing twice."""
        kept = [message.payload for message in queue.read(limit=1_000)]
        assert set(self.confirmed) <= set(kept)
        assert len(kept) == len(set(kept))


@pytest.fixture
def small_disk(postgres: PostgresServer) -> Iterator[SmallDisk]:
    directory = postgres.directory / "small"
    directory.mkdir()
    if os.geteuid() == 0:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", directory], check=True)
    shutil.chown(directory, "postgres" if os.geteuid() == 0 else os.getuid())
    postgres.sql(f"CREATE TABLESPACE small LOCATION '{directory}'")
    postgres.sql("CREATE DATABASE full_disk TABLESPACE small")
    disk = SmallDisk(directory, postgres.url("full_disk"))
    yield disk
    disk.free()
    postgres.sql("DROP DATABASE full_disk WITH (FORCE)")
    postgres.sql("DROP TABLESPACE small")
    if os.geteuid() == 0:
        subprocess.run(["umount", "--lazy", directory], check=True)
    directory.rmdir()


def test_a_full_disk_of_the_server_refuses_pushes_and_loses_nothing(small_disk, tmp_path):
    node = NodeThread(small_disk.url, "a", tmp_path)
    try:
        with penstock.connect(node.url(), timeout=3) as ps:
            queue = ps.queue("q")
            small_disk.push(queue)
            small_disk.fill(queue)
            small_disk.free()
            until(lambda: small_disk.is_confirmed(queue), "a confirmed push")  # the node looks for space by itself
            small_disk.check(queue)
    finally:
        node.close()


def test_a_node_that_is_stopped_while_the_disk_is_full_ends_soon_and_loses_nothing(small_disk, tmp_path):
    node = NodeProcess(small_disk.url, "a", tmp_path)
    try:
        with penstock.connect(node.url(), timeout=3) as ps:
            small_disk.push(ps.queue("q"))
            small_disk.fill(ps.queue("q"))
            node.signal(signal.SIGTERM)
            assert node.process.wait(STOP_SECONDS) == 0
        small_disk.free()
        with penstock.open(small_disk.url) as ps:
            small_disk.check(ps.queue("q"))
    finally:
        node.close()
