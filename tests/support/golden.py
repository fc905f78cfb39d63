"""Writes the data directories in tests/data, which every later version must open.

    python -m tests.support.golden NAME        writes tests/data/NAME.tar.xz and NAME.json

`clean` is closed in order. `killed` is ended by kill -9 with open leases, tasks, producers, sinks, dead letters and
segments. Those whose names end in -2 are of format 2, and hold what came with it too: purges and operations, attempts
that were lost, a mark of how far the journal was durable. Those of format 3 have an encrypted queue beside. Those of
format 4 have half of their segments in another directory, `elsewhere`, whose path `moved` puts right. Those of format
5 were restored from a backup, and those of format 6 have a queue that is compacted. Those of format 7 have a queue, a
group and a namespace that are paused. Those of format 8 have operations on dead letters and a replay, one of which
waits to be continued. The JSON file says what the version that wrote it found when it opened the
directory again: see `contents`. A directory is never written again under the same name: a new format gets a new one.
"""

from __future__ import annotations

import base64
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from penstock import Message
from penstock import operations as ops
from penstock.backup import BackupSet, DirectoryDestination, open_target, restore, snapshot_of
from penstock.backup.access_bundle import pack_access
from penstock.batch import Batch
from penstock.client.handles import Penstock
from penstock.clock import ManualClock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.model_letters import DEAD_PUSHED_AT, LetterFilter
from penstock.model_tasks import BulkOptions, ScheduleSpec, TaskFilter
from penstock.storage.disk import ReadOnlyDisk, RealDisk
from penstock.storage.segment_files import SegmentOptions, read_book, write_book
from tests.behaviour.task_steps import Office
from tests.support.embedded_session import session_of
from tests.support.operations import confirm, run_operation
from tests.support.sinks import committed, staged

DATA = Path(__file__).parent.parent / "data"
NOW = 1_790_000_000_000_000  # µs; leases, delays and retention of the directories are counted from here
ROUNDS = 3
ELSEWHERE = "elsewhere"
ROUND_SECONDS = 100  # by then a worker's lease has ended
JOURNAL_FILE_BYTES = 1 << 16
PASSPHRASE = "of golden backups"
MASTER_KEY = bytes(range(32))  # of directories with an encrypted queue; others need none, and do not mind


def moved(directory: Path) -> None:
    """Have the directory know where `elsewhere`, beside it, is now."""
    disk = RealDisk(directory)
    book = read_book(disk)
    if book.locations:
        url = (directory.parent / ELSEWHERE).absolute().as_uri()
        write_book(disk, replace(book, locations=[replace(entry, url=url) for entry in book.locations]))


def opened(directory: Path, now: int = NOW, **options: Any) -> Session:
    """The directory, with a clock that stands still."""
    clock = ManualClock(now)
    rng = random.Random(7)
    options |= {"journal_file_bytes": JOURNAL_FILE_BYTES, "master_key": MASTER_KEY}
    return Session(directory, clock=clock, rng=rng, background=False, **options)


def fill(session: Session, clock: ManualClock) -> None:
    """Something of everything a directory can hold, some of it sealed, some of it only in the journal."""
    ps = Penstock(BlockingSession(session))
    make_queues(ps)
    for number in range(ROUNDS):
        push(ps, number)
        consume(ps)
        change_settings(ps, number)
        run_tasks(ps, number)
        forget_and_lose(ps, clock, number)
        write_sink(session, number)
        if number < ROUNDS - 1:
            run_operation(session, ops.Seal())
            session.checkpoint()
            ps.queue("latest").compact()
    assert session.keeper is not None
    session.keeper.tick()
    ps.queue("jobs").lease(max=5, lease_seconds=300)
    ps.queue("orders").lease(max=3, lease_seconds=300, group="billing")


