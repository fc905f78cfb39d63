"""A restored directory is another history: whoever kept offsets of the first one notices."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import msgspec
import pytest

import penstock
from penstock.backup import BackupSet, DirectoryDestination, open_target, restore
from penstock.errors import InvalidField, LeaseLost, StorageError
from penstock.history import open_history
from penstock.history.broker_files import local_files
from penstock.model import Outcome
from penstock.replies import HistoryInfo
from penstock.requests import Settling
from penstock.spark.location import open_planned
from penstock.spark.pipelines.archive_store import Archive
from penstock.spark.stream_offsets import begin, check
from penstock.storage.directory import (
    FORMAT_ENCRYPTED,
    FORMAT_RESTORED,
    MARKER,
    Marker,
    read_identity,
    read_whole_marker,
    write_marker,
)
from penstock.storage.disk import RealDisk


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """A directory, and what was restored from its backup."""
    with penstock.open(tmp_path / "first") as ps:
        ps.queue("q").push_many([b"1", b"2"])
        ps.backup(tmp_path / "set")
        ps.queue("q").push(b"only in the first")
    restore(BackupSet(open_target(str(tmp_path / "set"))), DirectoryDestination(RealDisk(tmp_path / "second")))
    with penstock.open(tmp_path / "second") as ps:
        ps.queue("q").push(b"only in the second")
    return tmp_path / "first", tmp_path / "second"


def test_a_streaming_query_and_its_tasks_refuse_the_other_history(pair):
    first, second = pair
    with closing(open_history(str(first))) as history:
        started = begin(history.identity, "query", history.look().queues, {("q", "0"): 3})
        planned_on = history.identity
    with closing(open_history(str(second))) as history:
        assert history.look().queue("q").incarnation == started.queues["q"].incarnation  # the queue does not tell
        with pytest.raises(InvalidField, match="over another directory or broker"):
            check(started, history.identity, {"q": True})
    with pytest.raises(StorageError):
        open_planned(str(second), planned_on)


def test_an_archive_of_the_first_history_takes_nothing_of_the_second(pair, tmp_path):
    archive = Archive(tmp_path / "archive")
    archive.claim(read_identity(RealDisk(pair[0])))
    with pytest.raises(InvalidField, match="an archive of different data"):
        archive.claim(read_identity(RealDisk(pair[1])))


def test_a_reader_does_not_take_the_other_directory_for_that_of_its_broker(pair):
    marker = read_whole_marker(RealDisk(pair[0]))
    assert local_files(HistoryInfo(marker.shard, str(pair[0]), "here", 1)) is not None
    assert local_files(HistoryInfo(marker.shard, str(pair[1]), "here", 1)) is None


def test_a_receipt_of_the_first_history_settles_nothing_in_the_second(pair):
    with penstock.open(pair[0]) as ps:
        receipt = ps.queue("q").lease(1)[0].proof
    with penstock.open(pair[1]) as ps:
        held = ps.queue("q").lease(1)
        with pytest.raises(LeaseLost):
            ps.session.settle([receipt], Settling(Outcome.ACKED))
        held.ack()


def test_the_marker_keeps_the_incarnation_and_older_versions_refuse_it(pair):
    disk = RealDisk(pair[1])
    before = read_whole_marker(disk)
    write_marker(disk, bytes.fromhex(before.shard), FORMAT_ENCRYPTED)

    assert read_whole_marker(disk) == before
    assert before.format == FORMAT_RESTORED
    assert before.shard == read_whole_marker(RealDisk(pair[0])).shard
    disk.write_whole(MARKER, msgspec.json.encode(Marker(99, before.shard)))
    with pytest.raises(StorageError, match="newer"):
        penstock.open(pair[1])
