"""Runs of tasks: how they end, what is noted of them, and workers that are gone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock import limits
from penstock.delivery.entries import Note, Push, Settled, TasksNoted
from penstock.envelopes import tasks_batch
from penstock.errors import InvalidField, LeaseLost, TooLarge
from penstock.model import Outcome
from penstock.model_tasks import Finish, TaskSubmission
from penstock.requests import LeaseRequest, Settling
from penstock.shard.tasks import finish
from tests.support.accounts import assert_accounts
from tests.support.task_rig import Rig, Run, id_of, names, task


@pytest.fixture
def rig() -> Rig:
    return Rig()


def pushed(rig: Rig, *tasks: TaskSubmission) -> None:
    rig.shard.push(tasks[0].queue, tasks_batch(tasks))


def notes(rig: Rig) -> list[Note]:
    found = [each for frame in rig.frames() for each in frame if isinstance(each, TasksNoted)]
    return [note for each in found for note in each.notes]


def settled(rig: Rig) -> list[Settled]:
    return [each for frame in rig.frames() for each in frame if isinstance(each, Settled)]


def attempts(rig: Rig, run: Run) -> int:
    progress = rig.shard.core.by_name["q"].groups[0].progress[0]
    return progress.attempt_next(run.receipt.offset) - 1


def test_many_runs_that_are_completed_are_one_frame_with_one_settle_and_one_entry_of_notes(rig):
    pushed(rig, *(task(f"t{n}") for n in range(100)))
    runs = rig.lease()
    before = len(rig.frames())

    assert rig.finish(*(run.finish(result=b"%d" % n) for n, run in enumerate(runs))) == [None] * 100

    (frame,) = rig.frames()[before:]
    ended, noted = frame
    assert isinstance(ended, Settled)
    assert (ended.outcome, len(ended.spans)) == (Outcome.ACKED, 1)
    assert isinstance(noted, TasksNoted)
    assert noted.worker == "w"
    assert [(note.what, note.data, note.attempt) for note in noted.notes] == [
        (Note.RESULT, b"%d" % n, 1) for n in range(100)
    ]
    assert rig.lease() == []
    assert_accounts(rig.shard)


def test_each_finish_of_a_call_stands_by_itself(rig):
    pushed(rig, task("a"), task("b"), task("c"), task("d"))
    first, second, third, fourth = rig.lease()
    rig.complete(second)

    answers = rig.finish(
        first.finish(),
        second.finish(),
        third.finish(result=b"{nonsense"),
        fourth.finish(result=b'"%b"' % bytes(limits.task_result_bytes_max)),
        third.finish(),
        third.finish(),
        fourth.finish("nonsense"),
        msgspec.structs.replace(fourth.finish(), task_id="x"),
    )

    assert [type(answer) for answer in answers] == [
        type(None), LeaseLost, InvalidField, TooLarge, type(None), LeaseLost, InvalidField, InvalidField,
    ]  # fmt: skip
    assert attempts(rig, fourth) == 0
    assert_accounts(rig.shard)


def test_a_finish_names_the_task_of_its_receipt(rig):
    pushed(rig, task("a"), task("b"))
    first, second = rig.lease()

    (refused,) = rig.finish(Finish(receipt=second.receipt, task_id=first.task_id, outcome="completed"))

    assert isinstance(refused, InvalidField)
    assert "is not the task of receipt" in refused.message
    rig.complete(first, second)


@pytest.mark.parametrize(
    ("outcome", "more", "settled_as", "noted", "comes_back_after", "counted"),
    [
        ("failed", {"error": "boom"}, Outcome.RETRIED, [(Note.ERROR, b"boom")], 2.0, 1),
        ("failed", {"error": "boom", "delay_seconds": 60.0}, Outcome.RETRIED, [(Note.ERROR, b"boom")], 60.5, 1),
        ("snoozed", {"delay_seconds": 5.0}, Outcome.SNOOZED, [], 5.5, 0),
        ("released", {}, Outcome.RELEASED, [], 0.0, 0),
        ("cancelled", {"error": "no need"}, Outcome.CANCELLED, [(Note.CANCELLED, b"no need")], None, 0),
        ("dead", {"error": "never"}, Outcome.REJECTED, [(Note.ERROR, b"never")], None, 0),
    ],
)
def test_a_run_may_end_in_any_way(rig, outcome, more, settled_as, noted, comes_back_after, counted):
    pushed(rig, task("a"))
    (run,) = rig.lease()

    assert rig.finish(run.finish(outcome, **more)) == [None]

    assert settled(rig)[-1].outcome == settled_as
    assert [(note.what, note.data) for note in notes(rig)] == noted
    rig.clock.advance(comes_back_after or 1_000.0)
    again = rig.lease()
    assert names(again) == ([] if comes_back_after is None else ["a"])
    assert [each.receipt.attempt for each in again] == ([] if comes_back_after is None else [1 + counted])
    assert_accounts(rig.shard)


def test_a_task_that_fails_too_often_dies_and_has_a_dead_letter(rig):
    pushed(rig, task("a", max_attempts=2), task("b", max_attempts=1))
    first, second = rig.lease()
    rig.finish(first.finish("failed", error="once"), second.finish("failed", error="at once"))
    rig.clock.advance(100)
    (again,) = rig.lease()

    rig.finish(again.finish("failed", error="twice"))

    rig.clock.advance(1_000)
    assert rig.lease() == []
    assert [each.outcome for each in settled(rig)] == [Outcome.RETRIED, Outcome.DEAD, Outcome.DEAD]
    dead = rig.shard.core.by_name["q.dlq"]
    assert dead.messages() == 2
    assert [note.data for note in notes(rig)] == [b"once", b"at once", b"twice"]


def test_a_long_traceback_is_cut_at_its_beginning(rig):
    pushed(rig, task("a"))
    (run,) = rig.lease()

    rig.finish(run.finish("failed", error="ä" * limits.task_error_bytes_max + "ValueError: the point"))

    assert notes(rig)[0].data.endswith(b"ValueError: the point")
    assert len(notes(rig)[0].data) <= limits.task_error_bytes_max
    assert settled(rig)[0].error.endswith("ValueError: the point")
    assert len(settled(rig)[0].error.encode()) <= limits.error_bytes_max


def test_finishes_that_do_not_fit_into_one_frame_take_several(rig):
    pushed(rig, *(task(f"t{n}") for n in range(40)))
    large = b'"%b"' % (b"x" * (limits.task_result_bytes_max - 2))

    assert rig.finish(*(run.finish(result=large) for run in rig.lease())) == [None] * 40

    assert [len(each.notes) for frame in rig.frames() for each in frame if isinstance(each, TasksNoted)] == [16, 16, 8]


def test_dead_letters_that_do_not_fit_into_one_frame_take_several(rig):
    for n in range(5):
        pushed(rig, task(f"t{n}", args=b'["%b"]' % (b"x" * 9 * limits.MIB)))

    assert rig.finish(*(run.finish("dead", error="no") for run in rig.lease())) == [None] * 5

    assert rig.shard.core.by_name["q.dlq"].messages() == 5
    letters = [sum(isinstance(each, Push) for each in frame) for frame in rig.frames()]
    assert max(letters) < 5


def test_a_receipt_of_another_group_or_of_a_lease_that_ran_out_finishes_nothing(rig):
    pushed(rig, task("a"))
    reply, _ = rig.shard.lease("q", "other", LeaseRequest(count_max=1, start="earliest"))
    (run,) = rig.lease()
    other = Run("a", run.task_id, run.receipt._replace(nonce=reply.nonce))

    assert [type(each) for each in rig.finish(other.finish())] == [InvalidField]
    rig.clock.advance(31)
    assert [type(each) for each in rig.finish(run.finish())] == [LeaseLost]


def test_progress_is_noted_and_costs_no_sync(rig):
    pushed(rig, task("a"))
    (run,) = rig.lease()

    assert finish.note_progress(rig.shard, run.receipt, run.task_id, b'{"done":3}') == 0

    (note,) = notes(rig)
    assert (note.what, note.data, note.attempt) == (Note.PROGRESS, b'{"done":3}', 1)
    for bad, refusal in ((b"{", InvalidField), (b'"%b"' % bytes(limits.task_progress_bytes_max), TooLarge)):
        with pytest.raises(refusal):
            finish.note_progress(rig.shard, run.receipt, run.task_id, bad)
    rig.complete(run)
    with pytest.raises(LeaseLost):
        finish.note_progress(rig.shard, run.receipt, run.task_id, b"1")


@pytest.mark.parametrize(
    ("end", "attempt", "waits"), [(finish.expire_consumer, 2, 5.0), (finish.release_consumer, 1, 0.0)]
)
def test_what_a_worker_held_is_there_for_others_when_it_is_gone(rig, end: Any, attempt, waits):
    pushed(rig, *(task(f"t{n}") for n in range(3)), task("last", max_attempts=1))
    pushed(rig, task("elsewhere", queue="other"))
    gone = [*rig.lease(count=2, worker="gone"), *rig.lease("other", worker="gone")]
    (stays,) = rig.lease(count=1, worker="stays")

    rig.shard.confirm(end(rig.shard, "gone"))

    assert {type(each) for each in rig.finish(*(run.finish() for run in gone))} == {LeaseLost}
    rig.complete(stays)
    rig.clock.advance(waits)
    again = rig.lease(worker="next")
    assert sorted(names(again)) == ["last", "t0", "t1"]
    assert {run.receipt.attempt for run in again if run.task_type != "last"} == {attempt}
    assert names(rig.lease("other")) == ["elsewhere"]
    assert_accounts(rig.shard)


def test_a_worker_that_brings_down_others_takes_its_task_along_in_the_end(rig):
    pushed(rig, task("poison", max_attempts=2))
    for _ in range(limits.task_attempts_lost_max):
        rig.clock.advance(100)
        rig.lease(worker="w")
        finish.expire_consumer(rig.shard, "w")

    rig.clock.advance(100)
    assert rig.lease() == []
    assert rig.shard.core.by_name["q.dlq"].messages() == 1


def test_several_may_observe_one_kind_of_entry(rig):
    seen: list[str] = []
    core = rig.shard.core

    def first(each: Any) -> None:
        seen.append("first")

    def second(each: Any) -> None:
        seen.append("second")

    core.observe(Settled, first)
    core.observe(Settled, second)
    pushed(rig, task("a"), task("b"), task("c"))
    one, two, three = rig.lease()
    rig.complete(one)
    core.stop_observing(Settled, first)
    rig.complete(two)
    core.stop_observing(Settled, second)
    rig.complete(three)

    assert seen == ["first", "second", "second"]


def test_an_ordinary_acknowledgement_of_a_task_is_a_completion_too(rig):
    rig.submit(task("parent"), task("child", "parent"))
    (run,) = rig.lease()

    rig.shard.settle([run.receipt], Settling(Outcome.ACKED))

    assert names(rig.lease()) == ["child"]
    assert id_of("child") not in rig.held()
