"""The manifest: it says what counts, in one layer or in many, and cannot be wrong unnoticed."""

from __future__ import annotations

import json
import random
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from penstock import limits
from penstock.clock import ManualClock
from penstock.errors import Damaged
from penstock.storage import manifest
from penstock.storage import manifest as manifests
from penstock.storage.extents import Extent
from penstock.storage.manifest import CurrentManifest, Manifest
from penstock.storage.schema import MESSAGES
from penstock.storage.segments import SegmentStore
from tests.support.dose import dose
from tests.support.forgetful import ForgetfulDisk, PowerCut
from tests.support.frames import START, FrameMaker, history, sealed_payloads


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

    assert table.schema.names == [name for name in Extent.__struct_fields__ if name != "rows"]  # none has gaps
    assert table["first_offset"].to_pylist() == [extent.first_offset for extent in store.extents]
    assert set(table["file"].to_pylist()) == {file.name for file in store.files() if file.table == MESSAGES}


def test_a_manifest_survives_encoding_with_any_number_of_extents():
    extents = [Extent(1, n, n, 5, START, START, f"f{n % 3}", n, n, 2**31, 7, 0, 0) for n in range(1000)]
    for count in (0, 1, 1000):
        manifest = Manifest(count, {1: "q"}, {}, extents[:count])
        assert manifests.whole(manifests.decode_root(manifests.encode(manifest)), []) == manifest


def test_a_lost_manifest_is_damage_and_no_file_is_swept(disk, store):
    before = disk.list("segments/messages")
    disk.remove(manifests.NAME)

    with pytest.raises(Damaged, match="missing"):
        SegmentStore(disk)
    assert disk.list("segments/messages") == before


# layers


def parts_of(disk: ForgetfulDisk) -> list[manifests.Part]:
    root = manifests.read_root(disk)
    assert root is not None
    return root.parts


