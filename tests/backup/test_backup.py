"""Backups of a directory that is in use: what is in a moment, what is copied, what is left when one is interrupted."""

from __future__ import annotations

import os
import random
import shutil
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

import penstock
from penstock import operations as ops
from penstock.access import encryption
from penstock.backup import BackupSet, DirectoryDestination, StoreDestination, open_target, restore, snapshot_of
from penstock.backup.targets import DirectoryTarget, ObjectTarget
from penstock.client.handles import Penstock
from penstock.clock import ManualClock, SystemClock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.errors import (
    BadRequest,
    Closed,
    Damaged,
    InvalidField,
    NotADataDirectory,
    NotAuthorised,
    PenstockError,
    StateError,
    StorageError,
)
from penstock.model import Message, to_datetime
from penstock.model_tasks import ScheduleSpec, TaskState
from penstock.postgres.store import PostgresStore
from penstock.storage.disk import ReadOnlyDisk, RealDisk
from penstock.verify import verify
from tests.support.embedded_session import session_of
from tests.support.operations import run_operation
from tests.support.task_rig import id_of, task

MIB = 1 << 20
PASSPHRASE = "a long passphrase"
DAILY = ScheduleSpec(name="daily", cron="0 3 * * *", task_type="tidy", queue="work", args=b"[1]")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "set"


def filled(ps: Penstock, count: int = 20, first: int = 0) -> None:
    ps.create_queue("q", exist_ok=True).push_many([b"%d" % number for number in range(first, first + count)])


def quiet(directory: Path) -> Penstock:
    """Nothing happens by itself."""
    return Penstock(BlockingSession(Session(directory, background=False)))


def opened_set(place: Path | str) -> BackupSet:
    return BackupSet(open_target(os.fspath(place)))


def payloads(directory: Path | str, **options: Any) -> list[bytes]:
    with penstock.open(directory, **options) as ps:
        return sorted(body(message) for message in ps.queue("q").read(limit=10_000))


def restored(place: Path, directory: Path, **options: Any) -> Path:
    restore(opened_set(place), DirectoryDestination(RealDisk(directory)), **options)
    found = verify(ReadOnlyDisk(directory), SystemClock().now())
    assert not found.problems
    return directory


def body(message: Message) -> bytes:
    assert isinstance(message.payload, bytes)
    return message.payload


def numbers(end: int) -> list[bytes]:
    return sorted(b"%d" % number for number in range(end))


def test_a_restored_directory_has_all_that_was_confirmed_and_what_was_acknowledged_stays_away(data, place, tmp_path):
    with penstock.open(data) as ps:
        filled(ps)
        ps.queue("q").lease(5).ack()
        held = ps.queue("q").lease(2)
        state = ps.backup(place)
        held.ack()
        filled(ps, first=20)

    with penstock.open(restored(place, tmp_path / "new")) as ps:
        assert len(ps.queue("q").read(limit=100)) == 20
        stats = ps.queue("q").stats().groups["default"]
        assert (stats.acked, stats.ready + stats.waiting) == (5, 15)
        assert ps.queue("q").push(b"next").offset == 20
    assert state.status == "done"
    assert opened_set(place).moments() == [state.moment]


def test_files_that_the_set_has_are_not_copied_again(data, place, tmp_path):
    with penstock.open(data) as ps:
        ps.create_queue("q").push_many([os.urandom(1_000) for _ in range(200)])
        ps.seal()
        first = ps.backup(place)
        filled(ps, 10)
        second = ps.backup(place)

    assert first.bytes_total > 200_000
    assert second.bytes_total < 20_000
    assert len(payloads(restored(place, tmp_path / "old", at=first.moment))) == 200
    assert len(payloads(restored(place, tmp_path / "new"))) == 210


