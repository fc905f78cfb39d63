"""A journal file that is old enough is sealed although it is not full."""

from __future__ import annotations

import random

import pytest

import penstock
from penstock.client.handles import Penstock
from penstock.clock import ManualClock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session, upkeep_of
from penstock.errors import InvalidField
from penstock.model import Freed


def test_a_journal_file_is_sealed_when_it_is_old_enough(tmp_path):
    clock = ManualClock()
    session = Session(
        tmp_path, clock=clock, rng=random.Random(1), background=False, upkeep=upkeep_of(journal_file_seconds=60)
    )
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


def test_a_journal_file_is_full_when_it_has_its_number_of_frames(tmp_path):
    with penstock.open(tmp_path, durability="os", journal_file_frames=1_000, sealing=False) as ps:
        for _ in range(2_500):
            ps.queue("mail").push(b"x")
        assert len(list((tmp_path / "journal").glob("*.log"))) == 3
        assert not list((tmp_path / "segments").rglob("*.parquet"))  # nobody asked for it
        assert ps.seal() == 3
        assert list((tmp_path / "segments").rglob("*.parquet"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"journal_file_bytes": 10},
        {"journal_file_frames": 1.5},
        {"compaction_seconds": -1},
        {"sealing": "no"},
    ],
)
def test_wrong_sizes_are_refused_by_name(tmp_path, wrong):
    with pytest.raises(InvalidField, match=next(iter(wrong))):
        penstock.open(tmp_path, **wrong)


def test_retention_waits_for_its_interval(tmp_path):
    clock = ManualClock()
    session = Session(tmp_path, clock=clock, background=False, upkeep=upkeep_of(compaction_seconds=60))
    assert session.keeper is not None
    looks: list[int] = []
    session.keeper.retain = lambda: looks.append(1) or Freed()  # type: ignore[method-assign, func-returns-value]
    for _ in range(13):
        session.keeper.tick()
        clock.advance(seconds=10)

    assert len(looks) == 3
    session.close()
