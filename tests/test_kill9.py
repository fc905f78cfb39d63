"""kill -9 of a real process on a real directory, again and again: what it was told before each death holds after it."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.client.handles import Penstock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.model import Message, MessageId
from tests.support.accounts import assert_accounts
from tests.support.dose import dose
from tests.support.embedded_session import session_of
from tests.support.killed import QUEUE

ROOT = Path(__file__).parent.parent
CYCLES = dose(4, 50)
LINES_MAX = 600


class Told:
    """What the processes said they were told, over all cycles; one id is one payload, whoever speaks of it."""

    def __init__(self) -> None:
        self.payloads: dict[str, str] = {}
        self.pushed: set[str] = set()
        self.acked: set[str] = set()
        self.after_ack: list[str] = []

    def hear(self, line: str) -> None:
        word, id, *rest = line.split()
        self.agree(id, rest[-1], line)
        if word == "pushed":
            assert id not in self.pushed, f"{id} was given out twice"
            self.pushed.add(id)
        elif word == "acked":
            self.acked.add(id)
        elif id in self.acked:
            self.after_ack.append(line)

    def agree(self, id: str, payload: str, where: str) -> None:
        known = self.payloads.setdefault(id, payload)
        assert known == payload, f"{id} was {known}, and in {where!r} it is {payload}"


def kill_after(lines: int, directory: Path, cycle: int, reported: Told) -> None:
    """Run the process until it has said so much, then kill it. What it had said by then counts."""
    command = [sys.executable, "-m", "tests.support.killed", str(directory), str(cycle)]
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


@pytest.mark.parametrize("seed", [1])
def test_nothing_that_was_confirmed_is_lost_or_undone_by_kill_9(tmp_path, seed):
    rng = random.Random(seed)
    reported = Told()
    for cycle in range(CYCLES):
        kill_after(rng.randint(1, LINES_MAX), tmp_path, cycle, reported)
        check(tmp_path, reported)

    assert not reported.after_ack
    assert len(reported.acked) > CYCLES


def text_of(message: Message) -> str:
    assert isinstance(message.payload, bytes)
    return message.payload.decode()


def check(directory: Path, reported: Told) -> None:
    """Open what the dead process left, compare, and leave it as it is."""
    with Penstock(BlockingSession(Session(directory, background=False, journal_file_bytes=1 << 16))) as ps:
        queue = ps.queue(QUEUE)
        kept: set[str] = set()
        for lag in queue.groups()["default"]:
            found = queue.read(partition=lag.partition, limit=100_000)
            assert [id_of(message).offset for message in found] == list(range(len(found)))
            for message in found:
                reported.agree(str(message.id), text_of(message), "a read")
            kept |= {str(message.id) for message in found}
        lost = reported.pushed - kept
        assert not lost, f"confirmed and lost: {lost}"
        waiting = queue.peek(limit=100_000)
        for message in waiting:
            reported.agree(str(message.id), text_of(message), "a peek")
        assert not {str(message.id) for message in waiting} & reported.acked, "acknowledged, and waiting again"
        assert_accounts(session_of(ps).shard)


def id_of(message: Message) -> MessageId:
    assert message.id is not None
    return message.id
