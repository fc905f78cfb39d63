"""The archive's files and its manifest, without Spark: what is copied, and what a crash anywhere leaves behind."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from contextlib import closing, suppress
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock import Message
from penstock import operations as ops
from penstock.clock import ManualClock
from penstock.errors import Damaged, InvalidField, QueueNotFound, StorageError
from penstock.history import OffsetRange, open_history
from penstock.model import to_datetime
from penstock.spark.pipelines import archive, archive_files, archive_store
from penstock.spark.pipelines.archive import Copier, check_files, contradictions, new_messages, rounds
from penstock.spark.pipelines.archive_store import (
    DAY,
    GRACE,
    HOME,
    MANIFEST,
    Archive,
    File,
    Manifest,
    Part,
    extended,
    generation_of,
    path_of,
    read_manifest,
)
from penstock.storage.schema import MESSAGES, SCHEMAS
from tests.support.operations import run_operation

NOW = 1_800_000_000_000_000


class Crash(BaseException):
    """The process is gone."""


class Crashing:
    """The disk's operations, of which one is the last."""

    NAMES = ("replace", "fsync", "unlink", "mkdir", "rmdir")

    def __init__(self, monkeypatch, at):
        self.left = at
        for name in self.NAMES:
            monkeypatch.setattr(os, name, self._counted(getattr(os, name)))

    def _counted(self, operation):
        def counted(*args, **kwargs):
            self.left -= 1
            if self.left < 0:
                raise Crash
            return operation(*args, **kwargs)

        return counted


class World:
    """A data directory and an archive of it, with work done at once."""

    def __init__(self, path):
        self.data, self.out = path / "data", path / "out"
        self.clock = ManualClock(NOW - NOW % DAY + DAY - 4_000_000)  # four seconds before midnight
        self.pushed: Counter[Any] = Counter()

    def push(self, count, queue="orders", *, seal=False, **options):
        with penstock.open(self.data, clock=self.clock, durability="os") as ps:
            if queue not in ps.queues():
                ps.create_queue(queue, partitions=2, **options)
            messages = [
                Message(payload=f"{sum(self.pushed.values())}-{n}".encode(), key=f"key {n}", headers={"n": str(n)})
                for n in range(count)
            ]
            for pushed, message in zip(ps.queue(queue).push_many(messages).ids, messages, strict=True):
                self.pushed[str(pushed), message.payload] += 1
            if seal:
                run_operation(ps._session, ops.Seal())
        self.clock.advance(6)

    def archive(self, *, compact=False, round_messages=7):
        archive = Archive(self.out)
        archive.open(NOW)
        history = open_history(self.data)
        moment = history.look()
        copier = Copier(archive, str(self.data), history, at_once, 2)
        new = new_messages(moment, archive.manifest, sorted(moment.queues))
        for share in rounds(new.ranges, round_messages):
            copier.copy(moment, share)
        if compact and (lots := archive_files.small_files(archive.manifest)):
            archive_files.join(archive, lots, at_once, NOW)
        history.close()
        return archive

    def archived(self):
        rows: Counter[Any] = Counter()
        for file in self.manifest().files:
            table = archive_files.read_whole(self.out, file)
            assert archive_files.parts_of(table) == file.parts
            for row in table.select(["queue", "partition", "offset", "payload"]).to_pylist():
                rows[f"{row['queue']}/{row['partition']}/{row['offset']}", row["payload"]] += 1
        return rows

    def stored(self):
        return {path.relative_to(self.out).as_posix() for path in self.out.glob("queue=*/*/*")}

    def manifest(self) -> Manifest:
        found = read_manifest(self.out)
        assert found is not None
        return found

    def named(self):
        return {file.path for file in self.manifest().files}

    def listed(self):
        """What a plain listing of all directories shows: each message, and how often."""
        rows: Counter[Any] = Counter()
        for path in self.out.rglob("*.parquet"):
            table = pq.read_table(path, partitioning=None)
            for row in table.select(["queue", "partition", "offset", "payload"]).to_pylist():
                rows[f"{row['queue']}/{row['partition']}/{row['offset']}", row["payload"]] += 1
        return rows


def looked_at(world):
    with closing(open_history(world.data)) as history:
        return history.look()


def at_once(pieces, work):
    return [result for piece in pieces for result in work(piece)]


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def test_an_archive_has_every_message_once_by_queue_and_day(world):
    world.push(10, seal=True)
    world.push(10)
    world.push(3, "mail")

    archive = world.archive()

    assert world.archived() == world.pushed
    assert world.stored() == world.named()
    assert len({file.date for file in archive.manifest.files if file.queue == "orders"}) == 2
    for file in archive.manifest.files:
        assert file.path.startswith(f"queue={file.queue}/date={file.date}/")
        assert pq.read_schema(world.out / file.path).equals(SCHEMAS[MESSAGES])


