"""Sealing: what was in the journal is in the files, once, at its offset."""

from __future__ import annotations

import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import limits
from penstock.batch import layout
from penstock.delivery.entries import Closing, QueueDeleted, Span
from penstock.model import Message, Outcome
from penstock.storage.schema import EVENTS, MESSAGES, Names
from penstock.storage.segments import SegmentStore
from tests.support.forgetful import ForgetfulDisk
from tests.support.frames import SECOND, START, FrameMaker, expected_payloads, sealed_payloads


@pytest.fixture
def disk():
    return ForgetfulDisk()


@pytest.fixture
def store(disk):
    return SegmentStore(disk)


@pytest.fixture
def frames():
    return FrameMaker()


def table_of(disk: ForgetfulDisk, store: SegmentStore, kind: str = MESSAGES) -> pa.Table:
    """All files of one table, read by plain pyarrow."""
    names = [file.name for file in store.files() if file.table == kind]
    return pa.concat_tables(pq.read_table(pa.BufferReader(disk.read(name))) for name in names)


def test_messages_lie_at_their_offsets(store, frames):
    for n in range(5):
        frames.push(1, [b"%d-%d" % (n, row) for row in range(100)])
    frames.seal(store)

    assert sealed_payloads(store) == expected_payloads(frames)
    assert [(e.first_offset, e.count, e.row) for e in store.extents] == [(0, 500, 0)]
    assert store.sealed_sequence == 5


def test_rows_go_to_their_partitions_and_refused_rows_get_no_offset(disk, store, frames):
    frames.push(1, [b"a", b"b", b"c", b"d", b"e"], rows=[2, -1, 0, 2, 0])
    frames.push(1, [b"f", b"g", b"h"], rows=[0, 2, -1])
    frames.seal(store)

    assert sealed_payloads(store) == {(1, 0): {0: b"c", 1: b"e", 2: b"f"}, (1, 2): {0: b"a", 1: b"d", 2: b"g"}}
    table = table_of(disk, store)
    assert table["partition_id"].to_pylist() == [0, 0, 0, 2, 2, 2]
    assert table["partition"].to_pylist() == ["0", "0", "0", "2", "2", "2"]
    assert table["offset"].to_pylist() == [0, 1, 2, 0, 1, 2]


def test_a_push_whose_rows_were_all_refused_leaves_nothing(store, frames):
    frames.push(1, [b"a", b"b"], rows=[-1, -1])
    frames.push(1, [b"c"], rows=[-1])
    frames.push(1, [b"d"])
    frames.seal(store)

    assert sealed_payloads(store) == {(1, 0): {0: b"d"}}


def test_compressed_batches_are_sealed_decompressed(disk, store, frames):
    long = [b"%d " % row + b"penstock " * 50 for row in range(1000)]
    assert frames.push(1, long, compress=True).compressed
    assert frames.push(1, long, rows=[row % 2 for row in range(1000)], compress=True).compressed
    frames.seal(store)

    assert sealed_payloads(store) == expected_payloads(frames)
    assert sorted(table_of(disk, store)["payload"].to_pylist()) == sorted(long * 2)


def test_all_columns_of_a_message_arrive(disk, store, frames):
    full = Message(
        payload={"a": 1},
        key="k",
        priority=200,
        delay=5,
        ttl=60,
        headers={"h": "ü"},
        dedup_key="d",
        max_attempts=9,
        trace="t",
    )
    frames.push(1, [full, b"plain"], producer=2**64 - 1)
    frames.push(1, [full])
    frames.push(1, [b"plain"])
    frames.seal(store)

    pushed = frames.now - 2 * SECOND
    rows = table_of(disk, store).drop_columns(["incarnation", "partition_id"]).to_pylist()
    for row in rows:
        for name in ("pushed_at", "available_at", "expires_at"):
            row[name] = row[name] and round(row[name].timestamp() * SECOND)
        row["headers"] = dict(row["headers"] or [])
    place = {"queue": "queue-1", "partition": "0"}
    special = {
        "key": "k",
        "priority": 200,
        "headers": {"h": "ü"},
        "payload": b'{"a":1}',
        "content_type": "application/json",
        "dedup_key": "d",
        "trace_id": "t",
        "max_attempts": 9,
    }
    nothing = dict.fromkeys(("available_at", "expires_at", "key", "dedup_key", "trace_id", "max_attempts", "producer"))
    plain = nothing | {"priority": 128, "headers": {}, "payload": b"plain", "content_type": "application/octet-stream"}
    assert rows == [
        place
        | {"offset": 0, "pushed_at": pushed, "available_at": pushed + 5 * SECOND, "expires_at": pushed + 60 * SECOND}
        | special
        | {"producer": -1},
        place | plain | {"offset": 1, "pushed_at": pushed, "producer": -1},
        place
        | {"offset": 2, "pushed_at": pushed + SECOND, "available_at": pushed + 6 * SECOND}
        | {"expires_at": pushed + 61 * SECOND, "producer": None}
        | special,
        place | plain | {"offset": 3, "pushed_at": pushed + 2 * SECOND},
    ]


