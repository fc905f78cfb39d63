"""Verify: it sees what does not add up, and leaves everything as it was."""

from __future__ import annotations

from functools import cache

import msgspec
import numpy as np
import pytest

from penstock.clock import ManualClock
from penstock.delivery import snapshot
from penstock.errors import DiskReadOnly
from penstock.repair.directory import diagnose
from penstock.storage import manifest as manifests
from penstock.storage.checkpoint import CheckpointStore
from penstock.storage.disk import ReadOnlyDisk
from penstock.verify import Verification, verify
from tests.support.damaged import Image, disk_of, make_image, opened
from tests.support.dose import dose
from tests.support.forgetful import ForgetfulDisk, PowerCut


@cache
def image(is_killed: bool) -> Image:
    return make_image(is_killed=is_killed)


@pytest.fixture
def disk() -> ForgetfulDisk:
    return disk_of(image(False))


def verified(disk: ForgetfulDisk) -> Verification:
    return verify(disk, image(False).now)


def test_a_directory_in_order_adds_up_and_says_how_much_there_is(disk):
    found = verified(disk)

    assert found.problems == []
    assert found.notes == []
    assert found.sealed_messages + found.journal_messages == len(image(False).payloads)
    assert found.frames > 100
    for account in found.accounts:
        parts = (account.ready, account.leased, account.waiting, account.acked, account.dead, account.dropped)
        assert account.messages == sum(parts), account
        assert min(parts) >= 0, account


def test_the_accounts_are_those_that_stats_tells(disk):
    accounts = {(account.queue, account.group): account for account in verified(disk).accounts}
    with opened(disk, image(False).now) as ps:
        for (queue, group), account in accounts.items():
            stats = ps.queue(queue).stats().groups[group]
            # A lease that was open when the process stopped is interrupted by opening.
            assert account.leased + account.waiting + account.ready == stats.leased + stats.waiting + stats.ready
            assert (account.messages, account.acked, account.dead) == (stats.messages, stats.acked, stats.dead)
            assert account.dropped_by == stats.dropped_by


def test_leases_of_a_killed_process_count_as_leased_and_stay_so():
    whole = image(True)
    disk = disk_of(whole)
    before = disk.operations

    first, second = verify(disk, whole.now), verify(disk, whole.now)

    assert first.problems == []
    assert sum(account.leased for account in first.accounts) > 0
    assert msgspec.to_builtins(first) == msgspec.to_builtins(second)
    assert disk.operations == before


def test_a_torn_tail_is_noted_and_not_cut():
    whole = image(True)
    name = next(name for name in whole.files if name.endswith(".log"))
    disk = disk_of(whole)
    used = len(whole.files[name].rstrip(b"\0"))
    disk.flip(name, 8 * (used + 100))

    found = verify(disk, whole.now)

    assert found.problems == []
    assert "torn tail" in found.notes[0]
    assert disk.read(name)[used + 100]


def test_every_damaged_file_is_a_problem(disk):
    for name in ("segments/messages/00000000000000000001-0.parquet", "checkpoints/manifest.json"):
        disk.flip(name, 8 * 70)

    problems = verified(disk).problems

    assert [problem.split(":")[0] for problem in problems] == [
        "checkpoints/manifest.json",
        "segments/messages/00000000000000000001-0.parquet",
    ]


def test_counters_that_drifted_are_caught(disk):
    store = CheckpointStore(disk)
    checkpoint = store.load()
    assert checkpoint is not None
    parts = dict(checkpoint.parts)
    part = snapshot.decode_queue(parts["queue-1"])
    rows = part.slices[0].groups[0]
    rows.acked = (np.frombuffer(rows.acked, np.int64) + 1).tobytes()
    parts["queue-1"] = snapshot.encode_part(part)
    store.save(checkpoint.sequence, parts)

    problems = verified(disk).problems

    assert len(problems) == 1
    assert "queue 'orders', group 'default'" in problems[0]
    assert "settled by the states" in problems[0]


def test_an_offset_in_no_file_is_caught(disk):
    manifest = manifests.read(disk)
    assert manifest is not None
    disk.replace(manifests.NAME, manifests.encode(msgspec.structs.replace(manifest, extents=manifest.extents[1:])))

    problems = verified(disk).problems

    assert any("are in no file" in problem for problem in problems)


def test_an_offset_in_two_places_is_caught(disk):
    manifest = manifests.read(disk)
    assert manifest is not None
    first = manifest.extents[0]
    twice = sorted([*manifest.extents, msgspec.structs.replace(first, first_offset=first.first_offset + 1)])
    disk.replace(manifests.NAME, manifests.encode(msgspec.structs.replace(manifest, extents=twice)))

    problems = verified(disk).problems

    assert any("in two places" in problem or "does not hold partition" in problem for problem in problems)


def test_progress_reaches_its_end(disk):
    reported: list[tuple[int, int]] = []

    verify(disk, image(False).now, lambda done, total: reported.append((done, total)))

    assert reported == sorted(reported)
    assert reported[-1][0] == reported[-1][1]


def test_a_disk_that_is_only_looked_at_refuses_everything_else(tmp_path):
    (tmp_path / "there").write_bytes(b"bytes")
    disk = ReadOnlyDisk(tmp_path)

    assert disk.read("there") == b"bytes"
    for change in (
        lambda: disk.write_whole("there", b""),
        lambda: disk.open("new", create_bytes=1),
        lambda: disk.rename("there", "elsewhere"),
        lambda: disk.remove("there"),
        lambda: disk.make_directory("new"),
        lambda: disk.sync_directory(""),
    ):
        with pytest.raises(DiskReadOnly):
            change()
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_verify_changes_not_a_byte_of_a_real_directory(tmp_path):
    whole = image(True)
    for name, data in whole.files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    (tmp_path / "segments" / "pins").mkdir()
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.rglob("*") if path.is_file()}

    assert verify(ReadOnlyDisk(tmp_path), ManualClock().now()).problems == []

    after = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.rglob("*") if path.is_file()}
    assert after == before


def test_no_crash_looks_like_damage():
    """Whatever the power cut leaves behind opens, so it must verify too."""
    for operation in range(1, 10_000, dose(23, 1)):
        disk = ForgetfulDisk(operation)
        disk.crash_at(operation)
        try:
            make_image(is_killed=False, disk=disk)
        except PowerCut:
            survived = disk.crash()
        else:
            assert operation > 300
            return
        if survived.exists("PENSTOCK"):
            found = verify(survived, image(False).now)
            assert found.problems == [], f"crashed in operation {operation}"
            assert diagnose(survived, image(False).now).is_sound, f"crashed in operation {operation}"
