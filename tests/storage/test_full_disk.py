"""A full disk under the journal: the reserve, the flag, and what still works."""

from __future__ import annotations

import errno

import pytest

from penstock.errors import OutcomeUnknown
from penstock.journal.file import FileJournal
from penstock.storage.directory import open_directory
from penstock.storage.journal_files import RESERVE
from tests.support.forgetful import ForgetfulDisk

SHARD = bytes(range(16))


def prepared() -> ForgetfulDisk:
    disk = ForgetfulDisk(seed=1)
    open_directory(disk, lambda: SHARD)
    return disk


def open_journal(disk: ForgetfulDisk) -> FileJournal:
    return FileJournal(disk, SHARD, file_bytes=4096)


def entry(number: int) -> bytes:
    return number.to_bytes(8, "little") + bytes(144)


def replayed(journal: FileJournal) -> list[tuple[int, bytes]]:
    return [(sequence, bytes(entries)) for sequence, entries in journal.replay(0)]


def test_a_full_disk_at_rotation_takes_the_reserve_and_says_so():
    disk = prepared()
    journal = open_journal(disk)
    disk.capacity_bytes -= disk.free_bytes()
    for number in range(1, 31):
        journal.append(entry(number))
    journal.sync()

    assert journal.disk_full
    assert not disk.exists(RESERVE)
    assert len(journal.full_files()) == 1
    assert journal.check_space()
    assert len(replayed(open_journal(disk.crash()))) == 30


def test_a_quota_that_the_free_space_does_not_show_sets_the_flag_too():
    disk = prepared()
    journal = open_journal(disk)
    for number in range(1, 31):
        journal.append(entry(number))
    disk.fail_at(5, errno.EDQUOT)  # frames, truncation, sync, the new name; then its preallocation
    journal.sync()

    assert disk.fired
    assert not disk.exists(RESERVE)
    assert journal.disk_full


def test_when_space_is_free_again_the_reserve_is_rebuilt():
    disk = prepared()
    journal = open_journal(disk)
    disk.capacity_bytes -= disk.free_bytes()
    for number in range(1, 31):
        journal.append(entry(number))
    journal.sync()
    disk.capacity_bytes = 1 << 40

    assert not journal.check_space()
    assert not journal.disk_full
    assert disk.exists(RESERVE)


def test_a_full_disk_without_a_reserve_stops_the_journal():
    disk = prepared()
    journal = open_journal(disk)
    disk.remove(RESERVE)
    disk.capacity_bytes -= disk.free_bytes()
    for number in range(1, 31):
        journal.append(entry(number))
    with pytest.raises(OutcomeUnknown):
        journal.sync()
    assert len(replayed(open_journal(disk.crash()))) == 22


def test_a_journal_opens_on_a_full_disk():
    disk = prepared()
    journal = open_journal(disk)
    journal.append(entry(1))
    journal.close()
    disk.remove(RESERVE)
    disk.capacity_bytes -= disk.free_bytes()

    journal = open_journal(disk)
    assert journal.disk_full
    journal.append(entry(2))
    journal.sync()
    assert len(replayed(open_journal(disk.crash()))) == 2
