"""A data directory with a bit of everything in it, to be damaged: what it holds is known to the byte."""

from __future__ import annotations

import random
from typing import NamedTuple

from penstock import Message
from penstock import operations as ops
from penstock.client.handles import Penstock
from penstock.clock import ManualClock
from penstock.delivery.phases import SETTLED
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.model import MessageId
from tests.support.embedded_session import session_of
from tests.support.forgetful import ForgetfulDisk
from tests.support.inode import Inode
from tests.support.operations import run_operation

FILE_BYTES = 1 << 17


class Image(NamedTuple):
    """The bytes of a directory, and what is in it."""

    files: dict[str, bytes]
    directories: set[str]
    now: int
    payloads: dict[MessageId, bytes]
    ends: dict[tuple[str, str], int]
    settled: dict[tuple[str, str], set[MessageId]]  # (queue, group) → what it has finished


def opened(disk: ForgetfulDisk, now: int | None = None) -> Penstock:
    """Without threads; time moves by hand."""
    clock = ManualClock() if now is None else ManualClock(now)
    session = Session(
        None, clock=clock, rng=random.Random(7), background=False, disk=disk, journal_file_bytes=FILE_BYTES
    )
    return Penstock(BlockingSession(session))


def make_image(*, is_killed: bool, disk: ForgetfulDisk | None = None) -> Image:
    """Two seals, a checkpoint, and frames after it; then a clean stop, or none."""
    disk = disk or ForgetfulDisk()
    ps = opened(disk)
    clock = session_of(ps).shard.clock
    assert isinstance(clock, ManualClock)
    ps.create_queue("orders", partitions=2, max_attempts=2, backoff_base_seconds=0)
    ps.queue("orders").create_group("audit")
    _work(ps, clock, 0)
    run_operation(ps._session, ops.Seal())
    _work(ps, clock, 1)
    run_operation(ps._session, ops.Seal())
    _work(ps, clock, 2)
    session_of(ps).checkpoint()
    _work(ps, clock, 3)
    contents = contents_of(ps)
    ends = {
        (queue.name, p.name): p.end for queue in session_of(ps).shard.core.queues.values() for p in queue.partitions
    }
    settled = settled_of(ps, ends)
    if not is_killed:
        ps.close()
    now = clock.now()
    names = [name for name in disk._files if name != "lock"]
    return Image({name: disk.read(name) for name in names}, set(disk._directories), now, contents, ends, settled)


def _work(ps: Penstock, clock: ManualClock, part: int) -> None:
    orders, mail, sensors = ps.queue("orders"), ps.queue("mail"), ps.queue("sensors")
    if part == 0:
        ps.create_queue("sensors", partitions="named")
    orders.push_many(
        [
            Message(payload=f"order {part}.{n}".encode() * (1 + n % 5), key=f"k{n % 7}", headers={"n": str(n)})
            for n in range(60)
        ]
    )
    for n in range(20):
        clock.advance(0.5)
        mail.push(f"mail {part}.{n}", priority=n * 12, dedup_key=f"d{part}.{n}", delay=n % 3, ttl=10_000)
        sensors.push(f"sensor {part}.{n}", partition=f"room-{n % 3}")
    orders.lease(20).ack()
    orders.lease(10, group="audit").ack()
    sensors.lease(7, auto_ack=True)
    failing = orders.lease(6)
    failing[0].reject("broken")
    failing[1].nack(error="try again")
    failing[2].release()
    if part == 1:
        orders.dlq.redrive(limit=1)
    with ps.transaction() as tx:
        tx.ack(failing[3])
        tx.push("mail", b"in one frame with an ack")
    mail.lease(3)


def contents_of(ps: Penstock) -> dict[MessageId, bytes]:
    """Every message that can be read."""
    found: dict[MessageId, bytes] = {}
    for queue in list(session_of(ps).shard.core.queues.values()):
        for partition in queue.partitions:
            for message in ps.queue(queue.name).read(partition.name, limit=10_000) if queue.partitions else ():
                assert message.id is not None
                assert isinstance(message.payload, bytes)
                found[message.id] = message.payload
    return found


def settled_of(ps: Penstock, ends: dict[tuple[str, str], int]) -> dict[tuple[str, str], set[MessageId]]:
    """What each group has finished, up to the `ends` of partitions."""
    return {
        (queue.name, group.name): {
            MessageId(queue.name, progress.partition.name, offset)
            for progress in group.progress
            for offset in range(progress.start, ends.get((queue.name, progress.partition.name), 0))
            if progress.state_of(offset) == SETTLED
        }
        for queue in session_of(ps).shard.core.queues.values()
        for group in queue.groups.values()
    }


def disk_of(image: Image, seed: int = 0) -> ForgetfulDisk:
    """A fresh disk with the bytes of the image, all of them durable."""
    disk = ForgetfulDisk(seed)
    disk._directories = set(image.directories)
    for name, data in image.files.items():
        disk._files[name] = disk._names_that_survive[name] = Inode(data)
    return disk
