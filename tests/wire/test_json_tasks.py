"""Tasks, workers and schedules in JSON: what a client writes a server reads, and the other way round."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from penstock import operations as ops
from penstock.errors import BadReceipt, InputError, LeaseLost
from penstock.model import Receipt
from penstock.model_tasks import (
    Finish,
    Run,
    ScheduleSpec,
    ScheduleView,
    TaskFilter,
    TaskPage,
    TaskState,
    TaskSubmission,
    TaskView,
    WorkerInfo,
    WorkerView,
)
from penstock.wire import json_tasks as json
from penstock.wire.json_operations import json_of
from penstock.wire.json_reader import Reader
from penstock.wire.json_shapes import Shape

ID = "0190f3a2-7b1c-7c00-8000-0123456789ab"
OTHER = "0190f3a2-7b1c-7c00-8000-0123456789ac"
AT = datetime(2030, 1, 31, 12, 0, 0, 250, tzinfo=UTC)
RECEIPT = Receipt("mail", "0", 7, 1, 0x6F2A90C44D1BE803)


def travelled(shape: Shape[Any], value: Any) -> Any:
    """What the other side decodes."""
    return Reader(shape.type).read(msgspec.json.encode(shape.write(value)))


FULL = TaskSubmission(
    task_id=ID,
    task_type="send",
    queue="mail",
    is_named=True,
    args=b'[1, "\xc3\xa4",  1.0e2]',
    kwargs=b'{"b":1,"a" : null}',
    timeout_seconds=1.5,
    depends_on=(OTHER,),
    on_parent_failure="run",
    takes="one",
    workflow="w",
    unique_key="u",
    unique_seconds=60.0,
    key="k",
    priority=200,
    delay_seconds=0.25,
    deliver_at=AT,
    ttl_seconds=9.0,
    max_attempts=3,
    headers={"a": "b"},
    trace="00-1",
)


@pytest.mark.parametrize("task", [FULL, TaskSubmission(task_id=ID, task_type="a", queue="b", is_named=True)])
def test_a_submission_arrives_as_it_was_with_its_arguments_byte_for_byte(task):
    assert json.submission_of(travelled(json.NEW_TASK, task), "unused") == task


def test_a_task_that_brings_no_id_gets_one_and_names_of_priorities_are_understood():
    body = Reader(json.NEW_TASK.type).read(b'{"task_type": "send", "priority": "high"}')

    task = json.submission_of(body, OTHER, trace="00-9")

    assert (task.task_id, task.is_named, task.queue, task.trace) == (OTHER, False, "default", "00-9")
    assert task.priority > 128


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"task_type": "a", "args": {}}', "tasks[3].args: not an array"),
        (b'{"task_type": "a", "kwargs": []}', "tasks[3].kwargs: not an object"),
        (b'{"task_type": "a", "unique_ms": 5}', "tasks[3].unique_ms: "),
        (b'{"task_type": "a", "deliver_at": "9999-12-31T23:59:59-12:00"}', "tasks[3].deliver_at: "),
    ],
)
def test_what_a_task_cannot_be_is_refused_by_its_place(body, message):
    with pytest.raises(InputError) as caught:
        json.submission_of(Reader(json.NEW_TASK.type).read(body), ID, "tasks[3].")

    assert caught.value.message.startswith(message)


@pytest.mark.parametrize(
    "finish",
    [
        Finish(receipt=RECEIPT, task_id=ID, outcome="completed", result=b'{"n" : 1}'),
        Finish(receipt=RECEIPT, task_id=ID, outcome="failed", error="Traceback …", delay_seconds=3.0),
    ],
)
def test_a_finish_arrives_as_it_was(finish):
    assert json.finish_of(travelled(json.FINISHED_RUN, finish)) == finish


def test_a_receipt_that_is_none_is_named_by_its_place():
    with pytest.raises(BadReceipt, match=r"finishes\[2\]\.receipt: "):
        json.finish_of(json.FINISHED_RUN.type(receipt="x", task_id=ID, outcome="dead"), "finishes[2].")


def test_results_of_finishes_hold_their_errors():
    results = msgspec.to_builtins(json.finish_results([ID, OTHER], [None, LeaseLost("gone")]))["results"]

    assert results[0] == {"task_id": ID, "status": "ok"}
    assert (results[1]["status"], results[1]["error"]["code"]) == ("error", "lease_lost")


FILTER = TaskFilter(
    states=(TaskState.DEAD, TaskState.FAILED),
    task_type="a",
    queue="q",
    worker="w",
    workflow="f",
    schedule="s",
    submitted_since=AT,
    submitted_until=AT,
    argument="kwargs.to=a@b.c",
    error_contains="boom",
    limit=7,
    cursor="c",
)


@pytest.mark.parametrize("filter", [FILTER, TaskFilter()])
def test_a_filter_arrives_as_it_was_in_a_url_and_in_a_body(filter):
    search = travelled(json.TASK_SEARCH, filter)
    written = msgspec.to_builtins(json.TASK_FILTER.write(filter)) | {"limit": filter.limit}
    texts = {name: value if isinstance(value, str) else str(value) for name, value in written.items()}
    if filter.states:
        texts |= {"status": ",".join(filter.states), "cursor": filter.cursor or ""}
    query = msgspec.convert(texts, json_of(ops.ListTasks).query, strict=False)

    assert json.TASK_SEARCH.read(search) == filter
    assert json_of(ops.ListTasks).read({}, query) == ops.ListTasks(filter)
    assert json.TASK_FILTER.read(travelled(json.TASK_FILTER, filter)) == msgspec.structs.replace(
        filter, limit=TaskFilter().limit, cursor=None
    )


TASK = TaskView(
    task_id=ID,
    task_type="send",
    queue="mail",
    state=TaskState.COMPLETED,
    priority=3,
    attempt=2,
    max_attempts=5,
    args=b'["\xc3\xa4",  1]',
    kwargs=b'{"a" : 1}',
    result=b"null",
    progress=b'{"done" : 0.5}',
    error="boom",
    worker="w-1",
    key="k",
    submitted_at=AT,
    due_at=AT,
    started_at=AT,
    finished_at=AT,
    timeout_seconds=1.5,
    depends_on=(OTHER,),
    workflow="w",
    schedule="s",
    message_id="mail/0/7",
    trace="00-1",
    runs=(Run(attempt=1, worker="w-0", started_at=AT, ended_at=AT, outcome="retried", error="boom"),),
)
BARE = TaskView(task_id=ID, task_type="a", queue="b", state=TaskState.PENDING, submitted_at=AT)


@pytest.mark.parametrize("task", [TASK, BARE])
def test_a_task_arrives_as_it_was(task):
    body = msgspec.json.encode(json.task_view(task))

    assert json.TASK.read(msgspec.json.decode(body, type=json.TASK.type)) == task


def test_null_is_a_result_and_none_is_not():
    done, waiting = (msgspec.json.decode(msgspec.json.encode(json.task_view(task))) for task in (TASK, BARE))

    assert done["result"] is None
    assert "result" not in waiting


def test_a_page_has_no_runs():
    page = msgspec.json.decode(msgspec.json.encode(json.tasks_view(TaskPage([TASK, BARE], "next"))))

    assert (page["cursor"], [task["status"] for task in page["tasks"]]) == ("next", ["completed", "pending"])
    assert not any("runs" in task for task in page["tasks"])


def test_a_worker_arrives_as_it_was():
    info = WorkerInfo(
        worker_id="w-1", host="h", pid=7, queues=("a",), task_types=("b",), concurrency=4, cpu_percent=1.5
    )  # fmt: skip
    shown = WorkerView(info=info, state="alive", first_seen_at=AT, last_heartbeat_at=AT)

    heartbeat = json_of(ops.HeartbeatWorker)
    body = {name: value for name, value in msgspec.to_builtins(info).items() if name != "worker_id"}

    assert heartbeat.read({"worker_id": "w-1"}, msgspec.convert(body, heartbeat.body)) == ops.HeartbeatWorker(info)
    assert json.WORKER.read(travelled(json.WORKER, shown), {"is_stopping": False}) == shown


def test_a_schedule_arrives_as_it_was():
    spec = ScheduleSpec(
        name="nightly",
        cron="0 3 * * *",
        timezone="Europe/Berlin",
        missed="catch_up",
        task_type="report",
        queue="mail",
        args=b"[ 1]",
        timeout_seconds=60.0,
        max_attempts=2,
        priority=1,
        key="k",
        is_paused=True,
        is_declared=True,
    )
    shown = ScheduleView(spec=spec, next_at=None, last_at=AT, last_task_id=ID)

    written = msgspec.json.decode(msgspec.json.encode(json.SCHEDULE.write(shown)))
    body = {name: written[name] for name in json_of(ops.SetSchedule).body.__struct_fields__}
    set_again = Reader(json_of(ops.SetSchedule).body).read(msgspec.json.encode(body))

    assert json.SCHEDULE.read(travelled(json.SCHEDULE, shown)) == shown
    assert json_of(ops.SetSchedule).read({"name": "nightly"}, set_again) == ops.SetSchedule(
        msgspec.structs.replace(spec, args=b"[1]")
    )
