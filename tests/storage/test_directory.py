"""Data directories: what may become one, and that one process at a time has it."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import subprocess
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from penstock.errors import Damaged, DirectoryInUse, DiskReadOnly, NotADataDirectory, StorageError
from penstock.storage.directory import FORMAT, MARKER, open_directory
from penstock.storage.disk import Disk, RealDisk
from tests.support.forgetful import ForgetfulDisk, PowerCut

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
        (b'{"format": 9, "shard": ""}', StorageError, "format 9"),
    ],
)
def test_a_marker_that_makes_no_sense_is_refused_and_the_lock_let_go(disk, marker, kind, words):
    disk.make_directory("")
    disk.write_whole(MARKER, marker)
    for _ in range(2):
        with pytest.raises(kind, match=words):
            open_directory(disk)


def test_a_directory_of_the_format_before_is_opened_and_has_the_newer_one_from_then_on(disk):
    identity = open_directory(disk)
    disk.close()
    disk.write_whole(MARKER, disk.read(MARKER).replace(b'"format": 2', b'"format": 1'))
    assert json.loads(disk.read(MARKER))["format"] == 1

    assert open_directory(disk) == identity

    assert json.loads(disk.read(MARKER))["format"] == FORMAT


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
