"""Files of events and of changes of tasks: the same, however few rows are in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.delivery.entries import Push, Span
from penstock.envelopes import new_task_id, tasks_batch
from penstock.model_tasks import TaskSubmission
from penstock.storage import parquet, task_rows
from penstock.storage.manifest import EventsOf, SegmentFile
from penstock.storage.schema import EVENTS, TASKS
from penstock.storage.segments import SegmentStore
from tests.support.forgetful import ForgetfulDisk
from tests.support.frames import SECOND, START, FrameMaker

ROW_GROUP_ROWS = 4


@pytest.fixture
def disk():
    return ForgetfulDisk()


@pytest.fixture
def store(disk):
    return SegmentStore(disk)


@pytest.fixture(autouse=True, params=[1, 3, 1_000])
def at_once(request, monkeypatch):
    """Rows that are made a table together."""
    for module in (parquet, task_rows):
        monkeypatch.setattr(module, "EVENT_ROWS_AT_ONCE", request.param)
    monkeypatch.setattr(parquet, "ROW_GROUP_ROWS", ROW_GROUP_ROWS)
    return request.param


def file_of(store: SegmentStore, kind: str) -> SegmentFile:
    (file,) = (file for file in store.files() if file.table == kind)
    return file


def reader_of(disk: ForgetfulDisk, file: SegmentFile) -> pq.ParquetFile:
    return pq.ParquetFile(pa.BufferReader(disk.read(file.name)))


def sizes_of(reader: pq.ParquetFile) -> list[int]:
    return [reader.metadata.row_group(number).num_rows for number in range(reader.num_row_groups)]


def test_events_are_sorted_by_queue_then_as_they_happened(disk, store):
    frames = FrameMaker()
    queues = [2, 10, 1, 2, 2, 10, 2, 1, 2, 3]
    for number in {*queues}:
        frames.push(number, [b"x"] * len(queues))
    begun = frames.now
    for offset, number in enumerate(queues):
        frames.settle(number, Span(0, offset, 1))

    frames.seal(store)

    file = file_of(store, EVENTS)
    reader = reader_of(disk, file)
    found = [(row["incarnation"], row["first_offset"]) for row in reader.read().to_pylist()]
    assert found == [(1, 2), (1, 7), (10, 1), (10, 5), (2, 0), (2, 3), (2, 4), (2, 6), (2, 8), (3, 9)]
    assert sizes_of(reader) == [4, 4, 2]
    last = {number: begun + (offset + 1) * SECOND for offset, number in enumerate(queues)}
    assert file.events == [EventsOf(number, queues.count(number), last[number]) for number in (1, 2, 3, 10)]


def test_changes_of_tasks_are_written_while_the_journal_is_read(disk, store, at_once, monkeypatch):
    frames = FrameMaker()
    frames.push(1, [b"no task"])
    ids = [new_task_id(START) for _ in range(20)]
    for offset, task_id in enumerate(ids, 1):
        batch = tasks_batch([TaskSubmission(task_id=task_id, task_type="t", queue="queue-1")])
        frames.add(Push(1, START + offset, [(0, 1, offset)], batch.data, None, (0, 0, 0)))
    written: list[int] = []
    left: list[int] = []
    add = parquet.SegmentWriter.add

    def spy(self: parquet.SegmentWriter, table: pa.Table) -> None:
        written.append(len(table))
        add(self, table)

    def read() -> Iterator[tuple[int, memoryview]]:
        for number, frame in enumerate(frames.frames):
            left.append(number - 1 - sum(written))  # changes that were read, and are not in a row group
            yield frame

    monkeypatch.setattr(parquet.SegmentWriter, "add", spy)
    store.seal(read(), frames.end_sequence, frames.names(), lambda queue, partition: 0)

    file = file_of(store, TASKS)
    reader = reader_of(disk, file)
    assert reader.read()["task_id"].to_pylist() == ids
    assert sizes_of(reader) == [ROW_GROUP_ROWS] * 5
    assert file.events == [EventsOf(1, 20, START + 20)]
    assert max(left) < ROW_GROUP_ROWS + min(at_once, len(ids))


def test_a_queue_with_nothing_to_tell_has_no_such_files(store):
    frames = FrameMaker()
    frames.push(1, [b"a"])

    frames.seal(store)

    assert [file.table for file in store.files() if file.table in (EVENTS, TASKS)] == []
