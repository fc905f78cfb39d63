"""Three machines on one: each has etcd, Patroni and PostgreSQL as processes of their own, on 127.0.0.1.

A `Machine` can be killed as a whole (kill -9 of everything on it) and started again. PostgreSQL refuses to run as root,
so its processes run as the user `postgres` then. Everything is in one directory, which is removed at the end.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

import psutil
import psycopg

HERE: Final = Path(__file__).parent
HOST: Final = "127.0.0.1"
PATIENCE_SECONDS: Final = 90.0
DATABASE, ROLE = "penstock", "penstock"


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses now."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind((HOST, 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def programs() -> Path:
    """The directory of PostgreSQL's programs: Debian's newest, or where `initdb` on the path really is."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    on_path = shutil.which("initdb")
    if not found and on_path is None:
        raise RuntimeError("PostgreSQL is not installed; on Debian: apt-get install postgresql")
    return found[-1].parent if found else Path(str(on_path)).resolve().parent


def until(holds: Callable[[], Any], what: str, seconds: float = PATIENCE_SECONDS) -> Any:
    """Wait for something to be true, and return it."""
    deadline = time.monotonic() + seconds
    while True:
        with suppress(OSError, psycopg.Error, psutil.Error, urllib.error.URLError, ValueError):
            found = holds()
            if found:
                return found
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not happen within {seconds:g} s")
        time.sleep(0.05)


