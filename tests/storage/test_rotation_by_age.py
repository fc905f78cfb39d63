"""A journal file that is old enough is sealed although it is not full."""

from __future__ import annotations

import random

import pytest

import penstock
from penstock.client.handles import Penstock
from penstock.clock import ManualClock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.errors import InvalidField


def test_a_journal_file_is_sealed_when_it_is_old_enough(tmp_path):
    clock = ManualClock()
    session = Session(tmp_path, clock=clock, rng=random.Random(1), background=False, journal_file_seconds=60)
    assert session.keeper is not None
    with Penstock(BlockingSession(session)) as ps:
        ps.queue("mail").push(b"hello")

        clock.advance(59)
        session.keeper.tick()
        assert session.shard.store is not None
        assert session.shard.store.extents == []

        clock.advance(1)
        session.keeper.tick()
        assert [extent.count for extent in session.shard.store.extents] == [1]
        assert ps.queue("mail").lease()[0].payload == b"hello"


def test_an_age_that_is_none_is_refused(tmp_path):
    with pytest.raises(InvalidField, match="journal_file_seconds"):
        penstock.open(tmp_path, journal_file_seconds=-1)
    penstock.open(tmp_path, journal_file_seconds=60).close()
