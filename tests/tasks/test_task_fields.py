"""What is told about tasks from outside is refused by the name of the field that is wrong."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from penstock import limits, validation
from penstock.errors import InputError, TooLarge
from penstock.model_tasks import ScheduleSpec, TaskFilter, TaskState, TaskSubmission, WorkerInfo

ID = "0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"
TASK = TaskSubmission(task_id=ID, task_type="mail.send", queue="mail")
SPEC = ScheduleSpec(name="nightly", cron="0 3 * * *", task_type="tidy", queue="chores")
WORKER = WorkerInfo(worker_id="host-1-abc")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("task_id", "7"),
        ("task_id", ID + "0"),
        ("task_id", None),
        ("task_type", ""),
        ("task_type", "a b"),
        ("task_type", "x" * 201),
        ("task_type", "naïve"),
        ("queue", "no/slashes"),
        ("queue", ""),
        ("args", b"{}"),
        ("args", b"[1,"),
        ("args", b"[NaN]"),
        ("args", b'["\xff"]'),
        ("args", b"[" * 100_000),
        ("args", "[]"),
        ("kwargs", b"[]"),
        ("kwargs", b"null"),
        ("timeout_seconds", 0),
        ("timeout_seconds", -1),
        ("timeout_seconds", float("nan")),
        ("depends_on", ("7",)),
        ("depends_on", ID),
        ("on_parent_failure", "cry"),
        ("takes", "some"),
        ("workflow", 7),
        ("workflow", "x" * 500),
        ("unique_key", "x" * 2000),
        ("unique_key", "\ud800"),
        ("unique_seconds", 5),
        ("key", 7),
        ("priority", 256),
        ("priority", "urgent"),
        ("delay_seconds", -1),
        ("delay_seconds", "5"),
        ("deliver_at", datetime(2030, 1, 1, tzinfo=UTC).replace(tzinfo=None)),
        ("ttl_seconds", 0),
        ("max_attempts", 0),
        ("headers", {"a": 1}),
        ("trace", "x" * 300),
    ],
)
def test_a_task_that_cannot_be_stored_is_refused_by_the_field(field: str, value: Any):
    with pytest.raises(InputError, match=rf"^tasks\[1\]\.{field}: "):
        validation.submissions([TASK, replace(TASK, **{field: value})])


def test_a_task_with_everything_passes_and_what_can_be_said_in_two_ways_is_made_one():
    full = replace(
        TASK,
        task_id=ID.upper(),
        args=b"[1, [2]]",
        kwargs=b'{"a": 1}',
        depends_on=(ID.upper(), ID),
        priority="high",
        unique_key="u",
        unique_seconds=1,
        deliver_at=datetime(2030, 1, 1, tzinfo=UTC),
        headers={"a": "b"},
    )

    (checked,) = validation.submissions([full])

    assert (checked.task_id, checked.depends_on, checked.priority) == (ID, (ID,), 192)
    assert validation.submission(TASK) is TASK


def test_too_many_tasks_and_parents_are_refused(monkeypatch):
    monkeypatch.setattr(limits, "tasks_submitted_max", 2)
    monkeypatch.setattr(limits, "task_parents_max", 1)

    with pytest.raises(TooLarge, match="tasks: 3 tasks"):
        validation.submissions([TASK] * 3)
    with pytest.raises(TooLarge, match=r"tasks\[0\].depends_on: 2 parents"):
        validation.submissions([replace(TASK, depends_on=(ID, ID))])
    with pytest.raises(InputError, match=r"tasks\[0\]: 'mail' is not a task"):
        validation.submissions(["mail"])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "a b"),
        ("cron", 5),
        ("timezone", None),
        ("missed", "maybe"),
        ("task_type", ""),
        ("queue", "a/b"),
        ("args", b"{}"),
        ("kwargs", b"[]"),
        ("timeout_seconds", 0),
        ("max_attempts", 0),
        ("priority", -1),
        ("key", 1),
        ("is_paused", "no"),
        ("is_declared", "no"),
    ],
)
def test_a_schedule_is_refused_by_the_field(field: str, value: Any):
    assert validation.schedule(SPEC) is SPEC
    with pytest.raises(InputError, match=f"^{field}: "):
        validation.schedule(replace(SPEC, **{field: value}))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("limit", 0),
        ("limit", 1001),
        ("limit", True),
        ("states", ("asleep",)),
        ("task_type", 7),
        ("argument", "x" * 5000),
        ("submitted_since", datetime(2030, 1, 1, tzinfo=UTC).replace(tzinfo=None)),
        ("submitted_until", "yesterday"),
    ],
)
def test_a_filter_is_refused_by_the_field(field: str, value: Any):
    with pytest.raises(InputError, match=f"^{field}: "):
        validation.task_filter(replace(TaskFilter(), **{field: value}))


def test_a_filter_may_name_states_and_times_as_text():
    wanted: Any = TaskFilter(states=("dead",), submitted_since="2030-01-01T00:00:00Z")  # type: ignore[arg-type]

    checked = validation.task_filter(wanted)

    assert checked.states == (TaskState.DEAD,)
    assert checked.submitted_since == datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("worker_id", "a b"),
        ("worker_id", ""),
        ("host", 7),
        ("host", "x" * 300),
        ("pid", -1),
        ("cpu_percent", float("nan")),
        ("memory_bytes", "much"),
        ("queues", "mail"),
        ("queues", ("a/b",)),
        ("task_types", ("a b",)),
        ("task_types", ("a",) * 10_001),
    ],
)
def test_a_worker_is_refused_by_the_field(field: str, value: Any):
    assert validation.worker(WORKER) is WORKER
    with pytest.raises(InputError, match=f"^{field}"):
        validation.worker(replace(WORKER, **{field: value}))
