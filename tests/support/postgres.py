"""A PostgreSQL of the tests' own: made, started and removed with the process that runs them.

It keeps its promises (`fsync` is on), listens on 127.0.0.1 and a socket, and runs as the user `postgres` where the
tests run as root, whom PostgreSQL refuses. Every test has a database of its own.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import psutil
import psycopg

from penstock.journal import as_it_is
from penstock.postgres.journal import PostgresJournal
from penstock.postgres.store import PostgresStore

PROGRAMS = "/usr/lib/postgresql"  # where Debian keeps them, by version
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "fsync": "on",
    "max_connections": "60",
    "shared_buffers": "64MB",
    "max_wal_size": "512MB",
    "log_min_messages": "fatal",
    "autovacuum": "off",
}
DATABASES_KEPT = 50


def programs() -> Path:
    """The directory of initdb and postgres."""
    on_path = shutil.which("initdb")
    if on_path:
        return Path(on_path).resolve().parent  # a link may stand for one of them alone
    found = sorted(Path(PROGRAMS).glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if not found:
        raise RuntimeError("the tests need PostgreSQL: apt-get install postgresql")
    return found[-1].parent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class PostgresServer:
    """One server. `kill` and `start` it as often as a test likes."""

    def __init__(self, *, primary: PostgresServer | None = None, name: str = "", **settings: str) -> None:
        memory = Path("/dev/shm")
        base = memory if os.environ.get("PYTEST_DEBUG_TEMPROOT") == str(memory) else None
        self.directory = Path(tempfile.mkdtemp(prefix="penstock-pg-", dir=base))
        self.port = free_port()
        self._bin = programs()
        self._names = count(1)
        self._settings = {
            **SETTINGS,
            "port": str(self.port),
            "unix_socket_directories": str(self.directory),
            **settings,
        }
        self._as: list[str] = []
        if os.geteuid() == 0:
            self._as = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "--"]
            shutil.chown(self.directory, "postgres", "postgres")
        self.data = self.directory / "data"
        if primary is not None:
            self._copy(primary, name)
            return
        self._run(
            "initdb",
            "--pgdata",
            str(self.data),
            "--username=penstock",
            "--auth=trust",
            "--no-sync",
            "--locale=C",
            "--encoding=UTF8",
        )
        self.start()

    @classmethod
    def standby_of(cls, primary: PostgresServer, name: str) -> PostgresServer:
        """A copy of a server that follows it under this name, once it is started."""
        return cls(primary=primary, name=name)

    def _copy(self, primary: PostgresServer, name: str) -> None:
        source = f"host=127.0.0.1 port={primary.port} user=penstock"
        self._run(
            "pg_basebackup",
            "--pgdata",
            str(self.data),
            "--dbname",
            source,
            "--wal-method=stream",
            "--no-password",
            "--no-sync",
            "--checkpoint=fast",
            "--write-recovery-conf",
        )
        self.follow(primary, name)

    def follow(self, primary: PostgresServer, name: str) -> None:
        """From its next start on it follows a server under this name."""
        source = f"host=127.0.0.1 port={primary.port} user=penstock"
        with (self.data / "postgresql.auto.conf").open("a") as settings:
            settings.write(f"primary_conninfo = '{source} application_name={name}'\n")

    def start(self) -> None:
        options = " ".join(f"-c {name}={value}" for name, value in self._settings.items())
        log = str(self.directory / "log")
        self._run("pg_ctl", "--pgdata", str(self.data), "--wait", "--log", log, "--options", options, "start")

    def stop(self, mode: str = "fast") -> None:
        self._run("pg_ctl", "--pgdata", str(self.data), "--wait", "--mode", mode, "stop")

    def kill(self) -> None:
        """kill -9 of the postmaster and all that it started."""
        postmaster = psutil.Process(self.pid())
        everyone = [postmaster, *postmaster.children(recursive=True)]
        for process in everyone:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(everyone, timeout=10)

    def pid(self) -> int:
        return int((self.data / "postmaster.pid").read_text().split("\n", 1)[0])

    def url(self, database: str, user: str = "penstock") -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def new_database(self) -> str:
        """A new database; its URL. Each takes 8 MB of memory, so old ones are dropped."""
        number = next(self._names)
        if number > DATABASES_KEPT:
            self.sql(f"DROP DATABASE IF EXISTS test{number - DATABASES_KEPT} WITH (FORCE)")
        self.sql(f"CREATE DATABASE test{number}")
        return self.url(f"test{number}")

    def sql(self, text: str, database: str = "postgres") -> None:
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            connection.execute(text)

    def close(self) -> None:
        with suppress(psutil.Error, OSError):
            self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        command = [*self._as, str(self._bin / program), *arguments]
        # Not a pipe: the server would keep it open.
        with open(os.devnull, "r+b") as null:
            done = subprocess.run(command, check=False, cwd="/", stdin=null, stdout=null, stderr=subprocess.STDOUT)
        if done.returncode:
            log = self.directory / "log"
            raise RuntimeError(f"{program} failed: {log.read_text()[-2000:] if log.exists() else ''}")


@contextmanager
def in_postgres(url: str, file_bytes: int | None = None) -> Iterator[PostgresJournal]:
    """A journal in a new store."""
    store = PostgresStore(url, node="test", file_bytes=file_bytes)
    shard_id = store.open()
    store.clock(None)
    journal = store.open_journal(shard_id, 0, as_it_is)
    yield journal
    journal.close()
    store.close()
