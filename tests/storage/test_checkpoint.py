"""Checkpoints: the old one or the new one, never a mix."""

from __future__ import annotations

import errno
from contextlib import suppress

import pytest

from penstock.errors import Damaged, PenstockError
from penstock.storage.checkpoint import DIRECTORY, MANIFEST, CheckpointStore
from penstock.storage.disk import Disk, RealDisk
from tests.support.forgetful import SHORT, ForgetfulDisk, PowerCut

OLD = {"queues": b"old queues" * 100, "groups": b"old groups" * 200, "names": b"names"}
NEW = {"queues": b"new queues" * 120, "groups": b"new groups" * 90, "names": b"names"}


@pytest.fixture(params=["real", "forgetful"])
def disk(request, tmp_path) -> Disk:
    disk: Disk = RealDisk(tmp_path) if request.param == "real" else ForgetfulDisk(seed=5)
    disk.make_directory(DIRECTORY)
    return disk


def loaded(disk: Disk) -> tuple[int, dict[str, bytes]] | None:
    checkpoint = CheckpointStore(disk).load()
    return None if checkpoint is None else (checkpoint.sequence, dict(checkpoint.parts))


def save_new(store: CheckpointStore) -> None:
    changed = {name: NEW[name] for name in ("queues", "groups")}
    store.save(20, changed, keep={"names"})


def saved(seed: int = 1) -> ForgetfulDisk:
    disk = ForgetfulDisk(seed)
    disk.make_directory(DIRECTORY)
    CheckpointStore(disk).save(10, OLD)
    return disk


def test_before_the_first_there_is_none(disk):
    assert CheckpointStore(disk).load() is None


def test_a_checkpoint_reads_back_as_saved(disk):
    CheckpointStore(disk).save(10, {**OLD, "empty": b""})
    assert loaded(disk) == (10, {**OLD, "empty": b""})


def test_parts_are_read_only_when_asked_for(disk):
    CheckpointStore(disk).save(10, OLD)
    checkpoint = CheckpointStore(disk).load()
    assert checkpoint is not None
    assert sorted(checkpoint.parts) == ["groups", "names", "queues"]
    assert len(checkpoint.parts) == 3
    assert checkpoint.parts["names"] == b"names"
    with pytest.raises(KeyError):
        checkpoint.parts["other"]


def test_a_kept_part_is_named_again_and_not_written_again(disk):
    CheckpointStore(disk).save(10, OLD)
    store = CheckpointStore(disk)
    save_new(store)
    assert loaded(disk) == (20, NEW)
    assert disk.list(DIRECTORY) == [
        "groups-00000000000000000020.part",
        "manifest.json",
        "names-00000000000000000010.part",
        "queues-00000000000000000020.part",
    ]


def test_a_part_neither_given_nor_kept_is_dropped_with_its_file(disk):
    store = CheckpointStore(disk)
    store.save(10, OLD)
    store.save(11, {}, keep={"names"})
    assert loaded(disk) == (11, {"names": b"names"})
    assert len(disk.list(DIRECTORY)) == 2


def test_saving_twice_at_one_sequence_never_overwrites_a_part_in_use(disk):
    store = CheckpointStore(disk)
    store.save(10, OLD)
    store.save(10, NEW)
    assert loaded(disk) == (10, NEW)
    assert "queues-00000000000000000010.1.part" in disk.list(DIRECTORY)


def test_keeping_a_part_that_is_not_there_and_unfit_names_are_refused(disk):
    store = CheckpointStore(disk)
    with pytest.raises(KeyError):
        store.save(10, {}, keep={"names"})
    with pytest.raises(ValueError, match="cannot name a part"):
        store.save(10, {"../escape": b""})
    assert loaded(disk) is None


def test_a_crash_at_any_operation_leaves_the_old_checkpoint_or_the_new_one():
    seen = set()
    for seed in range(20):
        operation = 0
        fired = True
        while fired:
            operation += 1
            disk = saved(seed * 100 + operation)
            store = CheckpointStore(disk)
            disk.crash_at(operation)
            with suppress(PowerCut):
                save_new(store)
            fired = disk.fired
            disk = disk.crash()
            found = loaded(disk)
            assert found in ((10, OLD), (20, NEW))
            seen.add(found and found[0])
            CheckpointStore(disk).save(30, NEW)
            assert loaded(disk) == (30, NEW)
            assert len(disk.list(DIRECTORY)) == 4
        assert operation > 10
    assert seen == {10, 20}


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, SHORT])
def test_a_failure_at_any_operation_leaves_the_old_checkpoint_or_the_new_one_and_the_next_save_works(error):
    operation = 0
    fired = True
    while fired:
        operation += 1
        disk = saved(operation)
        store = CheckpointStore(disk)
        disk.fail_at(operation, error)
        with suppress(PenstockError):
            save_new(store)
        fired = disk.fired
        assert loaded(disk) in ((10, OLD), (20, NEW))
        with suppress(PenstockError):
            save_new(store)
        assert loaded(disk.crash()) == (20, NEW)
    assert operation > 10


def test_every_flipped_bit_is_found_and_names_the_file():
    disk = ForgetfulDisk(seed=1)
    disk.make_directory(DIRECTORY)
    CheckpointStore(disk).save(10, {"a": b"some bytes", "b": b"others"})
    for name in disk.list(DIRECTORY):
        path = f"{DIRECTORY}/{name}"
        for bit in range(disk.size(path) * 8):
            disk.flip(path, bit)
            with pytest.raises(Damaged, match=name):
                loaded(disk)
            disk.flip(path, bit)
    assert loaded(disk) == (10, {"a": b"some bytes", "b": b"others"})


def test_a_missing_or_truncated_part_is_damage_that_names_it():
    disk = saved()
    disk.replace(f"{DIRECTORY}/queues-00000000000000000010.part", b"old")
    with pytest.raises(Damaged, match=r"queues-.* has 3 bytes"):
        loaded(disk)
    disk.remove(f"{DIRECTORY}/queues-00000000000000000010.part")
    with pytest.raises(Damaged, match=r"queues-.* is missing"):
        loaded(disk)


def test_a_manifest_that_is_no_manifest_is_damage():
    disk = saved()
    disk.replace(MANIFEST, b"{}")
    with pytest.raises(Damaged, match=r"manifest\.json cannot be read"):
        CheckpointStore(disk)
