"""Seals: no derived key is used twice, none opens elsewhere, and none opens once its data key is erased."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from penstock.access.encryption import KeyRing, MasterKey
from penstock.clock import ManualClock
from penstock.delivery import entries as journal
from penstock.errors import Damaged
from penstock.seals import Seals
from penstock.storage import journal_files
from penstock.storage.directory import open_directory
from penstock.storage.disk import RealDisk
from penstock.storage.sealed_frames import SEALED, SEALED_HEAD
from tests.access.test_encryption import KEY, inside, opened

SHARD = bytes(range(16))


def salts(path: Path) -> set[bytes]:
    """The salts of all seals in the journal."""
    disk, found = RealDisk(path), []
    shard_id = open_directory(disk)
    for start in journal_files.first_sequences(disk):
        for _, frame in journal_files.scan_file(disk, start, shard_id).frames():
            sealed = [body for kind, body in journal.split(frame, is_raw=True) if kind == SEALED]
            found += [SEALED_HEAD.unpack_from(body)[5] for body in sealed]
    disk.close()
    assert [salt for salt, count in Counter(found).items() if count > 1] == []
    return set(found)


def ring_in(path: Path) -> KeyRing:
    return KeyRing(RealDisk(path), MasterKey(KEY), ManualClock())


def test_what_follows_a_cut_tail_is_never_sealed_with_a_key_of_the_tail(tmp_path):
    path, cut = tmp_path / "data", tmp_path / "cut"
    with opened(path) as ps:
        ps.create_queue("q", encryption=True).push(b"before")
        shutil.copytree(path, cut)  # what is left when the tail is lost
        for number in range(20):
            ps.queue("q").push(b"lost %d" % number)
        sealed = {seals_of(ps).new(1).salt for _ in range(20)}
        assert len(sealed) == 20
    with opened(cut) as ps:
        again = {seals_of(ps).new(1).salt for _ in range(40)}
        for number in range(20):
            ps.queue("q").push(b"other %d" % number)
    assert not sealed & again
    assert len(salts(path)) == len(salts(cut)) == 21
    assert len(salts(path) & salts(cut)) == 1  # "before", which both have


def seals_of(ps: object) -> Seals:
    frame_seals = inside(ps).shard.frame_seals  # type: ignore[arg-type]
    assert frame_seals is not None
    return frame_seals.seals


def test_what_is_sealed_opens_in_its_place_alone(tmp_path):
    ring = ring_in(tmp_path)
    blob = Seals(ring, SHARD).seal(1, b"content", b"here")
    assert Seals(ring, SHARD).open(blob, b"here") == b"content"
    with pytest.raises(Damaged):
        Seals(ring, SHARD).open(blob, b"there")
    with pytest.raises(Damaged):
        Seals(ring, bytes(16)).open(blob, b"here")


def test_a_key_that_was_erased_opens_nothing_at_once(tmp_path):
    ring = ring_in(tmp_path)
    seals = Seals(ring, SHARD)
    blob = seals.seal(1, b"content", b"here")
    hashed = seals.hashes(1)(b"key")
    assert seals.open(blob, b"here") == b"content"
    ring.erase(1)
    assert seals.open(blob, b"here") is None
    assert seals.seal(1, b"content", b"here")[4:20] != blob[4:20]
    assert seals.hashes(1)(b"key") != hashed
    assert Seals(ring_in(tmp_path), SHARD).open(blob, b"here") is None
