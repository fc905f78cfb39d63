"""The id of a task belongs to the queue that used it first: nobody else can put a task of theirs in its place."""

from __future__ import annotations

import pytest

from penstock.errors import TaskConflict
from tests.behaviour.task_steps import Office


@pytest.fixture
def office(ps) -> Office:
    return Office(ps)


def test_a_task_of_another_queue_does_not_take_an_id_over(office):
    theirs = office.enqueue("send", queue="mail", args=b"[1]")

    office.submit(office.new("fake", queue="mine", task_id=theirs))
    run = office.lease(queue="mine")[0]
    run.finish(result={"forged": True})

    view = office.task(theirs)
    assert (view.task_type, view.queue, str(view.state), view.result) == ("send", "mail", "pending", None)
    office.lease(queue="mail")[0].finish(result={"sent": 1})
    assert (str(office.task(theirs).state), office.task(theirs).result) == ("completed", b'{"sent":1}')


def test_an_id_that_waits_for_its_parents_in_another_queue_is_refused(office):
    parent = office.enqueue("first", queue="mail")
    held = office.new("second", queue="mail", depends_on=(parent,))
    office.submit(held)

    with pytest.raises(TaskConflict, match="another queue"):
        office.submit(office.new("second", queue="mine", task_id=held.task_id))


def test_a_task_that_is_held_elsewhere_under_the_same_id_cancels_nothing(office):
    theirs = office.enqueue("send", queue="mail")
    parent = office.enqueue("parent", queue="mine")
    office.submit(office.new("fake", queue="mine", task_id=theirs, depends_on=(parent,)))

    office.cancel(parent)  # and with it the one that waits for it

    assert (str(office.task(theirs).state), office.task(theirs).queue) == ("pending", "mail")
