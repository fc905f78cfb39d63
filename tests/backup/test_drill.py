"""The restore drill: backups under load, kill -9 at any moment, restore, and look for every message."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

from penstock.backup import BackupSet, DirectoryDestination, open_target, restore
from penstock.client.handles import Penstock
from penstock.clock import SystemClock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.errors import NotADataDirectory
from penstock.model import Message
from penstock.storage.disk import ReadOnlyDisk, RealDisk
from penstock.verify import verify
from tests.support.accounts import assert_accounts
from tests.support.backed_up import QUEUE
from tests.support.dose import dose
from tests.support.embedded_session import session_of

ROOT = Path(__file__).parent.parent.parent
CYCLES = dose(3, 60)
LINES_MAX = 4_000


class Reported:
    """What the processes said, over all cycles, and what of it each moment must have."""

    def __init__(self) -> None:
        self.pushed: dict[str, str] = {}
        self.acked: set[str] = set()
        self.maybe_acked: set[str] = set()
        self._begun: tuple[set[str], set[str]] = (set(), set())
        self.must_have: dict[str, tuple[set[str], set[str]]] = {}  # moment: pushed, acked

    def hear(self, line: str) -> None:
        word, *rest = line.split()
        if word == "pushed":
            self.pushed[rest[0]] = rest[1]
        elif word == "acking":
            self.maybe_acked.add(rest[0])
        elif word == "acked":
            self.acked.add(rest[0])
        elif word == "begun":
            self._begun = (set(self.pushed), set(self.acked))
        else:
            self.must_have[rest[0]] = self._begun


def killed_after(lines: int, data: Path, place: Path, cycle: int, reported: Reported) -> None:
    """Run the process until it has said so much, then kill it. What it had said by then counts."""
    command = [sys.executable, "-m", "tests.support.backed_up", str(data), str(place), str(cycle)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(lines):
            line = process.stdout.readline()
            assert line.endswith("\n"), f"the process ended by itself: {process.wait()}"
            reported.hear(line)
        process.kill()
        for line in process.stdout.read().splitlines(keepends=True):
            if line.endswith("\n"):
                reported.hear(line)


def test_whenever_the_process_is_killed_every_moment_restores_with_all_that_was_confirmed_before_it(tmp_path):
    rng = random.Random(1)
    reported = Reported()
    drilled = 0
    for cycle in range(CYCLES):
        killed_after(rng.randint(300, LINES_MAX), tmp_path / "data", tmp_path / "set", cycle, reported)
        drilled += drill(tmp_path, cycle, reported)

    assert drilled >= CYCLES
    assert reported.acked


def drill(folder: Path, cycle: int, reported: Reported) -> int:
    """Restore the moments that the set has now, and check each; how many."""
    backup_set = BackupSet(open_target(str(folder / "set")))
    try:
        ids = backup_set.moments()
    except NotADataDirectory:
        return 0  # killed before the first
    assert backup_set.verify() == []
    for id in ids:
        target = folder / f"restored-{cycle}-{id}"
        restore(backup_set, DirectoryDestination(RealDisk(target)), at=id)
        assert verify(ReadOnlyDisk(target), SystemClock().now()).problems == []
        # A moment that was stored and not reported any more has at least what those before it have.
        pushed, acked = reported.must_have.get(id, (set(), set()))
        check(target, pushed, acked, reported)
    return len(ids)


def body(message: Message) -> bytes:
    assert isinstance(message.payload, bytes)
    return message.payload


def check(directory: Path, pushed: set[str], acked: set[str], reported: Reported) -> None:
    """Everything confirmed before the moment is there or was removed by rule; what was acknowledged stays away."""
    with Penstock(BlockingSession(Session(directory, background=False))) as ps:
        queue = ps.queue(QUEUE)
        kept: dict[str, str] = {}
        starts: dict[str, int] = {}
        for lag in queue.groups()["default"]:
            found = queue.read(partition=lag.partition, limit=100_000)
            kept |= {str(message.id): body(message).decode() for message in found}
            starts[lag.partition] = min((message.id.offset for message in found if message.id), default=1 << 62)
        for id in pushed:
            _, partition, offset = id.split("/")
            if int(offset) >= starts[partition]:  # else retention has removed it, after it was acknowledged
                assert kept.get(id) == reported.pushed[id], f"{id} was confirmed before the backup"
            else:
                assert id in reported.maybe_acked, f"{id} was removed and never acknowledged"
        for id, payload in kept.items():
            assert reported.pushed.get(id, payload) == payload, f"{id} is another message"
        assert_accounts(session_of(ps).shard)
        delivered: set[str] = set()
        while leased := queue.lease(1_000):
            delivered |= {str(delivery.id) for delivery in leased}
            leased.ack()
        assert not delivered & acked, "delivered after its ack"
        assert pushed - reported.maybe_acked <= delivered
