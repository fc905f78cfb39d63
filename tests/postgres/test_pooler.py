"""A real PgBouncer before PostgreSQL: sessions of one's own are good, shared ones are refused."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator

import psycopg
import pytest

import penstock
from penstock.cli import main
from penstock.errors import StoreRefused
from tests.postgres.test_nodes import until
from tests.support.nodes import NodeThread
from tests.support.postgres import PostgresServer, free_port

START_SECONDS = 30


class PgBouncer:
    """One, in some mode, with so many connections to the server."""

    def __init__(self, server: PostgresServer, mode: str, pool_size: int) -> None:
        self.port = free_port()
        folder = server.directory / f"pooler-{self.port}"  # which the user of the server may read
        folder.mkdir()
        config = folder / "pgbouncer.ini"
        (folder / "users.txt").write_text('"penstock" ""\n')
        config.write_text(
            f"[databases]\n* = host=127.0.0.1 port={server.port}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self.port}\nunix_socket_dir =\n"
            f"auth_type = trust\nauth_file = {folder / 'users.txt'}\npool_mode = {mode}\n"
            f"default_pool_size = {pool_size}\nlogfile = {folder / 'log'}\n"
        )
        as_other = []
        if os.geteuid() == 0:  # whom it refuses
            for path in (folder, *folder.iterdir()):
                shutil.chown(path, "postgres")
            as_other = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "--"]
        self._process = subprocess.Popen(
            [*as_other, shutil.which("pgbouncer") or "/usr/sbin/pgbouncer", "--quiet", str(config)], cwd="/"
        )
        until(self._listens, START_SECONDS)

    def url(self, database: str) -> str:
        return f"postgresql://penstock@127.0.0.1:{self.port}/{database}"

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _listens(self) -> bool:
        assert self._process.poll() is None, "pgbouncer did not start"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


Start = Callable[..., str]


@pytest.fixture
def pooled(postgres: PostgresServer, url: str) -> Iterator[Start]:
    made: list[PgBouncer] = []

    def start(mode: str, pool_size: int = 20) -> str:
        made.append(PgBouncer(postgres, mode, pool_size))
        return made[-1].url(url.rpartition("/")[2])

    yield start
    for each in made:
        each.close()


@pytest.mark.parametrize(
    ("mode", "pool_size", "says"),
    [
        ("transaction", 20, "a pooler in front of PostgreSQL is in transaction mode: sessions are shared"),
        ("transaction", 1, "a pooler in front of PostgreSQL does not pass on: .* no reply within"),
        ("statement", 20, "a pooler in front of PostgreSQL .* transaction blocks not allowed in statement pooling"),
        ("session", 2, "a pooler in front of PostgreSQL does not pass on: .* no reply within"),
    ],
)
def test_a_pooler_that_shares_sessions_or_has_too_few_is_refused(pooled, mode, pool_size, says):
    address = pooled(mode, pool_size)
    with pytest.raises(StoreRefused, match=says) as refused:
        penstock.open(address)
    assert refused.value.hint == (
        "connect to PostgreSQL directly, or pool sessions (pool_mode = session), 5 for each node"
    )


def test_a_pooler_that_gives_each_a_session_of_its_own_works(pooled, url, tmp_path, monkeypatch):
    address = pooled("session")
    first, second = (NodeThread(address, name, tmp_path) for name in "ab")
    try:
        with penstock.connect([first.url(), second.url()]) as ps:
            queue = ps.queue("q")
            queue.push(b"1")
            monkeypatch.setenv("PENSTOCK_STORE", address)
            assert main(["node", "drain", "a"]) == 0
            until(lambda: second.status() == "ok")
            queue.push(b"2")
            assert [delivery.payload for delivery in queue.lease(max=5)] == [b"1", b"2"]
    finally:
        first.close()
        second.close()
    with psycopg.connect(url) as direct:
        assert direct.execute("SELECT owner, term FROM penstock.shards").fetchone() == ("", 2)
