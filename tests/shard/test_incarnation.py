"""A queue that is deleted never comes back under another name: ids of queues are used once."""

from __future__ import annotations

import random

import pytest

from penstock import operations as ops
from penstock.client.handles import Penstock
from penstock.clock import ManualClock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from tests.support.forgetful import ForgetfulDisk
from tests.support.operations import run_operation


def opened(disk: ForgetfulDisk) -> Penstock:
    return Penstock(
        BlockingSession(
            Session(
                None, clock=ManualClock(), rng=random.Random(1), background=False, disk=disk, journal_file_bytes=1 << 18
            )
        )
    )


@pytest.mark.parametrize("sealed", [False, True])
def test_a_new_queue_never_shows_messages_of_a_deleted_one_after_a_restart(sealed):
    disk = ForgetfulDisk()
    with opened(disk) as ps:
        ps.queue("first").push(b"first")
        ps.queue("old").push(b"old")
        if sealed:
            run_operation(ps._session, ops.Seal())
        ps.delete_queue("old")
    with opened(disk) as ps:
        ps.queue("new").push(b"new")

    with opened(disk) as ps:
        assert [message.payload for message in ps.queue("new").read()] == [b"new"]
        assert ps.queue("new").lease()[0].payload == b"new"
