"""`make ha-demo`: everything on one machine, counters on the screen, and keys that kill.

python -m examples.patroni                            keys: n node, p postmaster, m machine, e etcd, q quit
python -m examples.patroni node postmaster machine    one after the other, without a keyboard
"""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from examples.patroni.load import Load
from examples.patroni.rig import HOST, Cluster, Process, free_ports, running_cluster, until

NODES: Final = ("node1", "node2")
WORKING_SECONDS: Final = 2.0  # between two faults
REFRESH_SECONDS: Final = 0.2


class Demo:
    """The cluster, two nodes of Penstock, and the load."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._ports = dict(zip(NODES, free_ports(len(NODES)), strict=True))
        self._http = dict(zip(NODES, free_ports(len(NODES)), strict=True))
        self._nodes = {name: self._node(name) for name in NODES}
        self._load = Load([f"penstock://{HOST}:{port}" for port in self._ports.values()])
        self.faults: dict[str, Callable[[], str]] = {
            "node": self.kill_node,
            "postmaster": self.kill_postmaster,
            "machine": self.kill_machine,
            "etcd": self.kill_etcd,
        }

    def _node(self, name: str) -> Process:
        home = self._cluster.directory / name
        words = [sys.executable, "-m", "penstock", "serve", "--node", name, "--data", str(home), "--auth", "off"]
        ports = {"tcp-port": str(self._ports[name]), "http-port": str(self._http[name]), "grpc-port": "off"}
        for flag, value in ports.items():
            words += [f"--{flag}", value]
        log = self._cluster.directory / f"{name}.log"
        return Process(name, words, log, PENSTOCK_STORE=self._cluster.url(), PYTHONPATH=_path())

    def start(self) -> None:
        for node in self._nodes.values():
            node.start()
        until(self.owner, "an owner of the shard")
        self._load.start()

    def owner(self) -> str | None:
        """The node that serves."""
        from urllib.request import urlopen

        for name, port in self._http.items():
            with suppress(OSError), urlopen(f"http://{HOST}:{port}/readyz", timeout=1) as answer:
                if answer.status == 200:
                    return name
        return None

    # what can be killed; each returns what was done, and is put right by `repair`

    def kill_node(self) -> str:
        name = str(until(self.owner, "an owner"))
        self._nodes[name].kill()
        return f"kill -9 of {name}, which owned the shard"

    def kill_postmaster(self) -> str:
        machine = self._cluster.wait_primary()
        machine.kill_postgresql()
        return f"kill -9 of PostgreSQL on {machine.name}, the primary"

    def kill_machine(self) -> str:
        machine = self._cluster.wait_primary()
        machine.kill()
        return f"kill -9 of everything on {machine.name}, the primary: PostgreSQL, Patroni and etcd"

    def kill_etcd(self) -> str:
        machine = until(self._cluster.etcd_leader, "a leader of etcd")
        machine.etcd.kill()
        return f"kill -9 of etcd on {machine.name}, its leader"

    def suffer(self, name: str) -> float:
        """Do it, and wait until pushes are confirmed; seconds."""
        until(lambda: self._load.confirmed_at > time.monotonic() - 1, "work as usual")
        begun = time.monotonic()
        say(f"\n{self.faults[name]()}")
        while self._load.confirmed_at <= begun:
            self.show()
            time.sleep(REFRESH_SECONDS)
        return self._load.confirmed_at - begun

    def repair(self) -> None:
        """Start what is not running; wait until another fault can be borne."""
        for node in self._nodes.values():
            if not node.is_running:
                node.start()
        for machine in self._cluster.machines:
            machine.start()
        self._cluster.wait_whole()

    def show(self) -> None:
        load = self._load
        waiting = time.monotonic() - load.confirmed_at
        text = f"confirmed {len(load.confirmed):,}  delivered {len(load.delivered):,}  acked {len(load.acked):,}"
        late = f"  no answer for {waiting:.0f} s" if waiting > 1 else ""
        if sys.stdout.isatty():
            sys.stdout.write(f"\r\x1b[K{text}{late}")
            sys.stdout.flush()

    def finish(self) -> int:
        """Count; 0 when nothing is missing."""
        self.repair()
        found = self._load.finish()
        say("\n" + ", ".join(f"{name.replace('_', ' ')}: {count:,}" for name, count in found.items()))
        bad = [name for name, count in found.items() if name != "confirmed" and count]
        return 1 if bad or not found["confirmed"] else 0

    def stop(self) -> None:
        for node in self._nodes.values():
            node.kill()


def _path() -> str:
    """Where this process finds Penstock, so that the nodes find the same."""
    return os.pathsep.join(path for path in sys.path if path)


def say(text: str) -> None:
    """A line, at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@contextmanager
def single_keys() -> Iterator[Callable[[], str]]:
    """Keys as they are typed; nothing when none was."""
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield lambda: sys.stdin.read(1) if select.select([sys.stdin], [], [], REFRESH_SECONDS)[0] else ""
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def by_keys(demo: Demo) -> None:
    """Until q."""
    names = {name[0]: name for name in demo.faults}
    say("keys: " + ", ".join(f"{key} kills {name}" for key, name in names.items()) + ", q ends\n")
    with single_keys() as key:
        while (typed := key()) != "q":
            demo.show()
            if typed in names:
                say(f"\npushes are confirmed again after {demo.suffer(names[typed]):.1f} s")
                demo.repair()


def one_after_the_other(demo: Demo, faults: list[str]) -> None:
    """Each, with a little work before it."""
    for name in faults:
        end = time.monotonic() + WORKING_SECONDS
        while time.monotonic() < end:
            demo.show()
            time.sleep(REFRESH_SECONDS)
        say(f"pushes are confirmed again after {demo.suffer(name):.1f} s")
        demo.repair()


def main(faults: list[str]) -> int:
    """The whole demonstration; the exit code."""
    known = ("node", "postmaster", "machine", "etcd")
    unknown = [name for name in faults if name not in known]
    if unknown:
        sys.stderr.write(f"{unknown[0]!r} is no fault; these are: {', '.join(known)}\n")
        return 2
    if not faults and not sys.stdin.isatty():
        sys.stderr.write("there is no keyboard: name faults, such as node machine\n")
        return 2
    missing = [name for name in ("etcd",) if shutil.which(name) is None]
    if missing or (not list(Path("/usr/lib/postgresql").glob("*/bin/initdb")) and shutil.which("initdb") is None):
        sys.stderr.write("PostgreSQL or etcd is missing; on Debian, as root: apt-get install postgresql etcd-server\n")
        return 2
    say("starting 3 × etcd, Patroni and PostgreSQL, and 2 nodes; this takes about 20 seconds")
    with running_cluster() as cluster:
        demo = Demo(cluster)
        try:
            demo.start()
            cluster.wait_whole()
            one_after_the_other(demo, faults) if faults else by_keys(demo)
            return demo.finish()
        finally:
            demo.stop()


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (KeyboardInterrupt, subprocess.SubprocessError):
        sys.exit(130)
