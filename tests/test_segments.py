"""Segment files: open to everyone, found by offset and time, and never silently wrong."""

from __future__ import annotations

import random
import re
import threading
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from crc32c import crc32c

from penstock import limits
from penstock.clock import ManualClock
from penstock.delivery.entries import Span
from penstock.errors import Damaged, InvalidField, MessageNotFound
from penstock.model import Message
from penstock.storage import audit
from penstock.storage import manifest as manifests
from penstock.storage.cache import ByteCache
from penstock.storage.disk import RealDisk
from penstock.storage.extent import Extent
from penstock.storage.manifest import Manifest
from penstock.storage.names import Names
from penstock.storage.parquet import SegmentReader
from penstock.storage.schema import EVENTS, MESSAGES, SCHEMAS
from penstock.storage.segments import SegmentStore
from tests.support.forgetful import ForgetfulDisk
from tests.support.frames import SECOND, START, FrameMaker, expected_payloads, sealed_payloads

PAGE = Path(__file__).parent.parent / "docs" / "formats" / "segments.md"


def history() -> FrameMaker:
    """Two queues, two partitions, 12 pushes of 10, some settled."""
    frames = FrameMaker()
    for n in range(12):
        messages = [
            Message(
                payload=b"%d-%d" % (n, row), key=f"k{row}" if row % 2 else None, priority=row, headers={"n": str(n)}
            )
            for row in range(10)
        ]
        frames.push(1 + n % 2, messages, rows=[row % 2 for row in range(10)])
        frames.settle(1 + n % 2, Span(0, n, 2))
    return frames


