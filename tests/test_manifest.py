"""The manifest: one Arrow file that says what counts, and cannot be wrong unnoticed."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from penstock import limits
from penstock.clock import ManualClock
from penstock.errors import Damaged
from penstock.storage import manifest as manifests
from penstock.storage.extent import Extent
from penstock.storage.manifest import Manifest
from penstock.storage.schema import MESSAGES
from penstock.storage.segments import SegmentStore
from tests.support.forgetful import ForgetfulDisk
from tests.support.frames import START, history


@pytest.fixture
def disk():
    return ForgetfulDisk()


@pytest.fixture
def store(disk, monkeypatch):
    monkeypatch.setattr(limits, "segment_row_group_rows", 16)
    store = SegmentStore(disk, clock=ManualClock())
    history().seal(store)
    return store


def test_a_flipped_bit_in_any_byte_of_the_manifest_is_caught_at_open(disk, store):
    rng = random.Random(2)
    for byte in range(disk.size(manifests.NAME)):
        bit = 8 * byte + rng.randrange(8)
        disk.flip(manifests.NAME, bit)
        with pytest.raises(Damaged, match="manifest"):
            manifests.read(disk)
        disk.flip(manifests.NAME, bit)
    assert manifests.read(disk) == store.manifest


def test_the_manifest_is_an_arrow_file_with_a_row_per_extent(disk, store):
    table = pa.ipc.open_file(pa.BufferReader(disk.read(manifests.NAME))).read_all()

    assert table.schema.names == list(Extent.__struct_fields__)
    assert table["first_offset"].to_pylist() == [extent.first_offset for extent in store.extents]
    assert set(table["file"].to_pylist()) == {file.name for file in store.files() if file.table == MESSAGES}


def test_a_manifest_survives_encoding_with_any_number_of_extents():
    extents = [Extent(1, n, n, 5, START, START, f"f{n % 3}", n, n, 2**31, 7, 0, 0) for n in range(1000)]
    for count in (0, 1, 1000):
        manifest = Manifest(count, {1: "q"}, {}, extents[:count])
        assert manifests.decode(manifests.encode(manifest)) == manifest


def test_a_lost_manifest_is_damage_and_no_file_is_swept(disk, store):
    before = disk.list("segments/messages")
    disk.remove(manifests.NAME)

    with pytest.raises(Damaged, match="missing"):
        SegmentStore(disk)
    assert disk.list("segments/messages") == before
