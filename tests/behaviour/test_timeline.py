"""What happened to a message: its state in each group, and its events, before and after they are sealed."""

from __future__ import annotations

from datetime import timedelta

import pytest

from penstock import Message
from penstock.errors import InvalidField, MessageNotFound, QueueNotFound
from penstock.model import MessageId, to_datetime
from tests.behaviour.steps import TICK, drain, lease_one, numbered


def happened(queue, id, **options):
    """(what, group, attempt, consumer, error) of each event."""
    return [(e.what, e.group, e.attempt, e.consumer, e.error) for e in queue.events(id, **options)]


def what(queue, id):
    return [event.what for event in queue.events(id)]


def test_a_message_that_was_only_pushed(ps, clock):
    queue = ps.queue("mail")
    id = queue.push(b"a")

    (event,) = queue.events(id)

    assert (event.what, event.at, event.group) == ("pushed", to_datetime(clock.now()), "")


def test_everything_from_the_push_to_the_ack(ps, clock):
    queue = ps.queue("mail")
    id = queue.push(b"a")
    for number, who in enumerate(("ann", "bob"), 1):
        clock.advance(1)
        lease_one(queue, consumer=who).nack(delay=1, error=f"no luck {number}")
        clock.advance(1 + TICK)
    last = lease_one(queue, consumer="cid")
    clock.advance(1)
    last.ack()

    assert happened(queue, str(id)) == [
        ("pushed", "", 0, "", ""),
        ("leased", "default", 1, "ann", ""),
        ("retried", "default", 1, "ann", "no luck 1"),
        ("leased", "default", 2, "bob", ""),
        ("retried", "default", 2, "bob", "no luck 2"),
        ("leased", "default", 3, "cid", ""),
        ("acked", "default", 3, "cid", ""),
    ]
    instants = [event.at for event in queue.events(id)]
    assert instants == sorted(instants)
    assert instants[-1] - instants[-2] == timedelta(seconds=1)


@pytest.mark.parametrize("way", ["file", "tcp", "forgetful"], indirect=True)
def test_the_same_is_seen_at_every_stage_of_sealing(ps, way, clock):
    queue = ps.create_queue("mail", partitions=2)
    ids = queue.push_many([Message(payload=b"%d" % n, partition=n % 2) for n in range(6)]).ids
    seen: dict[MessageId, list[tuple[str, str, int, str, str]]] = {id: [("pushed", "", 0, "", "")] for id in ids}
    for attempt in range(1, 4):
        for delivery in queue.lease(6, consumer=f"worker-{attempt}"):
            error = f"{delivery.id} {attempt}"
            seen[delivery.id] += [
                ("leased", "default", attempt, f"worker-{attempt}", ""),
                ("retried", "default", attempt, f"worker-{attempt}", error),
            ]
            clock.advance(0.01)
            delivery.nack(delay=0, error=error)
        assert {id: happened(queue, id) for id in ids} == seen
        clock.advance(1)
        way.seal()
        assert {id: happened(queue, id) for id in ids} == seen
    queue = way.restart().queue("mail")
    assert {id: happened(queue, id) for id in ids} == seen


def test_the_next_attempt_is_in_the_event_that_it_follows(ps, clock):
    queue = ps.queue("mail")
    queue.push_many([b"a", b"b"])
    leased = queue.lease(2)
    for number, delivery in enumerate(leased):
        delivery.nack(delay=60 + number)

    dues = [queue.events(delivery.id)[-1].due_at for delivery in leased]

    assert [due - to_datetime(clock.now()) for due in dues] == [timedelta(seconds=60), timedelta(seconds=61)]


def test_a_message_that_is_held_now(ps, clock):
    queue = ps.queue("mail")
    id = queue.push(b"a")
    clock.advance(1)
    lease_one(queue, consumer="ann")

    assert happened(queue, id)[1:] == [("leased", "default", 1, "ann", "")]


def test_whatever_else_ends_a_delivery_or_a_message(ps, clock, way):
    queue = ps.create_queue("mail", lease_seconds=10, backoff_base_seconds=1000)
    ids = queue.push_many(numbered(6)).ids
    _, snoozed, _ = (lease_one(queue) for _ in range(3))
    snoozed.snooze(500)
    queue.cancel(ids[3])
    clock.advance(11)
    way.let_time_happen()
    released = lease_one(queue)
    released.release()
    queue.purge()

    assert what(queue, ids[1]) == ["pushed", "leased", "snoozed", "purged"]
    assert what(queue, ids[2]) == ["pushed", "leased", "timed_out", "purged"]
    assert what(queue, ids[3]) == ["pushed", "cancelled"]
    assert what(queue, released.id) == ["pushed", "leased", "released", "purged"]
    expiring = queue.push(b"x", ttl=1)
    clock.advance(2)
    way.let_time_happen()
    assert what(queue, expiring) == ["pushed", "expired"]