def test_an_extent_knows_its_columns_bytes_and_times(store, frames):
    frames.push(1, [b"12345", b"1"])
    frames.push(1, [Message(payload=b"123", priority=1, delay=50), Message(payload=b"", delay=20, ttl=99)])
    frames.seal(store)

    (extent,) = store.extents
    assert extent.bytes == 9
    assert (extent.pushed_first_at, extent.pushed_last_at) == (START + SECOND, START + 2 * SECOND)
    assert extent.flags == layout.PRIORITY | layout.DELAY | layout.TTL
    assert extent.due_last == START + 52 * SECOND
    assert extent.expires_first == START + 101 * SECOND


def test_messages_below_the_start_of_their_partition_are_left_out(store, frames):
    frames.push(1, [b"0", b"1", b"2"])
    frames.push(1, [b"3", b"4", b"5"])
    frames.push(1, [b"6", b"7"], rows=[0, 1])
    frames.seal(store, keep=4)

    assert sealed_payloads(store) == {(1, 0): {4: b"4", 5: b"5", 6: b"6"}}


def test_a_queue_that_is_gone_is_left_out_with_its_events(disk, store, frames):
    frames.push(1, [b"a"])
    frames.settle(1, Span(0, 0, 1))
    frames.add(QueueDeleted(1), Closing(frames.now))
    frames.push(2, [b"b"])
    store.seal(frames.frames, frames.end_sequence, Names({2: ("queue-2", {})}, {}), lambda queue, partition: 0)

    assert sealed_payloads(store) == {(2, 0): {0: b"b"}}
    assert [file.table for file in store.files()] == [MESSAGES]
    assert store.manifest.queues == {2: "queue-2"}


def test_large_queues_get_a_file_of_their_own_and_small_ones_share(monkeypatch, disk, store, frames):
    monkeypatch.setattr(limits, "segment_own_file_bytes", 1000)
    for queue in (3, 1, 2):
        frames.push(queue, [b"small"])
    frames.push(9, [b"x" * 2000])
    frames.push(1, [b"more"])
    frames.seal(store)

    queues = [set(pq.read_table(pa.BufferReader(disk.read(f.name)))["queue"].to_pylist()) for f in store.files()]
    assert sorted(map(sorted, queues)) == [["queue-1", "queue-2", "queue-3"], ["queue-9"]]
    assert sealed_payloads(store) == expected_payloads(frames)


def test_row_groups_are_bounded_in_rows_and_in_bytes(monkeypatch, store, frames):
    monkeypatch.setattr(limits, "segment_row_group_rows", 10)
    monkeypatch.setattr(limits, "segment_row_group_bytes", 1000)
    frames.push(1, [b"x"] * 25)
    frames.push(1, [b"y" * 400] * 5)
    frames.push(1, [b"z" * 5000] * 2)
    frames.push(1, [Message(payload=b"", headers={"h": "v" * 600})] * 3)
    frames.seal(store)

    assert [extent.count for extent in store.extents] == [10, 10, 7, 2, 1, 1, 1, 1, 1, 1]
    assert [extent.row_group for extent in store.extents] == list(range(10))
    assert sealed_payloads(store) == expected_payloads(frames)


def test_a_stretch_of_the_journal_larger_than_memory_is_sealed_in_several_files(monkeypatch, store, frames):
    monkeypatch.setattr(limits, "seal_bytes_max", 1000)
    for n in range(20):
        frames.push(1 + n % 2, [b"%d" % n * 100] * 3, partition=n % 3)
    frames.seal(store)

    assert len(store.files()) > 3
    assert sealed_payloads(store) == expected_payloads(frames)
    assert store.verify() == []


def test_a_skipped_stretch_of_offsets_ends_an_extent(store, frames):
    frames.push(1, [b"a"])
    frames.push(1, [b"lost"])
    frames.push(1, [b"c"])
    del frames.frames[1]
    store.seal(frames.frames, 4, frames.names(), lambda queue, partition: 0)

    assert sealed_payloads(store) == {(1, 0): {0: b"a", 2: b"c"}}


def test_frames_that_are_sealed_already_are_passed_over(store, frames):
    frames.push(1, [b"a"])
    frames.seal(store)
    frames.seal(store)
    assert store.seal(frames.frames, frames.end_sequence, frames.names(), lambda queue, partition: 0) == []
    frames.push(1, [b"b"])
    frames.seal(store)

    assert sealed_payloads(store) == expected_payloads(frames)


def test_a_stretch_without_messages_still_counts_as_sealed(disk, store, frames):
    frames.add(Closing(START))
    frames.seal(store)

    assert store.files() == []
    assert SegmentStore(disk).sealed_sequence == 1


