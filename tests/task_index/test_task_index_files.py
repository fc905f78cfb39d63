"""The task index's database: it may be lost, damaged, left behind or of another journal, and nobody notices."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest

from penstock.clock import ManualClock
from penstock.envelopes import new_task_id, tasks_batch
from penstock.errors import Closed, StorageError
from penstock.journal.file import FileJournal
from penstock.model import Outcome
from penstock.model_tasks import TaskFilter, TaskSubmission
from penstock.requests import LeaseRequest, Settling
from penstock.shard.opening import close_on_disk, open_on_disk
from penstock.storage.disk import RealDisk
from penstock.storage.task_rows import Identity, Key
from penstock.task_index import follower as follower_module
from penstock.task_index import queries
from penstock.task_index.database import NAME, DatabaseBroken
from penstock.task_index.index import TaskIndex


class Data:
    """A data directory, its shard and its task index."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock()
        self.open()

    def open(self) -> None:
        self.disk = RealDisk(self.path)
        self.shard, self.keeper = open_on_disk(
            self.disk, self.clock, random.Random(1), durability="os", journal_file_bytes=64 << 20
        )
        self.task_index = TaskIndex(self.shard, self.disk)
        self.keeper.identify_tasks = self.identify

    def identify(self, keys: Iterable[Key]) -> Mapping[Key, Identity]:
        self.task_index.catch_up()
        return self.task_index.identify(keys)

    def close(self) -> None:
        self.task_index.close()
        if not self.shard.is_closed:
            close_on_disk(self.shard, self.keeper, self.disk)

    def reopen(self) -> None:
        self.close()
        self.open()

    def submit(self, count: int = 1) -> list[str]:
        tasks = [TaskSubmission(task_id=new_task_id(0), task_type="t", queue="mail") for _ in range(count)]
        self.shard.push("mail", tasks_batch(tasks), None, None)
        return [task.task_id for task in tasks]

    def complete(self, count: int) -> None:
        reply, _ = self.shard.lease("mail", "default", LeaseRequest(count, consumer="w1"))
        self.shard.settle_lease(reply.nonce, Settling(Outcome.ACKED))

    def seal(self) -> None:
        self.shard.journal.rotate()
        self.keeper.seal()

    def states(self) -> dict[str, str]:
        self.task_index.catch_up()
        return {task.task_id: task.state.value for task in self.task_index.page(TaskFilter(limit=1000)).tasks}

    @property
    def position(self) -> int:
        assert self.task_index._follower is not None
        return self.task_index._follower.position


@pytest.fixture
def data(tmp_path):
    made = Data(tmp_path / "data")
    yield made
    made.close()


@pytest.fixture
def history(data):
    """Some of it sealed, some in the journal; and how all of it stands."""
    first, second, third = data.submit(3)
    data.complete(1)
    data.seal()
    data.complete(1)
    (fourth,) = data.submit()
    expected = {first: "completed", second: "completed", third: "pending", fourth: "pending"}
    assert data.states() == expected
    return expected


def test_it_goes_on_where_it_was(data, history, monkeypatch, caplog):
    position = data.position
    data.reopen()
    monkeypatch.setattr("penstock.task_index.index.rebuild", lambda *arguments: pytest.fail("rebuilt"))

    assert data.states() == history
    assert data.position >= position


@pytest.mark.parametrize("harm", ["missing", "empty", "cut", "noise", "another version", "half made"])
def test_a_database_that_cannot_be_used_is_rebuilt(data, history, harm):
    data.close()
    path = data.path / NAME
    if harm == "missing":
        path.unlink()
    elif harm == "empty":
        path.write_bytes(b"")
    elif harm == "cut":
        path.write_bytes(path.read_bytes()[:5000])
    elif harm == "noise":
        path.write_bytes(random.Random(5).randbytes(20_000))
    else:
        change_database(path, "PRAGMA user_version = 99" if harm == "another version" else "DELETE FROM meta")
    data.open()

    assert data.states() == history


def change_database(path: Path, statement: str) -> None:
    import sqlite3

    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()


