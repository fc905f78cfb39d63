"""Tasks that are cancelled or retried by hand."""

from __future__ import annotations

import pytest

from penstock import tasking
from penstock.delivery import admin
from penstock.delivery.entries import Note, TasksNoted
from penstock.errors import LeaseLost, TaskConflict
from penstock.model import MessageId, queue_options, to_datetime
from penstock.model_tasks import TaskState
from tests.support.accounts import assert_accounts
from tests.support.tasking import Rig, Run, id_of, names, task

DAY = 86_400


@pytest.fixture
def rig() -> Rig:
    return Rig()


def place(run: Run | int) -> MessageId:
    return MessageId("q", "0", run if isinstance(run, int) else run.receipt.offset)


def test_a_task_that_waits_is_cancelled_and_never_runs(rig):
    rig.submit(task("now"), task("later", delay_seconds=60.0))

    for offset, name in enumerate(("now", "later")):
        assert tasking.cancel(rig.shard, place(offset), id_of(name))[1] == ""

    rig.clock.advance(DAY)
    assert rig.lease() == []
    noted = [each for frame in rig.frames() for each in frame if isinstance(each, TasksNoted)]
    assert [(note.what, note.attempt) for each in noted for note in each.notes] == [(Note.CANCELLED, 0)] * 2
    assert_accounts(rig.shard)


def test_a_task_that_runs_is_cancelled_at_once_and_its_worker_can_only_finish_the_others(rig):
    rig.submit(task("a"), task("b"), task("c"))
    a, b, c = rig.lease(worker="w7")

    assert tasking.cancel(rig.shard, place(b), b.task_id)[1] == "w7"

    assert [type(each) for each in rig.finish(a.finish(), b.finish(), c.finish())] == [
        type(None), LeaseLost, type(None),
    ]  # fmt: skip
    rig.clock.advance(DAY)
    assert rig.lease() == []
    assert_accounts(rig.shard)


def test_a_cancelled_parent_takes_its_children_along_in_the_same_frame(rig):
    rig.submit(task("a"), task("b", "a"), task("c", "b"))
    before = len(rig.frames())

    tasking.cancel(rig.shard, place(0), id_of("a"))

    assert len(rig.frames()) == before + 1
    assert rig.held() == set()


def test_a_task_that_waits_for_others_is_cancelled_with_its_children(rig):
    rig.submit(task("a"), task("b", "a"), task("c", "b"))

    tasking.cancel(rig.shard, None, id_of("b"))

    assert rig.held() == set()
    assert rig.work_off() == ["a"]
    assert not rig.shard.core.tasks.places


def test_a_task_that_is_not_where_it_was_seen_must_be_looked_up_again(rig):
    rig.submit(task("a"))
    (a,) = rig.lease()
    rig.complete(a)

    for where in (place(a), None, place(7), MessageId("gone", "0", 0), MessageId("q", "gone", 0)):
        with pytest.raises(tasking.Moved):
            tasking.cancel(rig.shard, where, a.task_id)
    for state in (TaskState.FAILED, TaskState.DEAD, TaskState.CANCELLED):
        with pytest.raises(tasking.Moved):
            tasking.retry(rig.shard, place(a), a.task_id, state)


@pytest.mark.parametrize("tells_when", [True, False])
def test_a_dead_task_comes_back_from_among_the_dead_letters_with_all_its_attempts(rig, tells_when):
    rig.submit(*(task(f"t{n}", max_attempts=1) for n in range(20)))
    runs = rig.lease()
    for run in runs:
        rig.clock.advance(0.1)
        rig.finish(run.finish("failed", error="no"))
        if run is runs[11]:
            died_at = to_datetime(rig.clock.now())

    tasking.retry(rig.shard, place(11), id_of("t11"), TaskState.DEAD, died_at if tells_when else None)

    (again,) = rig.lease()
    assert (again.task_type, again.receipt.attempt) == ("t11", 1)
    assert rig.shard.core.by_name["q.dlq"].groups[0].backlog == 19
    rig.complete(again)
    assert_accounts(rig.shard)


def test_a_dead_task_comes_back_also_when_its_dead_letter_is_gone_or_there_never_was_one(rig):
    options = queue_options({"dead_letter": False})
    rig.shard.change(lambda now: admin.decide_create_queue(rig.shard.core, "none", options, now))
    rig.submit(task("a"), task("b", queue="none"))
    (a,), (b,) = rig.lease(), rig.lease("none")
    rig.finish(a.finish("dead"), b.finish("dead"))
    rig.shard.change(lambda now: admin.decide_purge(rig.shard.core.by_name["q.dlq"], now))

    tasking.retry(rig.shard, place(a), a.task_id, TaskState.DEAD)
    tasking.retry(rig.shard, MessageId("none", "0", 0), b.task_id, TaskState.DEAD)

    assert_accounts(rig.shard)
    assert (rig.work_off(), rig.work_off("none")) == (["a"], ["b"])
    assert_accounts(rig.shard)


def test_a_cancelled_task_comes_back_where_it_was(rig):
    rig.submit(task("a"), task("b"), task("c"))
    a, b, c = rig.lease()
    rig.finish(b.finish("failed", error="once"))
    tasking.cancel(rig.shard, place(b), b.task_id)
    rig.complete(a, c)

    tasking.retry(rig.shard, place(b), b.task_id, TaskState.CANCELLED)

    assert_accounts(rig.shard)
    (again,) = rig.lease()
    assert (again.task_type, again.receipt) == ("b", b.receipt._replace(nonce=again.receipt.nonce))
    rig.complete(again)
    assert_accounts(rig.shard)


def test_a_failed_task_need_not_wait_for_its_next_attempt(rig):
    rig.submit(task("a", max_attempts=2))
    (a,) = rig.lease()
    rig.finish(a.finish("failed", error="no", delay_seconds=3600.0))
    assert rig.lease() == []

    tasking.retry(rig.shard, place(a), a.task_id, TaskState.FAILED)

    assert_accounts(rig.shard)
    (again,) = rig.lease()
    assert again.receipt.attempt == 1
    rig.finish(again.finish("failed", error="no"))
    rig.clock.advance(3600)
    assert names(rig.lease()) == ["a"]
    assert_accounts(rig.shard)


@pytest.mark.parametrize("state", [TaskState.PENDING, TaskState.RUNNING, TaskState.COMPLETED, TaskState.BLOCKED])
def test_what_is_not_over_or_is_well_cannot_be_retried(rig, state):
    rig.submit(task("a"))

    with pytest.raises(TaskConflict, match=f"is {state}"):
        tasking.retry(rig.shard, place(0), id_of("a"), state)


def test_what_is_nowhere_any_more_cannot_be_retried(rig):
    rig.submit(task("a"), task("b"))
    tasking.cancel(rig.shard, place(0), id_of("a"))
    rig.shard.change(lambda now: admin.decide_trim(rig.shard.core.by_name["q"], {0: 1}, now))

    with pytest.raises(TaskConflict, match="no longer kept"):
        tasking.retry(rig.shard, place(0), id_of("a"), TaskState.CANCELLED)
    with pytest.raises(TaskConflict, match="waited for its parents"):
        tasking.retry(rig.shard, None, id_of("x"), TaskState.CANCELLED)
