"""What waits for its next attempt says why, and until when: in `why`, in lists, in dead letters, after a restart."""

from __future__ import annotations

import pytest

from penstock import Message, limits
from penstock.errors import InvalidField, MessageNotFound
from penstock.model import to_datetime
from tests.behaviour.steps import TICK, lease_one


def retries(queue, **options):
    return queue.delayed(include="only_retries", **options)


def test_why_has_the_last_error_the_reason_and_the_due_time(ps, clock):
    queue = ps.queue("mail")
    id = queue.push(b"a")
    lease_one(queue).nack(delay=60, error="connection refused")

    (reason,) = queue.why(id)

    assert (reason.code, reason.outcome, reason.error) == ("retry", "retried", "connection refused")
    assert reason.due_at == to_datetime(clock.now() + 60_000_000)


def test_a_message_that_was_never_tried_has_no_error(ps):
    queue = ps.queue("mail")
    id = queue.push(b"a")

    (reason,) = queue.why(id)

    assert (reason.outcome, reason.error, reason.due_at) == ("", "", None)


def test_retries_are_listed_with_what_is_delayed_soonest_first(ps, clock):
    queue = ps.queue("mail")
    failed = queue.push(b"failed")
    lease_one(queue).nack(delay=30, error="no luck")
    later = queue.push(b"later", delay=60)

    listed = queue.delayed(include="retries")

    assert [message.id for message in listed] == [failed, later]
    assert [message.id for message in queue.delayed()] == [later]
    retry = listed[0].retry
    assert (retry.group, retry.attempt, retry.reason, retry.error) == ("default", 2, "retried", "no luck")
    assert retry.due_at == listed[0].available_at == to_datetime(clock.now() + 30_000_000)
    assert retry.failed_at == to_datetime(clock.now())
    assert listed[1].retry is None


def test_each_group_has_a_row_of_its_own(ps):
    queue = ps.queue("mail")
    queue.push(b"a")
    queue.create_group("billing")
    lease_one(queue).nack(delay=60, error="mine")
    lease_one(queue, group="billing").nack(delay=30, error="theirs")

    assert [(row.retry.group, row.retry.error) for row in retries(queue)] == [
        ("billing", "theirs"),
        ("default", "mine"),
    ]
    assert [row.retry.group for row in retries(queue, limit=1)] == ["billing"]


def test_every_way_to_wait_has_its_reason(ps, clock, way):
    queue = ps.create_queue("mail", backoff_base_seconds=60, lease_seconds=10)
    for name in (b"snoozed", b"timed out", b"nacked"):
        queue.push(name)
    lease_one(queue).snooze(60)
    lease_one(queue)
    clock.advance(11)
    way.let_time_happen()
    lease_one(queue).nack(error="no luck")

    seen = {row.payload: (row.retry.reason, row.retry.error, row.retry.attempt) for row in retries(queue)}

    assert seen == {
        b"snoozed": ("snoozed", "", 1),
        b"timed out": ("timed_out", "the lease expired", 2),
        b"nacked": ("retried", "no luck", 2),
    }


def test_a_snooze_keeps_the_error_of_the_failure_before_it(ps, clock):
    queue = ps.queue("mail")
    queue.push(b"a")
    lease_one(queue).nack(delay=0, error="no luck")
    clock.advance(TICK)
    lease_one(queue).snooze(60)

    (row,) = retries(queue)

    assert (row.retry.reason, row.retry.error, row.retry.attempt) == ("snoozed", "no luck", 2)


def test_a_redriven_message_waits_without_an_error(ps):
    queue = ps.queue("mail")
    for name in (b"a", b"b"):
        queue.push(name)
        lease_one(queue).reject("bad")
    queue.dlq.redrive(rate=0.01)

    (row,) = retries(queue)

    assert (row.payload, row.retry.reason, row.retry.error, row.retry.attempt) == (b"b", "redriven", "", 1)


def test_a_message_that_is_delivered_again_is_not_listed(ps, clock):
    queue = ps.queue("mail")
    queue.push(b"a")
    lease_one(queue).nack(delay=0, error="no luck")
    clock.advance(TICK)
    lease_one(queue)

    assert retries(queue) == []


def test_a_long_error_is_cut(ps):
    queue = ps.queue("mail")
    queue.push(b"a")
    lease_one(queue).nack(delay=60, error="x" * 4_000)

    assert retries(queue)[0].retry.error == "x" * limits.retry_error_characters_max


def test_what_can_be_included_is_named(ps):
    queue = ps.queue("mail")
    queue.push(b"a")

    with pytest.raises(InvalidField, match="include"):
        queue.delayed(include="everything")


@pytest.mark.parametrize("way", ["file", "sealed", "forgetful"], indirect=True)
@pytest.mark.parametrize("end", ["restart", "crash"])
@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_the_error_survives_the_process(ps, way, end, has_checkpoint):
    queue = ps.create_queue("mail", partitions=3)
    queue.push_many([b"0", b"1", b"2"])
    for number, delivery in enumerate(queue.lease(3)):
        delivery.nack(delay=60 + number, error=f"no luck {number}")
    if has_checkpoint:
        way.session.checkpoint()
    before = [(row.id, row.retry) for row in retries(queue)]

    queue = getattr(way, end)().queue("mail")

    assert [(row.id, row.retry) for row in retries(queue)] == before
    assert [row.retry.error for row in retries(queue)] == ["no luck 0", "no luck 1", "no luck 2"]


def test_a_dead_letter_has_the_time_at_which_its_message_was_pushed(ps, clock):
    queue = ps.queue("mail")
    pushed_at = to_datetime(clock.now()).isoformat()
    queue.push(b"a")
    clock.advance(5)
    queue.push(b"b")
    clock.advance(3_600)
    lease_one(queue).reject("bad")

    (letter,) = queue.dlq.list()

    assert letter.headers["penstock-pushed-at"] == pushed_at


def test_a_message_that_waited_too_long_dies_for_a_reason_of_its_own(ps, clock, way):
    queue = ps.create_queue("mail", max_wait_seconds=10)
    queue.push(b"a")
    clock.advance(11)
    way.let_time_happen()

    (letter,) = queue.dlq.list(reason="evicted")

    assert letter.headers["penstock-error"] == "waited too long"
    assert queue.dlq.list(reason="dead") == []


def test_dead_letters_are_replaced_by_edited_messages(ps):
    queue = ps.queue("mail")
    for name in (b"a", b"b"):
        queue.push(name)
        lease_one(queue).reject("bad")
    first, second = (letter.id for letter in queue.dlq.list())

    queue.dlq.replace({first: b"A", str(second): Message(payload=b"B", key="k")})

    assert [(d.payload, d.key, d.attempt) for d in queue.lease(10)] == [(b"A", None, 1), (b"B", "k", 1)]
    assert queue.dlq.list() == []
    with pytest.raises(MessageNotFound):
        queue.dlq.replace({first: b"again"})
