"""Dead letters: what they tell, and the way back (C9)."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from penstock import Message
from penstock.errors import InvalidName, TooLarge
from penstock.model import to_datetime
from tests.behaviour.steps import TICK, fail, kill, lease_one, numbered, take


def test_a_dead_letter_tells_where_it_comes_from_and_why_it_died(ps, clock):
    queue = ps.create_queue("mail", max_attempts=2)
    queue.push(b"body", key="k", headers={"own": "header"}, trace="t", priority=7)
    first_at = to_datetime(clock.now())
    lease_one(queue, consumer="ann").nack(delay=10, error="first")
    clock.advance(10 + TICK)
    last_at = to_datetime(clock.now())
    last = lease_one(queue, consumer="bob")
    clock.advance(5)
    last.nack(error="second")

    (letter,) = queue.dlq.list()
    headers = dict(letter.headers)
    assert (letter.payload, letter.key, letter.trace, headers.pop("own")) == (b"body", "k", "t", "header")
    assert headers == {
        "penstock-origin": "mail/0/0",
        "penstock-group": "default",
        "penstock-reason": "dead",
        "penstock-error": "second",
        "penstock-attempts": "2",
        "penstock-first-delivered-at": first_at.isoformat(),
        "penstock-last-delivered-at": last_at.isoformat(),
        "penstock-last-consumer": "bob",
        "penstock-dead-at": to_datetime(clock.now()).isoformat(),
        "penstock-pushed-at": first_at.isoformat(),
    }
    assert letter.pushed_at == to_datetime(clock.now())


def test_a_nack_at_the_last_attempt_dead_letters_exactly_once(ps, clock):
    queue = ps.create_queue("mail", max_attempts=3)
    queue.push(b"a")
    fail(queue, clock, 3)

    for _ in range(3):
        clock.advance(3600)
        assert take(queue) == []
    assert len(queue.dlq.list()) == 1
    assert queue.stats().dead == 1


def test_a_message_is_never_ready_in_both_queues(ps):
    queue = ps.queue("mail")
    queue.push(b"a")
    kill(queue)

    letters = ps.queue("mail.dlq")
    assert take(queue) == []
    assert letters.stats().ready == 1
    queue.dlq.redrive()
    assert letters.stats().ready == 0


def test_a_queue_may_do_without_dead_letters(ps, clock):
    queue = ps.create_queue("mail", dead_letter=False, max_attempts=1)
    queue.push_many([b"failed", b"rejected"])
    failed, rejected = queue.lease(2)
    failed.nack()
    rejected.reject()

    assert ps.queues() == ["mail"]
    assert queue.dlq.list() == []
    assert queue.stats().groups["default"].dropped_by == {"discarded": 2}


def test_every_group_has_dead_letters_of_its_own(ps):
    queue = ps.queue("mail")
    queue.push(b"a")
    kill(queue, reason="mine")
    kill(queue, reason="theirs", group="billing", start="earliest")

    assert [letter.headers["penstock-group"] for letter in queue.dlq.list()] == ["default", "billing"]
    assert queue.dlq.redrive(group="billing") == 1

    assert take(queue) == []
    assert take(queue, group="billing") == [b"a"]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({}, [b"a", b"b", b"c", b"d"]),
        ({"group": "billing"}, [b"d"]),
        ({"reason": "dead"}, [b"b"]),
        ({"error_contains": "time"}, [b"a", b"c"]),
        ({"key": "k"}, [b"c"]),
        ({"limit": 2}, [b"a", b"b"]),
        ({"reason": "rejected", "error_contains": "out"}, [b"a"]),
        ({"group": "nobody"}, []),
    ],
)
def test_dead_letters_are_found_by_filter(ps, clock, wanted, expected):
    queue = ps.queue("mail")
    queue.push_many([b"a", Message(payload=b"b", max_attempts=1), Message(payload=b"c", key="k")])
    a, b, c = queue.lease(3)
    a.reject("timeout")
    b.nack(error="refused")
    c.reject("no time")
    queue.push(b"d")
    queue.create_group("billing", start=3)
    kill(queue, group="billing")

    assert [letter.payload for letter in queue.dlq.list(**wanted)] == expected


def test_dead_letters_are_found_by_time_and_by_id(ps, clock):
    queue = ps.queue("mail")
    queue.push_many(numbered(3))
    instants = []
    for _ in range(3):
        instants.append(to_datetime(clock.now()))
        kill(queue)
        clock.advance(60)

    def found(**wanted):
        return [letter.payload for letter in queue.dlq.list(**wanted)]

    assert found(since=instants[1]) == [b"1", b"2"]
    assert found(until=instants[1]) == [b"0"]
    assert found(since=instants[1], until=instants[2]) == [b"1"]
    ids = [letter.id for letter in queue.dlq.list()]
    assert queue.dlq.redrive(ids=ids[1:2]) == 1
    assert found() == [b"0", b"2"]


def test_dead_letters_can_be_thrown_away(ps):
    queue = ps.queue("mail")
    queue.push_many(numbered(3))
    kill(queue, 3)

    queue.dlq.purge()

    assert queue.dlq.list() == []
    assert queue.dlq.redrive() == 0
    assert queue.stats().dead == 3


def test_dead_letters_can_be_consumed_like_any_message(ps):
    queue = ps.queue("mail")
    queue.push(b"a", headers={"own": "header"})
    kill(queue)

    delivery = lease_one(ps.queue("mail.dlq"))
    assert delivery.headers["own"] == "header"
    delivery.ack()

    assert queue.dlq.list() == []


def test_a_dead_letter_queue_has_none_itself(ps, clock):
    queue = ps.queue("mail")
    queue.push(b"a")
    kill(queue)

    lease_one(ps.queue("mail.dlq")).reject()

    assert ps.queues() == ["mail", "mail.dlq"]
    assert ps.queue("mail.dlq").stats().groups["default"].dropped_by == {"discarded": 1}


def test_nobody_pushes_to_a_dead_letter_queue(ps):
    queue = ps.queue("mail")
    queue.push(b"a")
    kill(queue)

    for name in ("mail.dlq", "other.dlq"):
        with pytest.raises(InvalidName, match="dead-letter"):
            ps.queue(name).push(b"x")
    with pytest.raises(InvalidName):
        ps.create_queue("new.dlq")

    assert len(queue.dlq.list()) == 1


def test_many_messages_may_die_together(ps):
    queue = ps.create_queue("mail", max_attempts=1)
    queue.push_many(numbered(2_000))

    queue.lease(2_000).nack(error="all bad")

    letters = queue.dlq.list(limit=5_000)
    assert [letter.payload for letter in letters] == numbered(2_000)
    assert queue.dlq.redrive() == 2_000


@pytest.mark.parametrize("way", ["memory"], indirect=True)
def test_a_lease_of_large_messages_may_run_out_and_all_of_them_die(ps, clock):
    queue = ps.create_queue("mail", max_attempts=1)
    for _ in range(4):
        queue.push(b"x" * 9_000_000)
    queue.lease(4)

    clock.advance(31)
    for _ in range(4):  # time passes in slices, each of a frame
        queue.stats()

    assert queue.stats().dead == 4
    assert [len(letter.payload) for letter in queue.dlq.list()] == [9_000_000] * 4


@pytest.mark.parametrize("way", ["memory"], indirect=True)
def test_large_messages_that_do_not_fit_into_one_frame_are_rejected_one_by_one(ps):
    queue = ps.queue("mail")
    for _ in range(4):
        queue.push(b"x" * 9_000_000)
    leased = queue.lease(4)

    with pytest.raises(TooLarge):
        leased.reject()
    assert (queue.stats().leased, queue.stats().dead) == (4, 0)
    for delivery in leased:
        delivery.reject()

    assert queue.stats().dead == 4


def test_a_message_with_all_the_headers_it_may_have_can_die(ps):
    queue = ps.queue("mail")
    headers = {f"header-{number:04d}": "v" * 52 for number in range(1_024)}
    queue.push(b"a", headers=headers, key="k" * 65_536)

    lease_one(queue).reject("e" * 4_000)

    (letter,) = queue.dlq.list()
    kept = {name: value for name, value in letter.headers.items() if name in headers}
    assert 900 < len(kept) < len(headers)  # as many as there is room for beside those that tell of the death
    assert letter.key == "k" * 65_536
    assert letter.headers["penstock-origin"] == "mail/0/0"
    assert letter.headers["penstock-error"].startswith("e")


def test_the_longest_queue_name_has_dead_letters_too(ps, clock):
    queue = ps.queue("q" * 128)
    queue.push(b"a")
    kill(queue)

    assert len(queue.dlq.list()) == 1
    assert queue.dlq.redrive() == 1
    clock.advance(TICK)
    kill(queue)
    queue.dlq.purge()
    assert queue.dlq.list() == []
    ps.delete_queue(queue.name)
    assert ps.queues() == []


def test_times_of_death_can_be_read(ps, clock):
    queue = ps.queue("mail")
    queue.push(b"a")
    kill(queue)

    (letter,) = queue.dlq.list()
    died = datetime.fromisoformat(letter.headers["penstock-dead-at"])

    assert abs(died - to_datetime(clock.now())) < timedelta(seconds=1)
