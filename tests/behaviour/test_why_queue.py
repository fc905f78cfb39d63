"""Why do messages of a queue wait? Counted over the whole queue, and the same as asked for each message."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial

import pytest

from penstock import Message, limits
from penstock import operations as ops
from penstock.errors import GroupNotFound, InvalidField, QueueNotFound, TaskNotFound
from penstock.model_tasks import WorkerInfo
from penstock.requests import LeaseRequest
from tests.behaviour.steps import TICK, lease_one, numbered, refuse, take
from tests.behaviour.task_steps import Office
from tests.support.operations import run_operation


def group_of(queue, name="default", **options):
    return next(group for group in queue.why_waiting(**options).groups if group.group == name)


def counted(queue, name="default"):
    counts: Counter[str] = Counter()
    for reason in group_of(queue, name, limit=100).reasons:
        counts[reason.code] += reason.count
    return counts


def one_by_one(queue, ids, group="default"):
    """What `why` says of each message that waits."""
    codes: Counter[str] = Counter()
    for id in ids:
        code = next(reason.code for reason in queue.why(id) if reason.group == group)
        if code not in ("settled", "leased", "dead", "skipped"):
            codes[code] += 1
    return codes


OPTIONS = {
    "plain": {},
    "delayed": {"delay_seconds": 30},
    "quiet": {"window_seconds": 30},
    "by_partition": {"ordering": "partition"},
    "by_key": {"ordering": "key"},
    "key_limit": {"key_max_in_flight": 2},
    "key_rate": {"key_lease_per_second": 0.1, "key_lease_burst": 2},
    "rate": {"lease_per_second": 0.1, "lease_burst": 3},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_reasons_of_a_queue_are_those_of_its_messages(ps, way, clock, options):
    chance = random.Random(5)
    queue = ps.create_queue("mail", partitions=2, lease_seconds=3600, **options)
    queue.create_group("audit")
    ids = []
    for number in range(60):
        message = Message(
            payload=str(number).encode(),
            key=chance.choice([None, "a", "b", "c"]),
            delay=0 if "ordering" in options else chance.choice([0, 0, 0, 50, 90]),
            priority=128 if "ordering" in options else chance.choice([100, 128, 128, 200]),
        )
        ids += queue.push_many([message]).ids
        if number == 30:
            way.seal()
            clock.advance(31)
    for _ in range(8):
        for delivery in queue.lease(2, consumer="ann"):
            end = chance.choice(["hold", "ack", "nack", "release", "reject"])
            if end == "nack":
                delivery.nack(delay=40, error="no luck")
            elif end != "hold":
                getattr(delivery, end)()

    for group in ("default", "audit"):
        assert counted(queue, group) == one_by_one(queue, ids, group)
        view = group_of(queue, group)
        leased = sum(lease.messages for lease in queue.leases(group))
        stats = queue.stats().groups[group]
        assert (view.leased, view.open) == (leased, stats.lag)
        assert sum(counted(queue, group).values()) + leased == view.open
        assert view.is_complete


def test_a_key_that_has_as_many_in_flight_as_may_be_names_its_holders(ps, clock):
    queue = ps.create_queue("orders", key_max_in_flight=2, lease_seconds=600)
    ids = queue.push_many(
        [Message(payload=b"x", key="acme") for _ in range(10)] + [Message(payload=b"y", key="other")]
    ).ids
    assert len(queue.lease(2, consumer="worker-3")) == 2
    clock.advance(5)
    take(queue, consumer="worker-4")

    first = group_of(queue).reasons[0]

    assert (first.code, first.count, first.key) == ("limited_by_key", 8, "acme")
    assert (first.in_flight, first.limit) == (2, 2)
    assert [(holder.consumer, holder.messages) for holder in first.holders] == [("worker-3", 2)]
    assert first.since == first.holders[0].since
    assert (first.holders[0].expires_at - first.since).total_seconds() == pytest.approx(600, abs=1)
    assert first.sample in ids
    assert first.text.startswith("8 wait for key 'acme': 2 of 2 in flight since ")
    assert first.text.endswith("held by worker-3")


def test_key_order_names_who_holds_the_key(ps):
    queue = ps.create_queue("orders", ordering="key")
    queue.push_many([Message(payload=b"x", key="acme") for _ in range(4)])
    lease_one(queue, consumer="ann")

    (reason,) = group_of(queue).reasons

    assert (reason.code, reason.count, reason.key, reason.limit) == ("held_by_key", 3, "acme", 1)
    assert [holder.consumer for holder in reason.holders] == ["ann"]


def test_what_is_not_due_says_when_the_first_goes_on(ps, clock):
    queue = ps.queue("mail")
    queue.push(b"late", delay=60)
    queue.push(b"later", delay=90)

    (reason,) = group_of(queue).reasons

    assert (reason.code, reason.count) == ("not_due", 2)
    assert (reason.until.timestamp() - clock.now() / 1e6) == pytest.approx(60, abs=0.01)


def test_a_pause_says_what_is_paused_and_why(ps):
    queue = ps.create_queue("shop.orders")
    queue.push_many(numbered(3))
    ps.pause("delivery", namespace="shop", reason="the tenant moves")

    (reason,) = group_of(queue).reasons

    assert (reason.code, reason.count) == ("paused", 3)
    assert "namespace 'shop'" in reason.text
    assert "the tenant moves" in reason.text


def test_a_group_that_nobody_leases_from_any_more_has_no_consumer(ps, clock):
    queue = ps.queue("mail")
    queue.push_many(numbered(3))
    clock.advance(1)
    lease_one(queue).ack()
    assert counted(queue) == {"in_line": 2}

    clock.advance(61)

    (reason,) = group_of(queue).reasons
    assert (reason.code, reason.count) == ("no_consumer", 2)
    assert "since" in reason.text


def test_reasons_over_the_limit_are_added_up(ps):
    queue = ps.create_queue("mail", ordering="key")
    for key in "abcd":
        queue.push_many([Message(payload=b"x", key=key) for _ in range(3)])

    group = group_of(queue, limit=2)

    assert [(reason.code, reason.count) for reason in group.reasons] == [
        ("no_consumer", 4),
        ("held_by_key", 2),
        ("other", 6),
    ]


def test_only_one_group_is_looked_at_if_one_is_named(ps):
    queue = ps.queue("mail")
    queue.push(b"x")
    queue.create_group("audit")

    assert [group.group for group in queue.why_waiting().groups] == ["default", "audit"]
    assert [group.group for group in queue.why_waiting("audit").groups] == ["audit"]
    refuse(GroupNotFound, lambda: queue.why_waiting("nobody"), "nobody")
    refuse(QueueNotFound, lambda: ps.queue("nothing").why_waiting(), "nothing")
    for limit in (0, -1, 101, True):
        refuse(InvalidField, partial(queue.why_waiting, limit=limit), "limit")


def test_messages_that_came_back_below_the_low_water_mark_are_counted(ps, clock):
    queue = ps.create_queue("mail", key_max_in_flight=1)
    queue.push_many([Message(payload=b"x", key="a"), Message(payload=b"y", key="b")])
    lease_one(queue).reject("bad")
    lease_one(queue).ack()
    queue.dlq.redrive()
    clock.advance(TICK)

    assert sum(counted(queue).values()) == 1


# tasks


def test_tasks_that_no_worker_knows_and_tasks_that_wait_for_their_parents(ps, clock):
    office = Office(ps)
    ps.create_queue("mail")
    clock.advance(1)
    run_operation(
        office.session, ops.HeartbeatWorker(WorkerInfo(worker_id="w", queues=("mail",), task_types=("send",)))
    )
    office.enqueue("other")
    parent = office.enqueue("send")
    (child,) = office.submit(office.new("send", depends_on=(parent,)))
    queue = ps.queue("mail")
    request = LeaseRequest(9, 600, "w", task_types=frozenset({"send"}))
    assert office.session.lease("mail", "default", request, 0).count == 1

    reasons = {reason.code: reason for reason in group_of(queue).reasons}

    assert {code: reason.count for code, reason in reasons.items()} == {"no_worker": 1, "blocked": 1}
    assert "'other'" in reasons["no_worker"].text
    waits = ps.why_task(child)
    assert [(reason.code, reason.group) for reason in waits.reasons] == [("blocked", "default")]
    assert [(task.task_id, task.state) for task in waits.parents] == [(parent, "running")]


def test_why_a_task_does_not_run(ps, clock):
    office = Office(ps)
    pending = office.enqueue()
    assert [reason.code for reason in ps.why_task(pending).reasons] == ["no_consumer"]

    clock.advance(1)
    office.work()

    done = ps.why_task(pending)
    assert (done.state, [reason.code for reason in done.reasons]) == ("completed", ["completed"])
    refuse(TaskNotFound, lambda: ps.why_task("0190f3a2-7b1c-7c00-8000-0123456789ab"))
    refuse(InvalidField, lambda: ps.why_task("nonsense"), "nonsense")


# keys


def test_keys_by_their_backlog(ps, clock, way):
    queue = ps.create_queue("orders", key_max_in_flight=1, lease_seconds=600)
    first = queue.push(b"x", key="acme")
    queue.push_many([Message(payload=b"x", key="acme") for _ in range(4)])
    way.seal()
    clock.advance(1)
    queue.push_many([Message(payload=b"y", key="bob"), Message(payload=b"y", key="bob"), Message(payload=b"z")])
    lease_one(queue, consumer="ann")

    page = queue.keys()

    assert [(row.key, row.backlog, row.in_flight, row.code) for row in page.keys] == [
        ("acme", 4, 1, "limited_by_key"),
        ("bob", 2, 0, ""),
    ]
    assert (page.distinct, page.without_key, page.examined, page.is_complete) == (2, 1, 8, True)
    assert page.keys[0].oldest_id == first
    assert (page.keys[1].oldest_at - page.keys[0].oldest_at).total_seconds() == 1
    assert [holder.consumer for holder in page.keys[0].holders] == ["ann"]
    assert (page.keys[0].in_flight_max, page.keys[0].rate_per_second) == (1, None)
    assert [row.key for row in queue.keys(limit=1).keys] == ["acme"]
    assert [row.key for row in queue.keys(key="bob").keys] == ["bob"]
    assert [row.key for row in queue.keys(prefix="b").keys] == ["bob"]
    assert queue.keys(key="nobody").keys == []
    assert queue.keys(prefix="zzz").keys == []


def test_keys_of_an_empty_queue_and_bad_questions_about_keys(ps):
    queue = ps.create_queue("orders")
    page = queue.keys()
    assert (page.keys, page.distinct, page.examined, page.is_complete) == ([], 0, 0, True)

    refuse(GroupNotFound, lambda: queue.keys("nobody"), "nobody")
    for limit in (0, 1_001):
        refuse(InvalidField, partial(queue.keys, limit=limit), "limit")
    refuse(InvalidField, lambda: queue.keys(prefix="x" * (limits.key_bytes_max + 1)), "prefix")


def test_a_key_that_waits_for_its_next_attempt(ps):
    queue = ps.create_queue("orders", ordering="key")
    queue.push_many([Message(payload=b"x", key="acme") for _ in range(3)])
    lease_one(queue).nack(delay=60)

    (row,) = queue.keys().keys

    assert (row.backlog, row.waiting, row.in_flight, row.code) == (3, 1, 0, "held_by_key")


# the account


def test_every_message_is_accounted_for(ps, way, clock):
    queue = ps.create_queue("mail")
    queue.create_group("audit")
    queue.push_many(numbered(6))
    lease_one(queue).ack()
    lease_one(queue).reject("bad")
    held = queue.lease(1)
    way.seal()
    queue.push(b"late", delay=60)

    account = queue.account()

    assert account.is_balanced
    rows = {group.group: group for group in account.groups}
    default, audit = rows["default"], rows["audit"]
    assert (default.accepted, default.acked, default.dead, default.dropped, default.open) == (7, 1, 1, 0, 5)
    assert (audit.accepted, audit.open, audit.difference) == (7, 7, 0)
    held.ack()
    queue.purge()
    assert queue.account().is_balanced
    refuse(QueueNotFound, lambda: ps.queue("nothing").account(), "nothing")
