"""Pins: files that a reader holds stay; files that nobody needs go."""

from __future__ import annotations

import logging

import pytest

from penstock import limits
from penstock.clock import ManualClock
from penstock.errors import InvalidName
from penstock.model import Freed
from penstock.storage import pins
from penstock.storage.segments import SegmentStore
from tests.support.forgetful import ForgetfulDisk
from tests.support.frames import FrameMaker, sealed_payloads

OLD = "segments/messages/00000000000000000001-0.parquet"
NEW = "segments/messages/00000000000000000002-0.parquet"


@pytest.fixture
def disk():
    return ForgetfulDisk()


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def store(disk, clock):
    """Two files of one message each."""
    store = SegmentStore(disk, clock=clock)
    frames = FrameMaker()
    for payload in (b"old", b"new"):
        frames.push(1, [payload])
        frames.seal(store)
    return store


def test_a_file_goes_when_nothing_in_it_is_needed(disk, store):
    size = disk.size(OLD)

    assert store.remove({(1, 0): 1}) == Freed(files_removed=1, bytes_freed=size, messages_removed=1)
    assert not disk.exists(OLD)
    assert sealed_payloads(store) == {(1, 0): {1: b"new"}}


def test_a_pinned_file_stays_until_the_pin_is_released(disk, store, clock):
    pins.hold(disk, "spark-1", clock.now(), [OLD])
    assert store.remove({(1, 0): 1}) == Freed(messages_removed=1)
    assert disk.exists(OLD)

    pins.release(disk, "spark-1")
    assert store.remove({}).files_removed == 1
    assert not disk.exists(OLD)


def test_a_pin_without_files_holds_all_of_them(disk, store, clock):
    pins.hold(disk, "reader", clock.now())
    store.remove({}, {1})

    assert disk.exists(OLD)
    assert disk.exists(NEW)
    assert store.extents == []


def test_a_pin_can_be_narrowed_to_what_the_manifest_lists(disk, store, clock):
    pins.hold(disk, "reader", clock.now())
    pins.hold(disk, "reader", clock.now(), [NEW])
    store.remove({}, {1})

    assert not disk.exists(OLD)
    assert disk.exists(NEW)


def test_a_pinned_file_survives_reopening(disk, store, clock):
    pins.hold(disk, "reader", clock.now(), [OLD])
    store.remove({(1, 0): 1})
    SegmentStore(disk, clock=clock)

    assert disk.exists(OLD)


def test_a_pin_that_is_renewed_holds_on(disk, store, clock):
    pins.hold(disk, "reader", clock.now(), [OLD])
    store.remove({(1, 0): 1})
    for _ in range(5):
        clock.advance(seconds=limits.segment_pin_seconds - 1)
        pins.hold(disk, "reader", clock.now(), [OLD])
        store.remove({})

    assert disk.exists(OLD)


def test_a_pin_whose_holder_is_silent_counts_no_more_and_is_cleared_away(disk, store, clock):
    pins.hold(disk, "dead", clock.now())
    clock.advance(seconds=limits.segment_pin_seconds + 1)
    store.remove({(1, 0): 1})

    assert not disk.exists(OLD)
    assert disk.list(pins.DIRECTORY) == []


def test_a_pin_that_cannot_be_read_is_reported_and_holds_nothing(disk, store, caplog):
    disk.write_whole(f"{pins.DIRECTORY}/broken.json", b"{")
    with caplog.at_level(logging.WARNING):
        store.remove({(1, 0): 1})

    assert "broken.json cannot be read" in caplog.text
    assert not disk.exists(OLD)
    assert disk.exists(f"{pins.DIRECTORY}/broken.json")


def test_what_is_needed_stays_without_any_pin(disk, store):
    assert store.remove({}) == Freed()
    assert disk.exists(OLD)
    assert disk.exists(NEW)


def test_releasing_twice_is_no_error_and_names_are_checked(disk, store, clock):
    pins.release(disk, "nobody")
    with pytest.raises(InvalidName, match=r"pin: '\.\./lock'"):
        pins.hold(disk, "../lock", clock.now())


@pytest.mark.parametrize("name", ["00000000000000000009-0.parquet", "00000000000000000009-0.parquet.tmp"])
def test_files_that_no_manifest_names_are_removed_at_open(disk, store, name):
    disk.write_whole(f"segments/messages/{name}", b"left by a crash")
    disk.write_whole(f"segments/events/{name}", b"left by a crash")
    disk.write_whole("segments/messages/README", b"not ours")
    SegmentStore(disk)

    assert disk.list("segments/events") == []
    assert disk.list("segments/messages") == [OLD.rpartition("/")[2], NEW.rpartition("/")[2], "README"]