def sql(query: str) -> list[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        return connection.execute(query).fetchall()


@pytest.fixture
def frames():
    return history()


@pytest.fixture
def disk():
    return ForgetfulDisk()


@pytest.fixture
def store(disk, frames, monkeypatch):
    monkeypatch.setattr(limits, "segment_row_group_rows", 16)
    store = SegmentStore(disk, clock=ManualClock())
    frames.seal(store)
    return store


def test_plain_pyarrow_reads_the_documented_columns(tmp_path, frames):
    frames.seal(SegmentStore(RealDisk(tmp_path)))

    for kind, schema in SCHEMAS.items():
        table = pq.read_table(tmp_path / "segments" / kind)
        assert table.schema.remove_metadata() == schema
        assert table.num_rows == {MESSAGES: 120, EVENTS: 12}[kind]


def test_duckdb_reads_the_documented_columns(tmp_path, frames):
    frames.seal(SegmentStore(RealDisk(tmp_path)))

    messages = f"'{tmp_path}/segments/messages/*.parquet'"
    found = dict(sql(f"SELECT column_name, column_type FROM (DESCRIBE FROM {messages})"))
    assert list(found) == SCHEMAS[MESSAGES].names
    types = {"offset": "BIGINT", "pushed_at": "TIMESTAMP WITH TIME ZONE", "priority": "SMALLINT", "payload": "BLOB"}
    assert {name: found[name] for name in types} == types
    assert found["headers"] == "MAP(VARCHAR, VARCHAR)"

    rows = sql(
        f"SELECT payload, key, priority, headers FROM {messages} "
        """WHERE queue = 'queue-2' AND "partition" = '1' AND "offset" = 7"""
    )
    assert rows == [(b"3-5", "k5", 5, {"n": "3"})]
    events = f"'{tmp_path}/segments/events/*.parquet'"
    assert sql(f"SELECT outcome, sum(count) FROM {events} GROUP BY ALL") == [("acked", 24)]


def test_a_join_of_both_tables_tells_what_became_of_each_message(tmp_path):
    frames = FrameMaker()
    frames.push(1, [b"a", b"b", b"c", b"d"])
    frames.settle(1, Span(0, 1, 2))
    frames.seal(SegmentStore(RealDisk(tmp_path)))

    rows = sql(
        f"""SELECT m.payload, e.outcome
            FROM '{tmp_path}/segments/messages/*.parquet' m
            LEFT JOIN '{tmp_path}/segments/events/*.parquet' e
              ON e.incarnation = m.incarnation AND e."partition" = m."partition"
             AND m."offset" BETWEEN e.first_offset AND e.last_offset
            ORDER BY m."offset" """
    )
    assert rows == [(b"a", None), (b"b", "acked"), (b"c", "acked"), (b"d", None)]


@pytest.mark.parametrize("kind", SCHEMAS)
def test_every_column_is_documented_with_its_type(kind):
    text = PAGE.read_text(encoding="utf-8").partition(f"## `{kind}`")[2].partition("\n## ")[0]
    documented = re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", text, re.MULTILINE)
    types = {"timestamp[us, tz=UTC]": "timestamp", "map<string, string>": "map<string, string>"}

    expected = []
    for field in SCHEMAS[kind]:
        name = "map<string, string>" if pa.types.is_map(field.type) else str(field.type)
        expected.append((field.name, types.get(name, name) + (", null" if field.nullable else "")))
    assert documented == expected


def test_the_examples_in_the_documentation_run(tmp_path, frames, monkeypatch, capsys):
    disk = RealDisk(tmp_path / "data")
    disk.make_directory("")
    names = Names({1: ("orders", {}), 2: ("other", {})}, {})
    SegmentStore(disk).seal(frames.frames, frames.end_sequence, names, lambda queue, partition: 0)
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    runnable = [block for block in blocks if "pyspark" not in block]
    for block in runnable:
        exec(compile(block, "segments.md", "exec"), {})

    assert len(runnable) == 2
    assert capsys.readouterr().out.startswith("60\n[(0, ")


def test_rows_are_sorted_by_queue_partition_and_offset(disk, store):
    for file in store.files():
        if file.table == MESSAGES:
            table = pq.read_table(pa.BufferReader(disk.read(file.name)))
            order = [("queue", "ascending"), ("partition_id", "ascending"), ("offset", "ascending")]
            assert table.equals(table.sort_by(order))


def test_every_offset_is_found_in_its_extent(store, frames):
    assert sealed_payloads(store) == expected_payloads(frames)
    for (queue, partition), payloads in frames.accepted.items():
        for offset, payload in enumerate(payloads):
            extent = store.find(queue, partition, offset)
            assert extent is not None
            assert extent.first_offset <= offset < extent.end_offset
            assert store.load(extent).payload(extent.row_of(offset)) == payload


def test_beyond_the_last_offset_and_in_unknown_partitions_nothing_is_found(store, frames):
    assert store.find(1, 0, len(frames.accepted[1, 0])) is None
    assert store.find(1, 2, 0) is None
    assert store.find(9, 0, 0) is None
    assert store.of_partition(9, 0) == []


def test_an_offset_that_is_gone_leads_to_the_next_one_kept(store):
    second = store.of_partition(1, 0)[1]
    store.remove({(1, 0): second.first_offset})

    assert store.find(1, 0, 0) == second


def test_messages_are_found_by_the_time_of_their_push(store):
    # Queue 1 gets five messages in each partition at every fourth second from the first on.
    for n in range(6):
        at = START + SECOND + 4 * n * SECOND
        assert store.offset_at(1, 1, at) == 5 * n
        assert store.offset_at(1, 1, at - 1) == 5 * n
        assert store.offset_at(1, 1, at + 1) == (5 * n + 5 if n < 5 else None)
    assert store.offset_at(1, 1, 0) == 0
    assert store.offset_at(7, 0, 0) is None


def test_a_single_column_is_that_of_the_extent_with_zeros_for_nulls(store):
    for extent in store.extents:
        batch = store.load(extent)
        rows = slice(extent.row, extent.row + extent.count)
        assert store.column(extent, "priority").dtype == np.uint8
        assert store.column(extent, "priority").tolist() == batch.priority[rows].tolist()
        assert store.column(extent, "available_at").tolist() == [0] * extent.count
        assert store.column(extent, "key_hash").tolist() == [
            0 if key is None else crc32c(key.encode()) for key in batch.keys()[rows]
        ]
        assert store.pushed_at(extent).dtype == np.int64
        assert store.pushed_at(extent).min() == extent.pushed_first_at
        assert store.pushed_at(extent).max() == extent.pushed_last_at


def test_a_column_that_does_not_exist_is_refused_by_name(store):
    with pytest.raises(InvalidField, match=r"'prioritty'.*did you mean 'priority'"):
        store.column(store.extents[0], "prioritty")


def test_columns_that_nobody_set_are_not_read_back(disk):
    frames, store = FrameMaker(), SegmentStore(disk)
    frames.push(1, [b"a", b"b"])
    frames.seal(store)

    assert store.load(store.extents[0]).flags == 0


def test_a_row_group_is_read_from_disk_once(disk, store):
    extent = store.extents[0]
    first = store.load(extent)
    disk.replace(extent.file, b"")

    assert store.load(extent) is first


def sized(value: str) -> tuple[str, int]:
    return value, 3


def test_the_cache_keeps_what_was_used_last_within_its_bytes():
    cache: ByteCache[str, str] = ByteCache(10)
    for key, value in ("aA", "bB", "cC"):
        cache.get(key, partial(sized, value))
    assert cache.get("a", lambda: ("again", 3)) == "A"
    cache.get("d", lambda: ("D", 4))

    assert cache.bytes <= 10
    assert cache.get("a", lambda: ("again", 3)) == "A"
    assert cache.get("b", lambda: ("again", 3)) == "again"
    assert cache.get("huge", lambda: ("huge", 11)) == "huge"
    assert cache.get("huge", lambda: ("not kept", 11)) == "not kept"


def test_threads_that_want_the_same_row_group_wait_for_one_to_read_it():
    cache: ByteCache[str, int] = ByteCache(10)
    begun, go = threading.Event(), threading.Event()
    made: list[int] = []

    def make() -> tuple[int, int]:
        begun.set()
        assert go.wait(10)
        made.append(1)
        return len(made), 1

    threads = [threading.Thread(target=cache.get, args=("key", make)) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert begun.wait(10)
    go.set()
    for thread in threads:
        thread.join()

    assert made == [1]


def test_a_cache_that_could_not_make_a_value_tries_again_next_time():
    cache: ByteCache[str, int] = ByteCache(10)

    def fail() -> tuple[int, int]:
        raise Damaged("no")

    with pytest.raises(Damaged):
        cache.get("key", fail)
    assert cache.get("key", lambda: (1, 1)) == 1


def test_payloads_that_would_hardly_shrink_are_stored_as_they_are(disk):
    frames, store = FrameMaker(), SegmentStore(disk)
    rng = random.Random(3)
    frames.push(1, [rng.randbytes(100) for _ in range(1000)])
    frames.seal(store)
    frames.push(1, [b'{"user": %d, "event": "click"}' % row for row in range(1000)])
    frames.seal(store)

    codecs = []
    for file in store.files():
        group = pq.read_metadata(pa.BufferReader(disk.read(file.name))).row_group(0)
        columns = [group.column(index) for index in range(group.num_columns)]
        codecs.append({column.path_in_schema: column.compression for column in columns})
    assert codecs[0] == dict.fromkeys(codecs[0], "ZSTD") | {"payload": "UNCOMPRESSED"}
    assert set(codecs[1].values()) == {"ZSTD"}
    assert sealed_payloads(store) == expected_payloads(frames)


def test_a_flipped_bit_in_any_byte_is_caught_by_whoever_reads_it(disk, store):
    rng = random.Random(1)
    for file in store.files():
        reader = SegmentReader(disk)
        for row_group in range(len(file.row_groups)):
            reader.read(file, row_group, SCHEMAS[file.table].names)
            for byte in range(*file.row_group_bounds(row_group)):
                with flipped(disk, file, byte, rng), pytest.raises(Damaged, match=re.escape(file.name)):
                    reader.read(file, row_group, SCHEMAS[file.table].names)
        for byte in range(file.footer_position, file.bytes):
            with flipped(disk, file, byte, rng), pytest.raises(Damaged, match=re.escape(file.name)):
                SegmentReader(disk).read(file, 0, SCHEMAS[file.table].names)


def test_a_flipped_bit_in_any_byte_is_caught_by_verify(disk, store):
    rng = random.Random(2)
    for file in store.files():
        alone = Manifest(files={file.name: file})
        for byte in range(file.bytes):
            with flipped(disk, file, byte, rng):
                (problem,) = audit.verify(disk, alone)
            assert problem.file == file.name
    assert store.verify() == []


@contextmanager
def flipped(disk, file, byte, rng):
    bit = 8 * byte + rng.randrange(8)
    disk.flip(file.name, bit)
    yield
    disk.flip(file.name, bit)


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


def test_a_missing_segment_file_is_damage_and_named(disk, store):
    extent = store.extents[0]
    disk.remove(extent.file)

    with pytest.raises(Damaged, match=f"{extent.file} is missing"):
        store.load(extent)


def test_a_damaged_file_can_be_set_aside_and_its_bytes_stay(disk, store):
    before = store.extents
    name = before[0].file
    disk.flip(name, 100)

    assert sorted(store.set_aside(name)) == before
    assert store.extents == []
    assert disk.exists(name + ".damaged")
    again = SegmentStore(disk)
    assert again.verify() == []
    assert disk.exists(name + ".damaged")
    with pytest.raises(MessageNotFound):
        again.load(before[0])


def test_what_is_sealed_is_there_after_reopening(disk, store):
    again = SegmentStore(disk)

    assert again.manifest == store.manifest
    assert again.extents == sorted(again.extents)
    assert sealed_payloads(again) == sealed_payloads(store)


def test_payload_bytes_are_counted_by_queue(store, frames):
    sizes = {queue: 0 for queue, _ in frames.accepted}
    for (queue, _), payloads in frames.accepted.items():
        sizes[queue] += sum(map(len, payloads))

    assert store.bytes_by_queue() == sizes
