"""kill -9 of a real process on a real directory, again and again: what it was told before each death holds after it."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.client.sync import Penstock
from penstock.embedded import Session
from penstock.model import Message
from tests.support.accounts import assert_accounts
from tests.support.dose import dose
from tests.support.inside import session_of
from tests.support.killed import QUEUE

ROOT = Path(__file__).parent.parent
CYCLES = dose(4, 50)
LINES_MAX = 600


class Told:
    """What the processes said they were told, over all cycles."""

    def __init__(self) -> None:
        self.pushed: dict[int, str] = {}
        self.acked: dict[int, str] = {}
        self.after_ack: list[str] = []

    def hear(self, line: str) -> None:
        word, offset, *rest = line.split()
        payload = rest[-1]
        if word == "pushed":
            assert self.pushed.setdefault(int(offset), payload) == payload, f"offset {offset} was used twice"
        elif word == "acked":
            self.acked[int(offset)] = payload
        elif int(offset) in self.acked:
            self.after_ack.append(line)


def kill_after(lines: int, directory: Path, cycle: int, told: Told) -> None:
    """Run the process until it has said so much, then kill it. What it had said by then counts."""
    command = [sys.executable, "-m", "tests.support.killed", str(directory), str(cycle)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(lines):
            line = process.stdout.readline()
            assert line.endswith("\n"), f"the process ended by itself: {process.wait()}"
            told.hear(line)
        process.kill()
        for line in process.stdout.read().splitlines(keepends=True):
            if line.endswith("\n"):
                told.hear(line)


@pytest.mark.parametrize("seed", [1])
def test_nothing_that_was_confirmed_is_lost_or_undone_by_kill_9(tmp_path, seed):
    rng = random.Random(seed)
    told = Told()
    for cycle in range(CYCLES):
        kill_after(rng.randint(1, LINES_MAX), tmp_path, cycle, told)
        check(tmp_path, told)

    assert not told.after_ack
    assert len(told.acked) > CYCLES


def offset_of(message: Message) -> int:
    assert message.id is not None
    return message.id.offset


def text_of(message: Message) -> str:
    assert isinstance(message.payload, bytes)
    return message.payload.decode()


def check(directory: Path, told: Told) -> None:
    """Open what the dead process left, compare, and leave it as it is."""
    with Penstock(Session(directory, background=False, journal_file_bytes=1 << 16)) as ps:
        queue = ps.queue(QUEUE)
        kept = {offset_of(message): text_of(message) for message in queue.read(limit=100_000)}
        lost = {offset: payload for offset, payload in told.pushed.items() if kept.get(offset) != payload}
        assert not lost, f"confirmed and lost, or moved: {lost}"
        assert sorted(kept) == list(range(len(kept)))
        waiting = {offset_of(message) for message in queue.peek(limit=100_000)}
        assert not waiting & set(told.acked), "acknowledged, and waiting again"
        assert_accounts(session_of(ps).shard)
