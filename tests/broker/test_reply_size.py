"""A lease in parts: all deliveries, once, in order, and no part larger than it may be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock import Message
from penstock import operations as ops
from penstock.batch import Batch
from penstock.broker.reply_size import OVERHEAD_BYTES, receipts_in, size_of, split
from penstock.embedded.session import Session
from penstock.model import Outcome
from penstock.requests import LeaseRequest, Settling
from tests.support.operations import run_operation


@given(st.lists(st.lists(st.integers(0, 300), min_size=1, max_size=6), min_size=1, max_size=6), st.integers(1, 2000))
def test_parts_hold_all_deliveries_in_order_and_keep_to_the_size(pushes, bytes_max):
    session = Session(None, background=False)
    for lengths in pushes:
        session.push("q", Batch.build([bytes(length) for length in lengths]), None, None)
    reply, _ = session.lease("q", "default", LeaseRequest(1000))
    parts = list(split(reply, bytes_max))
    session.close()

    assert [receipt for part in parts for receipt in receipts_in(part)] == receipts_in(reply)
    assert [len(payload) for part in parts for piece in part.pieces for payload in piece.payloads()] == [
        length for lengths in pushes for length in lengths
    ]
    for part in parts:
        total = sum(len(payload) + OVERHEAD_BYTES for piece in part.pieces for payload in piece.payloads())
        assert part.count == len(receipts_in(part))
        assert part.count == 1 or total <= bytes_max


def test_retries_of_several_partitions_keep_their_attempts():
    session = Session(None, background=False)
    run_operation(session, ops.CreateQueue("q", {"partitions": 3}, exist_ok=False))
    session.push("q", Batch.build([Message(payload=b"x" * 50, key=str(n)) for n in range(20)]), None, None)
    first, _ = session.lease("q", "default", LeaseRequest(7))
    session.settle(receipts_in(first), Settling(Outcome.RETRIED, 0.0))
    reply, _ = session.lease("q", "default", LeaseRequest(100))
    parts = list(split(reply, 500))
    proofs = [receipt for part in parts for receipt in receipts_in(part)]
    session.close()

    assert len(parts) > 3
    assert proofs == receipts_in(reply)
    assert sorted(receipt.attempt for receipt in proofs) == [1] * 13 + [2] * 7


def test_long_keys_and_headers_count():
    session = Session(None, background=False)
    session.push("q", Batch.build([Message(payload=b"", key="k" * 1000, headers={"h": "v" * 1000})] * 10), None, None)
    reply, _ = session.lease("q", "default", LeaseRequest(10))
    session.close()

    assert size_of(reply) > 20_000
    assert len(list(split(reply, 5000))) == 5
