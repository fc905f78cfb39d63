"""Opening after kill -9: every time in a fresh process, which is killed again."""

from __future__ import annotations

import shutil
from pathlib import Path
from statistics import median
from time import perf_counter

import penstock
from bench import fresh, raw, workload
from bench.embedded.leasing import fill
from bench.measure import Row, Scale, directory
from bench.workload import BATCH, FRAME_BYTES
from penstock import limits
from penstock import operations as ops
from penstock.client.handles import Penstock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from tests.support.operations import run_operation

ROUNDS = 3
RAW_READ = "reading the files and their checksum"
# Short of the end, so that the file is not rotated and sealed before the kill.
FULL_SHARE = 0.97


def full_journal_file(scale: Scale) -> list[Row]:
    """A file that is full of batches, and one that is full of single pushes."""
    singles = scale(round(limits.journal_file_frames_max * FULL_SHARE))
    frame_bytes = len(workload.frame(BATCH)) + FRAME_BYTES
    many = scale(round(limits.journal_file_bytes * FULL_SHARE / frame_bytes))
    return [
        _opened("open, full journal file of batches of 1,000", "many", many, 2),
        _opened("open, full journal file of single pushes", "singles", singles, 2),
    ]


def sealed(scale: Scale) -> list[Row]:
    """Ten million messages in segments, nothing in the journal."""
    return [_opened("open, 10 M sealed messages", "sealed", scale(10_000), 1)]


def _opened(what: str, how: str, count: int, seconds_max: float) -> Row:
    with directory() as place:
        fresh.run(fill_and_die, str(place / "data"), how, count)
        found = []
        for number in range(ROUNDS):
            copy = place / f"copy-{number}" if how != "sealed" else place / "data"
            if how != "sealed":
                shutil.copytree(place / "data", copy)
            limit = raw.read_seconds(files_read(copy))
            seconds, waiting = fresh.run(open_and_die, str(copy))
            assert waiting == count * (1 if how == "singles" else BATCH), f"{waiting} messages are there after the kill"
            found.append((seconds, limit))
    value, limit = (median(column) for column in zip(*found, strict=True))
    return Row(what, value, "s", limit, RAW_READ, seconds_max, ceiling=True)


def files_read(place: Path) -> list[Path]:
    """What opening must read: the journal, the checkpoint, the manifest."""
    journal = [path for path in (place / "journal").iterdir() if path.suffix == ".log"]
    checkpoints = [path for path in (place / "checkpoints").rglob("*") if path.is_file()]
    return journal + checkpoints + list((place / "segments").glob("manifest*"))


def fill_and_die(place: str, how: str, count: int) -> None:
    """Runs in a fresh process."""
    session = Session(place, durability="os")
    queue = Penstock(BlockingSession(session)).queue("mail")
    if how == "singles":
        payloads = workload.lists()[0]
        for index in range(count):
            queue.push(payloads[index % BATCH])
    else:
        fill(queue, workload.cycled(count))
    if how == "sealed":
        run_operation(session, ops.Seal())
    session.shard.journal.sync()
    fresh.answer(None)
    fresh.die()


def open_and_die(place: str) -> None:
    """Runs in a fresh process: seconds until the first question is answered, and how many messages wait."""
    started = perf_counter()
    ps = penstock.open(place, durability="os")
    waiting = ps.queue("mail").stats().groups["default"].ready
    fresh.answer([perf_counter() - started, waiting])
    fresh.die()
