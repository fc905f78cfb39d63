"""Tasks that wait for others: a child runs once its parents are done, and never is anybody left behind."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import limits
from penstock.delivery import admin
from penstock.delivery.entries import TaskFreed, TaskHeld
from penstock.envelopes import tasks_batch
from penstock.errors import InvalidField, QueueFull, RateLimited
from penstock.model import queue_options
from penstock.model_tasks import Submitted, TaskState, id_text
from penstock.requests import ParentFound
from penstock.shard.tasks import finish, submit
from tests.support.accounts import assert_accounts
from tests.support.task_rig import Rig, found, id_of, kinds, names, task


@pytest.fixture
def rig() -> Rig:
    return Rig()


def freed(rig: Rig) -> dict[str, TaskFreed]:
    entries = [each for frame in rig.frames() for each in frame if isinstance(each, TaskFreed)]
    return {id_text(each.task_id): each for each in entries}


def cancelled(rig: Rig) -> dict[str, str]:
    return {task_id: each.error for task_id, each in freed(rig).items() if each.how == TaskFreed.CANCELLED}


def idle(rig: Rig) -> bool:
    """Whether nothing is remembered of any task."""
    tasks = rig.shard.core.tasks
    return not (tasks.held or tasks.awaited or tasks.positions or tasks.where or tasks.ripe or tasks.held_bytes)


def test_a_parent_s_completion_and_its_children_s_release_are_one_frame(rig):
    rig.submit(task("parent"), task("child", "parent", queue="other"), task("second", "parent"))
    (run,) = rig.lease()
    assert rig.lease("other") == []
    before = len(rig.frames())

    rig.complete(run)

    (frame,) = rig.frames()[before:]
    assert kinds(frame) == ["Settled", "TasksNoted", "Push", "TaskFreed", "Push", "TaskFreed"]  # two queues
    assert names(rig.lease("other")) == ["child"]
    assert names(rig.lease()) == ["second"]
    assert idle(rig)
    assert_accounts(rig.shard)


def test_a_graph_runs_in_its_order_whatever_the_order_of_its_submission(rig):
    rig.submit(
        task("end", "left", "right"), task("left", "start"), task("alone"), task("right", "start"), task("start")
    )

    ran = rig.work_off()

    assert sorted(ran) == ["alone", "end", "left", "right", "start"]
    assert ran.index("start") < min(ran.index("left"), ran.index("right"))
    assert ran.index("end") == 4
    assert idle(rig)


def test_a_chain_of_a_thousand_and_a_group_of_a_thousand_with_a_callback(rig):
    rig.submit(task("c0"), *(task(f"c{n}", f"c{n - 1}") for n in range(1, 1_000)))
    assert rig.work_off() == [f"c{n}" for n in range(1_000)]

    members = [f"g{n}" for n in range(1_000)]
    rig.submit(*map(task, members), task("callback", *members))
    runs = rig.lease(count=1_000)
    rig.complete(*runs[:999])
    assert rig.lease() == []
    rig.complete(runs[999])
    assert rig.work_off() == ["callback"]
    assert idle(rig)


def test_more_children_than_one_frame_takes_come_with_the_next_ticks(rig):
    rig.submit(task("parent"), *(task(f"t{n}", "parent") for n in range(2_500)))

    rig.complete(*rig.lease())

    for _ in range(2):
        rig.tick()
    assert len(rig.lease(count=5_000)) == 2_500
    assert idle(rig)


def test_a_child_of_tasks_from_before_waits_for_those_that_are_not_done(rig):
    rig.submit(task("a"), task("b"), task("c"), task("blocked", "c"))
    a, b, c = rig.lease()
    rig.complete(a)
    known = {
        id_of("a"): found(TaskState.COMPLETED, a),
        id_of("b"): found(TaskState.RUNNING, b),
        id_of("blocked"): found(TaskState.BLOCKED),
    }

    rig.submit(task("child", "a", "b", "blocked"), parents=known)

    rig.complete(b)
    assert rig.lease() == []
    rig.complete(c)
    assert rig.work_off() == ["blocked", "child"]


def test_a_child_of_parents_that_are_all_done_is_pushed_at_once(rig):
    rig.submit(task("a"))
    (a,) = rig.lease()
    rig.complete(a)

    rig.submit(task("child", "a"), parents={id_of("a"): found(TaskState.COMPLETED, a)})

    assert rig.work_off() == ["child"]


def test_a_parent_that_was_done_meanwhile_must_be_looked_at_again(rig):
    rig.submit(task("a"), task("b", "a"))
    (a,) = rig.lease()
    seen = {id_of("a"): found(TaskState.RUNNING, a), id_of("b"): found(TaskState.BLOCKED)}
    rig.complete(*[a])

    for parent in "ab":
        with pytest.raises(submit.Moved):
            rig.submit(task("child", parent), parents=seen)
    assert idle(rig)


@pytest.mark.parametrize("state", [TaskState.DEAD, TaskState.CANCELLED])
def test_a_child_of_a_parent_that_failed_before_is_stored_and_cancelled_at_once_unless_it_shall_run(rig, state):
    known = {id_of("a"): found(state)}

    rig.submit(task("child", "a"), task("grandchild", "child"), parents=known)
    rig.submit(task("runs", "a", on_parent_failure="run"), parents=known)

    assert cancelled(rig) == {
        id_of("child"): f"its parent {id_of('a')} was {state}",
        id_of("grandchild"): f"its parent {id_of('child')} was cancelled",
    }
    assert rig.work_off() == ["runs"]
    assert idle(rig)


def dies(rig: Rig) -> None:
    rig.finish(*(run.finish("dead", error="no") for run in rig.lease()))


TTL_SECONDS = 100_000.0  # longer than it takes to lose every attempt


def times_out(rig: Rig) -> None:
    for _ in range(limits.task_attempts_lost_max):
        rig.lease()
        rig.tick(31)
        rig.tick(3600)  # the backoff


def gives_up_its_worker(rig: Rig) -> None:
    for _ in range(limits.task_attempts_lost_max):
        rig.lease(worker="gone")
        finish.expire_consumer(rig.shard, "gone")
        rig.tick(3600)


def is_cancelled_by_its_run(rig: Rig) -> None:
    rig.finish(*(run.finish("cancelled", error="no need") for run in rig.lease()))


def expires(rig: Rig) -> None:
    rig.tick(TTL_SECONDS + 1)


def is_purged(rig: Rig) -> None:
    rig.shard.change(lambda now: admin.decide_purge(rig.shard.core.by_name["q"], now))


def is_skipped(rig: Rig) -> None:
    rig.shard.change(lambda now: admin.decide_seek(rig.shard.core.by_name["q"].groups[0], "latest", now))


def loses_its_queue(rig: Rig) -> None:
    rig.shard.change(lambda now: admin.decide_delete_queue(rig.shard.core, rig.shard.core.by_name["q"]))


def is_taken_by_retention(rig: Rig) -> None:
    rig.shard.change(lambda now: admin.decide_trim(rig.shard.core.by_name["q"], {0: 1}, now))


ENDS = [
    dies, times_out, gives_up_its_worker, is_cancelled_by_its_run, expires, is_purged, is_skipped, loses_its_queue,
    is_taken_by_retention,
]  # fmt: skip


@pytest.mark.parametrize("ends", ENDS, ids=[end.__name__ for end in ENDS])
def test_however_a_parent_fails_its_children_are_cancelled_or_run_as_they_asked_for(rig, ends: Any):
    more: dict[str, Any] = {"max_attempts": 1, "ttl_seconds": TTL_SECONDS}
    rig.submit(
        task("parent", **more),
        task("child", "parent", queue="c"),
        task("grandchild", "child", queue="c"),
        task("runs", "parent", queue="c", on_parent_failure="run"),
        task("mends", "child", "runs", queue="c", on_parent_failure="run"),
    )

    ends(rig)
    rig.tick()

    assert set(cancelled(rig)) == {id_of("child"), id_of("grandchild")}
    assert id_of("parent") in cancelled(rig)[id_of("child")]
    assert rig.work_off("c") == ["runs", "mends"]
    assert idle(rig)
    assert_accounts(rig.shard)


def test_a_cancelled_child_is_notified_how_its_parent_ended(rig):
    rig.submit(task("a"), task("b", "a"))
    dies(rig)

    assert cancelled(rig) == {id_of("b"): f"its parent {id_of('a')} was dead"}


def test_a_parent_that_fails_and_is_retried_keeps_its_children_waiting(rig):
    rig.submit(task("parent"), task("child", "parent"))
    (run,) = rig.lease()
    rig.finish(run.finish("failed", error="not yet"))
    rig.clock.advance(100)

    assert rig.work_off() == ["parent", "child"]


def test_a_child_whose_own_queue_is_deleted_is_cancelled_with_its_children(rig):
    rig.submit(task("parent"), task("child", "parent", queue="c"), task("grandchild", "child"))

    rig.shard.change(lambda now: admin.decide_delete_queue(rig.shard.core, rig.shard.core.by_name["c"]))
    rig.tick()

    assert cancelled(rig) == {
        id_of("child"): "its queue was deleted",
        id_of("grandchild"): f"its parent {id_of('child')} was cancelled",
    }
    assert rig.work_off() == ["parent"]
    assert idle(rig)


def test_a_full_queue_takes_the_children_that_it_was_promised(rig):
    rig.shard.change(
        lambda now: admin.decide_create_queue(rig.shard.core, "small", queue_options({"max_length": 1}), now)
    )
    rig.submit(task("parent"), task("child", "parent", queue="small"))
    rig.shard.push("small", tasks_batch([task("other", queue="small")]))
    with pytest.raises(QueueFull):
        rig.submit(task("late", queue="small"))

    rig.work_off()

    assert sorted(rig.work_off("small")) == ["child", "other"]


@pytest.mark.parametrize(
    ("tasks", "refusal"),
    [
        ([task("a"), task("a")], r"tasks\[1\].task_id: .* appears twice"),
        ([task("b"), task("a", "a")], r"tasks\[1\].depends_on: .* waits for itself"),
        ([task("b"), task("a", "unknown")], r"tasks\[1\].depends_on: there is no task"),
        ([task("x"), task("a", "c"), task("b", "a"), task("c", "b")], r"tasks\[1\].depends_on: .* circle"),
    ],
)
def test_what_could_never_run_is_refused_and_leaves_nothing_behind(rig, tasks, refusal):
    with pytest.raises(InvalidField, match=refusal):
        rig.submit(*tasks)

    assert idle(rig)
    assert rig.shard.core.by_name == {}


def test_more_than_the_shard_may_hold_is_refused(rig, monkeypatch):
    monkeypatch.setattr(limits, "tasks_held_max", 2)
    monkeypatch.setattr(limits, "unique_keys_max", 1)
    rig.submit(task("a"), task("b", "a"), task("c", "a", unique_key="k"))

    with pytest.raises(QueueFull, match="waiting for others"):
        rig.submit(task("x"), task("y", "x"))
    with pytest.raises(QueueFull, match="unique keys"):
        rig.submit(task("x", unique_key="k2"))
    assert rig.work_off() == ["a", "b", "c"]


def test_a_workflow_is_charged_like_a_push(rig):
    rig.shard.change(
        lambda now: admin.decide_create_queue(
            rig.shard.core, "slow", queue_options({"push_per_second": 1.0, "push_burst": 1}), now
        )
    )
    rig.submit(task("a", queue="slow"))
    with pytest.raises(RateLimited):
        rig.submit(task("b", queue="slow"))


def test_a_call_that_is_made_again_stores_nothing_twice(rig):
    call = [task("a"), task("b", "a"), task("c", "b")]
    assert rig.submit(*call) == [Submitted(id_of(name)) for name in "abc"]

    assert rig.submit(*call) == [Submitted(id_of(name), False) for name in "abc"]
    rig.complete(*rig.lease())
    assert rig.submit(*call) == [Submitted(id_of(name), False) for name in "abc"]

    assert rig.work_off() == ["b", "c"]
    assert sum(isinstance(each, TaskHeld) for frame in rig.frames() for each in frame) == 2


def test_a_workflow_may_grow_by_submitting_it_again_with_more(rig):
    rig.submit(task("a"), task("b", "a"))
    rig.submit(task("a"), task("b", "a"), task("c", "a", "b"))

    assert rig.work_off() == ["a", "b", "c"]

    with pytest.raises(submit.Moved):  # how it ended is for the caller to find out
        rig.submit(task("a"), task("d", "a"))
    rig.submit(task("a"), task("d", "a"), parents={id_of("a"): ParentFound(None, TaskState.COMPLETED)})
    assert rig.work_off() == ["d"]


def test_a_unique_key_belongs_to_one_task_until_that_is_done(rig):
    assert rig.submit(task("a", unique_key="k")) == [Submitted(id_of("a"))]
    assert rig.submit(task("b", unique_key="k")) == [Submitted(id_of("a"), False)]
    assert rig.submit(task("c", unique_key="k", queue="other")) == [Submitted(id_of("c"))]
    assert rig.submit(task("d", unique_key="l"), task("e", unique_key="l")) == [
        Submitted(id_of("d")),
        Submitted(id_of("d"), False),
    ]
    (a, _) = rig.lease()
    rig.finish(a.finish("failed", error="not yet"))
    assert rig.submit(task("f", unique_key="k")) == [Submitted(id_of("a"), False)]
    rig.clock.advance(100)
    rig.complete(*rig.lease())

    assert rig.submit(task("g", unique_key="k")) == [Submitted(id_of("g"))]


def test_a_unique_key_may_be_taken_for_a_time(rig):
    rig.submit(task("a", unique_key="k", unique_seconds=60.0))
    assert rig.work_off() == ["a"]

    rig.clock.advance(59)
    assert rig.submit(task("b", unique_key="k")) == [Submitted(id_of("a"), False)]
    rig.clock.advance(2)
    assert rig.submit(task("c", unique_key="k")) == [Submitted(id_of("c"))]


def test_a_unique_task_that_waits_for_others_has_its_key_from_the_beginning_to_its_end(rig):
    rig.submit(task("a"), task("b", "a", unique_key="k"), task("doomed", "a", unique_key="l"))
    assert rig.submit(task("x", unique_key="k")) == [Submitted(id_of("b"), False)]
    (a,) = rig.lease()
    rig.complete(a)
    assert rig.submit(task("x", unique_key="k")) == [Submitted(id_of("b"), False)]
    assert rig.work_off() == ["b", "doomed"]
    assert rig.submit(task("x", unique_key="k")) == [Submitted(id_of("x"))]


def test_a_child_of_a_task_whose_key_was_taken_waits_for_the_owner(rig):
    rig.submit(task("a", unique_key="k"))
    rig.submit(task("b", unique_key="k"), task("child", "b"))

    assert rig.work_off() == ["a", "child"]


def test_keys_that_are_free_again_are_forgotten_once_there_are_many(rig):
    for n in range(1_100):
        rig.submit(task(f"t{n}", unique_key=f"k{n}"))
        rig.complete(*rig.lease())

    assert len(rig.shard.core.tasks.unique) < 1_000
