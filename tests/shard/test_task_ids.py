"""An id belongs to one task: the same one again is nothing new, another type under it is refused."""

from __future__ import annotations

import uuid

import pytest

import penstock
from penstock import operations as ops
from penstock.envelopes import task_message, tasks_batch
from penstock.errors import StateError
from penstock.model_tasks import TaskSubmission
from tests.support.broker_process import QUIET, Served
from tests.support.operations import run_operation

CONFLICT = "is that of a task of type 'send', not 'other'"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with Served(tmp_path_factory.mktemp("broker"), *QUIET) as broker:
        yield broker


@pytest.fixture(params=["memory", "tcp"])
def app(request, served):
    app = penstock.App() if request.param == "memory" else penstock.App(served.url(request.param))
    yield app
    app.close()


def two(app):
    @app.task
    def send(n: int = 0) -> int:
        return n

    @app.task
    def other(n: int = 0) -> int:
        return -n

    return send, other


@pytest.mark.parametrize("is_submitted", [False, True])
@pytest.mark.parametrize("is_submitted_again", [False, True])
def test_an_id_of_another_task_type_is_refused(app, is_submitted, is_submitted_again):
    send, other = two(app)
    task_id, n = str(uuid.uuid4()), uuid.uuid4().int % 2**40  # unique ones are so by their arguments
    first = {"unique": True} if is_submitted else {}
    again = {"unique": True} if is_submitted_again else {}

    job = send.options(task_id=task_id, **first).enqueue(n)
    assert send.options(task_id=task_id, **again).enqueue(n + 1).id == job.id
    with pytest.raises(StateError, match=CONFLICT) as caught:
        other.options(task_id=task_id, **again).enqueue(n)

    assert caught.value.code == "conflict"
    assert job.info().task_type == "send"


def test_a_task_that_waits_or_was_withdrawn_keeps_its_id_too():
    with penstock.App() as app:
        send, other = two(app)
        parent = send.enqueue(1)
        task_id = str(uuid.uuid4())
        child = send.options(task_id=task_id, depends_on=[parent], takes="none").enqueue(2)
        for _ in range(2):
            with pytest.raises(StateError, match=CONFLICT):
                other.options(task_id=task_id, unique=True).enqueue(3)
            child.cancel()


def submission(task_id: str, task_type: str) -> TaskSubmission:
    return TaskSubmission(task_id=task_id, task_type=task_type, queue="q", is_named=True)


def test_a_batch_with_one_such_task_stores_nothing(tmp_path):
    known, new = str(uuid.uuid4()), str(uuid.uuid4())
    with penstock.open(tmp_path) as ps:
        ps.session.push_one("q", task_message(submission(known, "send")), None)
        for tasks in (
            [submission(new, "send"), submission(known, "other")],
            [submission(new, "send"), submission(new, "other")],
        ):
            with pytest.raises(StateError, match="is that of a task of type"):
                ps.session.push("q", tasks_batch(tasks), None, None)
        assert ps.queue("q").stats().ready == 1


def test_the_type_of_a_task_is_known_when_it_is_in_a_segment(tmp_path):
    known = str(uuid.uuid4())
    with penstock.open(tmp_path) as ps:
        ps.session.push_one("q", task_message(submission(known, "send")), None)
        ps.seal()
    with penstock.open(tmp_path) as ps:
        ps.session.push_one("q", task_message(submission(known, "send")), None)
        with pytest.raises(StateError, match=CONFLICT):
            ps.session.push_one("q", task_message(submission(known, "other")), None)
        with pytest.raises(StateError, match=CONFLICT):
            run_operation(ps.session, ops.SubmitTasks([submission(known, "other")]))
        assert ps.queue("q").stats().ready == 1