def test_a_second_run_copies_what_is_new_and_a_third_nothing(world):
    world.push(10, seal=True)
    before = world.archive().manifest
    world.push(5, seal=True)

    after = world.archive().manifest
    assert world.archived() == world.pushed
    assert [file for file in before.files if file not in after.files] == []

    assert world.archive().manifest == after


@pytest.mark.parametrize("compact", [False, True])
def test_a_crash_anywhere_leaves_neither_a_gap_nor_anything_twice(world, monkeypatch, compact):
    world.push(4, seal=True)
    world.archive()
    before = world.out
    world.push(4, seal=True)
    world.push(4)
    for operations in range(200):
        world.out = before.with_name(f"out-{operations}")
        shutil.copytree(before, world.out)
        with monkeypatch.context() as patched:
            crashing = Crashing(patched, operations)
            with suppress(Crash):
                world.archive(compact=compact)
        # Readers are not harmed by what is there, whatever it is: by the manifest or by the names of files alone.
        assert not world.archived() - world.pushed
        assert not world.listed() - world.pushed
        world.archive()
        assert world.archived() == world.pushed
        assert world.stored() == world.named()
        assert not any(world.out.glob("_penstock/stage/*"))
        if crashing.left >= 0:
            break
    assert 15 < operations < 199


def test_joined_files_hold_the_same_in_order_and_the_old_ones_go_later(world):
    for count in (9, 6, 7):
        world.push(count, seal=True)
        world.archive()
    small = archive_files.small_files(world.archive().manifest)
    archive = world.archive(compact=True)

    assert len(small) == 2
    assert len(archive.manifest.files) == 2
    assert world.archived() == world.pushed
    assert world.listed() == world.pushed
    old = {each.path for each in archive.manifest.replaced}
    assert all(archive_store.hidden(world.out, path).exists() for path in old)

    archive.open(NOW + GRACE + 1)
    assert world.stored() == {file.path for file in archive.manifest.files}
    assert archive.manifest.replaced == []
    assert not any(archive_store.hidden(world.out, path).exists() for path in old)


def test_a_queue_made_again_is_another_one(world):
    world.push(4)
    world.archive()
    with penstock.open(world.data, clock=world.clock) as ps:
        ps.delete_queue("orders")
    first, world.pushed = world.pushed, Counter()
    world.push(3)

    archive = world.archive()

    assert world.archived() == world.pushed + first
    assert len(archive.manifest.covered["orders"]) == 2


def test_what_retention_removed_before_it_was_archived_is_reported(world):
    world.push(4, retention_seconds=1, retention_drops_unread=True)
    world.archive()
    world.push(4, seal=True)
    with penstock.open(world.data, clock=world.clock) as ps:
        world.clock.advance(100)
        ps.compact()
    world.push(2)

    new = new_messages(looked_at(world), world.manifest(), ["orders"])
    world.archive()

    assert [(each.first, each.end) for each in new.lost] == [(2, 4), (2, 4)]
    assert world.manifest().ranges_of("orders", 1, "0") == [(0, 2), (4, 5)]


def test_progress_is_noted_as_a_group_or_it_is_said_why_not(world):
    world.push(4)
    world.push(2, "short", max_length=10)
    manifest = world.archive().manifest
    moment = looked_at(world)

    with penstock.open(world.data):
        (why,) = archive.commit_progress(str(world.data), moment, manifest, ["orders"])
    assert "progress was not committed" in why
    assert archive.commit_progress(str(world.data), moment, manifest, ["orders", "short"]) == []

    with penstock.open(world.data) as ps:
        assert [row.committed_offset for row in ps.queue("orders").groups()["archive"]] == [2, 2]
        ps.queue("short").lease(2).ack()
        ps.queue("short").push_many([b"x"] * 10)  # the archive is behind, and is no load


def test_an_archive_without_its_manifest_is_left_alone(world):
    world.push(4)
    world.archive()
    (world.out / HOME / MANIFEST).unlink()

    with pytest.raises(InvalidField, match="without a manifest"):
        world.archive()

    assert len(world.stored()) > 0


def test_files_of_others_and_of_other_generations_are_never_removed(world):
    world.push(4)
    archive = world.archive()
    folder = world.out / archive.manifest.files[0].path
    kept = [folder.with_name("mine.parquet"), folder.with_name("1-000099-0000.parquet")]
    left = folder.with_name(f"1-{archive.manifest.generation + 1:06d}-0000.parquet")
    for path in (*kept, left):
        path.write_bytes(b"")

    assert archive.open(NOW) == [left.relative_to(world.out).as_posix()]
    assert [path.exists() for path in kept] == [True, True]


def test_a_stage_that_the_tasks_do_not_share_is_refused(world):
    world.push(4)
    archive = world.archive()
    file = msgspec.structs.replace(archive.manifest.files[0], path="elsewhere.parquet")

    with pytest.raises(StorageError, match="is not in") as refused:
        archive.add([file], {})

    assert "share" in refused.value.hint


