"""Sealing to a location, removal and sweeping, with a crash or a failure at every operation of disk and location."""

from __future__ import annotations

import errno
from contextlib import suppress

import pytest

from penstock.clock import ManualClock
from penstock.delivery.entries import Span
from penstock.errors import DirectoryInUse, OutcomeUnknown, PenstockError, Unavailable
from penstock.storage.manifest import CurrentManifest
from penstock.storage.segment_files import SegmentFiles, read_book
from penstock.storage.segments import SegmentStore
from tests.support.dose import NIGHTLY
from tests.support.forgetful import ForgetfulDisk, PowerCut
from tests.support.frames import FrameMaker, expected_payloads, sealed_payloads
from tests.support.objects import FaultyObjects

SHARD = bytes(range(16))
URL = "s3://bucket/prefix"


def opened(
    disk: ForgetfulDisk, objects: FaultyObjects, clock: ManualClock, url: str | None = URL, *, claims: bool = False
) -> SegmentStore:
    objects.disk = disk
    disk.make_directory("segments")
    clock.advance(seconds=1)
    files = SegmentFiles(disk, connect=objects.connect, clock=clock)
    if url is not None:
        files.use(url, SHARD.hex(), lambda: CurrentManifest(files, clock), "token")
    files.begin(claims=claims)
    return SegmentStore(files, clock=clock)


def workload() -> FrameMaker:
    frames = FrameMaker()
    for n in range(6):
        frames.push(1 + n % 2, [b"%d-%d" % (n, row) for row in range(9)], rows=[row % 3 - 1 for row in range(9)])
        frames.settle(1 + n % 2, Span(0, n, 1))
    return frames


def work(store: SegmentStore, frames: FrameMaker) -> None:
    """Seal in two steps; then everything of queue 2 goes, and what is left is compacted."""
    store.seal(frames.frames[:6], 7, frames.names(), lambda queue, partition: 0)
    frames.seal(store)
    store.remove({}, [2])
    store.compact()


def settled(store: SegmentStore, objects: FaultyObjects) -> None:
    """Exactly the files of the manifest are at the location, and all of it can be read."""
    stored = {key for key in objects.stored if key.endswith(".parquet")}
    names = [file.name for file in store.files()]
    assert stored == {f"{SHARD.hex()}/{name.removeprefix('segments/at-1/')}" for name in names}
    assert store.verify() == []


@pytest.mark.parametrize("seed", range(20 if NIGHTLY else 2))
def test_a_crash_at_any_operation_leaves_neither_a_gap_nor_an_object_that_is_never_swept(seed):
    frames, clock = workload(), ManualClock()
    step = 0
    while True:
        step += 1
        disk, objects = ForgetfulDisk(seed), FaultyObjects()
        disk.crash_at(step)
        with suppress(PowerCut):
            work(opened(disk, objects, clock), frames)
        if not disk.fired:
            break
        store = opened(disk.crash(), objects, clock)
        assert store.sealed_sequence in {0, 6, 12}
        settled(store, objects)
        if store.sealed_sequence < 12:
            work(store, frames)
        else:
            store.remove({}, [2])
            store.compact()
        assert {place: found for place, found in sealed_payloads(store).items() if place[0] == 1} == {
            place: found for place, found in expected_payloads(frames).items() if place[0] == 1
        }
        settled(store, objects)
    assert step > 30


def test_after_a_failure_at_any_operation_sealing_goes_on_and_nothing_is_left_over():
    frames, clock = workload(), ManualClock()
    step = refused = 0
    while True:
        step += 1
        disk, objects = ForgetfulDisk(step), FaultyObjects()
        store = opened(disk, objects, clock)
        disk.fail_at(step, errno.EIO)
        try:
            work(store, frames)
        except OutcomeUnknown:
            refused += 1
        except PenstockError:
            clock.advance(seconds=60)
            with suppress(OutcomeUnknown):
                work(store, frames)
        if not disk.fired:
            break
        clock.advance(seconds=60)
        store = opened(disk.crash(), objects, clock)
        work(store, frames)
        settled(store, objects)
    assert step > 30
    assert refused > 0


def test_the_manifest_names_no_file_before_its_upload_is_confirmed():
    frames, clock, disk, objects = workload(), ManualClock(), ForgetfulDisk(), FaultyObjects()
    store = opened(disk, objects, clock)
    objects.delays = True

    with pytest.raises(Unavailable, match="timed out"):
        frames.seal(store)

    assert store.sealed_sequence == 0
    assert store.files() == []


