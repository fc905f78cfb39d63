"""Redrive: dead letters go back to where they died, all or some, slowly or mended (C9)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock import ContentType, Message
from penstock.broker import reply_size
from penstock.errors import MessageNotFound
from tests.behaviour.steps import TICK, drain, fail, kill, lease_one, numbered


def test_redrive_makes_the_message_ready_again_in_its_group_with_attempts_reset(ps, clock):
    queue = ps.create_queue("mail", max_attempts=2)
    queue.create_group("billing")
    queue.push(b"a", priority=200, key="k")
    fail(queue, clock, 2)
    id = queue.read()[0].id

    assert queue.dlq.redrive() == 1
    delivery = lease_one(queue)

    assert (delivery.id, delivery.attempt, delivery.priority, delivery.key) == (id, 1, 200, "k")
    assert queue.dlq.list() == []
    assert queue.stats().dead == 0
    assert queue.stats().groups["billing"].ready == 1
    assert queue.dlq.redrive() == 0


def test_a_redriven_message_may_die_again(ps, clock):
    queue = ps.create_queue("mail", max_attempts=2)
    queue.push(b"a")
    for _ in range(3):
        fail(queue, clock, 2)
        assert len(queue.dlq.list()) == 1
        assert queue.dlq.redrive() == 1
        clock.advance(TICK)

    assert drain(queue) == [b"a"]


def test_redrive_of_many_is_in_the_old_order(ps, clock):
    queue = ps.queue("mail")
    queue.push_many(numbered(5))
    leased = list(queue.lease(5))
    for index in (3, 1, 4, 0, 2):
        leased[index].reject()

    assert queue.dlq.redrive() == 5
    clock.advance(TICK)

    assert sorted(drain(queue)) == numbered(5)


def test_redrive_takes_only_what_the_filter_finds(ps, clock):
    queue = ps.queue("mail")
    queue.push_many(numbered(6))
    for number, delivery in enumerate(queue.lease(6)):
        delivery.reject("odd" if number % 2 else "even")

    assert queue.dlq.redrive(error_contains="odd", limit=2) == 2
    clock.advance(TICK)

    assert drain(queue) == [b"1", b"3"]
    assert [letter.payload for letter in queue.dlq.list()] == [b"0", b"2", b"4", b"5"]


def test_redrive_keeps_to_its_rate(ps, clock):
    queue = ps.queue("mail")
    queue.push_many(numbered(5))
    kill(queue, 5)

    assert queue.dlq.redrive(rate=2) == 5
    clock.advance(TICK)
    arrived = [len(drain(queue))]
    for _ in range(6):
        clock.advance(0.25)
        arrived.append(len(drain(queue)))
        clock.advance(0.25)
        arrived.append(len(drain(queue)))

    assert arrived == [1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 0, 0, 0]


@pytest.mark.parametrize("way", ["memory"], indirect=True)
def test_redrive_keeps_to_its_rate_over_thousands(ps, clock):
    queue = ps.queue("mail")
    queue.push_many(numbered(2_500))
    queue.lease(2_500).reject()

    assert queue.dlq.redrive(rate=1_000) == 2_500
    clock.advance(1 + TICK)
    first = len(drain(queue, 10_000))
    clock.advance(1)
    second = len(drain(queue, 10_000))
    clock.advance(1)

    assert 1_000 <= first <= 1_005
    assert 995 <= second <= 1_005
    assert first + second + len(drain(queue, 10_000)) == 2_500


def test_redrive_may_edit_and_then_pushes_new_messages(ps, clock):
    queue = ps.queue("mail")
    queue.push_many([Message(payload={"n": 1}, key="k"), Message(payload={"n": 2}, key="l")])
    kill(queue, 2)

    def mend(letter):
        return replace(letter, payload={"n": letter.json()["n"] * 10})

    assert queue.dlq.redrive(edit=mend) == 2

    assert queue.dlq.list() == []
    deliveries = list(queue.lease(2))
    assert [(d.json(), d.key, d.offset, d.attempt) for d in deliveries] == [
        ({"n": 10}, "k", 2, 1),
        ({"n": 20}, "l", 3, 1),
    ]
    assert deliveries[0].content_type is ContentType.JSON
    assert queue.stats().dead == 2  # the originals stay dead


def test_redrive_edits_all_letters_when_an_answer_holds_but_a_few(ps, monkeypatch):
    queue = ps.create_queue("mail")
    queue.push_many([bytes(300)] * 7)
    kill(queue, 7)
    monkeypatch.setattr(reply_size, "ANSWER_BYTES_MAX", 1_000)

    assert queue.dlq.redrive(edit=lambda letter: replace(letter, payload=b"mended")) == 7
    assert drain(queue) == [b"mended"] * 7


def test_redrive_keeps_to_its_rate_when_it_edits(ps, clock):
    queue = ps.queue("mail")
    queue.push_many(numbered(3))
    kill(queue, 3)

    queue.dlq.redrive(rate=1, edit=lambda letter: letter)

    assert drain(queue) == [b"0"]
    clock.advance(1 + TICK)
    assert drain(queue) == [b"1"]
    clock.advance(1 + TICK)
    assert drain(queue) == [b"2"]


def test_an_edit_that_fails_changes_nothing(ps):
    queue = ps.queue("mail")
    queue.push(b"a")
    kill(queue)

    with pytest.raises(ZeroDivisionError):
        queue.dlq.redrive(edit=lambda letter: 1 // 0)

    assert len(queue.dlq.list()) == 1
    assert queue.stats().messages == 1


def test_a_message_whose_group_moved_on_cannot_be_redriven(ps):
    queue = ps.queue("mail")
    queue.push(b"a")
    kill(queue)
    queue.seek("default", "earliest")

    with pytest.raises(MessageNotFound):
        queue.dlq.redrive()

    assert len(queue.dlq.list()) == 1
    assert drain(queue) == [b"a"]
