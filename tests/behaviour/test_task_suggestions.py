"""Values that complete a search of tasks, over every way in."""

from __future__ import annotations

import pytest

from penstock import operations as ops
from penstock.errors import InvalidField
from penstock.model_tasks import ScheduleSpec, TaskSubmission
from penstock.requests import LeaseRequest

IDS = [f"0190a1b2-c3d4-7e5f-8a9b-{number:012x}" for number in range(10)]


def submit(ps, number: int, task_type: str, queue: str = "mail", **options) -> None:
    task = TaskSubmission(task_id=IDS[number], task_type=task_type, queue=queue, **options)
    ps.session.execute(ops.SubmitTasks([task]))


def suggested(ps, field: str, prefix: str = "", limit: int = 20) -> dict[str, int | None]:
    found = ps.session.execute(ops.SuggestTasks(field, prefix, limit))
    assert [each.value for each in found] == sorted(each.value for each in found) or field == "status"
    return {each.value: each.count for each in found}


def test_values_of_each_field_are_suggested_by_what_they_begin_with(ps):
    submit(ps, 0, "send_email", workflow="wf-1", kwargs=b'{"to": "a", "count": 1}')
    submit(ps, 1, "send_email", workflow="wf-2")
    submit(ps, 2, "send_sms", "sms", kwargs='{"größe": {"inner": 1}}'.encode())
    nightly = ScheduleSpec(name="nightly", task_type="report", queue="reports", cron="0 3 * * *")
    ps.session.execute(ops.SetSchedule(nightly))
    ps.session.execute(ops.RunSchedule("nightly"))
    ps.queue("plain").push(b"no task")

    assert suggested(ps, "task_type", "send") == {"send_email": 2, "send_sms": 1}
    assert suggested(ps, "task_type") == {"report": 1, "send_email": 2, "send_sms": 1}
    assert suggested(ps, "task_type", limit=1) == {"report": 1}
    assert suggested(ps, "queue") == {"mail": 2, "reports": 1, "sms": 1}
    assert suggested(ps, "workflow", "wf") == {"wf-1": 1, "wf-2": 1}
    assert suggested(ps, "workflow", "wf-2") == {"wf-2": 1}
    assert suggested(ps, "schedule") == {"nightly": 1}
    assert suggested(ps, "status", "c") == {"completed": None, "cancelled": None}
    assert suggested(ps, "kwargs") == {"kwargs.count": None, "kwargs.größe": None, "kwargs.to": None}
    assert suggested(ps, "kwargs", "kwargs.t") == {"kwargs.to": None}
    assert suggested(ps, "worker") == {}  # types of tasks are no workers


def test_hostile_prefixes_find_nothing_and_break_nothing(ps):
    submit(ps, 0, "a.b_c", workflow="it's")

    for field in ("task_type", "queue", "worker", "workflow", "schedule", "kwargs", "status"):
        for prefix in ("' OR 1=1 --", "%", "_", "a.b%", "\x00", "\U0010ffff" * 50):
            assert suggested(ps, field, prefix) == {}
    assert suggested(ps, "task_type", "a.b_") == {"a.b_c": 1}
    assert suggested(ps, "workflow", "it'") == {"it's": 1}


def test_what_is_no_field_or_limit_is_refused_by_name(ps):
    with pytest.raises(InvalidField, match=r"field: .*task_type"):
        ops.SuggestTasks("argument")
    with pytest.raises(InvalidField, match="limit"):
        ops.SuggestTasks("queue", "", 101)
    with pytest.raises(InvalidField, match="prefix"):
        ops.SuggestTasks("queue", "a" * 70_000)


def test_a_broker_without_tasks_suggests_nothing(ps):
    assert [suggested(ps, field) for field in ("task_type", "queue", "worker", "workflow", "kwargs")] == [{}] * 5


def test_many_tasks_of_one_value_are_not_counted(ps):
    many = [
        TaskSubmission(task_id=f"0190a1b2-c3d4-7e5f-8a9b-{number:012x}", task_type="t", queue="mail")
        for number in range(1001)
    ]
    ps.session.execute(ops.SubmitTasks(many[:1000]))
    assert suggested(ps, "task_type") == suggested(ps, "task_type", "t") == {"t": 1000}
    ps.session.execute(ops.SubmitTasks(many[1000:]))
    assert suggested(ps, "task_type") == {"t": None}
    ps.session.lease("mail", "default", LeaseRequest(1), 0.0)
    assert suggested(ps, "queue") == {"mail": None}
