"""Operations on encrypted queues look inside messages, dead letters and tasks; what they look for is in no file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock import operations as ops
from penstock.client.handles import Penstock
from penstock.delivery.entries import OperationSet
from penstock.envelopes import new_task_id
from penstock.errors import InvalidField
from penstock.model import Message
from penstock.model_tasks import (
    OperationAction,
    OperationState,
    OperationView,
    TaskFilter,
    TaskState,
    TaskSubmission,
)
from penstock.storage.sealed_frames import blank_operation
from tests.access.test_encrypted_hashes import cut_off
from tests.access.test_encryption import CANARY, inside, leaks, opened, seal


def finished(ps: Penstock, view: OperationView) -> OperationView:
    while view.state is OperationState.RUNNING:
        view = ps.operations.get(view.operation_id)
    return view


def with_letters(ps: Penstock, **options: Any) -> Any:
    """A queue with dead letters, the error of every other one a canary."""
    queue = ps.create_queue("q", **options)
    queue.push_many([Message(payload=json.dumps({"n": number})) for number in range(6)])
    for number, delivery in enumerate(queue.lease(6)):
        delivery.reject("other" if number % 2 else f"failed at {CANARY}")
    return queue


def kept(ps: Penstock, path: Path, end: str) -> Path:
    """A copy of the directory as a crash leaves it, with the operation in a checkpoint or in the journal alone."""
    if end == "checkpoint":
        inside(ps).checkpoint()
    return cut_off(path)


@pytest.mark.parametrize("end", ["checkpoint", "journal"])
def test_dead_letters_are_chosen_by_error_and_edited_and_a_restart_goes_on(tmp_path, end):
    with opened(tmp_path, audit=True) as ps:
        queue = with_letters(ps, encryption=True)
        began = finished(ps, queue.dlq.begin_redrive(error_contains=CANARY, edit={"to": CANARY}, canary=1))
        assert (began.state, began.matched, began.done) == (OperationState.WAITING, 3, 1)
        assert began.letters is not None
        assert began.letters.error_contains == CANARY
        cut = kept(ps, tmp_path, end)
    assert leaks(tmp_path) == []
    for path in (cut, tmp_path):
        with opened(path, audit=True) as ps:
            assert ps.operations.get(began.operation_id).letters == began.letters
            done = finished(ps, ps.operations.continue_(began.operation_id))
            assert (done.state, done.done, done.failed) == (OperationState.DONE, 3, 0)
            payloads = [json.loads(delivery.payload) for delivery in ps.queue("q").lease(10)]
            assert sorted(payload["n"] for payload in payloads) == [0, 2, 4]
            assert all(payload["to"] == CANARY for payload in payloads)
            inside(ps).checkpoint()
            ps.seal()
        assert leaks(path) == []


@pytest.mark.parametrize("filter", [{"key": CANARY}, {"text": CANARY}, {"headers": {"to": CANARY}}], ids=str)
def test_messages_are_replayed_by_key_text_and_header(tmp_path, filter):
    with opened(tmp_path, audit=True) as ps:
        queue = ps.create_queue("q", encryption=True)
        queue.push_many([Message(payload=CANARY, key=CANARY, headers={"to": CANARY}), Message(payload="x", key="y")])
        view = finished(ps, queue.replay(**filter))
        assert (view.state, view.done) == (OperationState.DONE, 1)
        inside(ps).checkpoint()
        assert leaks(tmp_path) == []
    assert leaks(tmp_path) == []


def with_tasks(ps: Penstock) -> list[str]:
    """Ids of two tasks in an encrypted queue; the argument and the error of the first are canaries."""
    ps.create_queue("q", encryption=True)
    ids = [new_task_id(now) for now in (1, 2)]
    for task_id, word in zip(ids, (CANARY, "other"), strict=True):
        submission = TaskSubmission(
            task_type="mail", queue="q", kwargs=json.dumps({"to": word}).encode(), task_id=task_id
        )
        ps.session.execute(ops.SubmitTasks([submission]))
    for delivery in ps.queue("q").lease(2):
        delivery.reject(f"failed: {delivery.payload.decode()}")
    return ids


@pytest.mark.parametrize(
    "filter", [{"argument": CANARY}, {"argument": f"kwargs.to={CANARY}"}, {"error_contains": CANARY}]
)
def test_tasks_are_found_and_retried_by_argument_and_error(tmp_path, filter):
    with opened(tmp_path, audit=True) as ps:
        first, second = with_tasks(ps)
        for queue in ("q", None):
            page = ps.session.execute(ops.ListTasks(TaskFilter(queue=queue, **filter)))
            assert [task.task_id for task in page.tasks] == [first]
        view = ps.session.execute(ops.BeginOperation(OperationAction.RETRY, TaskFilter(queue="q", **filter)))
        view = finished(ps, view)
        assert (view.matched, view.done) == (1, 1)
        assert ps.session.execute(ops.FindTask(first)).state is TaskState.PENDING
        assert ps.session.execute(ops.FindTask(second)).state is TaskState.DEAD
        inside(ps).checkpoint()
        assert leaks(tmp_path) == []
    assert leaks(tmp_path) == []


def test_a_filter_that_could_not_be_encrypted_is_refused(tmp_path):
    with opened(tmp_path) as ps:
        with_tasks(ps)
        ps.delete_queue("q")
        for filter in (TaskFilter(queue="q", argument=CANARY), TaskFilter(queue="q", error_contains=CANARY)):
            with pytest.raises(InvalidField, match="there is no queue 'q', and if it was encrypted"):
                ps.session.execute(ops.BeginOperation(OperationAction.PURGE, filter))
        ps.session.execute(ops.BeginOperation(OperationAction.PURGE, TaskFilter(queue="q", task_type="mail")))
    assert leaks(tmp_path) == []


@pytest.mark.parametrize("end", ["checkpoint", "journal"])
def test_an_operation_whose_filter_was_erased_touches_nothing(tmp_path, end):
    with opened(tmp_path) as ps:
        queue = with_letters(ps, encryption=True)
        began = finished(ps, queue.dlq.begin_discard(error_contains=CANARY, canary=1))
        if end == "checkpoint":
            inside(ps).checkpoint()
        ring = inside(ps).key_ring
        assert ring is not None
        ring.erase(inside(ps).shard.number_of("q") or 0)
        cut = cut_off(tmp_path)
    with opened(cut) as ps:
        states = {view.operation_id: view.state for view in ps.operations.list()}
        assert states.get(began.operation_id, OperationState.FAILED) is OperationState.FAILED
        assert len(ps.queue("q").dlq.list()) == 5


def test_an_operation_from_before_is_encrypted_with_its_queue(tmp_path):
    with opened(tmp_path) as ps:
        queue = with_letters(ps)
        began = finished(ps, queue.dlq.begin_discard(signature="0123abcd", key=f"key {CANARY}"))
        queue.purge()
        ps.update_queue("q", encryption=True)
        inside(ps).checkpoint()
        for _ in range(2):  # the file of the journal that held it goes
            ps.queue("other").push(b"x")
            seal(ps)
            inside(ps).checkpoint()
        assert f"key {CANARY}" in str(ps.operations.get(began.operation_id).letters)
        assert leaks(tmp_path, f"key {CANARY}") == []


def test_what_is_in_clear_of_an_operation_is_over_and_names_its_queue_alone():
    filter = b'{"queue": "q", "letters": {"error_contains": "secret"}, "edit": "{}"}'
    running = OperationSet("a", "redrive", filter, OperationSet.RUNNING, 1, 1, queue=3, errors=(("x", "y", "secret"),))
    blank = blank_operation(running)
    assert blank.state == OperationSet.FAILED
    assert b"secret" not in repr(blank).encode()
    assert blank.filter == b'{"queue":"q"}'
