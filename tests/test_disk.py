"""The door to the disk, the data directory behind it, and the disk that lies."""

from __future__ import annotations

import errno
import multiprocessing
import os
import subprocess
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from penstock import limits
from penstock.errors import Damaged, DirectoryInUse, DiskFull, DiskReadOnly, NotADataDirectory, StorageError
from penstock.storage import disk as disk_module
from penstock.storage.directory import MARKER, open_directory
from penstock.storage.disk import Disk, RealDisk, storage_error, write_fully
from penstock.storage.space import SpaceGuard
from tests.support.forgetful import SHORT, ForgetfulDisk, PowerCut

SHARD = bytes(range(16))

HOLDER = """
import sys
from penstock.storage.directory import open_directory
from penstock.storage.disk import RealDisk
disk = RealDisk(sys.argv[1])
open_directory(disk)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=["real", "forgetful"])
def disk(request, tmp_path) -> Disk:
    return RealDisk(tmp_path) if request.param == "real" else ForgetfulDisk(seed=3)


# Files and names, on either disk.


def test_a_preallocated_file_is_zeros_until_it_is_written(disk):
    file = disk.open("a", create_bytes=4096)
    file.write_at(b"hello", 100)
    file.sync()
    assert file.size() == disk.size("a") == 4096
    assert file.read_at(98, 9) == b"\0\0hello\0\0"
    assert disk.read("a", 100, 5) == b"hello"
    file.close()


def test_preallocating_an_existing_file_keeps_what_it_holds(disk):
    disk.write_whole("a", b"hello")
    file = disk.open("a", create_bytes=64)
    assert file.read_at(0, 64) == b"hello" + bytes(59)
    file.truncate(3)
    assert disk.read("a") == b"hel"
    file.close()
    file.close()


def test_reading_past_the_end_returns_what_there_is(disk):
    disk.write_whole("a", b"hello")
    assert disk.read("a", 3, 100) == b"lo"
    assert disk.open("a").read_at(3, 100) == b"lo"


def test_writing_whole_replaces_and_leaves_nothing_else_behind(disk):
    disk.make_directory("d")
    disk.write_whole("d/a", b"one")
    disk.write_whole("d/a", b"2")
    assert disk.read("d/a") == b"2"
    assert disk.list("d") == ["a"]


def test_names_are_listed_sorted_and_without_those_of_subdirectories(disk):
    disk.make_directory("d")
    for name in ("d/b", "d/a", "c"):
        disk.write_whole(name, b"")
    assert disk.list("d") == ["a", "b"]
    assert disk.list("") == ["c", "d"]
    disk.rename("d/a", "d/z")
    disk.remove("d/b")
    assert disk.list("d") == ["z"]
    assert disk.exists("d/z")
    assert disk.exists("d")
    assert not disk.exists("d/a")


def test_a_missing_file_is_not_found(disk):
    for missing in (lambda: disk.open("a"), lambda: disk.read("a"), lambda: disk.size("a"), lambda: disk.remove("a")):
        with pytest.raises(FileNotFoundError):
            missing()


def test_pyarrow_reads_a_file_through_the_door(disk):
    disk.write_whole("a", b"hello")
    with disk.open_input("a") as file:
        assert file.read() == b"hello"


# What the operating system says, in our words.


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, DiskFull),
        (errno.EDQUOT, DiskFull),
        (errno.EROFS, DiskReadOnly),
        (errno.EACCES, DiskReadOnly),
        (errno.EPERM, DiskReadOnly),
        (errno.ENOTDIR, NotADataDirectory),
        (errno.EEXIST, NotADataDirectory),
        (errno.EIO, StorageError),
    ],
)
def test_each_error_of_the_system_has_its_own_of_ours_that_names_the_path(number, kind):
    error = storage_error(OSError(number, os.strerror(number)), Path("/data"))
    assert type(error) is kind
    assert "/data" in str(error)
    assert error.hint


def test_a_short_write_is_continued_and_a_stuck_one_is_an_error(tmp_path, monkeypatch):
    file = RealDisk(tmp_path).open("a", create_bytes=0)
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, position: pwrite(fd, data[:3], position))
    file.write_at(b"0123456789", 5)
    assert file.read_at(5, 10) == b"0123456789"

    with pytest.raises(OSError, match="takes no more"):
        write_fully(lambda data, position: 0, b"abc", 0)


@pytest.mark.parametrize("call", ["write_at", "sync"])
def test_a_failing_device_is_an_error_that_names_the_file(tmp_path, monkeypatch, call):
    file = RealDisk(tmp_path).open("a", create_bytes=0)
    monkeypatch.setattr(os, "pwrite", _failing)
    monkeypatch.setattr(disk_module, "_sync_data", _failing)
    with pytest.raises(StorageError, match=str(tmp_path / "a")):
        file.write_at(b"abc", 0) if call == "write_at" else file.sync()


def _failing(*_: object) -> int:
    raise OSError(errno.EIO, "Input/output error")


def test_a_full_disk_while_preallocating_closes_the_file(tmp_path, monkeypatch):
    def refuse(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(disk_module, "_allocate", refuse)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(DiskFull):
        RealDisk(tmp_path).open("a", create_bytes=4096)
    assert os.listdir("/proc/self/fd") == before


# Data directories.


def test_a_new_directory_gets_a_marker_and_keeps_its_identity(disk):
    shard_id = open_directory(disk)
    disk.close()
    assert open_directory(disk) == shard_id
    assert len(shard_id) == 16
    assert set(disk.list("")) >= {"PENSTOCK", "checkpoints", "journal", "segments"}


def test_missing_parents_are_made(tmp_path):
    open_directory(RealDisk(tmp_path / "a" / "b"))
    assert (tmp_path / "a" / "b" / MARKER).exists()


def test_a_directory_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "data").write_bytes(b"precious")
    with pytest.raises(NotADataDirectory, match="data"):
        open_directory(RealDisk(tmp_path / "data"))
    with pytest.raises(NotADataDirectory):
        open_directory(RealDisk(tmp_path / "data" / "below"))
    assert (tmp_path / "data").read_bytes() == b"precious"


def test_a_directory_that_holds_something_else_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_bytes(b"precious")
    with pytest.raises(NotADataDirectory, match=r"thesis\.txt"):
        open_directory(RealDisk(tmp_path))
    assert os.listdir(tmp_path) == ["thesis.txt"]


def test_a_directory_whose_making_was_interrupted_is_taken_over():
    operation = 0
    fired = True
    while fired:
        operation += 1
        disk = ForgetfulDisk(seed=operation)
        disk.crash_at(operation)
        with suppress(PowerCut):
            open_directory(disk, lambda: SHARD)
        fired = disk.fired
        assert open_directory(disk.crash(), lambda: SHARD) == SHARD
    assert operation > 4


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_read_only_directory_says_so(tmp_path, monkeypatch, number):
    real_open = os.open

    def refuse_writing(path, flags, *rest, **options):
        if flags & (os.O_RDWR | os.O_CREAT):
            raise OSError(number, os.strerror(number), path)
        return real_open(path, flags, *rest, **options)

    monkeypatch.setattr(os, "open", refuse_writing)
    with pytest.raises(DiskReadOnly, match=str(tmp_path)):
        open_directory(RealDisk(tmp_path))


def test_a_read_only_parent_says_so(tmp_path, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(DiskReadOnly):
        open_directory(RealDisk(tmp_path / "data"))


@pytest.mark.parametrize(
    ("marker", "kind", "words"),
    [
        (b"not json", Damaged, "cannot be read"),
        (b"[]", Damaged, "cannot be read"),
        (b'{"format": 1, "shard": "abcd"}', Damaged, "2 bytes"),
        (b'{"format": 2, "shard": ""}', StorageError, "format 2"),
    ],
)
def test_a_marker_that_makes_no_sense_is_refused_and_the_lock_let_go(disk, marker, kind, words):
    disk.make_directory("")
    disk.write_whole(MARKER, marker)
    for _ in range(2):
        with pytest.raises(kind, match=words):
            open_directory(disk)


# The lock.


def test_a_directory_held_by_another_process_names_it_and_is_free_when_that_dies(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(DirectoryInUse) as caught:
            open_directory(RealDisk(tmp_path))
        assert f"process {holder.pid}" in str(caught.value)
        assert sys.executable in str(caught.value)
    finally:
        holder.kill()
        holder.wait()
        holder.stdin.close()
        holder.stdout.close()
    open_directory(RealDisk(tmp_path))


def test_a_directory_held_twice_by_one_process_says_that_it_is_this_one(disk, tmp_path):
    open_directory(disk)
    again = RealDisk(tmp_path) if isinstance(disk, RealDisk) else disk
    with pytest.raises(DirectoryInUse, match="this"):
        open_directory(again)
    disk.close()
    open_directory(again)
    again.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_does_not_keep_the_directory(tmp_path):
    disk = RealDisk(tmp_path)
    open_directory(disk)
    context = multiprocessing.get_context("fork")
    theirs, ours = context.Pipe()
    child = context.Process(target=_outlive, args=(theirs,))
    child.start()
    try:
        assert ours.recv() == "up"
        disk.close()
        other = RealDisk(tmp_path)
        open_directory(other)
        other.close()
    finally:
        ours.send(None)
        child.join()


def _outlive(parent: Connection) -> None:
    parent.send("up")
    parent.recv()


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "another process"), (b"[]", "another process"), (b'{"pid": 7, "host": "elsewhere"}', "7 on elsewhere")],
)
def test_a_lock_file_that_says_less_gives_a_shorter_answer(tmp_path, content, words):
    disk = RealDisk(tmp_path)
    open_directory(disk)
    (tmp_path / "lock").write_bytes(content)
    with pytest.raises(DirectoryInUse, match=words):
        open_directory(RealDisk(tmp_path))
    disk.close()


# Free space.


@pytest.mark.parametrize(
    ("total", "threshold"),
    [
        (limits.GIB, limits.disk_free_bytes_floor),
        (10 * limits.GIB, limits.GIB // 2),
        (1000 * limits.GIB, limits.disk_free_bytes_cap),
    ],
)
def test_the_guard_refuses_under_100_mb_or_5_percent_or_5_gib(total, threshold):
    disk = ForgetfulDisk(capacity_bytes=total)
    guard = SpaceGuard(disk)
    assert guard.threshold_bytes() == threshold
    disk.free_bytes = lambda: threshold  # type: ignore[method-assign]
    assert not guard.check()
    disk.free_bytes = lambda: threshold - 1  # type: ignore[method-assign]
    assert guard.check()


def test_a_real_disk_knows_its_size(tmp_path):
    disk = RealDisk(tmp_path)
    assert 0 <= disk.free_bytes() <= disk.total_bytes()


# The disk that lies.


def test_synced_bytes_under_a_synced_name_survive_every_crash():
    for seed in range(50):
        disk = ForgetfulDisk(seed)
        disk.write_whole("a", b"x" * 5000)
        file = disk.open("a")
        file.write_at(b"y" * 1000, 0)
        file.sync()
        file.write_at(b"z" * 1000, 4000)
        survivor = disk.crash()
        assert survivor.read("a")[:4000] == b"y" * 1000 + b"x" * 3000


def test_unsynced_bytes_are_lost_torn_at_sectors_or_kept():
    outcomes = set()
    for seed in range(400):
        disk = ForgetfulDisk(seed)
        disk.write_whole("a", bytes(2048))
        disk.open("a").write_at(b"z" * 2048, 0)
        after = disk.crash().read("a")
        sectors = [after[start : start + 512] for start in range(0, 2048, 512)]
        assert all(sector in (bytes(512), b"z" * 512) for sector in sectors)
        outcomes.add(tuple(sector[0] for sector in sectors))
    assert len(outcomes) == 16


def test_a_name_that_was_not_synced_may_be_lost_though_its_bytes_were():
    found = set()
    for seed in range(50):
        disk = ForgetfulDisk(seed)
        file = disk.open("a", create_bytes=8)
        file.sync()
        found.add(disk.crash().exists("a"))
    assert found == {True, False}


def test_bytes_of_a_failed_sync_are_gone_even_if_the_next_one_succeeds():
    disk = ForgetfulDisk(seed=1)
    disk.write_whole("a", bytes(8))
    file = disk.open("a")
    file.write_at(b"12345678", 0)
    disk.fail_at(1, errno.EIO)
    with pytest.raises(StorageError):
        file.sync()
    file.sync()
    assert file.read_at(0, 8) == b"12345678"
    assert disk.crash().read("a") == bytes(8)


def test_the_same_seed_tells_the_same_lies():
    images = []
    for _ in range(2):
        disk = ForgetfulDisk(seed=42)
        disk.write_whole("a", bytes(8192))
        disk.open("a").write_at(b"z" * 8192, 0)
        images.append(disk.crash().read("a"))
    assert images[0] == images[1]


def test_after_the_power_cut_nothing_works_any_more():
    disk = ForgetfulDisk(seed=1)
    file = disk.open("a", create_bytes=8)
    disk.crash_at(1)
    with pytest.raises(PowerCut):
        file.write_at(b"12345678", 0)
    for operation in (file.sync, lambda: disk.read("a"), lambda: disk.list("")):
        with pytest.raises(PowerCut):
            operation()


def test_a_small_disk_is_full_and_a_short_write_goes_halfway():
    disk = ForgetfulDisk(seed=1, capacity_bytes=1000)
    with pytest.raises(DiskFull):
        disk.open("a", create_bytes=1001)
    file = disk.open("a", create_bytes=1000)
    with pytest.raises(DiskFull):
        file.write_at(b"x", 1000)
    disk.fail_at(1, SHORT)
    assert file._write(memoryview(b"12345678"), 0) == 4