def test_an_archive_is_of_one_directory_only(tmp_path):
    for _ in range(2):
        archive = Archive(tmp_path)
        archive.open(NOW)
        archive.claim("one history")

    with pytest.raises(InvalidField, match="an archive of different data"):
        archive.claim("another")


def test_a_manifest_of_a_newer_format_is_refused(world):
    world.push(1)
    world.archive()
    path = world.out / HOME / MANIFEST
    path.write_bytes(path.read_bytes().replace(b'"format": 1', b'"format": 2'))

    with pytest.raises(InvalidField, match="format 2"):
        Archive(world.out).open(NOW)


def test_a_damaged_file_is_found(world):
    world.push(4)
    archive = world.archive()
    first, *others = archive.manifest.files
    data = bytearray((world.out / first.path).read_bytes())
    data[len(data) // 2] ^= 1
    (world.out / first.path).write_bytes(data)
    assert check_files(world.out, others, at_once) == []

    (found,) = check_files(world.out, archive.manifest.files, at_once)

    assert first.path in found
    with pytest.raises(Damaged, match=r"parquet.*checksum"):
        archive_files.read_whole(world.out, first)


def test_more_rows_than_offsets_contradict_each_other(world):
    world.push(4)
    manifest = world.archive().manifest
    assert contradictions(manifest) == []

    doubled = extended(manifest, manifest.files, {})

    assert len(contradictions(doubled)) == 2


def test_rounds_take_every_offset_once_in_order():
    wanted = [OffsetRange("a", "0", 5, 12), OffsetRange("a", "1", 0, 2), OffsetRange("b", "0", 0, 4)]

    shares = list(rounds(wanted, 4))

    assert [sum(each.end - each.first for each in share) for share in shares] == [4, 4, 4, 1]
    assert shares[1] == [OffsetRange("a", "0", 9, 12), OffsetRange("a", "1", 0, 1)]
    assert list(rounds([], 4)) == []


@pytest.mark.parametrize("run_rows", [1, 256])
def test_a_file_is_sorted_whatever_order_its_rows_came_in(tmp_path, monkeypatch, run_rows):
    monkeypatch.setattr(archive_files, "RUN_ROWS_MIN", run_rows)
    batches = [batch(1, 0, 3), batch(0, 5, 3), batch(0, 0, 5)]

    (file,) = archive_files.write_files(batches, tmp_path)

    table = pq.read_table(tmp_path / file.path)
    assert file.parts == [Part("0", 0, 8, 8), Part("1", 0, 3, 3)]
    assert table["payload"].to_pylist() == [f"0/{n}".encode() for n in range(8)] + [f"1/{n}".encode() for n in range(3)]
    assert table.schema.equals(SCHEMAS[MESSAGES])


def test_files_are_written_when_the_memory_is_used_up(tmp_path):
    batches = [batch(0, 10 * n, 10) for n in range(10)]

    files = list(archive_files.write_files(batches, tmp_path, bytes_max=7 * batches[0].nbytes // 2))

    assert [file.rows for file in files] == [40, 40, 20]


def test_an_offset_that_was_read_twice_is_refused(tmp_path):
    with pytest.raises(StorageError, match="twice"):
        list(archive_files.write_files([batch(0, 0, 3), batch(0, 2, 3)], tmp_path))


def test_names_of_files_tell_their_generation():
    file = File(
        path="", queue="a.b-c", incarnation=7, date="2030-01-31", rows=0, bytes=0, raw_bytes=0, crc32c=0, parts=[]
    )

    assert generation_of(path_of(file, 12, 3)) == 12
    assert generation_of("queue=a/date=2030-01-31/part-0001.parquet") is None


def test_only_days_that_are_wanted_are_opened():
    files = [
        File(path=day, queue="q", incarnation=1, date=day, rows=1, bytes=1, raw_bytes=1, crc32c=0, parts=[])
        for day in ("2027-01-14", "2027-01-15", "2027-01-16")
    ]
    manifest = Manifest(files=files, covered={"q": {}})

    def days(since, until, queues=None):
        return [file.date[-2:] for file in archive_store.chosen(manifest, queues, since, until)]

    noon = to_datetime(NOW)  # 2027-01-15 08:00
    assert days(None, None) == ["14", "15", "16"]
    assert days(noon, None) == ["15", "16"]
    assert days(None, noon, ["q*"]) == ["14", "15"]
    with pytest.raises(QueueNotFound, match="qq"):
        days(noon, noon, ["qq"])


def batch(partition, first, count):
    """Messages of one partition."""
    rows = [
        {
            "queue": "q",
            "incarnation": 1,
            "partition": str(partition),
            "partition_id": partition,
            "offset": offset,
            "pushed_at": to_datetime(NOW),
            "priority": 128,
            "payload": f"{partition}/{offset}".encode(),
            "content_type": "text/plain",
            "headers": [("a", "b")],
        }
        for offset in range(first, first + count)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMAS[MESSAGES])