def make_queues(ps: Penstock) -> None:
    ps.create_queue("jobs", max_attempts=2, backoff_base_seconds=0.0)
    ps.create_queue("orders", partitions=3, ordering="key")
    ps.create_queue("steps", ordering="partition")
    ps.create_queue("unique", dedup_seconds=86_400.0)
    ps.create_queue("fading", ttl_seconds=3600.0)
    ps.queue("orders").create_group("billing", start="earliest")
    ps.create_queue("empty", service="weighted")
    ps.create_queue("secret", encryption=True, dedup_seconds=86_400.0)
    ps.create_queue("latest", compaction="latest", tombstone_seconds=ROUND_SECONDS / 2)
    ps.create_queue("gone")
    ps.queue("gone").push(b"before")
    ps.delete_queue("gone")


def push(ps: Penstock, number: int) -> None:
    session = session_of(ps)
    jobs = ps.queue("jobs")
    jobs.push_many([f"job {number} {item}".encode() for item in range(60)])
    jobs.push({"round": number}, priority="high", headers={"n": str(number)})
    jobs.push(b"later", delay=3600)
    jobs.push(b"soon gone", ttl=7200, trace="00-" + "a" * 32 + "-" + "b" * 16 + "-01")
    ps.queue("orders").push_many([Message(payload=f"order {number} {k}".encode(), key=f"k{k % 5}") for k in range(20)])
    ps.queue("steps").push_many([f"step {number} {item}" for item in range(5)])
    for key in ("a", "b", f"only {number}"):
        ps.queue("unique").push(f"{key} {number}", dedup_key=key)
    ps.queue("fading").push(f"fading {number}")
    for key in ("a", f"only {number}"):
        ps.queue("secret").push(f"secret {key} {number}", key=key, dedup_key=key, headers={"n": str(number)})
    (producer, epoch), ticket = run_operation(session, ops.InitProducer("importer"))
    confirm(session, ticket)
    for sequence in (0, 1):
        batch = Batch.build([f"import {number} {sequence}".encode()])
        _, ticket = session.shard.push("jobs", batch, None, producer=(producer, epoch, sequence))
        confirm(session, ticket)


def consume(ps: Penstock) -> None:
    for position, delivery in enumerate(ps.queue("jobs").lease(max=30, lease_seconds=60)):
        if position % 5 == 0:
            delivery.nack(delay=0, error="try again")
        elif position % 5 == 1:
            delivery.reject("unreadable")
        elif position % 5 == 2:
            delivery.release()
        else:
            delivery.ack()
    for delivery in ps.queue("orders").lease(max=10):
        with ps.transaction() as tx:
            tx.ack(delivery)
            tx.push("steps", b"after " + delivery.payload)
    letter = ps.queue("jobs").dlq.list(limit=1)[0]
    assert letter.id is not None
    ps.queue("jobs").dlq.redrive(ids=[letter.id])


def change_settings(ps: Penstock, number: int) -> None:
    """A queue of which the latest message of each key is kept; in the second round one key is deleted."""
    latest = ps.queue("latest")
    latest.push_many([Message(payload=f"{number} {n}".encode(), key=f"k{n % 7}") for n in range(20)])
    latest.push(None if number == 1 else b"here", key="gone")
    while taken := latest.lease(max=100):
        taken.ack()


def run_tasks(ps: Penstock, number: int) -> None:
    office = Office(ps)
    first, second, *_ = [office.enqueue("send", args=b"[%d]" % item) for item in range(8)]
    office.submit(office.new("report", depends_on=(first, second)), office.new("once", unique_key=f"u{number}"))
    for position, run in enumerate(office.lease(max=5)):
        run.progress({"done": position})
        if position % 3 == 2:
            run.finish("failed", error="ValueError: no such address")
        else:
            run.finish(result={"sent": position})
    office.cancel(office.enqueue("unwanted"))
    spec = ScheduleSpec(name=f"nightly-{number}", cron="0 3 * * *", task_type="tidy", queue="mail", args=b"[]")
    office.confirmed(run_operation(office.session, ops.SetSchedule(spec)))