def test_a_purge_is_not_an_event_of_what_was_settled_before(ps):
    queue = ps.queue("mail")
    ids = queue.push_many(numbered(3)).ids
    deliveries = list(queue.lease(3))
    deliveries[1].ack()
    queue.purge()

    assert what(queue, ids[1]) == ["pushed", "leased", "acked"]
    assert what(queue, ids[0]) == ["pushed", "leased", "purged"]


def test_what_overflowed_and_what_waited_too_long(ps, clock, way):
    full = ps.create_queue("full", max_length=1, overflow="drop_oldest")
    first = full.push(b"a")
    full.push(b"b")
    late = ps.create_queue("late", max_wait_seconds=10, max_wait_action="drop")
    id = late.push(b"a")
    clock.advance(11)
    way.let_time_happen()

    assert what(full, first) == ["pushed", "overflowed"]
    (event,) = late.events(id)[1:]
    assert (event.what, event.error) == ("evicted", "waited too long")


def test_groups_have_their_own_events(ps, clock):
    queue = ps.queue("mail")
    id = queue.push(b"a")
    queue.create_group("billing")
    clock.advance(1)
    lease_one(queue).ack()
    clock.advance(1)
    lease_one(queue, group="billing").nack(delay=60)

    assert [(event.what, event.group) for event in queue.events(id)[1:]] == [
        ("leased", "default"), ("acked", "default"), ("leased", "billing"), ("retried", "billing"),
    ]  # fmt: skip


def test_a_death_names_its_letter_and_the_way_back(ps, clock):
    queue = ps.queue("mail")
    queue.push(b"another")
    lease_one(queue).reject("bad")
    id = queue.push(b"a")
    clock.advance(1)
    lease_one(queue, consumer="ann").reject("bad too")
    letter = queue.dlq.list()[1].id
    clock.advance(1)
    queue.dlq.redrive(ids=[letter])
    clock.advance(1)
    lease_one(queue).ack()

    events = queue.events(id)

    assert [event.what for event in events] == ["pushed", "leased", "rejected", "redriven", "leased", "acked"]
    assert (events[2].letter, events[2].error) == (letter, "bad too")
    assert events[4].attempt == 1
    assert what(ps.queue("mail.dlq"), letter) == ["pushed", "redriven"]


@pytest.mark.parametrize("way", ["file", "tcp"], indirect=True)
def test_a_redrive_is_known_after_it_was_sealed(ps, way, clock):
    queue = ps.queue("mail")
    id = queue.push(b"a")
    clock.advance(1)
    lease_one(queue).reject("bad")
    letter = queue.dlq.list()[0].id
    clock.advance(1)
    queue.dlq.redrive()
    clock.advance(1)
    lease_one(queue).ack()
    before = happened(queue, id)
    way.seal()

    assert happened(queue, id) == before
    assert [(event.what, event.letter) for event in queue.events(id)][2:4] == [
        ("rejected", letter),
        ("redriven", letter),
    ]


@pytest.mark.parametrize("way", ["file", "forgetful"], indirect=True)
def test_a_lease_that_a_crash_ended_is_interrupted(ps, way, clock):
    queue = ps.queue("mail")
    id = queue.push(b"a")
    clock.advance(1)
    lease_one(queue, consumer="ann")
    queue.push(b"b")
    clock.advance(1)
    queue = way.crash().queue("mail")

    assert what(queue, id) == ["pushed", "leased", "interrupted"]
    assert queue.events(id)[-1].error == "the process stopped"


def test_the_last_events_are_the_ones_that_are_shown(ps, clock):
    queue = ps.create_queue("mail", max_attempts=100)
    id = queue.push(b"a")
    for _ in range(5):
        clock.advance(1)
        lease_one(queue).nack(delay=0)

    assert [event.attempt for event in queue.events(id, limit=3)] == [4, 5, 5]


