"""A journal that has lost its end is found out, as far as anything can tell."""

from __future__ import annotations

import random
import shutil
import threading
from pathlib import Path
from typing import Final

import pytest

from penstock import operations as ops
from penstock.batch import encode_one
from penstock.clock import ManualClock
from penstock.embedded.session import Session
from penstock.errors import Damaged
from penstock.journal.file import FileJournal
from penstock.repair.directory import diagnose, repair
from penstock.storage.directory import DIRECTORIES
from penstock.storage.disk import RealDisk
from penstock.storage.doctor import examine
from penstock.storage.frames import HEADER_BYTES
from penstock.storage.journal_files import MARK_FILE, Mark, decode_mark, encode_mark, read_mark, write_mark
from tests.support.dose import dose
from tests.support.operations import run_operation

FILE_BYTES: Final = 1 << 16


def opened(path: Path) -> Session:
    return Session(path, clock=ManualClock(), rng=random.Random(1), background=False, journal_file_bytes=FILE_BYTES)


def push(session: Session, count: int) -> None:
    for number in range(count):
        session.confirm(session.push_one("mail", encode_one(b"%d" % number))[1])


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A directory whose process was killed: its mark speaks of twenty messages, and there are ten more."""
    session = opened(tmp_path / "data")
    push(session, 20)
    assert session.keeper is not None
    session.keeper.tick()
    push(session, 10)
    shutil.copytree(tmp_path / "data", tmp_path / "killed")
    session.close()
    return tmp_path / "killed"


def last_file(path: Path) -> Path:
    return max((path / "journal").glob("*.log"))


def end_of_frames(path: Path) -> int:
    return len(last_file(path).read_bytes().rstrip(b"\0")) + 7 & ~7


def test_a_killed_directory_opens_as_it_is_and_says_nothing_of_damage(killed):
    assert examine(RealDisk(killed)).is_sound
    with_all = opened(killed)
    assert run_operation(with_all, ops.Stats("mail"))[0].groups["default"].ready == 30
    with_all.close()


def test_a_last_file_that_was_cut_anywhere_is_damage_and_not_a_torn_tail(killed, tmp_path):
    end = end_of_frames(killed)
    places = {*random.Random(1).sample(range(HEADER_BYTES, FILE_BYTES), dose(15, 300)), FILE_BYTES - 1, end - 1}
    for place in sorted(places):
        copy = tmp_path / f"cut-{place}"
        shutil.copytree(killed, copy)
        with last_file(copy).open("r+b") as file:
            file.truncate(place)
        assert not examine(RealDisk(copy)).is_sound, place
        with pytest.raises(Damaged):
            opened(copy)
        shutil.rmtree(copy)


@pytest.mark.parametrize("since", ["opening", "reopening", "rotation"])
def test_a_file_that_was_cut_before_housekeeping_came_is_damage_too(since, tmp_path):
    session = opened(tmp_path / "data")
    push(session, 20)
    if since == "reopening":
        session.close()
        session = opened(tmp_path / "data")
    elif since == "rotation":
        session.shard.journal.rotate()
    push(session, 5)
    end = end_of_frames(tmp_path / "data")
    for place in (HEADER_BYTES + 8, end - 1, end + 8, FILE_BYTES - 1):
        copy = tmp_path / f"cut-{place}"
        shutil.copytree(tmp_path / "data", copy)
        with last_file(copy).open("r+b") as file:
            file.truncate(place)
        assert not examine(RealDisk(copy)).is_sound, place
        with pytest.raises(Damaged):
            opened(copy)
    session.close()


def test_frames_that_the_mark_knows_are_missed_even_where_the_file_keeps_its_size(killed):
    with last_file(killed).open("r+b") as file:
        file.seek(HEADER_BYTES + 8)
        file.write(bytes(FILE_BYTES - HEADER_BYTES - 8))
    with pytest.raises(Damaged):
        opened(killed)
    assert not examine(RealDisk(killed)).is_sound


def test_what_was_written_after_the_mark_and_cut_at_a_frame_cannot_be_known(killed):
    """The one case that looks like a crash between two files: docs/operations.md says so."""
    session = opened(killed)
    push(session, 1)
    end = end_of_frames(killed)
    shutil.copytree(killed, killed.parent / "exact")
    session.close()
    with last_file(killed.parent / "exact").open("r+b") as file:
        file.truncate(end)
    opened(killed.parent / "exact").close()


def test_a_cut_directory_can_be_mended(killed):
    with last_file(killed).open("r+b") as file:
        file.truncate(end_of_frames(killed) - 40)
    disk, clock = RealDisk(killed), ManualClock()
    disk.lock()
    repair(disk, diagnose(disk, clock.now()), clock, random.Random(5), journal_file_bytes=FILE_BYTES)
    session = opened(killed)
    assert run_operation(session, ops.Stats("mail"))[0].groups["default"].ready >= 20
    session.close()


def test_a_mark_that_cannot_be_read_says_nothing(tmp_path):
    disk = RealDisk(tmp_path)
    assert read_mark(disk) == Mark()
    write_mark(disk, Mark(7, 3, 1 << 20))
    assert read_mark(disk) == Mark(7, 3, 1 << 20)
    data = (tmp_path / MARK_FILE).read_bytes()
    for index in range(len(data) - 4):
        changed = bytearray(data)
        changed[index] ^= 1
        assert decode_mark(bytes(changed)) == Mark()
    assert decode_mark(data[:-1]) == Mark()


def test_the_bytes_of_a_mark():
    assert encode_mark(Mark(7, 3, 1 << 20)).hex() == (
        "504e53544b4857310700000000000000030000000000000000001000000000001944814100000000"
    )


class Meeting:
    """A lock that tells when somebody has to wait for it."""

    def __init__(self, waits: threading.Event) -> None:
        self._lock = threading.Lock()
        self._waits = waits

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._waits.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_a_rotation_and_housekeeping_that_write_the_mark_at_once_do_not_get_in_each_others_way(tmp_path, monkeypatch):
    disk = RealDisk(tmp_path)
    for name in DIRECTORIES:
        disk.make_directory(name)
    journal = FileJournal(disk, bytes(16))
    met = threading.Event()  # the rotation is over, or waits
    journal._marking = Meeting(met)  # type: ignore[assignment]
    journal.append(bytes(8))
    journal.sync()

    def rotate() -> None:
        journal.rotate()
        met.set()

    rotation = threading.Thread(target=rotate)

    def rename(old: str, new: str) -> None:
        if threading.current_thread() is not rotation:  # housekeeping is about to put its mark in place
            rotation.start()
            met.wait()
        RealDisk.rename(disk, old, new)

    monkeypatch.setattr(disk, "rename", rename)
    journal.mark()
    rotation.join()

    assert journal.failed is None
    assert read_mark(disk).first_sequence == 2
    journal.close()
