"""Tasks with bytes, among their arguments and as their results, over every way in."""

from __future__ import annotations

import msgspec
import pytest

from penstock import limits
from penstock.envelopes import new_task_id
from penstock.errors import InvalidField, PenstockError, StateError, TooLarge
from penstock.model_tasks import TaskState, result_of_bytes
from tests.behaviour.steps import refuse
from tests.behaviour.task_steps import Office, Run

BYTES = bytes(range(256)) + b'{"}\n'
MARK = b'{"penstock:bytes":260}'
on_disk = pytest.mark.parametrize("way", ["file", "sealed", "forgetful"], indirect=True)


@pytest.fixture
def office(ps):
    return Office(ps)


def complete(office: Office, run: Run, result: bytes) -> PenstockError | None:
    (refusal,) = office.finish([msgspec.structs.replace(run.ending("completed"), result=result)])
    return refusal


def test_bytes_come_in_and_go_out_as_they_are(office):
    (task_id,) = office.submit(office.new(payload=BYTES, args=b"[ 7 ]", kwargs=b'{"a":1}'))
    assert office.task(task_id).args == b"[%b,7]" % MARK

    run = office.lease_one()
    assert (run.task_id, run.envelope.payload, bytes(run.envelope.args)) == (task_id, BYTES, b"[%b,7]" % MARK)
    assert complete(office, run, result_of_bytes(BYTES)) is None
    seen = office.wait(task_id)
    assert (seen.state, seen.result_bytes) == (TaskState.COMPLETED, BYTES)


def test_a_plain_push_of_a_task_with_bytes_is_the_same(office):
    task_id = office.enqueue(payload=BYTES, args=b"[%b]" % MARK, priority=9, key="k")
    run = office.lease_one()
    assert (run.task_id, run.envelope.payload, run.delivery.key) == (task_id, BYTES, "k")


def test_the_largest_payload_that_a_message_holds(office):
    room = limits.payload_bytes_max - 1000
    (task_id,) = office.submit(office.new(payload=bytes(room)))
    assert (office.lease_one().task_id, office.task(task_id).state) == (task_id, TaskState.RUNNING)
    most = limits.payload_bytes_max
    refuse(TooLarge, lambda: office.submit(office.new(payload=bytes(most))), "payload", "10,485,760")
    refuse(TooLarge, lambda: office.submit(office.new(payload=bytes(most + 1))), "payload", "10,485,760")


def test_no_bytes_at_all_are_bytes(office):
    (task_id,) = office.submit(office.new(payload=b""))
    run = office.lease_one()
    assert run.envelope.payload == b""
    assert complete(office, run, result_of_bytes(b"")) is None
    assert office.task(task_id).result_bytes == b""


def test_bytes_that_do_not_fit_their_arguments_are_refused(office):
    wrong = office.new(payload=b"123", args=b'[{"penstock:bytes":2}]')
    refuse(InvalidField, lambda: office.submit(wrong), "payload", "3 bytes", "need 2")


@pytest.mark.parametrize("result", [b'{"penstock:base64":"!!!"}', b'{"penstock:base64":"AAA=","a":1}'])
def test_a_result_that_only_looks_like_bytes_is_refused(office, result):
    task_id = office.enqueue()
    run = office.lease_one()
    assert isinstance(complete(office, run, result), InvalidField)
    assert office.task(task_id).state == TaskState.RUNNING


def test_a_result_over_the_limit_is_refused_by_the_name_of_the_setting(office):
    office.enqueue()
    run = office.lease_one()
    refusal = complete(office, run, result_of_bytes(bytes(limits.task_result_bytes_max + 1)))
    assert isinstance(refusal, TooLarge)
    assert "1,048,577 bytes are over task_result_bytes_max" in refusal.message
    assert complete(office, run, result_of_bytes(bytes(limits.task_result_bytes_max))) is None


@on_disk
def test_bytes_survive_a_restart_and_the_loss_of_the_index(office, way):
    (task_id, child) = office.submit(
        parent := office.new(payload=BYTES), office.new(depends_on=(parent.task_id,), takes="one", payload=b"\x00")
    )
    complete(office, office.lease_one(), result_of_bytes(BYTES))
    office = Office(way.restart())
    assert office.task(task_id).result_bytes == BYTES
    run = office.lease_one()
    assert (run.task_id, run.envelope.payload) == (child, b"\x00")


def test_the_id_of_a_task_with_bytes_belongs_to_its_type(office):
    named = new_task_id(0)
    office.submit(office.new("image", payload=BYTES, task_id=named, is_named=True))
    other = office.new("sound", payload=BYTES, task_id=named, is_named=True)
    refuse(StateError, lambda: office.submit(other), "task_id", "'image'")
