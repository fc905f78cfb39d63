"""Pushes that skip what cannot be stored, sent again: the same results, after a restart and a checkpoint too."""

from __future__ import annotations

import random
import shutil
from typing import Any

import pytest

from penstock import Message, limits
from penstock import operations as ops
from penstock.batch import Batch
from penstock.clock import ManualClock
from penstock.embedded.session import Session
from penstock.errors import StateError
from penstock.replies import PushReply
from tests.support.operations import run_operation

PRODUCER = (7, 1, 1)


def opened(path: Any) -> Session:
    return Session(path, clock=ManualClock(), rng=random.Random(1), background=False)


def push(session: Session, batch: Batch, sequence: int = 1) -> PushReply:
    producer = (*PRODUCER[:2], sequence)
    reply, ticket = session.shard.push("mail", batch, batch.partitions, None, producer, skips=True)
    session.confirm(ticket)
    return reply


def results(reply: PushReply) -> list[Any]:
    return [
        (id, row in reply.duplicates, None if row not in reply.failures else reply.failures[row].message)
        for row, id in enumerate(reply.places())
    ]


def mixed() -> Batch:
    return Batch.build(
        [
            b"1",
            Message(payload=b"2", partition=9),
            Message(payload=b"3", dedup_key="k"),
            Message(payload=b"4", dedup_key="k"),
            Message(payload=b"5", partition=1),
            b"6",
        ]
    )


@pytest.mark.parametrize("how", ["at once", "restarted", "killed", "checkpoint"])
def test_a_push_that_is_sent_again_has_the_same_results(tmp_path, how):
    session = opened(tmp_path)
    run_operation(session, ops.CreateQueue("mail", {"partitions": 2, "max_length": 3}))
    first = results(push(session, mixed()))
    if how == "checkpoint":
        session.checkpoint()
    if how == "killed":  # what a killed process had written is what a copy of its directory holds
        copy = tmp_path.with_name(f"{tmp_path.name}-copy")
        shutil.copytree(tmp_path, copy)
        session.close()
        session = opened(copy)
    elif how != "at once":
        session.close()
        session = opened(tmp_path)
    # Room that has come since changes nothing: what was answered stays answered.
    run_operation(session, ops.Purge("mail"))

    again = results(push(session, mixed()))

    assert again == first
    assert [why is not None for *_, why in first] == [False, True, False, False, False, True]
    assert [was for _, was, _ in first] == [False, False, False, True, False, False]
    session.close()


def test_a_push_of_which_nothing_was_stored_is_remembered_too(tmp_path):
    session = opened(tmp_path)
    run_operation(session, ops.CreateQueue("mail", {"max_length": 1}))
    session.shard.push("mail", Batch.build([b"0"]))
    first = results(push(session, Batch.build([b"1", b"2"])))
    run_operation(session, ops.Purge("mail"))
    session.close()
    session = opened(tmp_path)

    assert results(push(session, Batch.build([b"1", b"2"]))) == first
    assert session.shard.core.by_name["mail"].messages() == 1
    session.close()


def test_a_sequence_that_was_used_for_another_push_is_refused(tmp_path):
    session = opened(tmp_path)
    run_operation(session, ops.CreateQueue("mail", {"partitions": 2}))
    push(session, mixed())

    with pytest.raises(StateError):
        push(session, Batch.build([b"1"]))
    session.close()


def test_many_failures_of_one_kind_are_kept_once(tmp_path):
    session = opened(tmp_path)
    run_operation(session, ops.CreateQueue("mail", {"max_length": 1}))
    push(session, Batch.build([b"x"] * 20_000))

    known = session.shard.core.producers.known[PRODUCER[0]]
    assert known.beside_bytes < 20_000 * 4
    assert limits.producer_answers_bytes_max > known.beside_bytes
    session.close()