def test_segments_are_hard_links_where_that_is_possible_and_copies_elsewhere(data, place, tmp_path, monkeypatch):
    with penstock.open(data) as ps:
        filled(ps)
        ps.seal()
        ps.backup(place)
        monkeypatch.setattr(RealDisk, "link", lambda disk, source, name: False)
        ps.backup(tmp_path / "copies")

    def inodes(folder: Path) -> set[int]:
        return {path.stat().st_ino for path in folder.rglob("*.parquet*")}

    assert inodes(place) == inodes(data)
    assert inodes(tmp_path / "copies").isdisjoint(inodes(data))
    assert payloads(restored(tmp_path / "copies", tmp_path / "new")) == payloads(restored(place, tmp_path / "linked"))


def test_the_oldest_moments_are_pruned_with_the_files_that_no_other_needs(data, place, tmp_path):
    with penstock.open(data) as ps:
        for number in range(4):
            filled(ps, first=20 * number)
            ps.seal()
            ps.backup(place)
        last = ps.backup(place, keep=2)

    ids = opened_set(place).moments()
    assert ids[-1] == last.moment
    assert len(ids) == 2
    needed = {file.stored for id in ids for file in opened_set(place).moment(id).files}
    assert set(open_target(str(place)).list("files")) == needed
    assert payloads(restored(place, tmp_path / "new", at=ids[0])) == numbers(80)


def test_a_directory_that_nobody_has_open_is_backed_up_without_a_torn_tail(data, place, tmp_path):
    with penstock.open(data) as ps:
        filled(ps)
    journal = max((data / "journal").glob("*.log"))
    before = journal.read_bytes()
    end = len(before.rstrip(b"\0")) + 8 & ~7
    journal.write_bytes(before[:end] + b"\x18\0\0\0torn" + before[end + 8 :])
    stopped = ReadOnlyDisk(data)
    with opened_set(place).changing():
        opened_set(place).add(snapshot_of(stopped, SystemClock().now()))

    assert payloads(restored(place, tmp_path / "new")) == numbers(20)
    assert b"torn" not in (tmp_path / "new" / "journal" / journal.name).read_bytes()


def test_a_moment_is_chosen_by_its_id_or_by_a_time(data, place, tmp_path):
    with penstock.open(data) as ps:
        filled(ps, 5)
        first = ps.backup(place)
        filled(ps, 5, first=5)
        ps.backup(place)
    moment = opened_set(place).moment(first.moment)
    assert len(payloads(restored(place, tmp_path / "by-time", at=to_datetime(moment.taken_at)))) == 5
    with pytest.raises(InvalidField, match="no moment"):
        restore(opened_set(place), DirectoryDestination(RealDisk(tmp_path / "x")), at="20200101T000000.000000Z")
    with pytest.raises(InvalidField, match="later"):
        restore(opened_set(place), DirectoryDestination(RealDisk(tmp_path / "x")), at=to_datetime(1))


@pytest.mark.parametrize("is_a_directory", [True, False])
def test_what_is_not_empty_is_not_restored_into(data, place, tmp_path, is_a_directory):
    with penstock.open(data) as ps:
        filled(ps, 1)
        ps.backup(place)
    before = sorted(path.name for path in data.iterdir())
    target = data if is_a_directory else tmp_path / "full"
    if not is_a_directory:
        target.mkdir()
        (target / "mine").write_text("mine")

    with pytest.raises(InvalidField, match="not empty"):
        restore(opened_set(place), DirectoryDestination(RealDisk(target)))

    assert sorted(path.name for path in data.iterdir()) == before


def test_a_restore_that_was_interrupted_leaves_a_directory_that_nobody_opens(data, place, tmp_path):
    with penstock.open(data) as ps:
        filled(ps)
        ps.seal()
        ps.backup(place)

    class Stopped(Exception):
        pass

    def stop(done: int, total: int) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        restore(opened_set(place), DirectoryDestination(RealDisk(tmp_path / "half")), on_progress=stop)
    with pytest.raises(NotADataDirectory):
        penstock.open(tmp_path / "half")


