"""Torn or damaged: what opening makes of files that a crash, or worse, has been at."""

from __future__ import annotations

import logging
import random
from contextlib import suppress

import pytest

from penstock.errors import Damaged, OutcomeUnknown
from penstock.journal.file import FileJournal
from penstock.storage import frames as storage_frames
from penstock.storage import journal_files
from penstock.storage.directory import open_directory
from penstock.storage.frames import HEADER_BYTES, Verdict, frame_head, scan, seed_of
from penstock.storage.journal_files import name_of, scan_file
from tests.support.forgetful import ForgetfulDisk, PowerCut

SHARD = bytes(range(16))
FIRST = name_of(1)
ENTRY_BYTES = 40
FRAME_BYTES = 24 + ENTRY_BYTES


def entry(number: int) -> bytes:
    return number.to_bytes(8, "little") * (ENTRY_BYTES // 8)


def prepared(seed: int = 1) -> ForgetfulDisk:
    disk = ForgetfulDisk(seed)
    open_directory(disk, lambda: SHARD)
    return disk


def open_journal(disk: ForgetfulDisk, known_durable: int = 0) -> FileJournal:
    return FileJournal(disk, SHARD, known_durable=known_durable, file_bytes=4096, file_frames_max=20)


def written(count: int, *, sync_each: bool) -> ForgetfulDisk:
    """A disk with so many frames in one file. Unless each was synced, no frame knows of another's durability."""
    disk = prepared()
    journal = open_journal(disk)
    for number in range(1, count + 1):
        journal.append(entry(number))
        if sync_each:
            journal.sync()
    journal.close()
    return disk


def found_on(disk: ForgetfulDisk) -> list[tuple[int, bytes]]:
    return [(sequence, bytes(entries)) for sequence, entries in open_journal(disk.kill()).replay(0)]


def frames(count: int) -> list[tuple[int, bytes]]:
    return [(number, entry(number)) for number in range(1, count + 1)]


# The tail.


@pytest.mark.parametrize("rest", ["something else", "nothing, and no mark"])
def test_a_last_file_truncated_at_any_byte_of_its_last_frames_ends_before_the_first_incomplete_one(rest, caplog):
    """Its end never reached the disk. One shorter than its mark says was cut: tests/journal/test_highwater.py."""
    caplog.set_level(logging.CRITICAL)
    whole = written(10, sync_each=True).read(FIRST)
    end = HEADER_BYTES + 10 * FRAME_BYTES
    for cut in range(end - 3 * FRAME_BYTES, end + 1):
        disk = written(1, sync_each=True)
        if rest == "something else":
            disk.replace(FIRST, whole[:cut].ljust(len(whole), b"\xa5"))
        else:
            disk.replace(FIRST, whole[:cut])
            disk.remove(journal_files.MARK_FILE)
        complete = (cut - HEADER_BYTES) // FRAME_BYTES
        assert found_on(disk) == frames(complete)

        journal = open_journal(disk.kill())
        assert journal.append(entry(complete + 1)) == complete + 1
        journal.sync()
        assert found_on(disk.crash()) == frames(complete + 1)


def test_every_flipped_bit_of_the_last_frame_cuts_it_off_and_says_so(caplog):
    start = HEADER_BYTES + 9 * FRAME_BYTES
    whole = written(10, sync_each=True).read(FIRST)
    disk = prepared()
    open_journal(disk).close()
    for bit in range(start * 8, (start + FRAME_BYTES) * 8):
        disk.replace(FIRST, whole)
        disk.flip(FIRST, bit)
        caplog.clear()
        assert found_on(disk) == frames(9)
        assert f"cut a torn tail at position {start}" in caplog.text


def test_a_frame_that_was_lost_before_others_that_were_not_ends_the_log_without_an_error():
    disk = written(10, sync_each=False)
    disk.flip(FIRST, (HEADER_BYTES + 4 * FRAME_BYTES) * 8 + 100)
    assert found_on(disk) == frames(4)


def test_what_was_cut_off_never_comes_back():
    disk = written(10, sync_each=False)
    disk.flip(FIRST, (HEADER_BYTES + 4 * FRAME_BYTES) * 8 + 100)
    journal = open_journal(disk)
    journal.append(entry(77))
    journal.sync()

    assert found_on(disk.crash()) == [*frames(4), (5, entry(77))]


def test_a_tail_of_zeros_is_a_clean_end(caplog):
    assert found_on(written(10, sync_each=True)) == frames(10)
    assert caplog.text == ""


def test_bytes_that_only_look_like_frames_do_not_make_a_torn_tail_damage():
    fake = b"".join(frame_head(entry(n), n, n - 1, seed_of(bytes(16))) + entry(n) for n in range(2, 9))
    torn = bytearray(frame_head(fake, 1, 0, seed_of(SHARD)) + fake)
    torn[4] ^= 1
    found = scan(bytes(HEADER_BYTES) + bytes(torn), seed_of(SHARD), 1)
    assert found.verdict is Verdict.TORN
    assert found.end_position == HEADER_BYTES


def test_when_telling_would_take_too_long_the_tail_counts_as_damaged(monkeypatch):
    monkeypatch.setattr(storage_frames, "SEARCH_BYTES_MAX", 100)
    fake = b"".join(frame_head(entry(n), n, n - 1, seed_of(bytes(16))) + entry(n) for n in range(2, 9))
    found = scan(bytes(HEADER_BYTES + 8) + fake, seed_of(SHARD), 1)
    assert found.verdict is Verdict.DAMAGED


# Damage.


def test_every_flipped_bit_of_a_frame_that_a_later_one_calls_durable_is_damage():
    start = HEADER_BYTES + 4 * FRAME_BYTES
    disk = written(10, sync_each=True)
    before = disk.read(FIRST)
    for bit in range(start * 8, (start + FRAME_BYTES) * 8):
        disk.flip(FIRST, bit)
        with pytest.raises(Damaged) as caught:
            open_journal(disk)
        assert FIRST in str(caught.value)
        assert f"sequence 5 at position {start} is damaged" in str(caught.value)
        assert f"continue with sequence 6 at position {start + FRAME_BYTES}" in str(caught.value)
        disk.flip(FIRST, bit)
        assert disk.read(FIRST) == before


def test_a_frame_turned_to_zeros_under_durable_ones_is_damage():
    disk = written(10, sync_each=True)
    data = bytearray(disk.read(FIRST))
    start = HEADER_BYTES + 4 * FRAME_BYTES
    data[start : start + FRAME_BYTES] = bytes(FRAME_BYTES)
    disk.replace(FIRST, bytes(data))
    with pytest.raises(Damaged, match="sequence 5"):
        open_journal(disk)


def test_a_doctor_can_read_on_after_the_damage():
    disk = written(10, sync_each=True)
    disk.flip(FIRST, (HEADER_BYTES + 4 * FRAME_BYTES) * 8)
    first = scan_file(disk, 1, SHARD)
    assert first.verdict is Verdict.DAMAGED
    assert [sequence for sequence, _ in first.frames()] == [1, 2, 3, 4]

    assert first.resume_position is not None
    assert first.resume_sequence is not None
    rest = scan(first.data, seed_of(SHARD), first.resume_sequence, position=first.resume_position)
    assert rest.verdict is Verdict.CLEAN
    assert [sequence for sequence, _ in rest.frames()] == [6, 7, 8, 9, 10]


def test_damage_in_an_earlier_file_is_found_when_it_is_read_whatever_its_frames_say():
    disk = written(50, sync_each=False)
    disk.flip(FIRST, (HEADER_BYTES + 19 * FRAME_BYTES) * 8)
    journal = open_journal(disk)
    assert [sequence for sequence, _ in journal.replay(20)] == list(range(21, 51))

    with pytest.raises(Damaged, match=r"0001\.log: the frame of sequence 20 .* no intact frame follows"):
        list(journal.replay(10))
    with pytest.raises(Damaged, match=r"0001\.log"):
        journal.read_file(journal.full_files()[0])


def test_an_earlier_file_that_was_truncated_is_damage():
    disk = written(50, sync_each=True)
    disk.replace(FIRST, disk.read(FIRST)[:-FRAME_BYTES])
    with pytest.raises(Damaged, match="sequence 20"):
        list(open_journal(disk).replay(0))


def test_a_missing_file_is_damage():
    disk = written(50, sync_each=True)
    disk.remove(name_of(21))
    with pytest.raises(Damaged, match="sequence 21"):
        list(open_journal(disk).replay(0))


@pytest.mark.parametrize("name", [name_of(1), name_of(21), name_of(41)])
def test_a_damaged_header_is_refused_in_any_file(name):
    disk = written(50, sync_each=True)
    disk.flip(name, 300)
    with pytest.raises(Damaged, match="header"):
        open_journal(disk)


def test_a_file_of_another_shard_or_under_another_name_is_refused():
    disk = written(5, sync_each=True)
    with pytest.raises(Damaged, match="belongs to shard 0001"):
        FileJournal(disk, bytes(16))
    disk.replace(name_of(6), disk.read(FIRST))
    with pytest.raises(Damaged, match="named otherwise"):
        open_journal(disk)


def test_a_journal_that_ends_before_what_a_checkpoint_knows_is_refused_and_left_alone():
    disk = written(10, sync_each=True)
    disk.flip(FIRST, (HEADER_BYTES + 9 * FRAME_BYTES) * 8 + 70)
    before = disk.read(FIRST)
    with pytest.raises(Damaged, match="ends at sequence 9, and 10 was durable"):
        open_journal(disk, known_durable=10)
    assert disk.read(FIRST) == before
    assert open_journal(disk, known_durable=9).sequence == 9

    with pytest.raises(Damaged, match="no journal files"):
        open_journal(prepared(), known_durable=1)


# Crashes.


def test_a_crash_at_any_operation_keeps_what_was_confirmed_and_invents_nothing():
    for seed in range(30):
        operation = 0
        fired = True
        while fired:
            operation += 1
            disk = prepared(seed * 1000 + operation)
            disk.crash_at(operation)
            confirmed = push_some(disk, random.Random(seed))
            fired = disk.fired
            check(disk.crash(), confirmed)
        assert operation > 40


def test_a_crash_during_recovery_changes_nothing():
    for seed in range(40):
        disk = prepared(seed)
        disk.crash_at(30 + seed)
        confirmed = push_some(disk, random.Random(seed))
        disk = disk.crash()
        operation = 0
        fired = True
        while fired:
            operation += 1
            disk.crash_at(operation)
            with suppress(PowerCut):
                open_journal(disk)
            fired = disk.fired
            disk = disk.crash()
        check(disk, confirmed)


def push_some(disk: ForgetfulDisk, rng: random.Random) -> int:
    """Push 50 frames in groups; the greatest sequence that was confirmed."""
    confirmed = 0
    with suppress(PowerCut, OutcomeUnknown):
        journal = open_journal(disk)
        while journal.sequence < 50:
            for _ in range(rng.randint(1, 4)):
                journal.append(entry(journal.sequence + 1))
            journal.write()
            if rng.random() < 0.7:
                journal.sync()
                confirmed = journal.durable_sequence
    return confirmed


def check(disk: ForgetfulDisk, confirmed: int) -> None:
    """All that was confirmed is there, nothing that was not pushed is, and the journal goes on."""
    journal = open_journal(disk)
    found = [(sequence, bytes(entries)) for sequence, entries in journal.replay(0)]
    assert len(found) >= confirmed
    assert found == frames(len(found))
    journal.append(entry(len(found) + 1))
    journal.sync()
    assert found_on(disk.crash()) == frames(len(found) + 1)
