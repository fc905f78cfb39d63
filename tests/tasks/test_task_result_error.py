"""A completed task whose result could not be stored: every view says why in a field of its own, and has no result."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from penstock.cli import shapes
from penstock.model_tasks import TaskState, TaskView, result_error_json
from penstock.server.grpc.generated import tasks_pb2
from penstock.server.grpc.transcoding import write
from penstock.wire.json_tasks import TASK, task_update, task_view

WHY = 'TypeError: "object" is not JSON – ü'


def a_task(result: bytes) -> TaskView:
    return TaskView(
        task_id="0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b",
        task_type="send",
        queue="mail",
        state=TaskState.COMPLETED,
        result=result,
        submitted_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


def test_json_has_the_reason_in_its_own_field_and_gives_it_back():
    view = a_task(result_error_json(WHY))
    shown = msgspec.json.encode(task_view(view))

    reported = msgspec.json.decode(shown)
    assert (reported["result_error"], "result" in reported) == (WHY, False)
    assert msgspec.json.decode(shown, type=TASK.type).result_error == WHY
    assert not {"result", "result_error"} & set(task_update(view))


@pytest.mark.parametrize("result", [b"null", b'{"a":1}', b'{"result_error":"mine"}', b'""'])
def test_a_result_has_no_reason_beside_it(result):
    view = a_task(result)
    shown = msgspec.json.encode(task_view(view))

    reported = msgspec.json.decode(shown)
    assert (reported["result"], "result_error" in reported) == (msgspec.json.decode(result), False)
    assert TASK.read(msgspec.json.decode(shown, type=TASK.type)) == view
    assert (write(tasks_pb2.Task, view).result, write(tasks_pb2.Task, view).result_error) == (result.decode(), "")
    assert (bytes(shapes.task(view)["result"]), shapes.task(view)["result_error"]) == (result, "")


def test_grpc_has_the_reason_in_its_own_field():
    reported = write(tasks_pb2.Task, a_task(result_error_json(WHY)))

    assert (reported.HasField("result"), reported.result_error) == (False, WHY)
