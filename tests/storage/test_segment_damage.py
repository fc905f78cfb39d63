"""Damaged segment files: what verify says about them, and how they are set aside."""

from __future__ import annotations

import msgspec
import pyarrow.parquet as pq
import pytest

from penstock import limits
from penstock.clock import ManualClock
from penstock.errors import Damaged
from penstock.storage import manifest as manifests
from penstock.storage.disk import RealDisk
from penstock.storage.schema import EVENTS, MESSAGES, SCHEMAS
from penstock.storage.segments import SegmentStore
from tests.support.forgetful import ForgetfulDisk
from tests.support.frames import FrameMaker, history


@pytest.fixture
def disk():
    return ForgetfulDisk()


@pytest.fixture
def store(disk, monkeypatch):
    monkeypatch.setattr(limits, "segment_row_group_rows", 16)
    store = SegmentStore(disk, clock=ManualClock())
    history().seal(store)
    return store


def test_verify_names_the_damaged_file_and_the_messages_in_it(disk, store):
    file = next(file for file in store.files() if file.table == MESSAGES)
    disk.flip(file.name, 8 * 500)

    (problem,) = store.verify()
    assert problem.file == file.name
    assert problem.message == "the file does not match its checksum"
    assert problem.extents == sorted(store.extents)


def test_verify_tells_a_short_file_and_a_missing_one_and_reports_progress(disk, store):
    messages, events = (next(file for file in store.files() if file.table == kind) for kind in (MESSAGES, EVENTS))
    disk.replace(messages.name, disk.read(messages.name)[:-1])
    disk.remove(events.name)
    progress: list[tuple[int, int]] = []

    problems = store.verify(lambda done, total: progress.append((done, total)))
    assert [problem.message for problem in problems] == [
        f"the file has {messages.bytes - 1:,} bytes, not {messages.bytes:,}",
        "the file is missing",
    ]
    total = messages.bytes + events.bytes
    assert progress[-1] == (total, total)


def test_verify_compares_every_offset_with_the_manifest(disk, store):
    first, *rest = store.extents
    shifted = msgspec.structs.replace(first, first_offset=1)
    wrong = msgspec.structs.replace(store.manifest, extents=[shifted, *rest])
    disk.replace(manifests.NAME, manifests.encode(wrong))

    (problem,) = SegmentStore(disk).verify()
    assert "does not hold partition 0 at 1" in problem.message


def test_plain_readers_find_damage_by_the_page_checksums(tmp_path):
    frames = FrameMaker()
    frames.push(1, [b"find this payload" * 10] * 100)
    frames.seal(SegmentStore(RealDisk(tmp_path)))
    (path,) = (tmp_path / "segments" / MESSAGES).iterdir()
    data = bytearray(path.read_bytes())
    column = pq.read_metadata(path).row_group(0).column(SCHEMAS[MESSAGES].get_field_index("payload") + 1)
    data[column.data_page_offset + column.total_compressed_size - 3] ^= 1
    path.write_bytes(data)

    with pytest.raises(OSError, match="CRC checksum"):
        pq.ParquetFile(path, page_checksum_verification=True).read()


def test_a_missing_segment_file_is_damage_and_named(disk, store):
    extent = store.extents[0]
    disk.remove(extent.file)

    with pytest.raises(Damaged, match=f"{extent.file} is missing"):
        store.load(extent)