# what is damaged


def test_every_flipped_byte_of_a_set_is_found_by_verify_and_by_restore(data, place, tmp_path):
    with penstock.open(data) as ps:
        filled(ps)
        ps.seal()
        filled(ps, first=20)
        ps.backup(place)
    rng = random.Random(1)
    for number, path in enumerate(sorted(path for path in place.rglob("*") if path.is_file() and path.name != "lock")):
        before = path.read_bytes()
        position = rng.randrange(len(before))
        os.unlink(path)  # it may be a hard link to a file of the data directory
        path.write_bytes(before[:position] + bytes([before[position] ^ 1]) + before[position + 1 :])
        if path.name != "PENSTOCK-BACKUP":  # a changed shard's id is seen by the next backup only
            assert opened_set(place).verify(), path
            with pytest.raises((Damaged, StorageError)):
                restore(opened_set(place), DirectoryDestination(RealDisk(tmp_path / f"new-{number}")))
        path.write_bytes(before)
    assert opened_set(place).verify() == []


def test_a_damaged_segment_is_not_taken_into_a_backup_as_if_it_were_sound(data, place):
    with penstock.open(data) as ps:
        filled(ps)
        ps.seal()
        segment = next((data / "segments" / "messages").glob("*.parquet"))
        whole = segment.read_bytes()
        segment.write_bytes(whole[:50] + bytes([whole[50] ^ 1]) + whole[51:])
        for _ in range(2):
            with pytest.raises(StorageError, match="does not match the checksum"):
                ps.backup(place)
        segment.write_bytes(whole)
        ps.backup(place)

    assert opened_set(place).verify() == []


def test_a_set_of_another_shard_and_a_place_that_is_something_else_are_refused(data, place, tmp_path):
    with penstock.open(data) as ps:
        filled(ps, 1)
        ps.backup(place)
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "file").write_text("mine")
        with pytest.raises(StorageError, match="holds 'file'"):
            ps.backup(tmp_path / "mine")
        with pytest.raises(InvalidField, match="in the data directory"):
            ps.backup(data / "backups")
        with pytest.raises(InvalidField, match="absolute"):
            ps.backup("backups")
        with pytest.raises(InvalidField, match="keep"):
            ps.backup(place, keep=0)
        with pytest.raises(InvalidField, match="cannot be used"):
            ps.backup("nonsense://x/y")
    with penstock.open(tmp_path / "other") as ps, pytest.raises(StorageError, match="another Penstock"):
        ps.backup(place)
    with penstock.open_in_memory() as ps, pytest.raises(BadRequest, match="in memory"):
        ps.backup(place)
    with pytest.raises(NotADataDirectory):
        opened_set(tmp_path / "nowhere").moments()


# interruptions


