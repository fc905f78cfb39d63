"""The disk of the PostgreSQL server is full: pushes are refused, nothing is lost, and it goes on by itself."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import penstock
from examples.patroni.rig import until
from penstock.errors import DiskFull, OutcomeUnknown, Unavailable
from tests.support.nodes import NodeProcess, NodeThread
from tests.support.postgres import PostgresServer

MIB = 1 << 20


@pytest.fixture
def small_disk(postgres: PostgresServer) -> Iterator[Path]:
    """A file system of its own where one can be made, which takes root; else a directory that never fills up."""
    path = postgres.directory / "small"
    path.mkdir()
    if os.geteuid() == 0:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", path], check=True)
    shutil.chown(path, "postgres" if os.geteuid() == 0 else os.getuid())
    yield path
    if os.geteuid() == 0:
        subprocess.run(["umount", "--lazy", path], check=True)


def is_confirmed(push: Callable[[], None]) -> bool:
    try:
        push()
    except (DiskFull, Unavailable, OutcomeUnknown):
        return False
    return True


def push_until_refused(push: Callable[[], None]) -> None:
    for _ in range(60):
        with suppress(Unavailable, OutcomeUnknown):  # the first that does not fit waits for its answer in vain
            push()


def test_a_full_disk_of_the_server_refuses_pushes_and_loses_nothing(small_disk, postgres: PostgresServer, tmp_path):
    postgres.sql(f"CREATE TABLESPACE small LOCATION '{small_disk}'")
    postgres.sql("CREATE DATABASE full_disk TABLESPACE small")
    node = NodeThread(postgres.url("full_disk"), "a", tmp_path)
    filler = small_disk / "filler"
    confirmed: list[bytes] = []
    try:
        with penstock.connect(node.url(), timeout=3) as ps:
            queue = ps.queue("q")

            def push() -> None:
                payload = os.urandom(MIB)
                queue.push(payload)
                confirmed.append(payload)

            push()
            if os.geteuid() == 0:
                filler.write_bytes(bytes(shutil.disk_usage(small_disk).free - 6 * MIB))
                with pytest.raises(DiskFull):
                    push_until_refused(push)
                filler.unlink()
            until(lambda: is_confirmed(push), "a confirmed push")  # the node looks for room by itself
            kept = [message.payload for message in queue.read(limit=1_000)]
        assert set(confirmed) <= set(kept)
        assert len(kept) == len(set(kept))
    finally:
        filler.unlink(missing_ok=True)
        node.close()
        postgres.sql("DROP DATABASE full_disk WITH (FORCE)")
        postgres.sql("DROP TABLESPACE small")


STOP_SECONDS = 30


def test_a_node_that_is_stopped_while_the_disk_is_full_ends_soon_and_loses_nothing(
    small_disk, postgres: PostgresServer, tmp_path
):
    postgres.sql(f"CREATE TABLESPACE small LOCATION '{small_disk}'")
    postgres.sql("CREATE DATABASE full_disk TABLESPACE small")
    url, filler = postgres.url("full_disk"), small_disk / "filler"
    node = NodeProcess(url, "a", tmp_path)
    confirmed: list[bytes] = []
    try:
        with penstock.connect(node.url(), timeout=3) as ps:
            queue = ps.queue("q")

            def push() -> None:
                payload = os.urandom(MIB)
                queue.push(payload)
                confirmed.append(payload)

            push()
            if os.geteuid() == 0:
                filler.write_bytes(bytes(shutil.disk_usage(small_disk).free - 6 * MIB))
                with pytest.raises(DiskFull):
                    push_until_refused(push)
            node.signal(signal.SIGTERM)
            assert node.process.wait(STOP_SECONDS) == 0
        filler.unlink(missing_ok=True)
        with penstock.open(url) as ps:
            kept = [message.payload for message in ps.queue("q").read(limit=1_000)]
        assert set(confirmed) <= set(kept)
        assert len(kept) == len(set(kept))
    finally:
        filler.unlink(missing_ok=True)
        node.close()
        postgres.sql("DROP DATABASE full_disk WITH (FORCE)")
        postgres.sql("DROP TABLESPACE small")
