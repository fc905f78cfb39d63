"""Bad ground: paths, locks and disks that cannot be used; each is refused with its own error and left as it was."""

from __future__ import annotations

import errno
from typing import Any

import penstock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.errors import DirectoryInUse, DiskFull, DiskReadOnly, InvalidField, NotADataDirectory
from tests.behaviour.steps import drain, lease_one, numbered, refuse, take
from tests.support.forgetful import ForgetfulDisk


def test_a_directory_that_is_a_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("not ours")

    refuse(NotADataDirectory, lambda: penstock.open(path), str(path))

    assert path.read_text() == "not ours"


def test_a_directory_that_holds_something_else(tmp_path):
    (tmp_path / "holiday.jpg").write_bytes(b"jpeg")

    refuse(NotADataDirectory, lambda: penstock.open(tmp_path))

    assert [path.name for path in tmp_path.iterdir()] == ["holiday.jpg"]


def test_a_directory_that_is_in_use(tmp_path):
    with penstock.open(tmp_path / "data") as ps:
        ps.queue("mail").push(b"a")

        refuse(DirectoryInUse, lambda: penstock.open(tmp_path / "data"), "process")

    with penstock.open(tmp_path / "data") as ps:
        assert take(ps.queue("mail")) == [b"a"]


def test_a_disk_that_cannot_be_written(clock):
    disk = ForgetfulDisk()
    disk.fail_at(1, errno.EROFS)

    refuse(DiskReadOnly, lambda: Session(None, disk=disk, clock=clock, background=False))


def test_an_unknown_durability_of_the_whole(tmp_path):
    sometimes: Any = "sometimes"
    refuse(InvalidField, lambda: penstock.open(tmp_path / "data", durability=sometimes), "durability")
    refuse(InvalidField, lambda: penstock.open(tmp_path / "data", sync_seconds=-1), "sync_seconds")

    assert not (tmp_path / "data").exists()


def test_a_full_disk_refuses_pushes_and_takes_settles(clock):
    disk = ForgetfulDisk(capacity_bytes=1 << 30)
    session = Session(None, disk=disk, clock=clock, background=False, journal_file_bytes=1 << 20)
    ps = penstock.Penstock(BlockingSession(session))
    queue = ps.queue("mail")
    queue.push_many(numbered(3))
    first, second, _ = queue.lease(3)

    disk.capacity_bytes = 10 << 20
    session.shard.journal.check_space()
    refuse(DiskFull, lambda: queue.push(b"x"))
    refuse(DiskFull, lambda: queue.push_many([b"x"]))
    refuse(DiskFull, lambda: queue.push(b"x", key="k"))
    first.ack()
    second.nack(delay=0)
    assert queue.stats().acked == 1

    disk.capacity_bytes = 1 << 30
    session.shard.journal.check_space()
    queue.push(b"again")
    clock.advance(0.01)
    assert drain(queue) == [b"1", b"again"]
    ps.close()


def test_a_full_disk_refuses_a_transaction_that_pushes(clock):
    disk = ForgetfulDisk(capacity_bytes=1 << 30)
    session = Session(None, disk=disk, clock=clock, background=False, journal_file_bytes=1 << 20)
    ps = penstock.Penstock(BlockingSession(session))
    queue = ps.queue("mail")
    queue.push_many(numbered(2))
    delivery = lease_one(queue)
    disk.capacity_bytes = 10 << 20
    session.shard.journal.check_space()

    def transaction(push):
        with ps.transaction() as tx:
            tx.ack(delivery)
            if push:
                tx.push("next", b"x")

    refuse(DiskFull, lambda: transaction(push=True))
    assert queue.stats().leased == 1
    transaction(push=False)

    assert queue.stats().acked == 1
    ps.close()
