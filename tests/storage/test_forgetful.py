"""The disk that lies: in the ways it says, and in no others."""

from __future__ import annotations

import errno

import pytest

from penstock.errors import DiskFull, StorageError
from tests.support.forgetful import SHORT, ForgetfulDisk, PowerCut


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