def test_settled_runs_become_events(disk, store, frames):
    frames.push(1, [b"m"] * 20)
    frames.settle(1, Span(0, 0, 10), Span(0, 15, 2, attempt=3))
    frames.settle(1, Span(0, 10, 1, 2), outcome=Outcome.DEAD, group=99, error="boom")
    frames.seal(store)

    rows = table_of(disk, store, EVENTS).to_pylist()
    names = ("group", "partition", "first_offset", "last_offset", "count", "outcome", "attempt", "error")
    assert [tuple(row[name] for name in names) for row in rows] == [
        ("default", "0", 0, 9, 10, "acked", 1, None),
        ("default", "0", 15, 16, 2, "acked", 3, None),
        (None, "0", 10, 10, 1, "dead", 2, "boom"),
    ]
    assert {row["consumer"] for row in rows} == {"worker-1"}
    assert all((row["settled_at"] - row["leased_at"]).total_seconds() == 1 for row in rows)


def test_scattered_offsets_become_events_of_consecutive_ones_with_one_attempt(disk, store, frames):
    frames.push(1, [b"m"] * 20)
    offsets = pa.array([2, 3, 4, 8, 9, 12], pa.int64()).buffers()[1].to_pybytes()
    attempts = pa.array([1, 1, 2, 2, 2, 1], pa.uint16()).buffers()[1].to_pybytes()
    frames.settle(1, Span(0, 2, 6, offsets=offsets[:48], attempts=attempts[:12]))
    frames.settle(1, Span(0, 2, 6, attempt=7, offsets=offsets[:48]))
    frames.seal(store)

    table = table_of(disk, store, EVENTS)
    runs = list(zip(*(table[name].to_pylist() for name in ("first_offset", "last_offset", "attempt")), strict=True))
    assert runs == [(2, 3, 1), (4, 4, 2), (8, 9, 2), (12, 12, 1), (2, 4, 7), (8, 9, 7), (12, 12, 7)]


texts = st.sampled_from(["", "a", "key", "ü", "日本"])
options = st.fixed_dictionaries(
    {},
    optional={
        "key": texts,
        "priority": st.integers(0, 255),
        "delay": st.integers(0, 100),
        "ttl": st.integers(1, 100),
        "headers": st.dictionaries(texts, texts, max_size=2),
        "max_attempts": st.integers(1, 100),
    },
)
items = st.binary(max_size=20) | st.builds(
    lambda data, extra: Message(payload=data, **extra), st.binary(max_size=9), options
)
pushes = st.tuples(st.integers(1, 3), st.lists(items, min_size=1, max_size=6), st.integers(0, 2**32), st.booleans())


@given(st.lists(pushes, max_size=12), st.integers(0, 5))
def test_whatever_was_pushed_comes_back_with_all_its_columns(pushed, keep):
    frames, store = FrameMaker(), SegmentStore(ForgetfulDisk())
    expected: dict[tuple[int, int], list[object]] = {}
    for queue, batch, seed, spread in pushed:
        rng = random.Random(seed)
        rows = [rng.choice((-1, 0, 1, 2)) for _ in batch] if spread else None
        to = rows or [seed % 3] * len(batch)
        source = frames.push(queue, batch, partition=seed % 3, rows=rows)
        for row, partition in enumerate(to):
            expected.setdefault((queue, partition), []).append(columns_of(source, row, frames.now))
    frames.seal(store, keep)

    assert sealed_payloads(store) == expected_payloads(frames, keep)
    for extent in store.extents:
        batch = store.load(extent)
        for offset in range(extent.first_offset, extent.end_offset):
            pushed_at = int(store.pushed_at(extent)[offset - extent.first_offset])
            found = columns_of(batch, extent.row_of(offset), pushed_at)
            assert found == expected[extent.queue, extent.partition][offset]
    assert store.verify() == []


def columns_of(batch, row, pushed_at):
    """A message as the delivery core sees it: times absolute, absent columns at their default."""
    fixed = {name: 0 if (c := getattr(batch, name)) is None else int(c[row]) for name in ("delay", "deliver_at", "ttl")}
    due = max(pushed_at + fixed["delay"] if fixed["delay"] else 0, fixed["deliver_at"])
    priority = 128 if batch.priority is None else int(batch.priority[row])
    attempts = 0 if batch.max_attempts is None else int(batch.max_attempts[row])
    texts = (batch.key(row), batch.dedup_key(row), batch.trace(row), batch.headers(row))
    return batch.payload(row), pushed_at, due, fixed["ttl"], priority, attempts, texts, batch.content_type_of(row)


def test_sealing_gives_its_memory_back(store, frames):
    before = pa.default_memory_pool().bytes_allocated()
    for _ in range(50):
        frames.push(1, [b"x" * 100] * 1000)
    frames.seal(store)

    assert pa.default_memory_pool().bytes_allocated() - before < 100_000
