"""The sealed table of tasks, and the task index rebuilt from it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from penstock import Penstock
from penstock import operations as ops
from penstock.clock import ManualClock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.errors import InvalidField
from penstock.history import Limits, open_history
from penstock.model_tasks import TaskFilter, TaskView
from penstock.storage.schema import SCHEMAS, TASKS
from penstock.task_index.database import NAME
from tests.behaviour.task_steps import Office
from tests.support.operations import run_operation


class Archive(Office):
    """An office whose directory is sealed by hand."""

    def __init__(self, path: Path, clock: ManualClock) -> None:
        self.path = path
        self.clock = clock
        super().__init__(self._opened())

    def _opened(self) -> Penstock:
        return Penstock(BlockingSession(Session(self.path, clock=self.clock, background=False, durability="os")))

    def reopen(self) -> None:
        self.ps.close()
        self.ps = self._opened()
        self.session = self.ps._session

    def rows(self, task_id: str | None = None) -> list[dict[str, Any]]:
        files = sorted(file.name for file in self.session.session.shard.store.files() if file.table == TASKS)
        found = [row for name in files for row in pq.read_table(self.path / name).to_pylist()]
        return [row for row in found if task_id in (None, row["task_id"])]

    def everything(self) -> list[TaskView]:
        page = self.confirmed(run_operation(self.session, ops.ListTasks(TaskFilter(limit=1000))))
        return [self.task(view.task_id) for view in page.tasks]

    def start_over(self) -> None:
        """Lose the task index."""
        self.ps.close()
        (self.path / NAME).unlink()
        self.reopen()


@pytest.fixture
def office(tmp_path):
    made = Archive(tmp_path / "data", ManualClock())
    yield made
    made.ps.close()


def test_a_life_is_one_row_for_each_change(office):
    task_id = office.enqueue(
        "mail.send",
        args=b'["a@b.c"]',
        kwargs=b'{"html":true}',
        priority=3,
        key="k",
        max_attempts=4,
        timeout_seconds=2.5,
    )
    office.lease_one(worker="w1").finish("failed", error="Traceback: boom", delay_seconds=5)
    office.clock.advance(6)
    run = office.lease_one(worker="w2")
    run.progress(50)
    run.finish(result={"sent": 1})
    run_operation(office.session, ops.Seal())

    rows = office.rows()

    assert {row["task_id"] for row in rows} == {task_id}
    assert [row["state"] for row in rows] == ["pending", "failed", "running", "completed"]
    assert [row["task_type"] for row in rows] == ["mail.send"] * 4
    first, failed, reported, done = rows
    assert (first["args"], first["kwargs"], first["priority"], first["key"]) == ('["a@b.c"]', '{"html":true}', 3, "k")
    assert (first["max_attempts"], first["timeout_seconds"], first["offset"]) == (4, 2.5, 0)
    assert (failed["attempt"], failed["worker"], failed["error"]) == (1, "w1", "Traceback: boom")
    assert (failed["due_at"] - failed["at"]).total_seconds() == 5
    assert reported["progress"] == "50"
    assert (done["attempt"], done["worker"], done["result"], done["outcome"]) == (2, "w2", '{"sent":1}', "acked")
    assert (done["at"] - done["started_at"]).total_seconds() == 0
    assert done["args"] is None


def test_what_ends_in_another_file_is_known_as_the_task_it_is(office):
    task_id = office.enqueue()
    office.ps.queue("mail").push(b"no task")
    run_operation(office.session, ops.Seal())
    office.lease_one().finish(result=1)
    office.ps.queue("mail").lease()[0].ack()
    run_operation(office.session, ops.Seal())

    assert [(row["task_id"], row["state"]) for row in office.rows()] == [(task_id, "pending"), (task_id, "completed")]
    assert len({row["number"] for row in office.rows()}) == 1


def test_a_queue_without_tasks_has_no_table_and_no_task_index(office):
    office.ps.queue("plain").push(b"no task")
    office.ps.queue("plain").lease()[0].ack()
    run_operation(office.session, ops.Seal())

    assert office.rows() == []
    assert not (office.path / NAME).exists()


def test_the_task_index_is_rebuilt_as_it_was(office):
    office.enqueue("done", kwargs=b'{"n":1}', workflow="w")
    office.lease_one().finish(result={"ok": True})
    office.enqueue("dies", max_attempts=2)
    office.lease_one(worker="w1").finish("failed", error="once", delay_seconds=0)
    office.lease_one(worker="w2").finish("dead", error="twice")
    parent, child = office.submit(
        parent := office.new("parent"), office.new("child", depends_on=(parent.task_id,), takes="one")
    )
    cancelled = office.enqueue("unwanted", delay_seconds=60)
    office.cancel(cancelled)
    run_operation(office.session, ops.Seal())
    office.enqueue("later", delay_seconds=3600, key="k")
    run_operation(office.session, ops.Seal())
    office.enqueue("unsealed")
    running = office.lease_one(worker="w9")
    before = office.everything()
    assert len(before) == 7

    # The process goes on: only the database is lost.
    task_index = office.session.session.tasks.task_index
    task_index.close()
    (office.path / NAME).unlink()
    office.session.session.tasks._task_index = None

    assert office.everything() == before
    assert office.state(running.task_id) == "running"
    assert office.task(child).depends_on == (parent,)

    running.finish(result="p")
    assert office.state(child) == "pending"


def test_brought_back_tasks_and_their_runs_are_rebuilt(office):
    task_id = office.enqueue(max_attempts=1)
    office.lease_one(worker="w1").finish("failed", error="first life")
    assert office.state(task_id) == "dead"
    run_operation(office.session, ops.Seal())
    office.retry(task_id)
    office.lease_one(worker="w2").finish(result=2)
    run_operation(office.session, ops.Seal())
    before = office.everything()
    assert [(run.worker, run.outcome) for run in before[0].runs] == [("w1", "dead"), ("w2", "acked")]

    office.start_over()

    assert office.everything() == before


def test_rows_stay_as_long_as_the_task_index_keeps_tasks_although_the_messages_are_gone(office):
    office.ps.create_queue("mail", retention_seconds=60)
    office.enqueue()
    office.lease_one().finish(result=1)
    run_operation(office.session, ops.Seal())
    office.clock.advance(3600)
    office.enqueue()
    office.lease_one().finish(result=2)
    run_operation(office.session, ops.Seal())
    run_operation(office.session, ops.Compact())
    assert [message.id.offset for message in office.ps.queue("mail").read(0, 0, limit=10)] == [1]
    assert len(office.rows()) == 4

    office.clock.advance(8 * 86_400)
    office.enqueue()
    run_operation(office.session, ops.Seal())
    run_operation(office.session, ops.Compact())

    assert [row["state"] for row in office.rows()] == ["pending"]


def test_files_of_tasks_are_verified_and_listed_again(office, tmp_path):
    from penstock.storage.disk import RealDisk
    from penstock.storage.doctor import examine
    from penstock.storage.segment_audit import rebuild_manifest

    office.enqueue()
    run_operation(office.session, ops.Seal())
    store = office.session.session.shard.store
    (name,) = [file.name for file in store.files() if file.table == TASKS]
    rebuilt = rebuild_manifest(RealDisk(office.path), store.sealed_sequence).manifest
    assert rebuilt.files[name] == store.manifest.files[name]
    office.ps.close()
    assert examine(RealDisk(office.path)).is_sound

    path = office.path / name
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 4
    path.write_bytes(data)
    (finding,) = examine(RealDisk(office.path)).findings

    assert finding.file == name
    assert "history of tasks" in finding.what


def test_the_table_has_the_columns_it_is_documented_with():
    page = (Path(__file__).parent.parent.parent / "docs" / "formats" / "segments.md").read_text()
    section = page.partition("## `tasks`")[2].partition("\n## ")[0]

    assert [name for name in SCHEMAS[TASKS].names if f"| `{name}` |" not in section] == []


def test_arguments_that_are_not_text_in_utf8_are_kept_as_far_as_they_go(office):
    envelope = b'{"task_id":"' + office.new().task_id.encode() + b'","task_type":"t","args":["\xff"]}'
    from penstock.batch import Batch
    from penstock.model import ContentType, Message

    batch = Batch.build([Message(payload=envelope, content_type=ContentType.TASK), Message(payload=b"x")])
    office.session.push("mail", batch, None, None)
    run_operation(office.session, ops.Seal())

    assert [msgspec.json.decode(row["args"]) for row in office.rows()] in ([], [["�"]])


# From outside.


def seen(office: Archive, columns: tuple[str, ...] = ("task_type", "state", "worker")) -> list[tuple[Any, ...]]:
    with closing(open_history(str(office.path))) as history:
        moment = history.look()
        slices = history.plan_changes(moment, "tasks", ["mail"])
        return [tuple(row.values()) for batch in history.read(slices, columns) for row in batch.to_pylist()]


def test_history_has_every_change_once_sealed_or_not(office):
    def life(task_type: str) -> list[tuple[Any, ...]]:
        return [(task_type, "pending", None), (task_type, "completed", "w1")]

    office.enqueue("a")
    office.lease_one().finish(result=1)
    assert seen(office) == life("a")  # all of it in the journal

    run_operation(office.session, ops.Seal())
    assert seen(office) == life("a")

    office.enqueue("b")
    run_operation(office.session, ops.Seal())
    office.lease_one().finish(result=2)  # its submission is in a segment
    office.ps.queue("mail").push(b"no task")
    office.ps.queue("mail").lease()[0].ack()
    assert seen(office) == life("a") + life("b")

    run_operation(office.session, ops.Seal())
    assert seen(office) == life("a") + life("b")


def test_history_of_tasks_is_limited_by_time(office):
    office.enqueue("a")
    office.clock.advance(60)
    middle = office.clock.now()
    office.enqueue("b")

    with closing(open_history(str(office.path))) as history:
        moment = history.look()
        for limits, expected in ((Limits(since=middle), ["b"]), (Limits(until=middle), ["a"])):
            slices = history.plan_changes(moment, "tasks", ["mail"], limits)
            found = [row for batch in history.read(slices, ["task_type"]) for row in batch["task_type"].to_pylist()]
            assert found == expected


def test_what_is_sealed_between_planning_and_reading_is_found_where_it_is(office):
    office.enqueue("a")
    with closing(open_history(str(office.path))) as history:
        slices = history.plan_changes(history.look(), "tasks", ["mail"])
        office.enqueue("later")
        office.clock.advance(1)
        run_operation(office.session, ops.Seal())

        found = [row for batch in history.read(slices, ["task_type"]) for row in batch["task_type"].to_pylist()]

    assert found[0] == "a"


def test_a_finish_names_the_task_of_its_receipt_also_when_that_is_sealed(office):
    ids = office.push(*(office.new(args=b"[%d]" % number) for number in range(20)))
    run_operation(office.session, ops.Seal())
    office.reopen()
    runs = office.lease()
    assert [run.task_id for run in runs] == ids

    for run, other in zip(runs, ids[1:] + ids[:1], strict=True):
        (refused,) = office.finish([msgspec.structs.replace(run.ending("completed"), task_id=other)])
        assert isinstance(refused, InvalidField)
        assert f"{other} is not the task of receipt" in refused.message
    assert office.finish([run.ending("completed") for run in runs]) == [None] * 20


def test_a_worker_is_believed_when_the_row_group_is_no_longer_at_hand(office):
    office.enqueue()
    run_operation(office.session, ops.Seal())
    office.reopen()
    run = office.lease_one()
    office.session.session.shard.store._batches.drop(lambda key: True)

    run.finish(result="done")

    assert office.task(run.task_id).result == b'"done"'
