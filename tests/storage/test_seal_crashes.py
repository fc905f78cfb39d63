"""Sealing on a disk that loses power or fails: the old manifest or the new one, and every message once."""

from __future__ import annotations

import errno
from contextlib import suppress

import pytest

from penstock.delivery.entries import Span
from penstock.errors import OutcomeUnknown, PenstockError
from penstock.storage.schema import EVENTS, MESSAGES
from penstock.storage.segments import SegmentStore
from tests.support.forgetful import ForgetfulDisk, PowerCut
from tests.support.frames import FrameMaker, expected_payloads, sealed_payloads


def workload() -> FrameMaker:
    frames = FrameMaker()
    for n in range(6):
        frames.push(1 + n % 2, [b"%d-%d" % (n, row) for row in range(50)], rows=[row % 3 - 1 for row in range(50)])
        frames.settle(1 + n % 2, Span(0, n, 1))
    return frames


def seal_twice(store: SegmentStore, frames: FrameMaker) -> None:
    store.seal(frames.frames[:6], 7, frames.names(), lambda queue, partition: 0)
    frames.seal(store)


@pytest.mark.parametrize("seed", range(5))
def test_a_crash_at_any_write_leaves_the_old_manifest_or_the_new_one(seed):
    frames = workload()
    step = 0
    while True:
        step += 1
        disk = ForgetfulDisk(seed)
        disk.make_directory("segments")
        disk.crash_at(step)
        with suppress(PowerCut):
            seal_twice(SegmentStore(disk), frames)
        if not disk.fired:
            break
        survivor = disk.crash()
        store = SegmentStore(survivor)
        assert store.sealed_sequence in {0, 6, 12}
        assert store.verify() == []
        on_disk = {f"segments/{kind}/{n}" for kind in (MESSAGES, EVENTS) for n in survivor.list(f"segments/{kind}")}
        assert on_disk == {file.name for file in store.files()}
        seal_twice(store, frames)
        assert sealed_payloads(store) == expected_payloads(frames)
    assert step > 20


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_after_a_failed_write_sealing_goes_on_or_refuses_but_loses_nothing(error):
    frames = workload()
    step = 0
    refused = 0
    while True:
        step += 1
        disk = ForgetfulDisk(step)
        store = SegmentStore(disk)
        disk.fail_at(step, error)
        try:
            seal_twice(store, frames)
        except PenstockError:
            try:
                seal_twice(store, frames)
                assert sealed_payloads(store) == expected_payloads(frames)
                store.remove({})
            except OutcomeUnknown:
                refused += 1
                with pytest.raises(OutcomeUnknown):
                    store.remove({})
        if not disk.fired:
            break
        store = SegmentStore(disk.crash())
        seal_twice(store, frames)
        assert sealed_payloads(store) == expected_payloads(frames)
        assert store.verify() == []
    # Only the sync of the directory after the rename leaves it open which manifest is in force.
    assert refused == 2
