"""Replies that hold columns: over every protocol each delivery keeps its own id, receipt, payload and options.

Pieces are drawn in every shape that they may have: rows of a batch as a slice, an array or a list; one partition or one
each; offsets that follow each other, that rise, or of several partitions in any order, drawn from so few numbers that
their first and last often look like those of a run. A second part takes the replies from a real shard.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import operations as ops
from penstock import validation
from penstock.batch import Batch
from penstock.broker.reply_size import receipts_in, split
from penstock.client.handles import Penstock
from penstock.clock import ManualClock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.limits import priority_default
from penstock.model import ContentType, Message, MessageId, Outcome, Receipt
from penstock.replies import LeaseReply, Piece, PushReply
from penstock.requests import LeaseRequest
from penstock.server.grpc.messages import lease_response, push_response
from penstock.spark.consume import lease_of
from penstock.wire import answers
from penstock.wire.json_messages import lease_reply, push_reply
from penstock.wire.json_operations import json_of
from tests.support.dose import dose
from tests.support.json_over_http import client as json_client
from tests.support.operations import run_operation

EXAMPLES = dose(150, 20_000)
SEEDS = dose(12, 1_000)
Delivery = tuple[Any, ...]

texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=6)
plain = st.binary(min_size=1, max_size=12).map(lambda payload: Message(payload=payload))
messages = st.builds(
    Message,
    payload=st.one_of(st.binary(max_size=12), st.dictionaries(texts, st.integers(), max_size=2)),
    key=st.none() | texts,
    priority=st.integers(0, 255),
    headers=st.none() | st.dictionaries(texts, texts, max_size=2),
    dedup_key=st.none() | texts,
    trace=st.none() | texts,
)
small = st.integers(0, 9)


class ByOffset:
    """Instants as a sealed extent has them: looked up by offset."""

    def of(self, offset: int) -> int:
        return 1_700_000_000_000_000 + offset

    def of_all(self, offsets: Sequence[int]) -> Any:
        return np.array([self.of(offset) for offset in offsets], np.int64)


@st.composite
def pieces(draw: st.DrawFn) -> Piece:
    items = draw(st.lists(plain, min_size=1, max_size=12) | st.lists(messages, min_size=1, max_size=12))
    batch = Batch.build(items, compress=draw(st.booleans()))
    rows, count = _rows(draw, batch.count)

    def each(values: Any) -> Any:
        return draw(st.lists(values, min_size=count, max_size=count))

    return Piece(
        batch,
        rows,
        draw(st.sampled_from(["0", "north"]) | st.just(None)) or each(st.sampled_from(["0", "1", "2"])),
        _offsets(draw(st.sampled_from(["run", "rising", "mixed", "like a run"])), draw(small), each(small)),
        draw(st.integers(1, 65_535) | st.just(None)) or each(st.integers(1, 65_535)),
        draw(st.integers(1, 2**50) | st.just(ByOffset()) | st.just(None)) or each(st.integers(0, 2**50)),
    )


def _offsets(shape: str, first: int, some: list[int]) -> Sequence[int]:
    run = range(first, first + len(some))
    if shape == "run":
        return run
    return {"rising": sorted(some), "mixed": some, "like a run": [first, *some[1:-1], run[-1]][-len(some) :]}[shape]


def _rows(draw: st.DrawFn, size: int) -> tuple[Any, int]:
    """Rows of a batch in one of their forms, and how many."""
    if draw(st.booleans()):
        first = draw(st.integers(0, size - 1))
        end = draw(st.integers(first + 1, size))
        return slice(first, end), end - first
    rows = draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=size, unique=True))
    return (rows if draw(st.booleans()) else np.array(rows, np.int64)), len(rows)


def reply_of(some: Sequence[Piece], nonce: int = 2**64 - 1) -> LeaseReply:
    return LeaseReply("mail", "billing", nonce, 1_900_000_000_000_001, some, sum(len(p.offsets) for p in some))


def deliveries(reply: LeaseReply) -> list[Delivery]:
    """Everything that a consumer can see of each delivery."""
    found = []
    for piece in reply.pieces:
        for index, payload in enumerate(piece.payloads()):
            batch, row = piece.batch, piece.row(index)
            place = (reply.queue, piece.partition(index), int(piece.offsets[index]))
            receipt = Receipt(*place, int(piece.attempt(index)), reply.nonce)
            options = (batch.key(row), batch.headers(row) or {}, batch.trace(row), batch.dedup_key(row))
            priority = priority_default if batch.priority is None else int(batch.priority[row])
            found.append(
                (place, receipt, payload, int(piece.pushed(index)), *options, priority, batch.content_type_of(row))
            )
    return found


# the ways that a lease takes


def over_tcp(reply: LeaseReply) -> list[Delivery]:
    return deliveries(answers.decode_leased(memoryview(b"".join(answers.encode_leased(reply)))))


def over_http(reply: LeaseReply) -> list[Delivery]:
    body = lease_reply(reply)
    shown = msgspec.json.decode(body)["messages"]
    found = deliveries(json_client.read_leased(reply.queue, reply.group, body))
    assert [(each["id"], each["receipt"]) for each in shown] == [
        (str(MessageId(*place)), str(receipt)) for place, receipt, *_ in found
    ]
    return found


def in_parts(reply: LeaseReply) -> list[Delivery]:
    return [each for part in split(reply, 100) for each in deliveries(part)]


def in_parts_over_tcp(reply: LeaseReply) -> list[Delivery]:
    return [each for part in split(reply, 150) for each in over_tcp(part)]


WAYS = {"tcp": over_tcp, "http": over_http, "parts": in_parts, "parts over tcp": in_parts_over_tcp}


def over_grpc(responses: Iterator[Any]) -> list[Delivery]:
    return [
        (
            tuple(MessageId.parse(each.id)),
            Receipt.parse(each.receipt),
            each.payload,
            each.pushed_at.seconds * 1_000_000 + each.pushed_at.nanos // 1000,
            each.key or None,
            dict(each.headers),
            each.trace or None,
            each.priority,
            ContentType(each.content_type),
        )
        for response in responses
        for each in response.deliveries
    ]


def without_dedup_key(found: list[Delivery]) -> list[Delivery]:
    """gRPC does not show it."""
    return [(*each[:7], *each[8:]) for each in found]


def check_every_way(reply: LeaseReply) -> None:
    right = deliveries(reply)
    for name, way in WAYS.items():
        assert way(reply) == right, name
    assert over_grpc(iter([lease_response(reply)])) == without_dedup_key(right)
    assert over_grpc(map(lease_response, split(reply, 100))) == without_dedup_key(right)
    assert receipts_in(reply) == [receipt for _, receipt, *_ in right]
    held = {(run[0], offset) for run in lease_of(reply, 1).runs for offset in range(run[1], run[1] + run[2])}
    assert held == {place[1:] for place, *_ in right}


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(pieces(), max_size=6))
def test_every_delivery_of_a_lease_comes_back_as_itself(some):
    check_every_way(reply_of(some))


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(st.tuples(small, small), min_size=2, max_size=12))
def test_messages_pushed_one_by_one_into_several_partitions_come_back_as_themselves(places):
    some = [
        Piece(Batch.build([b"%d" % n]), slice(0, 1), str(partition), range(offset, offset + 1), 1, 50 + n)
        for n, (partition, offset) in enumerate(places)
    ]

    check_every_way(reply_of(some))


@settings(max_examples=EXAMPLES, deadline=None)
@given(pieces(), st.data())
def test_a_part_of_a_piece_is_those_deliveries(piece, data):
    first = data.draw(st.integers(0, len(piece.offsets) - 1))
    end = data.draw(st.integers(first + 1, len(piece.offsets)))

    assert deliveries(reply_of([piece.part(first, end)])) == deliveries(reply_of([piece]))[first:end]


# pushes


@st.composite
def push_replies(draw: st.DrawFn) -> PushReply:
    count = draw(st.integers(1, 12))
    homes = draw(st.lists(st.sampled_from(["0", "1", "2", None]), min_size=count, max_size=count))
    queued = [row for row, home in enumerate(homes) if home is not None]
    parts = []
    for partition in sorted({home for home in homes if home is not None}):
        rows = [row for row in queued if homes[row] == partition]
        whole = len(rows) == count and draw(st.booleans())
        parts.append((partition, len(rows), draw(small), None if whole else np.array(rows, np.int64)))
    duplicates = {}
    for row, home in enumerate(homes):
        if home is None:
            within = [earlier for earlier in queued if earlier < row]
            known = MessageId("mail", "7", draw(small))
            duplicates[row] = MessageId("mail", "", draw(st.sampled_from(within))) if within else known
    return PushReply("mail", count, parts, duplicates)


@settings(max_examples=EXAMPLES, deadline=None)
@given(push_replies())
def test_every_message_of_a_push_keeps_the_id_that_it_got(reply):
    right = ids_of(reply)

    assert reply.ids() == right
    assert answers.decode_pushed("mail", answers.encode_pushed(reply)).ids() == right
    shown = json_client.read_pushed("mail", push_reply(reply))
    assert shown.ids() == right
    assert set(shown.duplicates) == set(reply.duplicates)
    response = push_response(reply)
    assert [MessageId.parse(id) for id in response.ids] == right
    assert set(response.duplicates) == set(reply.duplicates)


def ids_of(reply: PushReply) -> list[MessageId]:
    """The slow and obvious way."""
    ids = {}
    for partition, accepted, first, rows in reply.parts:
        for index in range(accepted):
            ids[index if rows is None else int(rows[index])] = MessageId(reply.queue, partition, first + index)
    for row, known in reply.duplicates.items():
        ids[row] = known if known.partition else ids[known.offset]
    return [ids[row] for row in range(reply.count)]


# replies of a real shard


class Ledger:
    """What was pushed where, as the replies said."""

    def __init__(self) -> None:
        self.messages: dict[MessageId, Message] = {}

    def note(self, ids: Sequence[MessageId], pushed: Sequence[Message]) -> None:
        for id, message in zip(ids, pushed, strict=True):
            assert id not in self.messages, f"{id} was given out twice"
            self.messages[id] = message

    def check(self, place: Any, payload: Any, key: Any, headers: Any, priority: int) -> None:
        sent = self.messages[MessageId(*place)]
        assert (payload, key, headers or {}, priority) == (sent.payload, sent.key, sent.headers or {}, sent.priority)


def message(rng: random.Random, number: int, plain: float) -> Message:
    payload = b"%d" % number
    if rng.random() < plain:
        return Message(payload=payload, priority=priority_default)
    return Message(
        payload=payload,
        key=rng.choice([None, "a", "b"]),
        headers=rng.choice([None, {"number": str(number)}]),
        priority=rng.choice([priority_default, 1, 200]),
    )


def options(rng: random.Random) -> dict[str, Any]:
    ordering = rng.choice(["none", "none", "key", "partition"])
    return {
        "partitions": rng.choice([1, 2, 3, 3, 12]),
        "ordering": ordering,
        "max_attempts": 1000,
        "backoff_base_seconds": 0.0,
        **({"key_max_in_flight": 2} if ordering == "none" and rng.random() < 0.3 else {}),
    }


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_a_shard_leases_is_what_was_pushed_under_that_id_over_every_protocol(seed, tmp_path):
    rng = random.Random(seed)
    ledger, clock = Ledger(), ManualClock()
    session = Session(tmp_path, clock=clock, rng=random.Random(seed), background=False, journal_file_bytes=1 << 14)
    with Penstock(BlockingSession(session)) as ps:
        queue = ps.create_queue("mail", **options(rng))
        is_ordered = queue.options().ordering != "none"
        open_leases: list[LeaseReply] = []
        plain = rng.choice([0.5, 1.0])
        for step in range(120):
            what = rng.random()
            if what < 0.35:
                push(rng, queue, ledger, step, plain, is_ordered)
            elif what < 0.7:
                reply, ticket = session.lease("mail", "default", LeaseRequest(rng.choice([1, 2, 3, 7, 40]), 60.0))
                session.confirm(ticket)
                reply = msgspec.structs.replace(reply, pieces=session.loaded(reply.pieces))
                check_every_way(reply)
                for place, receipt, payload, _, key, headers, _, _, priority, _ in deliveries(reply):
                    assert receipt[:3] == place
                    ledger.check(place, payload, key, headers, priority)
                open_leases += [reply] if reply.count else []
            elif what < 0.9 and open_leases:
                settle(rng, session, open_leases)
            elif what < 0.95:
                run_operation(session, ops.Seal())
            else:
                read(rng, queue, ledger)
            clock.advance(0.01)


def push(rng: random.Random, queue: Any, ledger: Ledger, step: int, plain: float, is_ordered: bool) -> None:
    made = [message(rng, step * 100 + n, plain) for n in range(rng.choice([1, 1, 1, 1, 1, 1, 2, 5, 30]))]
    if is_ordered:
        made = [dataclasses.replace(each, priority=priority_default) for each in made]
    if len(made) == 1:
        sent, partitions = made[0], queue.options().partitions
        place = rng.choice([None, None, rng.randrange(partitions)])  # so that they fill unevenly
        options = {"key": sent.key, "headers": sent.headers, "priority": sent.priority, "partition": place}
        ledger.note([queue.push(sent.payload, **options)], made)
    else:
        ledger.note(queue.push_many(made).ids, made)


def settle(rng: random.Random, session: Session, leases: list[LeaseReply]) -> None:
    """Some deliveries of a lease are done, some come back."""
    receipts = receipts_in(leases.pop(rng.randrange(len(leases))))
    rng.shuffle(receipts)
    cut = rng.randrange(len(receipts) + 1)
    for outcome, some in ((Outcome.ACKED, receipts[:cut]), (Outcome.RETRIED, receipts[cut:])):
        if some:
            session.confirm(session.settle(some, validation.settling(outcome, 0 if outcome != Outcome.ACKED else None)))


def read(rng: random.Random, queue: Any, ledger: Ledger) -> None:
    """Messages that are read have their ids, over TCP and JSON too."""
    found = [*queue.peek(limit=50)]
    for partition in range(queue.options().partitions):
        found += queue.read(partition=str(partition), limit=50)
    by_tcp = msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=ops.Read.spec.result)
    reply = json_of(ops.Read).reply
    body = msgspec.json.encode(reply.write(ops.Read("mail"), found))
    by_http = [*map(json_client.message_of, msgspec.json.decode(body, type=reply.type).messages)]
    for listing in (found, by_tcp, by_http):
        assert [each.id for each in listing] == [each.id for each in found]
        for each in listing:
            ledger.check(each.id, each.payload, each.key, each.headers, int(each.priority))
