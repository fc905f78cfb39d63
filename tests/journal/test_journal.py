"""The journal seam: one suite for every implementation, then what only files can do."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.errors import Closed, Damaged, OutcomeUnknown
from penstock.journal import Journal
from penstock.journal.file import FileJournal
from penstock.journal.memory import MemoryJournal
from penstock.storage.directory import open_directory
from penstock.storage.disk import Bytes, Disk, RealDisk
from tests.support.forgetful import SHORT, ForgetfulDisk, ForgetfulFile
from tests.support.postgres import in_postgres

SHARD = bytes(range(16))
FILE_BYTES = 4096


def open_journal(disk: Disk, **options: Any) -> FileJournal:
    given: dict[str, Any] = {"file_bytes": FILE_BYTES, **options}
    return FileJournal(disk, SHARD, **given)


def prepared(disk: ForgetfulDisk | None = None) -> ForgetfulDisk:
    disk = disk or ForgetfulDisk(seed=1)
    open_directory(disk, lambda: SHARD)
    return disk


def entry(number: int, size: int = 152) -> bytes:
    return number.to_bytes(8, "little") + bytes(size - 8)


def replayed(journal: Journal, after: int = 0) -> list[tuple[int, bytes]]:
    return [(sequence, bytes(entries)) for sequence, entries in journal.replay(after)]


@pytest.fixture(params=["file on a real disk", "file on a forgetful disk", "memory", "postgres"])
def journal(request, tmp_path) -> Iterator[Journal]:
    if request.param == "memory":
        yield MemoryJournal()
        return
    if request.param == "postgres":
        with in_postgres(request.getfixturevalue("postgres").new_database(), file_bytes=FILE_BYTES) as stored:
            yield stored
        return
    disk: Disk = RealDisk(tmp_path / "data") if "real" in request.param else ForgetfulDisk(seed=7)
    open_directory(disk, lambda: SHARD)
    journal = open_journal(disk)
    yield journal
    journal.close()
    disk.close()


# The suite.


def test_sequences_count_from_one_and_have_no_gaps(journal):
    assert journal.sequence == 0
    assert [journal.append(entry(n)) for n in range(5)] == [1, 2, 3, 4, 5]
    assert journal.sequence == 5


def test_a_frame_is_first_gathered_then_written_then_durable(journal):
    journal.append(entry(1))
    assert (journal.written_sequence, journal.durable_sequence) == (0, 0)

    journal.write()
    assert journal.written_sequence == 1

    journal.sync()
    assert (journal.written_sequence, journal.durable_sequence) == (1, 1)


def test_sync_writes_what_was_only_gathered(journal):
    journal.append(entry(1))
    journal.append(entry(2))
    journal.sync()
    assert journal.durable_sequence == 2


def test_replay_returns_the_frames_after_a_sequence_in_order(journal):
    for number in range(1, 101):
        journal.append(entry(number))
    journal.sync()

    assert replayed(journal) == [(number, entry(number)) for number in range(1, 101)]
    assert replayed(journal, after=97) == [(number, entry(number)) for number in (98, 99, 100)]
    assert replayed(journal, after=100) == []


def test_replay_after_a_sequence_that_was_never_reached_says_so(journal):
    journal.append(entry(1))
    journal.sync()
    with pytest.raises(Damaged, match="ends at sequence 1"):
        journal.replay(2)


def test_an_empty_frame_is_a_frame(journal):
    journal.append(b"")
    journal.append(entry(2))
    journal.sync()
    assert replayed(journal) == [(1, b""), (2, entry(2))]


@pytest.mark.parametrize("entries", [b"1234567", bytes(32 * 1024 * 1024)], ids=["not a multiple of 8", "too large"])
def test_entries_that_no_frame_can_hold_are_refused_and_change_nothing(journal, entries):
    with pytest.raises(ValueError, match="a frame cannot hold"):
        journal.append(entries)
    assert journal.append(entry(1)) == 1


def test_a_closed_journal_made_everything_durable_and_refuses_more(journal):
    journal.append(entry(1))
    journal.close()
    journal.close()
    assert journal.durable_sequence == 1
    with pytest.raises(Closed):
        journal.append(entry(2))


def test_writing_and_syncing_a_closed_journal_with_nothing_left_to_do_is_no_error(journal):
    journal.append(entry(1))
    journal.close()
    journal.write()
    journal.sync()


def test_full_files_hold_each_frame_once_and_go_oldest_first(journal):
    for number in range(1, 101):
        journal.append(entry(number))
        journal.write()
    journal.rotate()

    found = [(n, bytes(entries)) for file in journal.full_files() for n, entries in journal.read_file(file)]
    assert found in ([], [(number, entry(number)) for number in range(1, 101)])
    for file in journal.full_files():
        journal.remove_file(file)
    assert journal.full_files() == []
    assert journal.append(entry(101)) == 101


def test_rotating_an_empty_file_changes_nothing(journal):
    journal.rotate()
    journal.rotate()
    assert journal.full_files() == []
    assert journal.append(entry(1)) == 1


# What only files can do.


def test_a_file_journal_goes_on_where_it_ended():
    disk = prepared()
    journal = open_journal(disk)
    for number in range(1, 61):
        journal.append(entry(number))
    journal.close()

    journal = open_journal(disk)
    assert journal.sequence == journal.durable_sequence == 60
    assert journal.append(entry(61)) == 61
    journal.sync()
    assert replayed(journal) == [(number, entry(number)) for number in range(1, 62)]


@pytest.mark.parametrize("file_bytes", [FILE_BYTES, 1 << 20])
def test_a_small_write_to_a_new_place_takes_zeros_along_so_that_the_next_syncs_are_short(monkeypatch, file_bytes):
    writes: list[tuple[int, int]] = []
    write_at = ForgetfulFile.write_at

    def noted(file: ForgetfulFile, data: Bytes, position: int) -> None:
        writes.append((position, position + len(data)))
        write_at(file, data, position)

    journal = open_journal(prepared(), file_bytes=file_bytes)
    monkeypatch.setattr(ForgetfulFile, "write_at", noted)
    for number in range(1, 4):
        journal.append(entry(number))
        journal.sync()

    (_, touched_end), *later = writes
    assert min(file_bytes, 64 * 1024) <= touched_end <= file_bytes, "many more find their place there"
    assert all(end - start < 256 for start, end in later), "and write nothing but themselves"
    assert replayed(journal) == [(number, entry(number)) for number in range(1, 4)]


def test_a_file_rotates_when_it_is_full_of_bytes_or_of_frames():
    by_bytes = open_journal(prepared())
    by_frames = open_journal(prepared(), file_frames_max=10)
    for journal in (by_bytes, by_frames):
        for number in range(1, 51):
            journal.append(entry(number))
        journal.write()

    assert [file.first_sequence for file in by_bytes.full_files()] == [1, 23]
    assert all(file.bytes <= FILE_BYTES for file in by_bytes.full_files())
    assert [(f.first_sequence, f.end_sequence) for f in by_frames.full_files()] == [
        (1, 11),
        (11, 21),
        (21, 31),
        (31, 41),
    ]


def test_whoever_asked_is_notified_when_a_file_has_become_full():
    journal = open_journal(prepared(), file_frames_max=10)
    seen: list[int] = []
    journal.on_rotate = lambda: seen.append(len(journal.full_files()))
    for number in range(1, 31):
        journal.append(entry(number))
    journal.sync()
    assert seen == [1, 2]


def test_a_frame_larger_than_what_is_left_starts_the_next_file():
    journal = open_journal(prepared())
    journal.append(entry(1))
    journal.append(entry(2, size=FILE_BYTES - 200))
    journal.append(entry(3))
    journal.sync()
    assert [(file.first_sequence, file.end_sequence) for file in journal.full_files()] == [(1, 2), (2, 3)]
    assert len(replayed(journal)) == 3


def test_only_the_oldest_file_may_be_removed():
    journal = open_journal(prepared(), file_frames_max=10)
    for number in range(1, 31):
        journal.append(entry(number))
    journal.sync()
    first, second = journal.full_files()

    with pytest.raises(ValueError, match="not the oldest"):
        journal.remove_file(second)
    journal.remove_file(first)
    assert replayed(journal, after=10)[0][0] == 11
    with pytest.raises(Damaged, match="starts at sequence 11"):
        journal.replay(9)


def test_a_removed_file_stays_removed_after_a_power_cut():
    for seed in range(20):
        disk = prepared(ForgetfulDisk(seed))
        journal = open_journal(disk, file_frames_max=10)
        for number in range(1, 31):
            journal.append(entry(number))
        journal.sync()
        for file in journal.full_files():
            journal.remove_file(file)

        journal = open_journal(disk.crash(), file_frames_max=10)
        assert journal.full_files() == []
        assert [sequence for sequence, _ in journal.replay(20)] == list(range(21, 31))


def test_what_was_only_written_when_the_process_was_killed_is_durable_after_reopening():
    for seed in range(20):
        disk = prepared(ForgetfulDisk(seed))
        journal = open_journal(disk)
        journal.append(entry(1))
        journal.write()
        assert open_journal(disk.kill()).durable_sequence == 1

        assert open_journal(disk.crash()).sequence == 1


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_failed_sync_is_final(error):
    disk = prepared()
    journal = open_journal(disk)
    journal.append(entry(1))
    journal.write()
    disk.fail_at(1, error)

    with pytest.raises(OutcomeUnknown):
        journal.sync()
    assert journal.durable_sequence == 0
    assert journal.failed is not None
    for refused in (lambda: journal.append(entry(2)), journal.write, journal.sync, journal.rotate):
        with pytest.raises(OutcomeUnknown):
            refused()
    journal.close()
    assert open_journal(disk.crash()).sequence in (0, 1)


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_a_failed_write_is_final(error):
    disk = prepared()
    journal = open_journal(disk)
    journal.append(entry(1))
    disk.fail_at(1, error)
    with pytest.raises(OutcomeUnknown):
        journal.write()
    with pytest.raises(OutcomeUnknown):
        journal.sync()


class _Interrupt(BaseException):
    """Stands for Ctrl-C, which would end the test run instead of failing a test."""


class _InterruptedOnRemoval(list[bytes]):
    """Interrupted at the worst moment: frames are written and not yet forgotten."""

    def __delitem__(self, key: Any) -> None:
        raise _Interrupt


def test_an_interrupted_write_is_final_so_that_no_frame_is_written_twice():
    disk = prepared()
    journal = open_journal(disk)
    journal._pending = _InterruptedOnRemoval()
    journal.append(entry(1))
    with pytest.raises(_Interrupt):
        journal.write()
    with pytest.raises(OutcomeUnknown):
        journal.sync()
    assert replayed(open_journal(disk.kill())) == [(1, entry(1))]


def test_a_short_write_is_completed():
    disk = prepared()
    journal = open_journal(disk)
    journal.append(entry(1, size=2048))
    disk.fail_at(1, SHORT)
    journal.sync()
    assert disk.fired
    assert replayed(open_journal(disk.crash())) == [(1, entry(1, size=2048))]


def test_every_io_that_can_fail_leaves_confirmed_frames_readable():
    for error in (errno.EIO, errno.ENOSPC, SHORT):
        operation = 0
        fired = True
        while fired:
            operation += 1
            disk = prepared(ForgetfulDisk(seed=operation))
            journal = open_journal(disk, file_frames_max=4)
            disk.fail_at(operation, error)
            confirmed = push_until_failure(journal)
            fired = disk.fired
            found = replayed(open_journal(disk.crash(), file_frames_max=4))
            assert found[:confirmed] == [(number, entry(number)) for number in range(1, confirmed + 1)]
        assert operation > 20


def push_until_failure(journal: FileJournal) -> int:
    """How many of 15 pushes, each synced, were confirmed."""
    for number in range(1, 16):
        try:
            journal.append(entry(number))
            journal.sync()
        except OutcomeUnknown:
            return number - 1
    return 15
