"""What a sink does, without Spark: stage files, commit them until they are in, read back what is in the queue."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from msgspec import structs

from penstock import operations as ops
from penstock.batch import Batch
from penstock.clock import ManualClock, SystemClock
from penstock.embedded.session import Session
from penstock.errors import QueueNotFound
from penstock.replies import SinkState
from penstock.requests import SinkCommit
from penstock.storage.staging import encode_staged, name_for
from tests.support.forgetful import ForgetfulDisk
from tests.support.operations import confirm, run_operation

_rng = random.Random(5)


def opened(disk: ForgetfulDisk, clock: ManualClock, seed: int = 1) -> Session:
    return Session(None, clock=clock, rng=random.Random(seed), disk=disk, background=False, journal_file_bytes=1 << 16)


def staged(
    session: Any, *items: list[Any], sink: str = "s", queue: str = "q", at: int | None = None
) -> tuple[str, ...]:
    """A file for each list of messages; their names."""
    names = []
    for task, each in enumerate(items):
        made_at = SystemClock().now() if at is None else at  # an old one would be removed under our hands
        name = name_for(queue, sink, task, made_at, _rng.randbytes(10))
        data = b"".join(encode_staged(Batch.build(each)))
        try:
            run_operation(session, ops.Stage(queue, name, 0, data))
        except QueueNotFound:
            confirm(session, run_operation(session, ops.CreateQueue(queue, {}, exist_ok=True)))
            run_operation(session, ops.Stage(queue, name, 0, data))
        names.append(name)
    return tuple(names)


def committed(session: Any, batch: int, names: tuple[str, ...], **more: Any) -> SinkState:
    """Commit until the batch is in."""
    wanted = SinkCommit(**{"queue": "q", "sink": "s", "batch": batch, "staged": names, **more})
    while True:
        state, ticket = run_operation(session, ops.CommitSink(**structs.asdict(wanted)))
        confirm(session, ticket)
        if state.batch >= batch:
            found: SinkState = state
            return found


def payloads(session: Any, queue: str = "q") -> Counter[bytes]:
    """Everything in the queue."""
    if queue not in run_operation(session, ops.Queues())[0]:
        return Counter()
    partitions = run_operation(session, ops.Groups(queue))[0]["default"]
    return Counter(
        m.payload
        for p in partitions
        for m in run_operation(session, ops.Read(queue, p.partition, None, None, 10_000))[0]
    )


def staged_files(session: Session) -> list[str]:
    disk = session._disk
    assert disk is not None
    return disk.list("staging") if disk.exists("staging") else []
