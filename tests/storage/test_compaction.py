"""Removal and compaction: what is needed stays, at its offset."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from contextlib import suppress

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import limits
from penstock.batch import layout
from penstock.clock import ManualClock
from penstock.delivery.entries import Span
from penstock.errors import MessageNotFound
from penstock.model import Freed, Message
from penstock.storage import pins
from penstock.storage.extents import Extent
from penstock.storage.schema import EVENTS, MESSAGES
from penstock.storage.segments import SegmentStore
from tests.support.forgetful import ForgetfulDisk, PowerCut
from tests.support.frames import FrameMaker, sealed_payloads


@pytest.fixture(autouse=True)
def small_row_groups(monkeypatch):
    monkeypatch.setattr(limits, "segment_row_group_rows", 10)


@pytest.fixture
def disk():
    return ForgetfulDisk()


@pytest.fixture
def frames():
    return FrameMaker()


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def store(disk, frames, clock):
    """One file: queue 1 with partitions 0 and 1, queue 2 with partition 0; 50 messages each, in extents of up to 10."""
    store = SegmentStore(disk, clock=clock)
    for n in range(5):
        messages = [Message(payload=b"%d-%d" % (n, row), key=f"k{row}", priority=n, delay=n) for row in range(10)]
        frames.push(1, messages)
        frames.push(1, messages, partition=1)
        frames.push(2, [b"two-%d" % row for row in range(10)])
        frames.settle(1, Span(0, 10 * n, 10))
        frames.settle(2, Span(0, 10 * n, 10))
    frames.seal(store)
    return store


def names(store, kind=MESSAGES):
    return [file.name for file in store.files() if file.table == kind]


def test_extents_wholly_below_the_start_go_and_the_others_stay(store):
    assert store.remove({(1, 0): 25}) == Freed(messages_removed=20)

    kept = sealed_payloads(store)
    assert sorted(kept[1, 0]) == list(range(20, 50))
    assert len(kept[1, 1]) == len(kept[2, 0]) == 50


def test_a_queue_that_is_gone_takes_its_messages_and_its_events_along(disk, store):
    assert store.remove({}, {1}).messages_removed == 100
    freed = store.compact()

    assert freed.files_rewritten == 1
    assert freed.bytes_freed > 0
    (messages,) = (pq.read_table(pa.BufferReader(disk.read(name))) for name in names(store))
    assert set(messages["queue"].to_pylist()) == {"queue-2"}
    assert store.manifest.queues == {1: "queue-1", 2: "queue-2"}

    store.remove({}, {2})
    assert store.files() == []
    assert store.manifest.queues == {}
    assert disk.list("segments/events") == disk.list("segments/messages") == []


def test_a_file_of_which_half_is_needed_is_left_alone(store):
    before = names(store)
    store.remove({(1, 0): 50, (1, 1): 20})

    assert store.compact() == Freed()
    assert names(store) == before


def test_compaction_keeps_offsets_columns_and_extents(disk, store):
    store.remove({(1, 0): 30, (1, 1): 40, (2, 0): 50})
    before = store.extents
    wanted = sealed_payloads(store)
    columns = {
        extent.first_offset: store.column(extent, "available_at").tolist() for extent in before if extent.partition
    }
    reported: list[list[Extent]] = []

    freed = store.compact(moved=reported.append)

    assert (freed.files_removed, freed.files_rewritten, freed.messages_removed) == (1, 1, 0)
    assert sealed_payloads(store) == wanted
    assert sealed_payloads(SegmentStore(disk)) == wanted
    places = [(e.queue, e.partition, e.first_offset, e.count, e.flags, e.bytes, e.due_last) for e in store.extents]
    assert places == [(e.queue, e.partition, e.first_offset, e.count, e.flags, e.bytes, e.due_last) for e in before]
    assert [sorted(moved) for moved in reported] == [store.extents]
    assert {
        extent.first_offset: store.column(extent, "available_at").tolist()
        for extent in store.extents
        if extent.partition
    } == columns
    assert store.extents[0].flags & layout.KEY
    assert store.load(store.extents[0]).key(store.extents[0].row) == "k0"
    assert store.verify() == []


def test_extents_from_before_compaction_can_still_be_read(disk, monkeypatch):
    monkeypatch.setattr(limits, "segment_row_group_rows", 20)
    frames, store = FrameMaker(), SegmentStore(disk)
    for partition in range(3):
        frames.push(
            1, [Message(payload=b"%d" % row, key=f"{partition}", ttl=9) for row in range(50)], partition=partition
        )
    frames.seal(store)
    store.remove({(1, 0): 50, (1, 2): 50})
    before = store.extents
    store.compact()

    assert [extent.row for extent in before] == [10, 0, 0]
    assert [extent.row for extent in store.extents] == [0, 0, 0]
    for old in before:
        batch = store.load(old)
        for offset in range(old.first_offset, old.end_offset):
            assert batch.payload(old.row_of(offset)) == b"%d" % offset
            assert batch.key(old.row_of(offset)) == "1"
        assert store.column(old, "expires_at").tolist() == [frames.now - 1_000_000 + 9_000_000] * old.count


def test_an_extent_that_is_no_longer_kept_is_refused(store):
    old = store.extents[0]
    store.remove({(1, 0): 40, (1, 1): 50, (2, 0): 50})
    store.compact()

    with pytest.raises(MessageNotFound, match="offsets from 0 on in partition 0 of queue 1"):
        store.load(old)
    with pytest.raises(MessageNotFound):
        store.column(old, "priority")


def test_a_reader_that_compaction_overtakes_finds_the_messages_in_their_new_file(disk, store, monkeypatch):
    store.remove({(1, 0): 40, (1, 1): 50, (2, 0): 50})
    (extent,) = store.extents
    open_input = disk.open_input

    def overtaken(name):
        monkeypatch.setattr(disk, "open_input", open_input)
        store.compact()
        return open_input(name)

    monkeypatch.setattr(disk, "open_input", overtaken)
    assert store.load(extent).payload(extent.row) == b"4-0"


def test_extents_that_are_not_live_are_given_up_by_compaction_only(store):
    kept = [extent for extent in store.extents if extent.queue == 1 and extent.partition == 0]
    freed = store.compact(live=kept.__contains__)

    assert freed.messages_removed == 100
    assert set(sealed_payloads(store)) == {(1, 0)}


def test_compacting_again_and_again_never_reuses_a_name(disk, store, clock):
    seen = names(store)
    for start in (20, 40):
        store.remove({(1, 0): start, (1, 1): 50, (2, 0): 50})
        pins.hold(disk, "reader", clock.now())
        store.compact()
        assert names(store)[0] not in seen
        seen += names(store)
    assert sorted(f"segments/messages/{name}" for name in disk.list("segments/messages")) == sorted(seen)


def test_a_damaged_file_is_left_as_it_is(disk, store):
    (name,) = names(store)
    store.remove({(1, 0): 40, (1, 1): 50, (2, 0): 40})
    start, _ = store.manifest.files[name].row_group_bounds(store.extents[0].row_group)
    disk.flip(name, 8 * start)

    assert store.compact() == Freed()
    assert names(store) == [name]
    assert [problem.file for problem in store.verify()] == [name]


def test_events_go_once_all_the_messages_they_could_be_about_are_gone(disk, store, frames):
    for n in range(5):
        frames.push(1, [b"later-%d" % n] * 10)
    frames.settle(1, Span(0, 50, 10))
    frames.seal(store)
    assert len(names(store, EVENTS)) == 2

    store.remove({(1, 0): 50, (1, 1): 50}, {2})
    assert len(names(store, EVENTS)) == 1
    store.remove({(1, 0): 100})
    assert store.files() == []


def test_events_of_queues_that_are_gone_are_compacted_away(disk, store, frames):
    frames.push(1, [b"x"])
    frames.settle(1, Span(0, 50, 1))
    for _ in range(3):
        frames.settle(2, Span(0, 0, 1))
    frames.seal(store)
    store.remove({}, {2})
    assert store.compact().files_rewritten == 1

    tables = [pq.read_table(pa.BufferReader(disk.read(name))) for name in names(store, EVENTS)]
    # In the older file exactly half of the rows are needed, and that is not worth a rewrite.
    assert [table["queue"].to_pylist() for table in tables] == [["queue-1"] * 5 + ["queue-2"] * 5, ["queue-1"]]
    assert store.verify() == []


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_removed_and_compacted_everything_needed_stays(seed):
    rng = random.Random(seed)
    disk, frames = ForgetfulDisk(seed), FrameMaker()
    store = SegmentStore(disk)
    starts: defaultdict[tuple[int, int], int] = defaultdict(int)
    gone: set[int] = set()
    for _ in range(12):
        for _ in range(rng.randrange(4)):
            queue = rng.choice(sorted({1, 2, 3, 4} - gone))
            frames.push(queue, [b"%d" % rng.getrandbits(64) for _ in range(rng.randrange(1, 40))])
        frames.seal(store)
        for place, payloads in frames.accepted.items():
            starts[place] = rng.randint(starts[place], len(payloads))
        if rng.random() < 0.1:
            gone.add(rng.randrange(1, 4))
        store.remove(starts, gone)
        if rng.random() < 0.5:
            store.compact()
        if rng.random() < 0.3:
            store = SegmentStore(disk)
        found = sealed_payloads(store)
        for place, payloads in frames.accepted.items():
            if place[0] in gone:
                assert place not in found
                continue
            for offset in range(starts[place], len(payloads)):
                assert found[place][offset] == payloads[offset]
    assert store.verify() == []


@pytest.mark.parametrize("seed", range(3))
def test_a_crash_at_any_write_of_removal_or_compaction_loses_nothing_needed(seed):
    step = 0
    while True:
        step += 1
        disk, frames = ForgetfulDisk(seed), FrameMaker()
        store = SegmentStore(disk)
        for n in range(6):
            frames.push(1, [b"%d-%d" % (n, row) for row in range(10)], partition=n % 2)
            frames.push(2, [b"x"])
        frames.seal(store)
        disk.crash_at(step)
        with suppress(PowerCut):
            store.remove({(1, 0): 20, (1, 1): 20}, {2})
            store.compact()
        if not disk.fired:
            break
        again = SegmentStore(disk.crash())
        found = sealed_payloads(again)
        for place in ((1, 0), (1, 1)):
            assert [found[place][offset] for offset in range(20, 30)] == frames.accepted[place][20:]
        assert again.verify() == []
    assert step > 10


def test_readers_see_every_message_while_files_are_sealed_removed_and_compacted():
    disk, frames = ForgetfulDisk(), FrameMaker()
    store = SegmentStore(disk)
    frames.push(1, [b"%d" % row for row in range(200)])
    frames.push(2, [b"x"] * 300)
    frames.seal(store)
    keeping = 150  # the reader wants offsets from here on; what is below comes and goes
    done = threading.Event()
    wrong: list[object] = []

    def read() -> None:
        while not done.is_set():
            for extent in store.of_partition(1, 0):
                if extent.first_offset >= keeping:
                    batch = store.load(extent)
                    rows = range(extent.first_offset, extent.end_offset)
                    wrong.extend(o for o in rows if batch.payload(extent.row_of(o)) != b"%d" % o)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for start in range(0, keeping, 10):
        frames.push(2, [b"y"] * 50)
        frames.seal(store)
        store.remove({(1, 0): start, (2, 0): 300 + 5 * start})
        store.compact()
    done.set()
    for reader in readers:
        reader.join()

    assert wrong == []
    assert store.verify() == []