def test_messages_that_do_not_exist(ps):
    queue = ps.queue("mail")
    queue.push(b"a")

    for look in (queue.events, queue.message):
        with pytest.raises(MessageNotFound):
            look("mail/0/1")
        with pytest.raises(MessageNotFound):
            look("mail/7/0")
        with pytest.raises(QueueNotFound):
            look("nowhere/0/0")
        with pytest.raises(InvalidField, match="id"):
            look("mail/0")


# the state of a message


def state_of(queue, id, group="default"):
    return {state.group: state for state in queue.message(id).groups}[group]


def test_a_message_and_its_state_in_each_group(ps, clock):
    queue = ps.queue("mail")
    id = queue.push(b"a", key="k", headers={"h": "1"})
    queue.create_group("billing")
    queue.create_group("late", start="latest")
    clock.advance(1)
    delivery = lease_one(queue, consumer="ann", lease_seconds=30)

    details = queue.message(id)

    assert (details.message.payload, details.message.key, details.message.headers) == (b"a", "k", {"h": "1"})
    assert {state.group: state.state for state in details.groups} == {
        "default": "leased", "billing": "ready", "late": "skipped",
    }  # fmt: skip
    held = state_of(queue, id)
    assert (held.consumer, held.leased_at) == ("ann", to_datetime(clock.now()))
    assert held.expires_at - held.leased_at == timedelta(seconds=30)

    delivery.nack(delay=60, error="no luck")
    waits = state_of(queue, id)
    assert (waits.state, waits.attempts, waits.outcome, waits.error) == ("waiting", 1, "retried", "no luck")
    assert waits.due_at == to_datetime(clock.now() + 60_000_000)

    clock.advance(60 + TICK)
    ready = state_of(queue, id)
    assert (ready.state, ready.attempts, ready.error, ready.due_at) == ("ready", 1, "no luck", None)

    lease_one(queue).reject("bad")
    assert state_of(queue, id).state == "dead"
    drain(queue, group="billing")
    assert state_of(queue, id, "billing").state == "settled"


def test_a_message_that_is_not_due_is_delayed(ps):
    queue = ps.queue("mail")
    id = queue.push(b"a", delay=60)

    assert state_of(queue, id).state == "delayed"


# by key and by trace id


def found(queue, **options):
    return [timeline.id.offset for timeline in queue.find(**options).timelines]


def test_messages_are_found_by_key_and_by_trace_newest_first(ps, clock):
    queue = ps.create_queue("mail", partitions=2)
    for n in range(8):
        clock.advance(1)
        queue.push(b"%d" % n, key=f"key {n % 2}", trace=f"trace {n % 4}", partition=n % 2)
    queue.push(b"plain")

    by_key = queue.find(key="key 1")

    assert [timeline.id.offset for timeline in by_key.timelines] == [3, 2, 1, 0]
    assert {(t.key, t.id.partition) for t in by_key.timelines} == {("key 1", "1")}
    assert by_key.is_complete
    assert by_key.examined == 9
    assert found(queue, trace="trace 2") == [3, 1]
    assert found(queue, key="key 0", trace="trace 2") == [3, 1]
    assert found(queue, key="key 1", trace="trace 2") == []
    assert found(queue, key="key 1", limit=2) == [3, 2]


def test_what_is_found_has_its_events(ps, clock):
    queue = ps.queue("mail")
    queue.push(b"a", key="k")
    clock.advance(1)
    lease_one(queue, consumer="ann").ack()

    (timeline,) = queue.find(key="k").timelines

    assert [event.what for event in timeline.events] == ["pushed", "leased", "acked"]


def test_the_look_back_ends_where_it_says(ps, clock, way):
    queue = ps.queue("mail")
    for n in range(6):
        clock.advance(1)
        queue.push(b"%d" % n, key=f"key {n}")
        if n == 3 and way.lasts:
            way.seal()

    search = queue.find(key="key 0", look_back=2)

    assert search.timelines == []
    assert not search.is_complete
    assert search.examined == 2
    assert search.looked_back_to == to_datetime(clock.now() - 1_000_000)
    assert found(queue, key="key 0", look_back=6) == [0]


def test_a_search_needs_something_to_look_for(ps):
    queue = ps.queue("mail")
    queue.push(b"a")

    with pytest.raises(InvalidField, match="key"):
        queue.find()
    with pytest.raises(InvalidField, match="look_back"):
        queue.find(key="k", look_back=0)
    with pytest.raises(InvalidField, match="limit"):
        queue.find(key="k", limit=1_000)
    with pytest.raises(QueueNotFound):
        ps.queue("nowhere").find(key="k")