def test_damage_that_shows_while_it_is_used_is_mended(data, history):
    data.close()
    path = data.path / NAME
    content = bytearray(path.read_bytes())
    for page in range(2, len(content) // 4096):
        content[page * 4096 : page * 4096 + 64] = bytes(range(64))
    path.write_bytes(content)
    data.open()

    assert data.states() == history


def test_an_old_copy_of_the_database_catches_up_or_is_rebuilt(data, history, tmp_path):
    data.close()
    shutil.copy(data.path / NAME, tmp_path / "old")
    data.open()
    (new,) = data.submit()
    data.close()
    shutil.copy(tmp_path / "old", data.path / NAME)
    data.open()
    assert data.states() == {**history, new: "pending"}

    (newer,) = data.submit()
    data.seal()
    data.seal()
    data.close()
    shutil.copy(tmp_path / "old", data.path / NAME)  # what it would need is not in the journal any more
    data.open()
    assert data.states() == {**history, new: "pending", newer: "pending"}


def test_a_journal_that_lost_its_end_is_not_mistaken_for_the_one_that_was_followed(data, tmp_path):
    data.submit(2)
    data.states()
    data.close()
    shutil.copytree(data.path, tmp_path / "before")
    data.open()
    lost = data.submit(5)
    assert set(lost) <= set(data.states())
    data.close()
    followed = (data.path / NAME).read_bytes()

    # The directory as if the power had gone before the last frames were on the disk; others have their numbers now.
    shutil.rmtree(data.path)
    shutil.copytree(tmp_path / "before", data.path)
    data.open()
    data.task_index.close()
    other = data.submit(5)
    data.close()
    (data.path / NAME).write_bytes(followed)
    data.open()

    assert set(other) <= set(data.states())
    assert not set(lost) & set(data.states())


def test_a_look_that_is_interrupted_leaves_the_last_whole_one(data, monkeypatch):
    data.submit(3)
    expected = data.states()
    position = data.position
    new = data.submit(20)
    real = follower_module.take_frame

    def interrupted(*arguments):
        real(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(follower_module, "take_frame", interrupted)
    with pytest.raises(KeyboardInterrupt):
        data.task_index.catch_up()
    monkeypatch.undo()
    assert data.position == position
    assert len(data.task_index.page(TaskFilter()).tasks) == len(expected)

    assert set(data.states()) == {*expected, *new}


def test_slices_are_each_whole(data, monkeypatch):
    monkeypatch.setattr(follower_module, "SLICE_CHANGES", 3)
    pauses: list[int] = []
    for _ in range(5):
        data.submit(4)
    data.complete(7)

    data.task_index.catch_up(between=lambda: pauses.append(data.position))

    assert len(pauses) >= 5
    assert pauses == sorted(pauses)
    assert list(data.states().values()).count("completed") == 7


def test_many_ask_at_once_while_work_goes_on(data):
    stop = threading.Event()

    def ask() -> int:
        seen = 0
        while not stop.is_set():
            count = len(data.states())
            assert count >= seen
            seen = count
        return seen

    with ThreadPoolExecutor(3) as threads:
        asked = [threads.submit(ask) for _ in range(3)]
        for _ in range(30):
            data.submit(5)
            data.complete(3)
        stop.set()
        for each in asked:
            each.result(60)
    states = list(data.states().values())
    assert (states.count("completed"), states.count("pending")) == (90, 60)


def test_a_closed_task_index_says_so(data):
    data.submit()
    data.states()
    data.task_index.close()

    with pytest.raises(Closed):
        data.task_index.catch_up()


def test_a_task_index_whose_directory_cannot_be_written_is_a_storage_error(data):
    (data.path / "catalogue").write_bytes(b"a file is in the way")
    data.submit()

    with pytest.raises(StorageError):
        data.task_index.catch_up()


# Reading the journal while it is written.


def test_a_reader_goes_from_file_to_file_and_over_large_frames(tmp_path):
    from penstock.storage.directory import open_directory

    disk = RealDisk(tmp_path / "data")
    journal = FileJournal(disk, open_directory(disk), file_bytes=40 << 20)
    reader = journal.reader()
    sent: list[bytes] = []

    def append(size: int) -> None:
        sent.append(random.Random(len(sent)).randbytes(8) * (size // 8))
        journal.append_written(sent[-1])

    for size in (8, 4096, 1 << 20, 30 << 20, 64, 20 << 20, 8):
        append(size)
        found = list(reader.read(len(sent) - 1, len(sent)))
        assert [(sequence, bytes(data)) for sequence, _, data in found] == [(len(sent), sent[-1])]
    assert len(journal.full_files()) == 1

    again = journal.reader()
    assert [bytes(data) for _, _, data in again.read(2, 7)] == sent[2:7]
    assert [bytes(data) for _, _, data in again.read(0, 3)] == sent[:3]
    assert list(again.read(7, 7)) == []
    journal.remove_file(journal.full_files()[0])
    append(16)
    assert [sequence for sequence, _, _ in reader.read(7, 8)] == [8]
    with pytest.raises(FileNotFoundError):
        list(again.read(2, 4))
    journal.close()
    disk.close()


@pytest.mark.parametrize(("where", "ends"), [("memory", pytest.raises(Closed)), ("file", nullcontext())])
def test_one_that_is_closed_while_it_is_asked_answers_or_says_so(data, where, ends, monkeypatch):
    (task_id,) = data.submit()
    task_index = TaskIndex(data.shard, data.disk if where == "file" else None)
    task_index.catch_up()
    rows_of = queries.rows_of

    def closed_meanwhile(*arguments):
        rows = list(rows_of(*arguments))
        task_index.close()
        return rows

    monkeypatch.setattr(queries, "rows_of", closed_meanwhile)

    with ends:
        assert task_index.find(task_id) is not None


def test_one_that_is_rebuilt_while_it_is_asked_answers_all_the_same(data, monkeypatch):
    (task_id,) = data.submit()
    data.task_index.catch_up()
    rows_of = queries.rows_of

    def damaged_meanwhile(*arguments):
        monkeypatch.setattr(queries, "rows_of", rows_of)
        data.task_index._start_over(DatabaseBroken("somebody else has found it damaged"))
        return rows_of(*arguments)

    monkeypatch.setattr(queries, "rows_of", damaged_meanwhile)

    assert data.task_index.find(task_id) is not None


def test_one_that_is_closed_while_its_listeners_are_notified_says_so(data):
    task_index = TaskIndex(data.shard)
    task_index.catch_up()
    task_index.on_change(lambda views: task_index.close())
    task_index.on_change(lambda views: pytest.fail("there is nothing to read any more"))
    data.submit()

    with pytest.raises(Closed):
        task_index.catch_up()
