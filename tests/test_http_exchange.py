"""A request over HTTP until it is answered, without a socket: what is done next, and what the caller is told."""

from __future__ import annotations

import pytest
from penstock.remote.http_calls import call
from penstock.remote.http_exchange import Exchange, Failure, Pause, Reply, Room, Send

from penstock import operations as ops
from penstock.clock import ManualClock
from penstock.errors import LeaseLost, RateLimited, Unavailable
from penstock.model import Outcome, Receipt
from penstock.remote import http_request as asking
from penstock.remote.producer import Producer
from penstock.remote.settings import settings
from penstock.requests import LeaseRequest, Settling
from tests.support.cutting import NoPause

UNSENT = Failure("refused", was_sent=False)
LOST = Failure("cut", was_sent=True)
LATE = Failure("late", was_sent=True, is_late=True)
PUSHED = Reply(201, b'{"results": [{"id": "mail/0/7", "status": "queued"}]}')
RECEIPT = Receipt("mail", "0", 1, 1, 0xFF)


def error(status: int, code: str, more: str = "") -> Reply:
    return Reply(status, f'{{"error": {{"code": "{code}", "message": "no", "hint": ""{more}}}}}'.encode())


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def exchange(clock):
    made = Exchange(settings("http://one,http://two:80", timeout=10, clock=clock, rng=NoPause(1)))
    made.producer = Producer(5, 1)
    return made


def held(exchange, request, *heard):
    """The steps of a conversation, and what it returns; `heard` is what comes of them."""
    steps = exchange.conversation(request)
    taken = [next(steps)]
    for each in heard:
        try:
            taken.append(steps.send(each))
        except StopIteration as end:
            return taken, end.value
    raise AssertionError(f"it goes on with {taken[-1]}")


def test_a_request_has_its_method_path_and_body(exchange):
    (step,), id = held(exchange, asking.push_one("mail", b"a"), PUSHED)

    assert isinstance(step, Send)
    assert step.body is not None
    assert (str(step.address), step.method, step.path) == ("http://one:7711", "POST", "/api/v1/queues/mail/messages")
    assert b'"payload_base64":"YQ=="' in step.body
    assert b'"producer":{"id":"0000000000000005","epoch":1,"sequence":1}' in step.body
    assert str(id) == "mail/0/7"


def test_a_name_that_no_path_can_hold_is_quoted(exchange):
    assert asking.path_of("a", "no such/group?") == "/api/v1/queues/a/no%20such%2Fgroup%3F"


def test_a_push_is_sent_again_to_the_next_address_under_the_same_number(exchange):
    taken, _ = held(exchange, asking.push_one("mail", b"a"), UNSENT, LOST, PUSHED)

    assert [str(step.address) for step in taken] == ["http://one:7711", "http://two:80", "http://one:7711"]
    assert len({step.body for step in taken}) == 1
    assert exchange.producer.has_room()
    assert not exchange.producer._under_way


def test_the_address_that_answered_is_the_first_next_time(exchange):
    held(exchange, asking.push_one("mail", b"a"), UNSENT, PUSHED)
    (step,), _ = held(exchange, asking.push_one("mail", b"b"), PUSHED)

    assert str(step.address) == "http://two:80"


def test_what_must_not_be_done_twice_is_sent_again_only_if_it_was_not_sent(exchange):
    held(exchange, call(ops.Purge("mail")), UNSENT, Reply(204, b""))

    with pytest.raises(Unavailable, match="may or may not have happened"):
        held(exchange, call(ops.Purge("mail")), LOST)
    with pytest.raises(Unavailable, match="may or may not have happened"):
        held(exchange, asking.lease("mail", "default", LeaseRequest(auto_ack=True), 0.0), LOST)


def test_an_answer_that_does_not_come_in_time_is_not_waited_for_again(exchange):
    with pytest.raises(Unavailable, match=r"does not answer in time.*before that: refused"):
        held(exchange, asking.push_one("mail", b"a"), UNSENT, LATE)
    assert not exchange.producer._under_way


def test_a_last_try_that_had_no_time_left_tells_of_the_one_before_it(exchange, clock):
    steps = exchange.conversation(asking.push_one("mail", b"a"))
    next(steps)
    steps.send(LOST)
    clock.advance(seconds=10)
    with pytest.raises(Unavailable, match=r"no broker answers.*: ConnectTimeout; before that: " + LOST.why):
        steps.send(Failure("ConnectTimeout", was_sent=False, is_late=True))


def test_trying_ends_with_the_deadline(exchange, clock):
    steps = exchange.conversation(call(ops.Queues()))
    next(steps)
    clock.advance(seconds=11)

    with pytest.raises(Unavailable, match="no broker answers at http://one:7711: refused"):
        steps.send(UNSENT)


def test_a_lease_may_take_its_wait_in_addition(exchange):
    (step,), _ = held(
        exchange,
        asking.lease("mail", "default", LeaseRequest(), 30.0),
        Reply(200, b'{"lease_id": null, "expires_at": null, "messages": []}'),
    )

    assert step.seconds == 40


def test_a_limit_is_waited_for_and_the_push_made_again_as_a_new_one(exchange):
    limited = error(429, "rate_limited", ', "retry_after_ms": 1500')

    taken, _ = held(exchange, asking.push_one("mail", b"a"), limited, None, PUSHED)

    assert taken[1] == Pause(1.5)
    assert b'"sequence":2' in taken[2].body
    with pytest.raises(RateLimited):
        held(exchange, asking.push_one("mail", b"a"), error(429, "rate_limited", ', "retry_after_ms": 11000'))


def test_a_push_waits_for_room(exchange, monkeypatch):
    monkeypatch.setattr("penstock.remote.producer.UNDER_WAY_MAX", 1)
    first, second = (exchange.conversation(asking.push_one("mail", b"a")) for _ in range(2))
    next(first)

    assert next(second) == Room()
    first.close()
    assert isinstance(second.send(None), Send)
    second.close()


def test_a_settle_that_was_lost_may_have_been_done(exchange):
    settle = asking.settle((RECEIPT,), 0, Settling(Outcome.ACKED))
    with pytest.raises(LeaseLost, match="first try"):
        held(exchange, settle, LOST, error(409, "lease_lost"))

    with pytest.raises(LeaseLost, match="no"):
        held(exchange, asking.settle((), 0xFF, Settling(Outcome.ACKED)), error(409, "lease_lost"))


def test_several_receipts_are_settled_all_or_none_unless_each_is_for_itself(exchange):
    how = Settling(Outcome.RETRIED, 1.5, "later")
    ok = b'{"results": [{"receipt": "", "status": "ok"}, {"receipt": "", "status": "error", "error": %b}]}'
    lost = Reply(200, ok % b'{"code": "lease_lost", "message": "", "hint": ""}')
    refused = Reply(200, ok % b'{"code": "not_authorised", "message": "not yours", "hint": ""}')

    (step,), _ = held(exchange, asking.settle((RECEIPT, RECEIPT), 0, how), Reply(200, b'{"results": []}'))
    (each,), _ = held(exchange, asking.settle_each((RECEIPT, RECEIPT), how), lost)

    assert step.path == "/api/v1/transactions"
    assert each.path == "/api/v1/nack"
    assert b'"error":"later","delay_ms":1500.0' in each.body
    with pytest.raises(Exception, match="not yours"):
        held(exchange, asking.settle_each((RECEIPT, RECEIPT), how), refused)