class Book:
    """Segments whose manifest is in tiny layers, and a plain account of what must be in them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.clock = ManualClock()
        self.disk = ForgetfulDisk(seed)
        self.frames = FrameMaker()
        self.starts: dict[tuple[int, int], int] = {}
        self.open()

    def open(self) -> None:
        self.store = SegmentStore(self.disk, clock=self.clock)

    def step(self) -> None:
        rng = self.rng
        for _ in range(rng.randrange(1, 4)):
            rows = [rng.randrange(3) for _ in range(rng.randrange(1, 6))]
            self.frames.push(rng.randrange(1, 4), [b"%d" % rng.randrange(9) for _ in rows], rows=rows)
        action = rng.choice(["seal", "seal", "remove", "compact", "reopen"])
        if action == "seal":
            self.frames.seal(self.store)
        elif action == "remove":
            places = sorted({(extent.queue, extent.partition) for extent in self.store.extents})
            gone = [queue for queue in range(1, 4) if rng.random() < 0.15]
            self.store.remove({place: rng.randrange(20) for place in places if rng.random() < 0.3}, gone)
        elif action == "compact":
            self.store.compact()
        else:
            self.open()

    def check(self) -> None:
        read = manifests.read(self.disk)
        assert read == self.store.manifest
        assert read.extents == sorted(read.extents)
        assert {extent.file for extent in read.extents} <= set(read.files)
        named = {part.file for part in parts_of(self.disk)}
        assert set(manifests.part_files(self.disk)) == named


@pytest.mark.parametrize("seed", range(dose(12, 400)))
def test_any_history_reads_back_from_its_layers_as_it_is_in_memory(seed, monkeypatch):
    monkeypatch.setattr(manifest, "TOP_MAX", random.Random(seed).choice([0, 3, 10, 30]))
    book, plain = Book(seed), Book(seed)
    plain.store = Whole(plain.disk, clock=plain.clock)  # the same history, its manifest in one layer
    plain.open = lambda: setattr(plain, "store", Whole(plain.disk, clock=plain.clock))  # type: ignore[method-assign]
    for _ in range(30):
        book.step()
        book.check()
        plain.step()
        assert book.store.manifest == plain.store.manifest
    assert book.store.verify() == []
    assert sealed_payloads(SegmentStore(book.disk)) == sealed_payloads(plain.store)


class Whole(SegmentStore):
    """One whose top layer never becomes a part."""

    def __init__(self, disk: ForgetfulDisk, *, clock: ManualClock) -> None:
        super().__init__(disk, clock=clock)
        self._current._with_part = None  # type: ignore[assignment, method-assign]
        self._current.change = self._unsettled  # type: ignore[method-assign]

    def _unsettled(self, *given: Any, **named: Any) -> None:
        with patch.object(manifest, "TOP_MAX", 1 << 30):
            CurrentManifest.change(self._current, *given, **named)


def test_parts_are_few_and_each_change_writes_little(monkeypatch):
    monkeypatch.setattr(manifest, "TOP_MAX", 8)
    book = Book(1)
    written: list[int] = []
    write_whole = book.disk.write_whole

    def counted(name: str, data: bytes) -> None:
        written.append(len(data))
        write_whole(name, data)

    monkeypatch.setattr(book.disk, "write_whole", counted)
    for number in range(200):
        book.frames.push(1, [b"x"], rows=[number % 50])
        book.frames.seal(book.store)

    parts = parts_of(book.disk)
    assert 1 <= len(parts) <= 8
    assert [part.length for part in parts] == sorted((part.length for part in parts), reverse=True)
    whole = len(manifests.encode(book.store.manifest))
    assert sum(written) < 200 * whole / 4
    book.check()


@pytest.mark.parametrize("seed", range(dose(1, 40)))
def test_a_power_cut_at_any_operation_leaves_the_old_manifest_or_the_new_one(seed, monkeypatch):
    monkeypatch.setattr(manifest, "TOP_MAX", 4)
    operation = cuts = 0
    while True:
        operation += 1
        book = Book(seed)
        for _ in range(8):
            book.step()
        before = book.store.manifest
        book.disk.crash_at(operation)
        try:
            for _ in range(3):
                before = book.store.manifest
                book.step()
        except PowerCut:
            cuts += 1
        if not book.disk.fired:
            break
        survivor = book.disk.crash()
        after = SegmentStore(survivor, clock=book.clock)
        assert after.sealed_sequence >= before.sealed_sequence
        assert manifests.read(survivor) == after.manifest
        assert after.verify() == []
        if after.sealed_sequence == before.sealed_sequence and after.manifest != before:
            # Removal or compaction: what both know lies at the same offsets.
            lasting = {(extent.queue, extent.partition, extent.first_offset) for extent in before.extents}
            assert {(e.queue, e.partition, e.first_offset) for e in after.manifest.extents} <= lasting
    assert cuts > 10


def test_a_flipped_bit_in_any_part_or_a_missing_one_is_caught(monkeypatch):
    monkeypatch.setattr(manifest, "TOP_MAX", 4)
    book = Book(2)
    for _ in range(20):
        book.step()
    for part in parts_of(book.disk):
        for bit in range(0, 8 * book.disk.size(part.file), 97):
            book.disk.flip(part.file, bit)
            with pytest.raises(Damaged, match="checksum"):
                manifests.read(book.disk)
            book.disk.flip(part.file, bit)
        data = book.disk.read(part.file)
        book.disk.remove(part.file)
        with pytest.raises(Damaged, match="missing"):
            SegmentStore(book.disk)
        book.disk.replace(part.file, data)
    book.check()


def test_a_reader_that_comes_between_a_root_and_its_parts_looks_again(monkeypatch):
    """Whatever happens between two of its reads, it sees a state that there was."""
    monkeypatch.setattr(manifest, "TOP_MAX", 4)
    book = Book(3)
    for _ in range(10):
        book.step()
    reads = 0
    read = book.disk.read
    states = [book.store.manifest]

    def interrupted(name: str, *given: Any) -> bytes:
        nonlocal reads
        if reads < 12:
            reads += 1
            with patch.object(book.disk, "read", read):
                for _ in range(3):
                    book.step()
                    states.append(book.store.manifest)
        return read(name, *given)

    with patch.object(book.disk, "read", interrupted):
        found = manifests.read(book.disk)
    assert found in states


def test_parts_that_are_known_are_not_read_again(monkeypatch):
    monkeypatch.setattr(manifest, "TOP_MAX", 4)
    book = Book(4)
    for _ in range(15):
        book.step()
    known: dict[manifests.Part, manifests.Layer] = {}
    first = manifests.read(book.disk, known)
    assert known
    names: list[str] = []
    read = book.disk.read

    def noted(name: str, *given: Any) -> bytes:
        names.append(name)
        return read(name, *given)

    monkeypatch.setattr(book.disk, "read", noted)

    assert manifests.read(book.disk, known) == first
    assert names == [manifests.NAME]


def test_a_manifest_in_one_layer_is_what_it_was_before_there_were_layers(disk, store):
    table = pa.ipc.open_file(pa.BufferReader(disk.read(manifests.NAME))).read_all()
    meta = json.loads(table.schema.metadata[b"penstock.manifest"])

    assert sorted(meta) == ["files", "format", "queues", "sealed_sequence"]
    assert meta["format"] == 1


def test_a_manifest_with_parts_says_so_in_its_format(monkeypatch):
    monkeypatch.setattr(manifest, "TOP_MAX", 0)
    book = Book(5)
    book.frames.push(1, [b"x"])
    book.frames.seal(book.store)
    table = pa.ipc.open_file(pa.BufferReader(book.disk.read(manifests.NAME))).read_all()

    assert json.loads(table.schema.metadata[b"penstock.manifest"])["format"] == 2
