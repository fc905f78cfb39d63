"""One damaged place in any file: it is found or harmless, never a wrong message, and a repair names what is lost."""

from __future__ import annotations

import random
from functools import cache

import msgspec
import pytest

from penstock.clock import ManualClock
from penstock.errors import PenstockError, StorageError
from penstock.model import MessageId
from penstock.repair.directory import Report, diagnose, repair
from penstock.repair.salvage import Loss
from penstock.storage.doctor import examine
from penstock.verify import verify
from tests.support.damaged import FILE_BYTES, Image, contents_of, disk_of, make_image, opened, settled_of
from tests.support.dose import dose
from tests.support.embedded_session import session_of
from tests.support.forgetful import ForgetfulDisk, PowerCut

FLIPS = dose(40, 300)
WOUNDS = dose(24, 240)


@cache
def image(is_killed: bool) -> Image:
    return make_image(is_killed=is_killed)


def used_bytes(data: bytes) -> int:
    return len(data.rstrip(b"\0")) or len(data)


def flipped(number: int) -> tuple[Image, ForgetfulDisk, str]:
    """Files take turns; within a file the bit is drawn."""
    rng = random.Random(number)
    whole = image(number % 2 == 0)
    names = sorted(whole.files)
    name = names[number // 2 % len(names)]
    bit = rng.randrange(8 * used_bytes(whole.files[name]))
    disk = disk_of(whole, number)
    disk.flip(name, bit)
    return whole, disk, f"bit {bit} of {name}"


def wounded(number: int) -> tuple[Image, ForgetfulDisk, str]:
    """Worse than a bit: a sector of zeros or junk, a file cut short or gone."""
    rng = random.Random(f"wound {number}")
    whole = image(number % 2 == 0)
    name = rng.choice(sorted(whole.files))
    at = rng.randrange(used_bytes(whole.files[name]))
    sector = slice(at // 512 * 512, at // 512 * 512 + 512)
    data = bytearray(whole.files[name])
    how = rng.choice(("zeros", "junk", "cut", "gone"))
    if how == "cut":
        del data[at:]
    elif how != "gone":
        data[sector] = bytes(len(data[sector])) if how == "zeros" else rng.randbytes(len(data[sector]))
    files = {other: content for other, content in whole.files.items() if other != name}
    files |= {} if how == "gone" else {name: bytes(data)}
    return whole, disk_of(whole._replace(files=files), number), f"{how} at {at} of {name}"


def test_a_sound_directory_is_found_sound_and_nothing_in_it_is_missed():
    for is_killed in (False, True):
        whole = image(is_killed)
        found = diagnose(disk_of(whole), whole.now)
        assert found.is_sound
        assert found.report().losses == []
        with opened(disk_of(whole), whole.now) as ps:
            assert contents_of(ps) == whole.payloads


@pytest.mark.parametrize("number", range(FLIPS))
def test_one_flipped_bit_is_found_or_harmless_and_a_repair_names_what_is_lost(number):
    whole, disk, what = flipped(number)
    check_damage(whole, disk, what)


@pytest.mark.parametrize("number", range(WOUNDS))
def test_a_wounded_file_is_found_or_harmless_and_a_repair_names_what_is_lost(number):
    whole, disk, what = wounded(number)
    check_damage(whole, disk, what)


def check_damage(whole: Image, disk: ForgetfulDisk, what: str) -> None:
    readable = read_as_it_is(whole, disk_like(disk), what)
    found = diagnose(disk, whole.now)
    if found.is_sound:
        assert readable is not None, f"{what}: found sound, and refused"
        missing = set(whole.payloads) - set(readable)
        torn = any(finding.harmless for finding in found.examination.findings)
        assert not missing or torn, f"{what}: found sound, and {missing} are missing"
        return
    report = repair(disk, found, ManualClock(whole.now), random.Random(3), journal_file_bytes=FILE_BYTES)
    check_repaired(whole, disk, report, what)


def disk_like(disk: ForgetfulDisk) -> ForgetfulDisk:
    files = {name: disk.read(name) for name in disk._files}
    return disk_of(Image(files, set(disk._directories), 0, {}, {}, {}))


def read_as_it_is(whole: Image, disk: ForgetfulDisk, what: str) -> dict[MessageId, bytes] | None:
    """What can be read without a repair; None when that is refused. Never a wrong message."""
    try:
        contents = contents_of(opened(disk, whole.now))
    except PenstockError:
        return None
    assert_none_wrong(whole, contents, what)
    return contents


def assert_none_wrong(whole: Image, contents: dict[MessageId, bytes], what: str) -> None:
    wrong = {id: payload for id, payload in contents.items() if whole.payloads.get(id) != payload}
    assert not wrong, f"{what}: wrong messages {wrong}"


def check_repaired(whole: Image, disk: ForgetfulDisk, report: Report, what: str) -> None:
    with opened(disk, whole.now) as ps:
        contents = contents_of(ps)
        assert_none_wrong(whole, contents, what)
        missing = set(whole.payloads) - set(contents)
        unnamed = {id for id in missing if not any(covers(loss, id) for loss in report.losses)}
        # Of a queue that was made at the end of the journal, nobody knows once that is gone.
        known = {queue for queue, _ in whole.ends if queue in ps.queues() or not end_is_lost(report)}
        unnamed = {id for id in unnamed if id.queue in known}
        assert not unnamed, f"{what}: lost and not named: {unnamed}"
        kept = {id for id in contents if any(covers(loss, id) for loss in report.losses if loss.is_certain)}
        assert not kept, f"{what}: named as lost and still there: {kept}"
        check_ends(whole, session_of(ps).shard.core, known, what)
        check_settled(whole, settled_of(ps, whole.ends), report, what)
    assert verify(disk, whole.now).problems == [], what
    assert diagnose(disk, whole.now).is_sound, what


def end_is_lost(report: Report) -> bool:
    return any("the end of the journal is lost" in note for note in report.notes)


def covers(loss: Loss, id: MessageId) -> bool:
    return (loss.queue, loss.partition) == (id.queue, id.partition) and loss.first_offset <= id.offset < loss.end_offset


def check_ends(whole: Image, core, known: set[str], what: str) -> None:
    """No offset is ever used twice."""
    for (queue, partition), end in whole.ends.items():
        if queue in known:
            assert core.by_name[queue].by_name[partition].end >= end, f"{what}: {queue}/{partition} goes back"


def check_settled(whole: Image, settled, report: Report, what: str) -> None:
    """What was finished stays finished, or the report says that some of it is forgotten."""
    for place, before in whole.settled.items():
        assert place in settled or end_is_lost(report), f"{what}: group {place} is gone"
        if place not in settled:
            continue
        forgotten = before - settled[place]
        assert not forgotten or report.notes, f"{what}: forgotten without a word: {place} {forgotten}"
        new = {id for id in settled[place] - before if not any(covers(loss, id) for loss in report.losses)}
        # History does not know of a seek back; the report says so.
        seeks_forgotten = any(f"queue {place[0]!r}" in note and "seek" in note for note in report.notes)
        assert not new or seeks_forgotten, f"{what}: settled by the repair: {place} {new}"


DAMAGE = {
    "a frame after the checkpoint": ("journal/00000000000000000109.log", 20_000),
    "a frame before the checkpoint": ("journal/00000000000000000109.log", 3_000),
    "a journal header": ("journal/00000000000000000109.log", 20),
    "the marker": ("PENSTOCK", 30),
    "a row group": ("segments/messages/00000000000000000056-0.parquet", 900),
    "history": ("segments/events/00000000000000000056-0.parquet", 900),
    "the manifest of the segments": ("segments/manifest.arrow", 900),
    "the manifest of the checkpoint": ("checkpoints/manifest.json", 90),
}


@pytest.mark.parametrize("where", DAMAGE)
def test_a_repair_that_the_power_cuts_short_is_finished_by_the_next(where):
    name, position = DAMAGE[where]
    whole = image(True)
    for operation in range(1, 1000, dose(17, 1)):
        disk = disk_of(whole, operation)
        disk.flip(name, 8 * position)
        found = diagnose(disk, whole.now)
        disk.crash_at(operation)
        try:
            repair(disk, found, ManualClock(whole.now), random.Random(3), journal_file_bytes=FILE_BYTES)
        except PowerCut:
            check_finished(whole, disk.crash(), found.report(), f"{where}, cut short at operation {operation}")
        else:
            assert operation > 10
            return


def test_a_directory_of_a_newer_format_is_left_alone():
    whole = image(True)
    disk = disk_of(whole, 1)
    marker = msgspec.json.decode(disk.read("PENSTOCK"))
    newer = msgspec.json.encode(marker | {"format": 1_000})
    disk.write_whole("PENSTOCK", newer)

    with pytest.raises(StorageError, match="does not know format 1000"):
        diagnose(disk, whole.now)

    assert disk.read("PENSTOCK") == newer


@pytest.mark.parametrize("version", ["two", 0, None])
def test_a_marker_that_names_no_format_is_damaged_and_repaired(version):
    whole = image(True)
    disk = disk_of(whole, 1)
    marker = msgspec.json.decode(disk.read("PENSTOCK"))
    disk.write_whole("PENSTOCK", msgspec.json.encode(marker | {"format": version}))

    found = diagnose(disk, whole.now)
    repair(disk, found, ManualClock(whole.now), random.Random(3), journal_file_bytes=FILE_BYTES)

    assert msgspec.json.decode(disk.read("PENSTOCK")) == marker


def check_finished(whole: Image, disk: ForgetfulDisk, first: Report, what: str) -> None:
    again = diagnose(disk, whole.now)
    if not again.is_sound:
        repair(disk, again, ManualClock(whole.now), random.Random(3), journal_file_bytes=FILE_BYTES)
    # What the first repair has settled as lost is not news to the second.
    both = msgspec.structs.replace(
        first, losses=[*first.losses, *again.salvaged.losses], notes=[*first.notes, *again.salvaged.notes]
    )
    check_repaired(whole, disk, both, what)


@pytest.mark.parametrize("where", DAMAGE)
def test_a_repair_keeps_a_copy_of_everything_that_it_replaces(where):
    name, position = DAMAGE[where]
    whole = image(True)
    disk = disk_of(whole)
    disk.flip(name, 8 * position)
    damaged = {name: disk.read(name) for name in disk._files}

    found = diagnose(disk, whole.now)
    report = repair(disk, found, ManualClock(whole.now), random.Random(3), journal_file_bytes=FILE_BYTES)

    assert name in {finding.file for finding in report.findings}
    assert disk.read(f"{report.kept_in}/{name}") == damaged[name]
    assert disk.exists(f"{report.kept_in}/report.json")


def test_an_examination_changes_nothing():
    whole, disk, _ = flipped(1)
    before = disk.operations

    examine(disk)
    diagnose(disk, whole.now)

    assert disk.operations == before
