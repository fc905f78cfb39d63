"""Dead letters by signature: one cause is one row, with what its letters share; a redrive of one cause."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock import operations as ops
from penstock.errors import QueueNotFound
from penstock.model import to_datetime
from penstock.shard import signatures
from tests.behaviour.steps import drain
from tests.behaviour.test_bulk import finished


def push(queue: Any, count: int, error: str | None, **fields: Any) -> None:
    """Orders that die of an error, or are done; each has a number of its own."""
    for number in range(count):
        queue.push(json.dumps({"order": number, **fields}).encode(), headers={"tenant": "acme"})
    for number, delivery in enumerate(queue.lease(count)):
        if error is None:
            delivery.ack()
        else:
            delivery.reject(error.format(number))


def test_errors_that_differ_in_data_alone_are_one_signature(ps, clock):
    queue = ps.create_queue("orders")
    push(queue, 3, "TimeoutError: no answer from 10.0.0.{0} after {0}.5 s")
    first = to_datetime(clock.now())
    clock.advance(3600)
    push(queue, 2, "KeyError: 'currency'")

    report = queue.dlq.signatures()

    timeout, key = report.signatures
    assert (timeout.count, timeout.text) == (3, "TimeoutError: no answer from <address> after <n> s")
    assert (key.count, key.text) == (2, "KeyError: 'currency'")
    assert (timeout.first_seen_at, timeout.last_seen_at) == (first, first)
    assert timeout.trend[-2:] == [3, 0]
    assert key.trend[-2:] == [0, 2]
    assert timeout.reasons == {"rejected": 3}
    assert timeout.samples == [f"orders.dlq/0/{n}" for n in range(3)]
    assert [(q.queue, q.letters, q.looked_at, q.is_sampled) for q in report.queues] == [("orders", 5, 5, False)]


def test_what_the_failed_ones_share_and_the_healthy_ones_do_not_is_named(ps):
    queue = ps.create_queue("orders")
    push(queue, 20, None, currency="EUR", shop="a", rate=1)
    push(queue, 10, "KeyError: 'currency'", currency=None, shop="a")

    (found,) = queue.dlq.signatures().signatures

    facts = {(share.field, share.value): (share.failed_percent, share.healthy_percent) for share in found.shares}
    assert facts == {("currency", "null"): (100.0, 0.0), ("rate", "(absent)"): (100.0, 0.0)}


def test_one_cause_is_sent_back_and_the_others_stay(ps):
    queue = ps.create_queue("orders")
    push(queue, 3, "TimeoutError: {}")
    push(queue, 2, "KeyError: 'a'")
    timeout = next(found for found in queue.dlq.signatures().signatures if "Timeout" in found.text)

    assert len(queue.dlq.list(signature=timeout.signature)) == 3
    view = finished(ps, queue.dlq.begin_redrive(signature=timeout.signature))

    assert (view.matched, view.done) == (3, 3)
    assert [found.text for found in queue.dlq.signatures().signatures] == ["KeyError: 'a'"]
    assert queue.dlq.redrive(signature=timeout.signature) == 0


def test_a_large_queue_is_sampled_and_says_so(ps, monkeypatch):
    monkeypatch.setattr(signatures, "LETTERS_MAX", 4)
    queue = ps.create_queue("orders")
    push(queue, 6, "old")
    push(queue, 3, "new")

    report = queue.dlq.signatures()

    assert {found.text: found.count for found in report.signatures} == {"new": 3, "old": 1}
    assert [(q.letters, q.looked_at, q.is_sampled) for q in report.queues] == [(9, 4, True)]


def test_all_queues_are_listed_together(ps):
    for name, count in (("a", 1), ("b", 3)):
        push(ps.create_queue(name), count, "boom")
    ps.queue("c").push(b"alive")

    report = ps.session.execute(ops.AllSignatures())

    assert [(found.queue, found.count) for found in report.signatures] == [("b", 3), ("a", 1)]
    with pytest.raises(QueueNotFound):
        ps.queue("none").dlq.signatures()
    assert drain(ps.queue("c")) == [b"alive"]


def test_letters_without_an_error_go_by_their_reason_and_odd_payloads_are_no_trouble(ps):
    queue = ps.create_queue("orders")
    queue.push_many([b"\xff\xfe", b"[1, 2]", b'"text"', b"{" * 5000, b'{"a": {"b": {"c": 1}}}'])
    for delivery in queue.lease(5):
        delivery.reject("")

    (found,) = queue.dlq.signatures().signatures

    assert (found.text, found.count) == ("(rejected, no error given)", 5)