def forget_and_lose(ps: Penstock, clock: ManualClock, number: int) -> None:
    """Tasks that were purged by an operation, one that goes on, and attempts that ended with the lease of a worker."""
    office = Office(ps)
    office.push(*(office.new("purged", queue="old") for _ in range(4)))
    for run in office.lease(max=2, queue="old"):
        run.finish(result="kept no longer")
    begun = office.confirmed(
        run_operation(office.session, ops.BeginOperation("purge", TaskFilter(task_type="purged"), f"purge-{number}"))
    )
    while not begun.is_over:
        begun = office.confirmed(run_operation(office.session, ops.FindOperation(begun.operation_id)))
    office.push(*(office.new("lost", queue="frail", max_attempts=1) for _ in range(2)))
    office.lease(max=1, queue="frail")
    clock.advance(ROUND_SECONDS)
    ps.queues()


def write_sink(session: Session, number: int) -> None:
    names = staged(session, [f"row {number} {item}".encode() for item in range(4)], sink="daily", at=NOW, queue="rows")
    committed(session, number, names, sink="daily", queue="rows")


def contents(session: Session) -> dict[str, Any]:
    """All that users can see of a directory, as JSON: messages, counts, dead letters, tasks, schedules, sinks."""
    ps = Penstock(BlockingSession(session))
    tasks = run_operation(session, ops.ListTasks(TaskFilter(limit=1000)))[0].tasks
    operations = run_operation(session, ops.ListOperations())[0]
    return {
        **({"operations": [[o.operation_id, str(o.state), o.purged] for o in operations]} if operations else {}),
        **({"lost": lost} if (lost := attempts_lost(session)) else {}),
        "queues": {name: queue_contents(ps, name) for name in ps.queues()},
        "tasks": {view.task_id: [view.task_type, str(view.state)] for view in tasks},
        "schedules": {
            view.spec.name: [view.spec.cron, str(view.next_at)] for view in run_operation(session, ops.Schedules())[0]
        },
        "sink": run_operation(session, ops.GetSinkState("rows", "daily"))[0].batch,
        **({"pauses": [str(pause) for pause in pauses]} if (pauses := ps.pauses()) else {}),
    }


def attempts_lost(session: Session) -> dict[str, int]:
    """Which messages had attempts that were lost with a worker, and how many."""
    return {
        f"{queue.name}/{progress.partition.name}/{offset}": tried.lost
        for queue in session.shard.core.queues.values()
        for group in queue.groups.values()
        for progress in group.progress
        for offset, tried in (progress.attempts or {}).items()
        if tried.lost
    }


def queue_contents(ps: Penstock, name: str) -> dict[str, Any]:
    queue = ps.queue(name)
    groups = queue.groups()
    partitions = sorted({lag.partition for lags in groups.values() for lag in lags})
    stats = queue.stats().groups
    return {
        "messages": {
            str(message.id): [
                base64.b64encode(as_bytes(message.payload)).decode(),
                message.key,
                message.priority,
                known_headers(message),
                message.pushed_at.isoformat() if message.pushed_at else None,
            ]
            for partition in partitions
            for message in queue.read(partition, limit=10_000)
        },
        "counts": {
            group: [s.messages, s.ready, s.leased, s.waiting, s.acked, s.dead, s.dropped] for group, s in stats.items()
        },
        "dead letters": [] if name.endswith(".dlq") else letters(ps, name),
    }


def letters(ps: Penstock, name: str) -> list[list[Any]]:
    found = run_operation(ps.session, ops.DeadLetters(name, LetterFilter()))[0]
    return [
        [str(letter.id), base64.b64encode(as_bytes(letter.payload)).decode(), known_headers(letter)] for letter in found
    ]


