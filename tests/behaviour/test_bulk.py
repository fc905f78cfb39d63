"""Operations on dead letters, tasks and messages of the past: counted, in canaries, at a rate, over every way in."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from penstock import limits
from penstock import operations as ops
from penstock.errors import InvalidField, QueueFull, QueueNotFound, TaskConflict
from penstock.model import to_datetime
from penstock.model_letters import REPLAYED_FROM
from penstock.model_tasks import BulkOptions, OperationState, OperationView, TaskFilter
from penstock.shard.tasks import operations as task_operations
from tests.behaviour.steps import TICK, drain, lease_one, numbered
from tests.behaviour.task_steps import Office
from tests.support.operations import run_operation


def finished(ps: Any, view: OperationView) -> OperationView:
    """An operation when it does not run any more. Looking at it works on it where there are no threads."""
    while view.state is OperationState.RUNNING:
        view = ps.operations.get(view.operation_id)
    return view


def dead(ps: Any, name: str, payloads: list[bytes], error: str = "ValueError: no", **options: Any) -> Any:
    """A queue with dead letters."""
    queue = ps.create_queue(name, **options) if name not in ps.queues() else ps.queue(name)
    queue.push_many(payloads)
    for delivery in queue.lease(len(payloads)):
        delivery.reject(error)
    return queue


# dead letters


def test_a_dry_run_counts_and_changes_nothing(ps):
    queue = dead(ps, "mail", numbered(12))

    view = queue.dlq.begin_redrive(dry_run=True)

    assert (view.state, view.action, view.operation_id) == (OperationState.COUNTED, "redrive", "")
    assert (view.matched, view.is_exact, len(view.samples)) == (12, True, 10)
    assert view.samples[0] == "mail.dlq/0/0"
    assert len(queue.dlq.list()) == 12
    assert ps.operations.list() == []


def test_dead_letters_that_match_go_back_and_the_operation_says_how_many(ps, clock):
    queue = dead(ps, "mail", numbered(3), "Timeout: 1")
    dead(ps, "mail", numbered(2), "KeyError: 'a'")

    view = finished(ps, queue.dlq.begin_redrive(error_contains="Timeout"))
    clock.advance(TICK)

    assert (view.state, view.matched, view.done, view.failed) == (OperationState.DONE, 3, 3, 0)
    assert view.queue == "mail"
    assert view.letters is not None
    assert view.letters.error_contains == "Timeout"
    assert sorted(drain(queue)) == numbered(3)
    assert len(queue.dlq.list()) == 2


def test_what_dies_after_it_was_counted_is_not_touched(ps, clock):
    queue = dead(ps, "mail", numbered(2))
    counted = queue.dlq.begin_redrive(dry_run=True)
    clock.advance(1)
    dead(ps, "mail", [b"later"])

    view = finished(ps, queue.dlq.begin_redrive(as_of=counted.as_of))
    clock.advance(TICK)

    assert (view.matched, view.done) == (2, 2)
    assert sorted(drain(queue)) == numbered(2)
    assert [letter.payload for letter in queue.dlq.list()] == [b"later"]


def test_a_canary_waits_until_it_is_continued(ps, clock):
    queue = dead(ps, "mail", numbered(7))

    view = finished(ps, queue.dlq.begin_redrive(canary=2))
    clock.advance(TICK)

    assert (view.state, view.matched, view.done, view.canary) == (OperationState.WAITING, 7, 2, 2)
    assert len(drain(queue)) == 2
    assert len(queue.dlq.list()) == 5
    view = finished(ps, ps.operations.continue_(view.operation_id))
    clock.advance(TICK)
    assert (view.state, view.done) == (OperationState.DONE, 7)
    assert len(drain(queue)) == 5
    with pytest.raises(TaskConflict):
        ps.operations.continue_(view.operation_id)


def test_a_canary_that_is_stopped_leaves_the_rest_alone(ps):
    queue = dead(ps, "mail", numbered(7))
    view = finished(ps, queue.dlq.begin_discard(canary=3))

    stopped = ps.operations.stop(view.operation_id)

    assert (stopped.state, stopped.done) == (OperationState.STOPPED, 3)
    assert len(queue.dlq.list()) == 4
    assert ps.operations.stop(view.operation_id) == stopped


def test_canaries_that_wait_block_no_other_operations_and_are_stopped_after_a_day(ps, clock, monkeypatch):
    monkeypatch.setattr(limits, "operations_running_max", 2)
    monkeypatch.setattr(limits, "operations_waiting_max", 3)
    queue = dead(ps, "mail", numbered(7))
    waiting = [finished(ps, queue.dlq.begin_discard(canary=1)) for _ in range(3)]

    assert [view.state for view in waiting] == [OperationState.WAITING] * 3
    assert waiting[0].expires_at == waiting[0].updated_at + timedelta(days=1)
    with pytest.raises(QueueFull, match="3 operations already wait"):
        queue.dlq.begin_discard(canary=1)
    assert finished(ps, queue.dlq.begin_discard(limit=1)).state is OperationState.DONE
    clock.advance(86_399)
    assert ps.operations.get(waiting[0].operation_id).state is OperationState.WAITING
    clock.advance(1)

    stopped = ps.operations.get(waiting[0].operation_id)
    assert (stopped.state, stopped.done, stopped.expires_at) == (OperationState.STOPPED, 1, None)
    assert stopped.error == "not continued within 24 hours of its canary"
    assert len(queue.dlq.list()) == 3
    with pytest.raises(TaskConflict):
        ps.operations.continue_(stopped.operation_id)
    assert finished(ps, queue.dlq.begin_discard(canary=1)).state is OperationState.WAITING


def test_operations_end_with_their_queue_and_say_so(ps):
    queue, source = dead(ps, "mail", numbered(3)), ps.create_queue("source")
    source.push_many(numbered(2))
    letters = finished(ps, queue.dlq.begin_redrive(canary=1))
    into = finished(ps, source.replay(target="mail", canary=1))
    elsewhere = finished(ps, dead(ps, "other", numbered(2)).dlq.begin_discard(canary=1))
    assert [view.state for view in (letters, into)] == [OperationState.WAITING] * 2

    ps.delete_queue("mail")
    dead(ps, "mail", numbered(3))

    for view in (letters, into):
        ended = ps.operations.get(view.operation_id)
        assert (ended.state, ended.done, ended.error) == (OperationState.FAILED, 1, "queue 'mail' was deleted")
        assert ended.ended_at is not None
        with pytest.raises(TaskConflict):
            ps.operations.continue_(view.operation_id)
    assert ps.operations.get(elsewhere.operation_id).state is OperationState.WAITING
    assert len(ps.queue("mail").dlq.list()) == 3


def test_a_canary_that_is_all_there_is_needs_no_answer(ps):
    queue = dead(ps, "mail", numbered(3))

    assert finished(ps, queue.dlq.begin_discard(canary=3)).state is OperationState.DONE


def test_dead_letters_are_thrown_away_by_a_filter(ps):
    queue = dead(ps, "mail", numbered(3), "Timeout: 1")
    dead(ps, "mail", [b"kept"], "KeyError: 'a'")
    ids = [letter.id for letter in queue.dlq.list(error_contains="Timeout")][:2]

    assert finished(ps, queue.dlq.begin_discard(ids=ids)).done == 2
    assert finished(ps, queue.dlq.begin_discard(error_contains="Timeout")).done == 1

    assert [letter.payload for letter in queue.dlq.list()] == [b"kept"]
    assert queue.stats().ready == 0


def test_the_limit_counts_those_that_match(ps):
    queue = dead(ps, "mail", numbered(5))

    view = finished(ps, queue.dlq.begin_discard(limit=2))

    assert (view.matched, view.done) == (2, 2)
    assert len(queue.dlq.list()) == 3


def test_one_edit_is_for_all_of_a_signature(ps):
    payloads = [json.dumps({"order": n, "currency": None, "big": 2**70, "pi": 3.10}).encode() for n in range(3)]
    queue = dead(ps, "orders", payloads, "KeyError: 'currency'")
    dead(ps, "orders", [b"no json"], "KeyError: 'currency'")
    dead(ps, "orders", [b"{}"], "another error")
    signature = "KeyError: 'currency'"

    view = finished(ps, queue.dlq.begin_redrive(error_contains=signature, edit={"currency": "EUR", "order": None}))

    assert (view.matched, view.done, view.failed) == (4, 3, 1)
    assert [(error.id, error.code) for error in view.errors] == [("orders.dlq/0/3", "invalid_field")]
    assert drain(queue) == [b'{"currency":"EUR","big":1180591620717411303424,"pi":3.1}'] * 3
    assert len(queue.dlq.list()) == 2


def test_letters_whose_origin_is_gone_are_counted_as_failed(ps):
    queue = ps.create_queue("mail")
    queue.create_group("billing")
    queue.push(b"a")
    queue.lease(1, group="billing")[0].reject("no")
    queue.push(b"b")
    lease_one(queue).reject("no")
    queue.delete_group("billing")

    view = finished(ps, queue.dlq.begin_redrive())

    assert (view.state, view.done, view.failed) == (OperationState.DONE, 1, 1)
    assert view.errors[0].code == "message_not_found"
    assert len(queue.dlq.list()) == 1


def test_a_rate_makes_it_slow(ps, way, clock):
    queue = dead(ps, "mail", numbered(30))
    view = queue.dlq.begin_discard(rate=10)
    assert view.state is OperationState.RUNNING
    while view.state is OperationState.RUNNING:
        before = view.done
        clock.advance(1)
        view = ps.operations.get(view.operation_id)
        assert view.done - before <= 40
    assert (view.state, view.done, view.rate) == (OperationState.DONE, 30, 10)


def test_the_same_id_is_the_same_operation(ps):
    queue = dead(ps, "mail", numbered(2))
    first = finished(ps, queue.dlq.begin_redrive(operation_id="mine"))
    again = queue.dlq.begin_redrive(operation_id="mine")

    assert again == first
    with pytest.raises(TaskConflict, match="mine"):
        queue.dlq.begin_discard(operation_id="mine")


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"rate": 0}, "rate"),
        ({"rate": "fast"}, "rate"),
        ({"canary": 0}, "canary"),
        ({"canary": True}, "canary"),
        ({"dry_run": 1}, "dry_run"),
        ({"edit": {}}, "edit"),
        ({"operation_id": "a b"}, "operation_id"),
    ],
)
def test_bad_options_are_refused_by_name(ps, options, field):
    queue = dead(ps, "mail", numbered(1))

    with pytest.raises(InvalidField, match=field):
        queue.dlq.begin_redrive(**options)
    assert ps.operations.list() == []


def test_the_future_cannot_be_meant(ps, clock):
    queue = dead(ps, "mail", numbered(1))

    with pytest.raises(InvalidField, match="as_of"):
        queue.dlq.begin_redrive(as_of=to_datetime(clock.now()) + timedelta(days=1))
    with pytest.raises(QueueNotFound):
        ps.queue("none").dlq.begin_redrive()


# tasks


@pytest.fixture
def office(ps):
    return Office(ps)


AT_ONCE = BulkOptions()


def begin(office: Office, action: str, options: BulkOptions = AT_ONCE, **wanted: Any) -> OperationView:
    view: OperationView = office.confirmed(
        run_operation(office.session, ops.BeginOperation(action, TaskFilter(**wanted), "", options))
    )
    while view.state is OperationState.RUNNING:
        view = office.confirmed(run_operation(office.session, ops.FindOperation(view.operation_id)))
    return view


def test_operations_on_tasks_end_with_their_queue_except_those_that_forget_them(ps, office):
    for _ in range(3):
        office.enqueue()
    one = BulkOptions(canary=1)
    cancel, purge = (finished(ps, begin(office, action, one, queue="mail")) for action in ("cancel", "purge"))
    assert [cancel.state, purge.state] == [OperationState.WAITING] * 2

    ps.delete_queue("mail")

    ended = ps.operations.get(cancel.operation_id)
    assert (ended.state, ended.error) == (OperationState.FAILED, "queue 'mail' was deleted")
    assert finished(ps, ps.operations.continue_(purge.operation_id)).state is OperationState.DONE
    assert office.ids() == []


def test_tasks_that_match_are_retried(office, clock):
    ids = office.push(*(office.new("a") for _ in range(4)))
    for _ in range(3):
        office.lease_one().finish("dead", error="boom")
    office.lease_one().finish(result=1)

    view = begin(office, "retry", task_type="a")

    assert (view.state, view.matched, view.done, view.failed) == (OperationState.DONE, 3, 3, 0)
    assert sorted(office.state(id) for id in ids) == ["completed", "pending", "pending", "pending"]
    assert len(office.work()) == 3


def test_a_parent_that_is_retried_brings_its_children_back_and_nothing_fails(office):
    first = office.new("a")
    parent, child = office.submit(first, office.new("a", depends_on=(first.task_id,)))
    office.lease_one().finish("dead", error="boom")
    assert (office.state(parent), office.state(child)) == ("dead", "cancelled")

    view = begin(office, "retry")

    assert (view.matched, view.done, view.failed) == (2, 2, 0)
    assert (office.state(parent), office.state(child)) == ("pending", "blocked")


@pytest.mark.parametrize("chunk", [1, 2, 5])
def test_a_child_whose_parent_comes_in_a_later_step_does_not_fail(office, monkeypatch, chunk):
    monkeypatch.setattr(task_operations, "RETRIES", chunk)
    first = office.new("a")
    parent, *children = office.submit(first, *(office.new("a", depends_on=(first.task_id,)) for _ in range(4)))
    office.lease_one().finish("dead", error="boom")

    view = begin(office, "retry")

    assert (view.state, view.matched, view.done, view.failed, view.errors) == (OperationState.DONE, 5, 5, 0, ())
    assert (office.state(parent), {office.state(child) for child in children}) == ("pending", {"blocked"})


@pytest.mark.parametrize("chunk", [1, 2, 5])
def test_a_chain_whose_tasks_were_all_cancelled_comes_back_as_a_whole(office, monkeypatch, chunk):
    monkeypatch.setattr(task_operations, "RETRIES", chunk)
    chain = [office.new("a")]
    for _ in range(5):
        chain.append(office.new("a", depends_on=(chain[-1].task_id,)))
    ids = office.submit(*chain)
    for task_id in reversed(ids):  # so that none is cancelled because of its parent
        begin(office, "cancel", task_ids=(task_id,))
    assert {office.state(id) for id in ids} == {"cancelled"}

    view = begin(office, "retry")

    assert (view.matched, view.done, view.failed) == (6, 6, 0)
    assert [office.state(id) for id in ids] == ["pending", *["blocked"] * 5]


@pytest.mark.parametrize("chunk", [1, 2, 5])
def test_a_child_of_another_dead_parent_fails_once_and_says_why(office, clock, monkeypatch, chunk):
    monkeypatch.setattr(task_operations, "RETRIES", chunk)
    meant, other = office.new("a"), office.new("b")
    child = office.new("a", depends_on=(meant.task_id, other.task_id))
    grandchild = office.new("a", depends_on=(child.task_id,))
    office.submit(meant, other, child, grandchild)
    for _ in range(2):
        office.lease_one().finish("dead", error="boom")
    counted = begin(office, "retry", BulkOptions(dry_run=True), task_type="a")
    clock.advance(1)  # the child is cancelled again, for the other parent, later than what is meant

    view = begin(office, "retry", BulkOptions(as_of=counted.as_of), task_type="a")

    assert (view.state, view.matched, view.done, view.failed) == (OperationState.DONE, 3, 1, 2)
    assert {error.id for error in view.errors} == {child.task_id, grandchild.task_id}
    assert other.task_id in " ".join(error.message for error in view.errors)
    states = [office.state(task.task_id) for task in (meant, other, child, grandchild)]
    assert states == ["pending", "dead", "cancelled", "cancelled"]


def test_a_child_that_somebody_cancels_during_the_operation_stays_cancelled(office, clock, monkeypatch):
    monkeypatch.setattr(task_operations, "RETRIES", 1)
    first = office.new("a")
    parent, kept, stopped = office.submit(first, *(office.new("a", depends_on=(first.task_id,)) for _ in range(2)))
    office.lease_one().finish("dead", error="boom")
    waiting = begin(office, "retry", BulkOptions(canary=1))
    assert (waiting.state, office.state(stopped)) == (OperationState.WAITING, "blocked")
    clock.advance(1)
    begin(office, "cancel", task_ids=(stopped,))

    view = office.confirmed(run_operation(office.session, ops.ContinueOperation(waiting.operation_id)))
    while view.state is OperationState.RUNNING:
        view = office.confirmed(run_operation(office.session, ops.FindOperation(view.operation_id)))

    assert (view.state, view.done, view.failed) == (OperationState.DONE, 3, 0)
    assert [office.state(id) for id in (parent, kept, stopped)] == ["pending", "blocked", "cancelled"]


def test_a_dry_run_counts_tasks_and_names_some(office):
    ids = office.push(*(office.new("a") for _ in range(3)))

    view = begin(office, "cancel", BulkOptions(dry_run=True), task_type="a")

    assert (view.state, view.matched) == (OperationState.COUNTED, 3)
    assert set(view.samples) == set(ids)
    assert {office.state(id) for id in ids} == {"pending"}


def test_some_tasks_are_meant_by_their_ids(office):
    ids = office.push(*(office.new("a") for _ in range(5)))

    view = begin(office, "cancel", task_ids=tuple(ids[:2]))

    assert (view.matched, view.done) == (2, 2)
    assert [office.state(id) for id in ids] == ["cancelled", "cancelled", "pending", "pending", "pending"]


def test_what_fails_after_it_was_counted_is_not_retried(office, clock):
    first, second = office.push(office.new("a"), office.new("a"))
    office.lease_one().finish("dead", error="boom")
    counted = begin(office, "retry", BulkOptions(dry_run=True))
    clock.advance(1)
    office.lease_one().finish("dead", error="boom")

    view = begin(office, "retry", BulkOptions(as_of=counted.as_of))

    assert (counted.matched, view.matched, view.done) == (1, 1, 1)
    assert sorted([office.state(first), office.state(second)]) == ["dead", "pending"]


def test_a_canary_of_tasks(office):
    ids = office.push(*(office.new("a") for _ in range(5)))

    view = begin(office, "cancel", BulkOptions(canary=2))

    assert (view.state, view.done) == (OperationState.WAITING, 2)
    assert [office.state(id) for id in ids].count("cancelled") == 2


# replay


def test_messages_of_the_past_are_pushed_again_once(ps, clock):
    queue = ps.create_queue("orders")
    target = ps.create_queue("again")
    queue.push_many(numbered(5))
    drain(queue)

    counted = queue.replay(target="again", dry_run=True)
    view = finished(ps, queue.replay(target="again", operation_id="r1"))

    assert (counted.matched, counted.samples[0]) == (5, "orders/0/0")
    assert (view.state, view.done, view.target, view.queue) == (OperationState.DONE, 5, "again", "orders")
    assert queue.replay(target="again", operation_id="r1") == view
    copies = target.read()
    assert [copy.payload for copy in copies] == numbered(5)
    assert [copy.headers[REPLAYED_FROM] for copy in copies] == [f"orders/0/{n}" for n in range(5)]
    assert [copy.dedup_key for copy in copies] == [f"r1/orders/0/{n}" for n in range(5)]


def test_a_replay_into_the_queue_itself_does_not_replay_its_copies(ps):
    queue = ps.create_queue("orders", partitions=3)
    for n in range(20):
        queue.push(b"%d" % n, key=f"k{n}")
    drain(queue)

    view = finished(ps, queue.replay())

    assert (view.matched, view.done) == (20, 20)
    assert sorted(drain(queue)) == sorted(b"%d" % n for n in range(20))


def test_a_replay_takes_what_matches(ps, clock):
    queue = ps.create_queue("orders")
    queue.push(b"early", key="a")
    clock.advance(10)
    since = to_datetime(clock.now())
    queue.push(b"one apple", key="a", headers={"tenant": "acme", "x": "1"})
    queue.push(b"one pear", key="a", headers={"tenant": "acme"})
    queue.push(b"two apples", key="b", headers={"tenant": "acme"})
    clock.advance(10)
    until = to_datetime(clock.now())
    queue.push(b"late apple", key="a", headers={"tenant": "acme"})
    ps.create_queue("again")

    wanted: list[dict[str, Any]] = [
        {"since": since, "until": until},
        {"key": "a"},
        {"headers": {"tenant": "acme", "x": "1"}},
        {"text": "apple"},
        {"text": "apple", "key": "a", "since": since, "until": until, "headers": {"tenant": "acme"}},
    ]
    assert [queue.replay(target="again", dry_run=True, **filter).matched for filter in wanted] == [3, 4, 1, 3, 1]
    with pytest.raises(QueueNotFound, match="target"):
        queue.replay(target="nowhere")
    with pytest.raises(InvalidField, match="from"):
        queue.replay(since=until, until=since)


def test_a_replay_with_a_canary_waits_and_a_full_target_is_waited_for(ps, clock):
    queue = ps.create_queue("orders")
    target = ps.create_queue("again", max_length=4)
    queue.push_many(numbered(6))

    view = finished(ps, queue.replay(target="again", canary=3))
    assert (view.state, view.done) == (OperationState.WAITING, 3)
    view = ps.operations.continue_(view.operation_id)
    assert (view.state, view.done) == (OperationState.RUNNING, 4)
    assert "max_length" in ps.operations.get(view.operation_id).error
    assert len(drain(target)) == 4
    clock.advance(5)
    view = finished(ps, ps.operations.get(view.operation_id))
    assert (view.state, view.done) == (OperationState.DONE, 6)
    assert len(drain(target)) == 2


def test_tasks_are_not_replayed_but_retried(ps, office):
    office.push(office.new("a"))

    view = finished(ps, ps.queue("mail").replay())

    assert (view.matched, view.done, view.failed) == (1, 0, 1)
    assert "task" in view.errors[0].message