def test_an_upload_that_arrives_late_replaces_nothing_and_is_swept():
    frames, clock, disk, objects = workload(), ManualClock(), ForgetfulDisk(), FaultyObjects()
    store = opened(disk, objects, clock)
    objects.delays = True
    with pytest.raises(Unavailable):
        frames.seal(store)
    objects.delays = False
    clock.advance(seconds=60)
    frames.seal(store)
    store.remove({})  # nothing has arrived yet that could be swept

    objects.deliver()
    assert sealed_payloads(store) == expected_payloads(frames)
    again = opened(disk.kill(), objects, clock)

    settled(again, objects)
    assert sealed_payloads(again) == expected_payloads(frames)


def test_objects_that_another_directory_of_the_same_shard_wrote_are_left_alone():
    """A copy of a directory, opened beside its original, must not take the original's files for leftovers."""
    frames, clock, disk, objects = workload(), ManualClock(), ForgetfulDisk(), FaultyObjects()
    store = opened(disk, objects, clock)
    store.seal(frames.frames[:6], 7, frames.names(), lambda queue, partition: 0)
    copy = disk.crash()
    original = opened(disk.kill(), objects, clock)
    frames.seal(original)
    with pytest.raises(DirectoryInUse):
        opened(copy, objects, clock)

    opened(copy, objects, clock, claims=True).seal(frames.frames, 13, frames.names(), lambda queue, partition: 0)

    assert original.verify() == []
    assert sealed_payloads(original) == expected_payloads(frames)


def test_nothing_is_listed_at_a_location_to_open_seal_and_sweep():
    frames, clock, disk, objects = workload(), ManualClock(), ForgetfulDisk(), FaultyObjects()
    work(opened(disk, objects, clock), frames)
    objects.calls.clear()

    work(opened(disk.kill(), objects, clock), frames)

    assert "list" not in {call for call, _ in objects.calls}


def test_only_objects_below_the_shard_are_ever_written_or_removed():
    frames, clock, disk, objects = workload(), ManualClock(), ForgetfulDisk(), FaultyObjects()
    foreign = {"other-shard/messages/00000000000000000001-0-1.parquet": b"", "messages/x.parquet": b""}
    objects.stored |= foreign

    work(opened(disk, objects, clock), frames)

    assert {key: data for key, data in objects.stored.items() if not key.startswith(SHARD.hex())} == foreign


def test_a_removal_that_fails_is_made_up_for_later():
    frames, clock, disk, objects = workload(), ManualClock(), ForgetfulDisk(), FaultyObjects()
    store = opened(disk, objects, clock)
    frames.seal(store)
    objects.is_away = True
    store.remove({}, [1, 2])
    assert read_book(disk).leftovers
    objects.is_away = False
    clock.advance(seconds=60)

    store.remove({})

    settled(store, objects)
    assert store.files() == []
    assert read_book(disk).leftovers == []


def test_switching_back_writes_files_in_the_directory_and_still_reads_the_others():
    frames, clock, disk, objects = workload(), ManualClock(), ForgetfulDisk(), FaultyObjects()
    store = opened(disk, objects, clock)
    store.seal(frames.frames[:6], 7, frames.names(), lambda queue, partition: 0)

    store = opened(disk.kill(), objects, clock, url="local")
    frames.seal(store)

    places = {file.name.split("/")[1] for file in store.files()}
    assert "at-1" in places
    assert places & {"messages", "events"}
    assert sealed_payloads(store) == expected_payloads(frames)
    assert sealed_payloads(opened(disk.kill(), objects, clock, url=None)) == expected_payloads(frames)


def test_a_missing_object_is_damage_and_a_missing_location_is_not():
    frames, clock, disk, objects = workload(), ManualClock(), ForgetfulDisk(), FaultyObjects()
    store = opened(disk, objects, clock)
    frames.seal(store)
    kept = dict(objects.stored)

    objects.stored = {key: data for key, data in kept.items() if "/messages/" not in key}
    with pytest.raises(PenstockError, match="is missing"):
        sealed_payloads(store)
    objects.stored = {}
    with pytest.raises(Unavailable, match="contains no data of this shard"):
        sealed_payloads(store)
    objects.stored = kept

    assert sealed_payloads(store) == expected_payloads(frames)
