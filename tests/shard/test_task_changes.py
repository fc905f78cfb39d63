"""Tasks that are cancelled or retried by hand."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock import limits
from penstock.delivery import admin
from penstock.delivery.entries import Note, TaskFreed, TasksNoted, decode_record
from penstock.delivery.snapshot import encode_tasks, restore_tasks, take_tasks
from penstock.delivery.tasks import Tasks, WithdrawnTask, WithdrawnTasks
from penstock.errors import LeaseLost, TaskConflict
from penstock.model import MessageId, queue_options, to_datetime
from penstock.model_tasks import TaskState, id_text
from penstock.shard.tasks import changes, submit
from penstock.shard.tasks import changes as task_changes
from tests.support.accounts import assert_accounts
from tests.support.task_rig import Rig, Run, found, id_of, names, task

DAY = 86_400


@pytest.fixture
def rig() -> Rig:
    return Rig()


def place(run: Run | int) -> MessageId:
    return MessageId("q", "0", run if isinstance(run, int) else run.receipt.offset)


def test_a_task_that_waits_is_cancelled_and_never_runs(rig):
    rig.submit(task("now"), task("later", delay_seconds=60.0))

    for offset, name in enumerate(("now", "later")):
        assert task_changes.cancel(rig.shard, place(offset), id_of(name))[1] == ""

    rig.clock.advance(DAY)
    assert rig.lease() == []
    noted = [each for frame in rig.frames() for each in frame if isinstance(each, TasksNoted)]
    assert [(note.what, note.attempt) for each in noted for note in each.notes] == [(Note.CANCELLED, 0)] * 2
    assert_accounts(rig.shard)


def test_a_task_that_runs_is_cancelled_at_once_and_its_worker_can_only_finish_the_others(rig):
    rig.submit(task("a"), task("b"), task("c"))
    a, b, c = rig.lease(worker="w7")

    assert task_changes.cancel(rig.shard, place(b), b.task_id)[1] == "w7"

    assert [type(each) for each in rig.finish(a.finish(), b.finish(), c.finish())] == [
        type(None), LeaseLost, type(None),
    ]  # fmt: skip
    rig.clock.advance(DAY)
    assert rig.lease() == []
    assert_accounts(rig.shard)


def test_a_cancelled_parent_takes_its_children_along_in_the_same_frame(rig):
    rig.submit(task("a"), task("b", "a"), task("c", "b"))
    before = len(rig.frames())

    task_changes.cancel(rig.shard, place(0), id_of("a"))

    assert len(rig.frames()) == before + 1
    assert rig.held() == set()


def test_a_task_that_waits_for_others_is_cancelled_with_its_children(rig):
    rig.submit(task("a"), task("b", "a"), task("c", "b"))

    task_changes.cancel(rig.shard, None, id_of("b"))

    assert rig.held() == set()
    assert rig.work_off() == ["a"]
    assert not rig.shard.core.tasks.positions


def test_a_task_that_is_not_where_it_was_seen_must_be_looked_up_again(rig):
    rig.submit(task("a"))
    (a,) = rig.lease()
    rig.complete(a)

    for where in (place(a), None, place(7), MessageId("gone", "0", 0), MessageId("q", "gone", 0)):
        with pytest.raises(submit.Moved):
            task_changes.cancel(rig.shard, where, a.task_id)
    for state in (TaskState.FAILED, TaskState.DEAD, TaskState.CANCELLED):
        with pytest.raises(submit.Moved):
            task_changes.retry(rig.shard, place(a), a.task_id, state)


@pytest.mark.parametrize("tells_when", [True, False])
def test_a_dead_task_comes_back_from_among_the_dead_letters_with_all_its_attempts(rig, tells_when):
    rig.submit(*(task(f"t{n}", max_attempts=1) for n in range(20)))
    runs = rig.lease()
    for run in runs:
        rig.clock.advance(0.1)
        rig.finish(run.finish("failed", error="no"))
        if run is runs[11]:
            died_at = to_datetime(rig.clock.now())

    task_changes.retry(rig.shard, place(11), id_of("t11"), TaskState.DEAD, died_at if tells_when else None)

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

    task_changes.retry(rig.shard, place(a), a.task_id, TaskState.DEAD)
    task_changes.retry(rig.shard, MessageId("none", "0", 0), b.task_id, TaskState.DEAD)

    assert_accounts(rig.shard)
    assert (rig.work_off(), rig.work_off("none")) == (["a"], ["b"])
    assert_accounts(rig.shard)


@pytest.mark.parametrize("dies_again", [False, True])
def test_a_dead_letter_that_somebody_else_deals_with_meanwhile_makes_the_caller_look_again(
    rig, monkeypatch, dies_again
):
    rig.submit(task("a"))
    (a,) = rig.lease()
    rig.finish(a.finish("dead"))
    find = changes._letter_of

    def found_and_dealt_with(*arguments: Any) -> Any:
        letter = find(*arguments)
        rig.shard.redrive("q", [letter], 0.0, 0.0)
        for run in rig.lease() if dies_again else ():
            rig.finish(run.finish("dead"))
        return letter

    monkeypatch.setattr(changes, "_letter_of", found_and_dealt_with)

    with pytest.raises(submit.Moved):
        task_changes.retry(rig.shard, place(a), a.task_id, TaskState.DEAD)

    assert_accounts(rig.shard)


def test_a_cancelled_task_comes_back_where_it_was(rig):
    rig.submit(task("a"), task("b"), task("c"))
    a, b, c = rig.lease()
    rig.finish(b.finish("failed", error="once"))
    task_changes.cancel(rig.shard, place(b), b.task_id)
    rig.complete(a, c)

    task_changes.retry(rig.shard, place(b), b.task_id, TaskState.CANCELLED)

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

    task_changes.retry(rig.shard, place(a), a.task_id, TaskState.FAILED)

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
        task_changes.retry(rig.shard, place(0), id_of("a"), state)


def test_what_is_nowhere_any_more_cannot_be_retried(rig):
    rig.submit(task("a"), task("b"))
    task_changes.cancel(rig.shard, place(0), id_of("a"))
    rig.shard.change(lambda now: admin.decide_trim(rig.shard.core.by_name["q"], {0: 1}, now))

    with pytest.raises(TaskConflict, match="no longer kept"):
        task_changes.retry(rig.shard, place(0), id_of("a"), TaskState.CANCELLED)
    with pytest.raises(TaskConflict, match="waited for its parents"):
        task_changes.retry(rig.shard, None, id_of("x"), TaskState.CANCELLED)


def test_a_parent_and_those_cancelled_because_of_it_come_back_in_one_frame(rig):
    rig.submit(task("a"), task("b", "a"), task("c", "b"))
    (a,) = rig.lease()
    rig.finish(a.finish("dead"))
    lost = found(TaskState.CANCELLED)
    known = task_changes.Kin(task_changes.kin(rig.shard, a.task_id), {id_of("b"): lost, id_of("c"): lost})
    before = len(rig.frames())

    task_changes.retry(rig.shard, place(a), a.task_id, TaskState.DEAD, None, known)

    assert len(rig.frames()) == before + 1
    assert rig.held() == {id_of("b"), id_of("c")}
    assert rig.work_off() == ["a", "b", "c"]


def test_one_that_was_cancelled_after_the_caller_looked_makes_it_look_again(rig):
    rig.submit(task("a"))
    (a,) = rig.lease()
    rig.finish(a.finish("dead"))
    asked = task_changes.kin(rig.shard, a.task_id)
    rig.submit(task("b", "a"), parents={a.task_id: found(TaskState.DEAD, a)})

    with pytest.raises(submit.Moved):
        task_changes.retry(rig.shard, place(a), a.task_id, TaskState.DEAD, None, task_changes.Kin(asked, {}))

    assert rig.lease() == []


def test_of_those_cancelled_while_they_waited_the_oldest_are_forgotten_first():
    kept = WithdrawnTasks()
    size = limits.tasks_withdrawn_bytes_max // 4
    for number in range(6):
        kept.add(WithdrawnTask(1, bytes([number]), number, b"p", 0, bytes(size)))

    assert [each.task_id for each in kept.because_of(b"p")] == [b"\2", b"\3", b"\4", b"\5"]
    kept.add(WithdrawnTask(2, b"x", round(limits.task_retention_seconds * 1e6) + 5, b"", 0, b""))
    assert list(kept.known) == [b"\5", b"x"]
    assert kept.size == size
    assert (kept.drop_queue(1), kept.drop_queue(1)) == (True, False)
    assert (list(kept.known), kept.size, kept.because_of(b"p")) == ([b"x"], 0, [])


def test_checkpoints_and_entries_from_before_tell_nothing_of_those_that_were_cancelled(rig):
    rig.submit(task("a"), task("b", "a"), task("c", "a"))
    task_changes.cancel(rig.shard, None, id_of("c"))
    sequence, held, where, unique, schedules, *more = msgspec.msgpack.decode(
        encode_tasks(take_tasks(rig.shard.core.tasks, 9))
    )
    old = [sequence, [each[:-1] for each in held], where, unique, schedules]
    tasks = Tasks()

    restore_tasks(tasks, msgspec.msgpack.encode(old))

    assert len(more) == 2
    assert ([id_text(each) for each in tasks.held], bool(tasks.withdrawn)) == ([id_of("b")], False)
    freed = next(each for frame in rig.frames() for each in frame if isinstance(each, TaskFreed))
    written = msgspec.msgpack.decode(msgspec.msgpack.encode(freed))
    assert decode_record(memoryview(msgspec.msgpack.encode(written[:-1]))) == freed
