"""Messages of gRPC are made from structs by the names of their fields: no field may be missed in silence."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, get_args, get_origin

import msgspec
import pytest
from google.protobuf import message_factory

from penstock import operations as ops
from penstock.errors import InvalidField
from penstock.model import QueueStats
from penstock.model_tasks import Finish, Submitted, TaskFilter, TaskState, TaskSubmission, TaskView, WorkerInfo
from penstock.server.grpc import transcoding
from penstock.server.grpc.calls import QUEUES, TASKS
from penstock.server.grpc.generated import queues_pb2, tasks_pb2
from penstock.server.grpc.transcoding import read, write
from penstock.wire.json_protocols import Claimed

SERVICES = ((queues_pb2, "Queues", QUEUES), (tasks_pb2, "Tasks", TASKS))
CALLS = {
    f"{service}.{name}": (module.DESCRIPTOR.services_by_name[service].methods_by_name[name], simple)
    for module, service, table in SERVICES
    for name, simple in table.items()
}
WRITTEN = [
    (tasks_pb2.Task, TaskView),
    (tasks_pb2.SubmittedTask, Submitted),
    (tasks_pb2.ClaimTasksResponse, Claimed),
    (queues_pb2.GetStatsResponse, QueueStats),
]
READ: list[tuple[Any, Any, set[str]]] = [
    (tasks_pb2.NewTask, TaskSubmission, {"run_despite_parent_failure"}),
    (tasks_pb2.FinishedRun, Finish, {"result_bytes"}),
    (tasks_pb2.TaskFilter, TaskFilter, set()),
    (tasks_pb2.WorkerInfo, WorkerInfo, set()),
    (tasks_pb2.RunProgress, ops.NoteProgress, set()),
]


def struct_in(hint: Any) -> Any:
    """The struct in `list[Struct]`, in `Mapping[str, Struct]` and the like; None when there is none."""
    for part in get_args(hint):
        if (found := struct_in(part)) is not None:
            return found
    is_named_tuple = isinstance(hint, type) and hasattr(hint, "_fields")
    is_struct = isinstance(hint, type) and (issubclass(hint, msgspec.Struct) or hasattr(hint, "__dataclass_fields__"))
    return hint if is_struct or is_named_tuple else None


def unwritten(descriptor: Any, struct: Any) -> Iterator[str]:
    """Fields of a message, and of those in it, that nothing of the struct is written to."""
    kind: Any = message_factory.GetMessageClass(descriptor)
    attributes = {name: attribute for name, attribute, _ in transcoding._writers(kind, struct)}
    for field in descriptor.fields:
        if field.name not in attributes:
            yield f"{descriptor.name}.{field.name}"
        elif field.message_type is not None and not transcoding._is_map(field):
            inner = struct_in(transcoding._hints(struct).get(attributes[field.name]))
            if inner is not None:
                yield from unwritten(field.message_type, inner)


def unread(descriptor: Any, struct: Any) -> set[str]:
    """Fields of a request that no field of the struct, or of a struct in it, is read from."""
    names = set()
    for name in struct.__struct_fields__:
        names.add(transcoding._field_name(struct, name))
        inner = transcoding._hints(struct)[name]
        if transcoding._is_struct(inner):
            names |= {transcoding._field_name(inner, field) for field in inner.__struct_fields__}
    return {field.name for field in descriptor.fields} - names


@pytest.mark.parametrize("name", CALLS)
def test_every_field_of_a_request_is_read(name):
    method, simple = CALLS[name]

    assert unread(method.input_type, simple.operation) == set()


@pytest.mark.parametrize("name", [name for name in CALLS if name != "Queues.ListGroups"])  # its answer is by hand
def test_every_field_of_an_answer_is_written(name):
    method, simple = CALLS[name]
    result, answer = simple.operation.spec.result, method.output_type
    if get_origin(result) is list:
        (field,) = answer.fields
        result, answer = get_args(result)[0], field.message_type

    if answer is not None and (struct := struct_in(result)) is not None:
        assert list(unwritten(answer, struct)) == []
    else:
        assert answer is None or len(answer.fields) <= 1


@pytest.mark.parametrize(("kind", "struct"), WRITTEN, ids=lambda value: value.__name__)
def test_every_field_of_other_messages_is_written(kind, struct):
    assert list(unwritten(kind.DESCRIPTOR, struct)) == []


@pytest.mark.parametrize(("kind", "struct", "by_hand"), READ, ids=lambda value: getattr(value, "__name__", ""))
def test_every_field_of_other_messages_is_read(kind, struct, by_hand):
    assert unread(kind.DESCRIPTOR, struct) == by_hand


def test_a_filter_comes_back_as_it_went():
    filter = TaskFilter(
        states=(TaskState.DEAD, TaskState.FAILED),
        task_type="send",
        queue="mail",
        submitted_since=datetime(2030, 1, 31, 12, tzinfo=UTC),
        error_contains="",
    )

    assert read(TaskFilter, write(tasks_pb2.TaskFilter, filter)) == filter


def test_a_refusal_names_the_field_and_its_place():
    task = tasks_pb2.NewTask(task_type="send", takes=7)  # type: ignore[arg-type]

    with pytest.raises(InvalidField, match=r"^tasks\[3\]\.takes: 7 is not one of none, one, all"):
        read(TaskSubmission, task, "tasks[3].", defaults={"task_id": "", "queue": "mail"})


def test_limits_beside_a_filter_belong_to_it():
    request = queues_pb2.RedriveRequest(queue="mail", limit=5, per_second=2.5)

    redrive = read(ops.Redrive, request, defaults={"limit": 100})

    assert (redrive.filter.limit, redrive.rate) == (5, 2.5)
    assert read(ops.Redrive, queues_pb2.RedriveRequest(queue="mail"), defaults={"limit": 7}).filter.limit == 7