def known_headers(message: Message) -> dict[str, str] | None:
    """Without what was added later: what dies when the directory is opened has it, what died before does not."""
    headers = message.headers
    return None if headers is None else {name: text for name, text in headers.items() if name != DEAD_PUSHED_AT}


def as_bytes(payload: object) -> bytes:
    assert isinstance(payload, bytes)
    return payload


def main(name: str) -> None:
    """Write one directory in a process of its own, pack it, and note what is in it."""
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place) / "data"
        command = [sys.executable, "-m", "tests.support.golden", name, str(directory)]
        code = subprocess.run(command, check=False).returncode
        assert code == (-signal.SIGKILL if name.startswith("killed") else 0), code
        if name.endswith("-5"):
            directory = restored(directory, Path(place))
        with tarfile.open(DATA / f"{name}.tar.xz", "w:xz") as packed:
            packed.add(directory, "data", filter=lambda file: None if file.name == "data/cache" else file)
            if (Path(place) / ELSEWHERE).exists():
                packed.add(Path(place) / ELSEWHERE, ELSEWHERE)
        session = opened(directory)
        (DATA / f"{name}.json").write_text(json.dumps(contents(session), indent=1) + "\n")
        session.close()


def restored(directory: Path, place: Path) -> Path:
    """What is restored from a backup of a directory."""
    disk, backup_set = ReadOnlyDisk(directory), BackupSet(open_target(str(place / "set")))
    with backup_set.changing():
        backup_set.add(snapshot_of(disk, NOW), access=pack_access(disk, PASSPHRASE))
    restore(backup_set, DirectoryDestination(RealDisk(place / "restored")), passphrase=PASSPHRASE)
    return place / "restored"


def write(name: str, directory: Path) -> None:
    session = opened(directory, NOW - ROUNDS * ROUND_SECONDS * 1_000_000)
    clock = session.shard.clock
    assert isinstance(clock, ManualClock)
    fill(session, clock)
    if name.endswith("-4"):
        session.close()
        elsewhere = str(directory.parent / ELSEWHERE)
        session = opened(directory, clock.now(), segments=SegmentOptions.of(elsewhere))
        ps = Penstock(BlockingSession(session))
        ps.queue("jobs").push_many([f"elsewhere {item}".encode() for item in range(60)])
        run_operation(session, ops.Seal())
        ps.queue("jobs").lease(max=5, lease_seconds=300)
    if name.endswith("-7"):
        pause_some(session)
    if name.endswith("-8"):
        operate(session)
    if name.startswith("killed"):
        os.kill(os.getpid(), signal.SIGKILL)
    session.close()


def pause_some(session: Session) -> None:
    """Of each kind of pause one, of queues that nothing else uses."""
    ps = Penstock(BlockingSession(session))
    held = ps.create_queue("held")
    held.push(b"held")
    held.create_group("late")
    held.pause("all", reason="it is golden")
    held.pause(group="late")
    ps.pause("push", namespace="closed", reason="so is this")


def operate(session: Session) -> None:
    """Of each kind of operation one, on a queue that nothing else uses."""
    ps = Penstock(BlockingSession(session))
    faulty = ps.create_queue("faulty")
    ps.create_queue("again")
    faulty.push_many([b'{"total": %d}' % total for total in range(9)])
    for delivery in faulty.lease(max=9):
        delivery.reject("no currency")
    run_operation(session, ops.RedriveLetters("faulty", edit=b'{"currency": "EUR"}', operation_id="edit",
                                              options=BulkOptions(canary=2)))  # fmt: skip
    run_operation(session, ops.DiscardLetters("faulty", LetterFilter(limit=1), operation_id="discard"))
    run_operation(session, ops.ReplayMessages("faulty", target="again", operation_id="replay"))


if __name__ == "__main__":
    if len(sys.argv) > 2:
        write(sys.argv[1], Path(sys.argv[2]))
    else:
        main(sys.argv[1])