class Process:
    """A program with a log of its own. It can be killed and started again."""

    def __init__(
        self, name: str, words: list[str], log: Path, *, is_postgres: bool = False, **environment: str
    ) -> None:
        self.name = name
        self._words = [*(as_postgres() if is_postgres else []), *words]
        self._log = log
        self._environment = {**os.environ, **environment}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - ours
                self._words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", env=self._environment
            )

    def send(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
        if self._process is not None:
            self._process.wait()


@cache
def as_postgres() -> tuple[str, ...]:
    """What makes a command run as somebody whom PostgreSQL accepts.

    A user namespace in which root has another number will do: then Patroni can still read the Python of this process.
    """
    if os.geteuid() != 0:
        return ()
    words = ("unshare", "--user", "--map-user=1000", "--map-group=1000", "--")
    if subprocess.run([*words, "true"], check=False, capture_output=True).returncode == 0:  # noqa: S603 - ours
        return words
    return ("setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "--")


class Machine:
    """One machine: a member of etcd, Patroni, and the PostgreSQL that Patroni keeps."""

    def __init__(self, number: int, directory: Path, etcd: Process, settings: dict[str, str]) -> None:
        self.number = number
        self.name = f"db{number}"
        self.port = int(settings["postgresql_port"])
        self._api = f"http://{HOST}:{settings['restapi_port']}"
        self._data = Path(settings["data_dir"])
        self.etcd = etcd
        configuration = directory / "patroni.yml"
        text = (HERE / "patroni.yml").read_text()
        for key, value in {**settings, "name": self.name}.items():
            text = text.replace(f"<{key}>", value)
        configuration.write_text(text)
        configuration.chmod(0o600)
        if "setpriv" in as_postgres():
            for path in (directory, configuration):
                shutil.chown(path, "postgres", "postgres")
        words = [sys.executable, "-m", "patroni", str(configuration)]
        home = {"HOME": str(directory), "PYTHONDONTWRITEBYTECODE": "1"}
        self.patroni = Process(f"patroni{number}", words, directory / "patroni.log", is_postgres=True, **home)

    def start(self) -> None:
        if not self.etcd.is_running:
            self.etcd.start()
        if not self.patroni.is_running:
            self.patroni.start()

    def ask(self, path: str) -> dict[str, Any]:
        """What Patroni says."""
        try:
            with urllib.request.urlopen(f"{self._api}{path}", timeout=2) as answer:  # noqa: S310 - http, ours
                found: dict[str, Any] = json.load(answer)
        except urllib.error.HTTPError as error:  # a server that is not ready answers 503, with the same body
            found = json.load(error)
        return found

    def is_primary(self) -> bool:
        status = self.ask("/patroni")
        return status.get("role") in ("primary", "master") and status.get("state") == "running"

    def postmaster(self) -> psutil.Process:
        return psutil.Process(int((self._data / "postmaster.pid").read_text().split("\n", 1)[0]))

    def kill_postgresql(self) -> None:
        """kill -9 of PostgreSQL; Patroni lives."""
        kill_tree(self.postmaster())

    def kill(self) -> None:
        """kill -9 of everything on the machine."""
        self.patroni.kill()
        self.etcd.kill()
        with suppress(OSError, ValueError, psutil.Error):
            self.kill_postgresql()

    def pause(self) -> None:
        """SIGSTOP of everything on the machine."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        everyone = [psutil.Process(self.patroni.pid), psutil.Process(self.etcd.pid)]
        with suppress(OSError, ValueError, psutil.Error):
            postmaster = self.postmaster()
            everyone += [postmaster, *postmaster.children(recursive=True)]
        for process in everyone:
            with suppress(psutil.Error):
                process.send_signal(number)


def kill_tree(process: psutil.Process) -> None:
    """kill -9 of a process and of all that it started; it comes back when they are gone."""
    everyone = [process, *process.children(recursive=True)]
    for each in everyone:
        with suppress(psutil.Error):
            each.kill()
    psutil.wait_procs(everyone, timeout=10)


class Cluster:
    """Three machines with one database, of which a commit is confirmed when two have it."""

    def __init__(self, directory: Path, count: int = 3) -> None:
        self.directory = directory
        self.password = secrets.token_hex(12)
        passwords = {name: secrets.token_hex(12) for name in ("superuser", "replication", "rewind")}
        self._superuser_password = passwords["superuser"]
        ports = free_ports(4 * count)
        clients, peers, apis, servers = (ports[number * count : (number + 1) * count] for number in range(4))
        members = ",".join(f"etcd{i}=http://{HOST}:{peer}" for i, peer in enumerate(peers, 1))
        self._etcd_urls = [f"http://{HOST}:{port}" for port in clients]
        self.machines = []
        for index in range(count):
            home = directory / f"machine{index + 1}"
            home.mkdir(mode=0o755)
            etcd = Process(
                f"etcd{index + 1}",
                _etcd_words(index + 1, home, clients[index], peers[index], members),
                home / "etcd.log",
                ETCD_UNSUPPORTED_ARCH=_architecture(),
            )
            settings = {
                "host": HOST,
                "restapi_port": str(apis[index]),
                "etcd_hosts": ", ".join(f'"{HOST}:{port}"' for port in clients),
                "postgresql_port": str(servers[index]),
                "data_dir": str(home / "data"),
                "bin_dir": str(programs()),
                "pgpass": str(home / "pgpass"),
                "socket_directory": str(home),
                "network": f"{HOST}/32",
                **{f"{name}_password": password for name, password in passwords.items()},
            }
            self.machines.append(Machine(index + 1, home, etcd, settings))

    def start(self) -> None:
        """Start everything, and wait until a commit is confirmed by two."""
        for machine in self.machines:
            machine.etcd.start()
        until(self.etcd_leader, "an election of etcd")
        for machine in self.machines:
            machine.start()
        until(self.primary, "a primary")
        self.wait_synchronous()

    def primary(self) -> Machine | None:
        for machine in self.machines:
            with suppress(OSError, ValueError):
                if machine.is_primary():
                    return machine
        return None

    def wait_primary(self) -> Machine:
        found: Machine = until(self.primary, "a primary")
        return found

    def wait_synchronous(self) -> None:
        """Until one standby may be promoted without loss, as Patroni knows it."""
        until(self._synchronous, "a synchronous standby")

    def wait_whole(self) -> None:
        """Until every machine takes part again."""
        until(lambda: self._synchronous() and len(self._streaming()) == len(self.machines) - 1, "all standbys")

    def _synchronous(self) -> bool:
        """Whether there is a standby that confirms commits."""
        return any(member["role"] in ("quorum_standby", "sync_standby") for member in self._streaming())

    def _streaming(self) -> list[dict[str, Any]]:
        members = self.wait_primary().ask("/cluster")["members"]
        return [member for member in members if member["state"] == "streaming"]

    def wait_commit(self) -> None:
        """Until PostgreSQL takes a commit, which a standby has too."""
        until(self._commit, "a commit")

    def _commit(self) -> bool:
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute("SELECT pg_logical_emit_message(true, 'penstock', '')::text")
        return True

    def make_database(self) -> None:
        """The role and the database of Penstock, with the rights that it needs."""
        with psycopg.connect(self.superuser_url(), autocommit=True) as connection:
            connection.execute(f"CREATE ROLE {ROLE} LOGIN PASSWORD '{self.password}'")
            connection.execute(f"GRANT pg_monitor TO {ROLE}")
            connection.execute(f"CREATE DATABASE {DATABASE} OWNER {ROLE}")

    def superuser_url(self) -> str:
        return self._url("postgres", self._superuser_password, "postgres")

    def url(self) -> str:
        """For Penstock: all machines, whichever takes writes."""
        return self._url(ROLE, self.password, DATABASE)

    def _url(self, user: str, password: str, database: str) -> str:
        hosts = ",".join(f"{HOST}:{machine.port}" for machine in self.machines)
        return f"postgresql://{user}:{password}@{hosts}/{database}?target_session_attrs=read-write&connect_timeout=3"

    def etcd_leader(self) -> Machine | None:
        """The machine whose member leads etcd."""
        for url, machine in zip(self._etcd_urls, self.machines, strict=True):
            with suppress(OSError, ValueError, KeyError):
                request = urllib.request.Request(f"{url}/v3/maintenance/status", data=b"{}")  # noqa: S310 - http, ours
                with urllib.request.urlopen(request, timeout=1) as answer:  # noqa: S310 - as above
                    status = json.load(answer)
                if status["leader"] == status["header"]["member_id"]:
                    return machine
        return None

    def stop(self) -> None:
        """End every process."""
        for machine in self.machines:
            with suppress(Exception):
                machine.resume()
            machine.kill()


def _etcd_words(number: int, home: Path, client: int, peer: int, members: str) -> list[str]:
    flags = {
        "name": f"etcd{number}",
        "data-dir": str(home / "etcd"),
        "listen-client-urls": f"http://{HOST}:{client}",
        "advertise-client-urls": f"http://{HOST}:{client}",
        "listen-peer-urls": f"http://{HOST}:{peer}",
        "initial-advertise-peer-urls": f"http://{HOST}:{peer}",
        "initial-cluster": members,
        "initial-cluster-token": "penstock",
        "heartbeat-interval": "100",
        "election-timeout": "1000",
    }
    program = shutil.which("etcd")
    if program is None:
        raise RuntimeError("etcd is not installed; on Debian: apt-get install etcd-server")
    return [program, *(f"--{name}={value}" for name, value in flags.items())]


def _architecture() -> str:
    """etcd wants to be told that one is sure, on machines other than x86."""
    machine = os.uname().machine
    return "arm64" if machine == "aarch64" else "" if machine == "x86_64" else machine


@contextmanager
def running_cluster() -> Iterator[Cluster]:
    """A cluster in a directory of its own; both are gone afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="penstock-ha-"))
    directory.chmod(0o755)
    cluster = Cluster(directory)
    try:
        cluster.start()
        cluster.make_database()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(directory, ignore_errors=True)
