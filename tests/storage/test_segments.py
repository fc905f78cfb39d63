"""Segment files: open to everyone, found by offset and by time, and never silently wrong."""

from __future__ import annotations

import random
import re
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from crc32c import crc32c

from penstock import limits
from penstock.clock import ManualClock
from penstock.delivery.entries import Span
from penstock.errors import Damaged, InvalidField
from penstock.storage import segment_audit
from penstock.storage.disk import RealDisk
from penstock.storage.manifest import Manifest
from penstock.storage.parquet import SegmentReader
from penstock.storage.schema import EVENTS, MESSAGES, SCHEMAS, Names
from penstock.storage.segments import SegmentStore
from tests.support.forgetful import ForgetfulDisk
from tests.support.frames import SECOND, START, FrameMaker, expected_payloads, history, sealed_payloads

PAGE = Path(__file__).parent.parent.parent / "docs" / "formats" / "segments.md"


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

    for kind, rows in {MESSAGES: 120, EVENTS: 12}.items():
        table = pq.read_table(tmp_path / "segments" / kind)
        assert table.schema.remove_metadata() == SCHEMAS[kind]
        assert table.num_rows == rows


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


@pytest.mark.parametrize("layer_max", [1, 4_096])
def test_the_examples_in_the_documentation_run(tmp_path, frames, monkeypatch, capsys, layer_max):
    monkeypatch.setattr("penstock.storage.manifest.TOP_MAX", layer_max)
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


def test_what_is_sealed_is_there_after_reopening(disk, store):
    again = SegmentStore(disk)

    assert again.manifest == store.manifest
    assert again.extents == sorted(again.extents)
    assert sealed_payloads(again) == sealed_payloads(store)


def test_bytes_of_payloads_and_of_what_comes_with_them_are_counted_by_queue(store, frames):
    sizes = {queue: 0 for queue, _ in frames.accepted}
    for (queue, partition), payloads in frames.accepted.items():
        sizes[queue] += sum(map(len, payloads))
        for extent in store.of_partition(queue, partition):
            batch = store.load(extent)
            for row in range(extent.row, extent.row + extent.count):
                texts = [
                    batch.key(row),
                    batch.dedup_key(row),
                    batch.trace(row),
                    *chain(*(batch.headers(row) or {}).items()),
                ]
                sizes[queue] += sum(len(text.encode()) for text in texts if text is not None)

    stored = {queue: sum(extent.bytes for extent in store.extents if extent.queue == queue) for queue in sizes}
    assert stored == sizes


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
                (problem,) = segment_audit.verify(disk, alone)
            assert problem.file == file.name
    assert store.verify() == []


@contextmanager
def flipped(disk, file, byte, rng):
    bit = 8 * byte + rng.randrange(8)
    disk.flip(file.name, bit)
    yield
    disk.flip(file.name, bit)
