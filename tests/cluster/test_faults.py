"""Faults of nodes and of PostgreSQL under load: nothing confirmed is lost, nothing is delivered after its ack."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.cluster.rig import NAMES, Line, Nodes, UnderLoad
from tests.support.dose import dose
from tests.support.postgres import PostgresServer

ROUNDS = dose(ci=1, nightly=5)  # of all faults
SEEDS = range(dose(ci=1, nightly=8))


class Plain:
    """One PostgreSQL, and a wire from each node to it."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.server = PostgresServer(log_min_messages="panic")
        url = self.server.new_database()
        self.lines = {name: Line(self.server.port) for name in NAMES}
        self.nodes = Nodes(lambda name: url.replace(f":{self.server.port}/", f":{self.lines[name].port}/"), folder, rng)
        self.rng = rng

    def close(self) -> None:
        self.nodes.close()
        for line in self.lines.values():
            line.close()
        self.server.close()

    # faults; each ends with everything in order again, or on its way there

    def kill_owner(self) -> None:
        name = self.nodes.owner()
        self.nodes.kill(name)
        self.nodes.start(name)

    def freeze_owner(self) -> None:
        """It wakes as a zombie: another has its shard."""
        name, other = self._owner_and_spare()
        self.nodes.signal(name, signal.SIGSTOP)
        while self.nodes.processes[other].status() != "ok":
            pass
        self.nodes.signal(name, signal.SIGCONT)

    def kill_postmaster(self) -> None:
        self.server.kill()
        self.server.start()

    def cut_owner_off(self) -> None:
        name, other = self._owner_and_spare()
        self.lines[name].cut()
        while self.nodes.processes[other].status() != "ok":
            pass
        self.lines[name].mend()

    def restart_everything(self) -> None:
        for name in NAMES:
            self.nodes.kill(name)
        self.server.kill()
        self.server.start()
        self.nodes.start_all()

    def hand_over(self) -> None:
        name = self.nodes.owner()
        self.nodes.signal(name, signal.SIGTERM)
        self.nodes.processes[name].process.wait()
        self.nodes.start(name)

    def kill_a_backend(self) -> None:
        """PostgreSQL goes through crash recovery by itself."""
        backends = psutil.Process(self.server.pid()).children()
        serving = [each for each in backends if "test" in " ".join(each.cmdline())]
        self.rng.choice(serving).kill()

    def _owner_and_spare(self) -> tuple[str, str]:
        owner = self.nodes.owner()
        return owner, next(name for name in NAMES if name != owner)


FAULTS: dict[str, Callable[[Plain], object]] = {
    "owner killed": Plain.kill_owner,
    "owner frozen": Plain.freeze_owner,
    "postmaster killed": Plain.kill_postmaster,
    "owner cut off": Plain.cut_owner_off,
    "backend killed": Plain.kill_a_backend,
    "handover": Plain.hand_over,
    "everything restarted": Plain.restart_everything,
}


@pytest.fixture
def plain(tmp_path: Path, seed: int) -> Iterator[Plain]:
    made = Plain(tmp_path, random.Random(seed))
    yield made
    made.close()


@pytest.mark.timeout(dose(ci=240, nightly=3600))
@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_fails_what_was_confirmed_to_clients_holds(plain, capsys):
    plain.nodes.start_all()
    with UnderLoad(plain.nodes) as load:
        for _ in range(ROUNDS):
            for name in plain.rng.sample(sorted(FAULTS), len(FAULTS)):
                load.suffer(name, partial(FAULTS[name], plain))
                plain.nodes.start_all()
        found = load.problems()

    with capsys.disabled():
        print(load.figures())  # noqa: T201 - for whoever compares them with docs/postgresql.md
    assert found == []