class Failing(DirectoryTarget):
    """A directory whose n-th change fails."""

    def __init__(self, root: Path, at: int) -> None:
        super().__init__(root)
        self.left = at

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise StorageError("no more")

    def write(self, name: str, pieces: Iterable[bytes]) -> None:
        self._count()
        super().write(name, self._some(pieces))

    def _some(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            self._count()
            yield piece

    def link(self, name: str, source: Path) -> bool:
        self._count()
        return super().link(name, source)

    def remove(self, name: str) -> None:
        self._count()
        super().remove(name)

    def sync(self) -> None:
        self._count()
        super().sync()


def test_a_backup_that_fails_anywhere_leaves_the_moments_before_it_whole(data, place, tmp_path):
    with penstock.open(data) as ps:
        filled(ps)
        ps.seal()
        first = ps.backup(place)
        filled(ps, first=20)
        ps.seal()
        ps.backup(place)
        filled(ps, first=40)
    failures = 0
    while True:
        copy = tmp_path / f"copy-{failures}"
        shutil.copytree(place, copy)
        backup_set = BackupSet(Failing(copy, failures))
        try:
            with backup_set.changing():
                backup_set.add(snapshot_of(ReadOnlyDisk(data), SystemClock().now()))
                backup_set.prune(2)
        except StorageError:
            failures += 1
        else:
            break
        assert opened_set(copy).verify() == []
        assert len(opened_set(copy).moments()) in (2, 3)
        with opened_set(copy).changing():
            opened_set(copy).prune()

    assert failures > 15
    assert first.moment not in opened_set(copy).moments()
    place = copy
    with opened_set(place).changing():
        opened_set(place).prune()
    needed = {file.stored for id in opened_set(place).moments() for file in opened_set(place).moment(id).files}
    assert set(open_target(str(place)).list("files")) == needed
    assert payloads(restored(place, tmp_path / "new")) == numbers(60)


def test_one_backup_at_a_time_and_closing_gives_it_up(data, place, monkeypatch):
    begun, release = threading.Event(), threading.Event()
    pieces = DirectoryTarget.write

    def slow(target: DirectoryTarget, name: str, given: Iterable[bytes]) -> None:
        begun.set()
        release.wait(60)
        pieces(target, name, given)

    ps = penstock.open(data)
    filled(ps)
    monkeypatch.setattr(DirectoryTarget, "write", slow)
    session = session_of(ps)
    run_operation(session, ops.StartBackup(str(place)))
    assert begun.wait(60)
    with pytest.raises(StateError, match="already running"):
        run_operation(session, ops.StartBackup(str(place)))
    assert ps.queue("q").push(b"goes on")
    closing = threading.Thread(target=ps.close)
    closing.start()
    while not session.backups._stopping.wait(0.01):
        pass
    release.set()
    closing.join(60)

    assert session.backups.state().status == "failed"
    assert not (data / "backup").exists()
    assert opened_set(place).moments() == []
    with pytest.raises((Closed, PenstockError)):
        ps.queue("q").push(b"no")


def test_files_that_a_killed_backup_held_are_released_at_the_next_opening(data):
    with penstock.open(data) as ps:
        filled(ps)
    (data / "backup").mkdir()
    os.link(data / "PENSTOCK", data / "backup" / "journal~00000000000000000001.log")

    with penstock.open(data):
        assert not (data / "backup").exists()


def test_what_sealing_and_retention_remove_while_a_backup_is_written_is_in_it(data, place, tmp_path, monkeypatch):
    """The storekeeper goes on after the moment: checkpoint parts and journal files go, segments are pinned."""
    write, link = DirectoryTarget.write, DirectoryTarget.link
    with quiet(data) as ps:
        queue = ps.create_queue("q", retention_messages=1, retention_drops_unread=True)
        queue.push_many([b"%d" % number for number in range(20)])
        session = session_of(ps)
        busy = threading.local()

        def housekeeping() -> None:
            if threading.current_thread().name == "penstock-backup" and not getattr(busy, "is_on", False):
                busy.is_on = True
                queue.push(b"%d" % 99)
                ps.seal()
                ps.compact()
                busy.is_on = False

        def writing(target: DirectoryTarget, name: str, pieces: Iterable[bytes]) -> None:
            housekeeping()
            write(target, name, pieces)

        def linking(target: DirectoryTarget, name: str, source: Path) -> bool:
            housekeeping()
            return link(target, name, source)

        monkeypatch.setattr(DirectoryTarget, "write", writing)
        monkeypatch.setattr(DirectoryTarget, "link", linking)
        ps.seal()
        ps.backup(place)
        assert session.backups.state().status == "done"
        assert len(queue.read(limit=100)) < 20

    with quiet(restored(place, tmp_path / "new")) as ps:
        assert sorted(body(message) for message in ps.queue("q").read(limit=100)) == numbers(20)


# what is in it


def test_tasks_schedules_and_the_audit_chain_survive(data, place, tmp_path):
    with _audited(data) as ps:
        ps.session.execute(ops.SubmitTasks([task("parent"), task("child", "parent")]))
        ps.session.execute(ops.SetSchedule(DAILY))
        ps.backup(place)

    with _audited(restored(place, tmp_path / "new")) as ps:
        assert ps.session.execute(ops.FindTask(id_of("parent"))).state is TaskState.PENDING
        assert ps.session.execute(ops.FindTask(id_of("child"))).state is TaskState.BLOCKED
        assert [schedule.spec.name for schedule in ps.session.execute(ops.Schedules())] == ["daily"]
        assert ps.session.execute(ops.VerifyAudit()).problems == []
        records = ps.session.execute(ops.ListAudit())
        assert "start_backup" in [record.what for record in records]


def _audited(directory: Path) -> Penstock:
    return Penstock(BlockingSession(Session(directory, audit=True)))


def test_a_named_producer_gets_an_epoch_that_the_other_history_has_not_handed_out(data, place, tmp_path):
    with penstock.open(data) as ps:
        filled(ps)
        ps.session.execute(ops.InitProducer("shop"))
        ps.backup(place)
        _, other = ps.session.execute(ops.InitProducer("shop"))
    later = ManualClock(SystemClock().now() + 10_000_000)
    with Penstock(BlockingSession(Session(restored(place, tmp_path / "new"), clock=later))) as ps:
        _, epoch = ps.session.execute(ops.InitProducer("shop"))
    assert epoch > other


# access


def test_keys_and_users_are_left_out_unless_they_are_encrypted(data, place, tmp_path):
    with penstock.open(data) as ps:
        filled(ps, 1)
        record = ps.access.create_key("ann", ["push:q"])
        ps.backup(place)
        assert not (place / "access.sealed").exists()
        ps.backup(place, passphrase=PASSPHRASE)

    plain = restored(place, tmp_path / "plain")
    assert not (plain / "access" / "access.json").exists()
    assert b"ann" not in (place / "access.sealed").read_bytes()
    with pytest.raises(NotAuthorised, match="passphrase"):
        restore(opened_set(place), DirectoryDestination(RealDisk(tmp_path / "wrong")), passphrase="not the passphrase")
    with penstock.open(restored(place, tmp_path / "whole", passphrase=PASSPHRASE)) as ps:
        assert record.id in [key.id for key in ps.session.execute(ops.ListKeys())]


def test_erasing_a_data_key_erases_the_queue_in_every_moment_of_the_set(data, place, tmp_path):
    key = tmp_path / "master.key"
    encryption.new_key_file(key)
    with penstock.open(data, master_key=key) as ps:
        ps.create_queue("q", encryption=True).push(b"secret")
        first = ps.backup(place, passphrase=PASSPHRASE)
        whole = restored(place, tmp_path / "before", passphrase=PASSPHRASE)
        assert payloads(whole, master_key=key) == [b"secret"]
        ps.session.execute(ops.EraseDataKeys("q", "q"))
        ps.backup(place, passphrase=PASSPHRASE)

    assert b"secret" not in b"".join(path.read_bytes() for path in place.rglob("*") if path.is_file())
    again = restored(place, tmp_path / "after", at=first.moment, passphrase=PASSPHRASE)
    with penstock.open(again, master_key=key) as ps:
        assert [message.payload for message in ps.queue("q").read()] != [b"secret"]


def test_without_its_data_keys_an_encrypted_queue_is_not_opened_and_the_error_says_what_is_missing(
    data, place, tmp_path
):
    key = tmp_path / "master.key"
    encryption.new_key_file(key)
    with penstock.open(data, master_key=key) as ps:
        ps.create_queue("q", encryption=True).push(b"secret")
        ps.backup(place)
    restore(opened_set(place), DirectoryDestination(RealDisk(tmp_path / "new")))

    with pytest.raises(StorageError, match="data key"):
        penstock.open(tmp_path / "new", master_key=key)


def test_a_passphrase_that_is_short_is_refused_and_none_is_in_the_audit_log(data, place):
    with _audited(data) as ps:
        filled(ps, 1)
        with pytest.raises(InvalidField, match="fewer than"):
            ps.backup(place, passphrase="short")
        ps.backup(place, passphrase=PASSPHRASE)
        records = ps.session.execute(ops.ListAudit())
        assert records
        assert PASSPHRASE not in str(records)
        assert PASSPHRASE not in repr(ops.StartBackup("/x", None, PASSPHRASE))


def test_who_does_not_own_the_broker_writes_only_to_places_that_are_configured(data, place, tmp_path):
    with penstock.open(data) as ps:
        filled(ps, 1)
        backups = session_of(ps).backups
        backups.allowed = (str(place),)
        for destination in (str(tmp_path / "other"), f"{place}-2", f"{place}/../other", "s3://bucket/x"):
            with pytest.raises(InvalidField):
                backups.start(destination, None, "", owner="ops")
        assert backups.start(f"{place}/daily", None, "", owner="ops").status == "running"


# other places than a directory


def test_a_store_in_postgresql_is_backed_up_and_restored_into_a_directory_and_into_another_store(
    postgres, place, tmp_path
):
    with penstock.open(postgres.new_database()) as ps:
        filled(ps)
        ps.seal()
        filled(ps, first=20)
        ps.queue("q").lease(5).ack()
        state = ps.backup(place)
        filled(ps, first=40)

    other = postgres.new_database()
    moment = restore(opened_set(place), StoreDestination(PostgresStore(other)))
    assert moment.id == state.moment
    assert payloads(restored(place, tmp_path / "new")) == numbers(40)
    with penstock.open(other) as ps:
        assert sorted(body(message) for message in ps.queue("q").read(limit=100)) == numbers(40)
        assert ps.queue("q").stats().groups["default"].acked == 5
        ps.queue("q").push(b"40")
        ps.seal()
        assert ps.backup(place).status == "done"
    with pytest.raises(InvalidField, match="not empty"):
        restore(opened_set(place), StoreDestination(PostgresStore(other)))


def test_a_directory_moves_into_a_store_by_way_of_a_backup(data, place, postgres):
    with penstock.open(data) as ps:
        ps.create_queue("q").push_many([os.urandom(MIB) for _ in range(9)])  # rows of the journal hold four
        for _ in range(9):
            ps.queue("q").push(os.urandom(MIB))
        ps.backup(place)
    url = postgres.new_database()
    restore(opened_set(place), StoreDestination(PostgresStore(url)))

    assert payloads(data) == payloads(url)


def test_segments_at_another_location_come_along_and_are_local_in_the_restored_directory(data, place, tmp_path):
    with penstock.open(data, segments=tmp_path / "elsewhere") as ps:
        filled(ps)
        ps.seal()
        filled(ps, first=20)
        assert ps.backup(place).status == "done"
    shutil.rmtree(tmp_path / "elsewhere")

    assert payloads(restored(place, tmp_path / "new")) == numbers(40)
    assert not (tmp_path / "new" / "segments" / "locations.json").exists()


def test_a_set_lies_wherever_pyarrow_reaches(data, tmp_path):
    with penstock.open(data) as ps:
        filled(ps)
        ps.seal()
        filled(ps, first=20)
    (tmp_path / "objects").mkdir()
    filesystem = fs.SubTreeFileSystem(str(tmp_path / "objects"), fs.LocalFileSystem())
    backup_set = BackupSet(ObjectTarget(filesystem, "bucket/set", "test://bucket/set"))
    for _ in range(3):
        backup_set.add(snapshot_of(ReadOnlyDisk(data), SystemClock().now()))
    assert len(backup_set.prune(2)) == 1
    assert backup_set.verify() == []

    restore(backup_set, DirectoryDestination(RealDisk(tmp_path / "new")))
    assert payloads(tmp_path / "new") == numbers(40)
