"""The door to the disk, the data directory behind it, and the disk that lies."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from penstock import limits
from penstock.errors import DiskFull, DiskReadOnly, NotADataDirectory, StorageError
from penstock.storage import disk as disk_module
from penstock.storage.disk import PIECE_BYTES, Disk, RealDisk, data_sync, free_bytes_min, storage_error, write_fully
from penstock.storage.journal_files import is_short_of_space
from tests.support.forgetful import ForgetfulDisk

SHARD = bytes(range(16))


@pytest.fixture
def tmp_path(on_disk):
    return on_disk


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

    with pytest.raises(OSError, match="accepts no more"):
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
    assert free_bytes_min(disk) == threshold
    disk.free_bytes = lambda: threshold  # type: ignore[method-assign]
    assert not is_short_of_space(disk)
    disk.free_bytes = lambda: threshold - 1  # type: ignore[method-assign]
    assert is_short_of_space(disk)


def test_a_real_disk_knows_its_size(tmp_path):
    disk = RealDisk(tmp_path)
    assert 0 <= disk.free_bytes() <= disk.total_bytes()


def test_a_large_file_is_written_and_synced_piece_by_piece(tmp_path, monkeypatch):
    class Noting:
        """A file that notes what is done to it."""

        def __init__(self, file: Any) -> None:
            self._file = file

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

        def write_at(self, data: bytes, position: int) -> None:
            notes.append((position, len(data)))
            self._file.write_at(data, position)

        def sync(self) -> None:
            notes.append("sync")
            self._file.sync()

    notes: list[Any] = []
    disk = RealDisk(tmp_path)
    opened = disk.open
    monkeypatch.setattr(disk, "open", lambda name, **options: Noting(opened(name, **options)))
    content = os.urandom(2 * PIECE_BYTES + 5)
    disk.write_whole("large", content)
    disk.write_whole("small", b"x")

    assert notes[:6] == [(0, PIECE_BYTES), "sync", (PIECE_BYTES, PIECE_BYTES), "sync", (2 * PIECE_BYTES, 5), "sync"]
    assert notes[6:] == [(0, 1), "sync"]
    assert (tmp_path / "large").read_bytes() == content


def test_where_fsync_does_not_reach_the_disk_the_call_that_does_is_used(tmp_path, monkeypatch):
    called: list[tuple[str, int]] = []
    monkeypatch.setattr(fcntl, "fcntl", lambda descriptor, command: called.append(("full", command)))
    monkeypatch.setattr(os, "fsync", lambda descriptor: called.append(("plain", descriptor)))

    data_sync(51)(7)
    monkeypatch.setattr(fcntl, "fcntl", _refuse_command)
    data_sync(51)(7)

    assert called == [("full", 51), ("plain", 7)]
    assert data_sync(None) is os.fdatasync


def _refuse_command(descriptor: int, command: int) -> None:
    raise OSError(errno.ENOTSUP, "not on this file system")
