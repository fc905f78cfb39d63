"""Producers that push again what they have pushed: the same answer and one message, while the shard lives, and after a
restart, a power cut, a checkpoint and a seal.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import limits
from penstock import operations as ops
from penstock.batch import Batch
from penstock.delivery.entries import Answered, Produced, ProducerSet, Push, decode, decode_push_one, encode
from penstock.delivery.producers import ROW, Producers
from penstock.errors import InvalidField, LeaseLost, ProducerFenced, QueueFull, StateError, TooLarge
from penstock.model import Message, MessageId, Outcome, Receipt
from penstock.repair.directory import Report, diagnose, repair
from penstock.requests import LeaseRequest, Producer, PushOperation, SettleOperation, Settling
from penstock.shard.checkpoints import Checkpointer
from tests.support.dose import dose
from tests.support.operations import run_operation
from tests.support.producers import HOW, ME, System

DAY = 86_400


@pytest.fixture
def system():
    return System()


PUSHES: dict[str, Callable[[System], object]] = {
    "a batch": lambda system: system.push([b"a", b"b"], (ME, 0, 0)),
    "one message": lambda system: system.push([b"a"], (ME, 0, 0)),
    "a fold": lambda system: system.fold([b"a", b"b", b"c"], [(ME, 0, 0), None, (8, 3, 5)])[::2],
    "a batch with dedup keys": lambda system: system.push(
        [Message(payload=key.encode(), dedup_key=key) for key in "abacb"], (ME, 0, 0)
    ),
    "keys over partitions": lambda system: system.push(
        [Message(payload=key.encode(), key=key) for key in "abcdefgh"], (ME, 0, 0), "spread"
    ),
    "named partitions": lambda system: system.push([b"a", b"b"], (ME, 0, 0), "named", ["x", "y"]),
}


@pytest.fixture
def prepared(system):
    run_operation(system.session, ops.CreateQueue("spread", {"partitions": 4}, exist_ok=False))
    run_operation(system.session, ops.CreateQueue("named", {"partitions": "named"}, exist_ok=False))
    return system


OTHERS: dict[str, Callable[[System], object]] = {
    "a batch": lambda system: system.push([b"a", b"x"], (ME, 0, 0)),
    "one message": lambda system: system.push([b"x"], (ME, 0, 0)),
    "a fold": lambda system: system.fold([b"a", b"b", b"x"], [(ME, 0, 0), None, (8, 3, 5)]),
    "a batch with dedup keys": lambda system: system.push([b"a"], (ME, 0, 0)),
    "keys over partitions": lambda system: system.push(
        [Message(payload=key.encode(), key=key) for key in "abcdefgx"], (ME, 0, 0), "spread"
    ),
    "named partitions": lambda system: system.push([b"x", b"b"], (ME, 0, 0), "named", ["x", "y"]),
}


@pytest.mark.parametrize("push", PUSHES)
def test_other_messages_under_a_sequence_that_was_used_are_refused_and_not_stored(prepared, push):
    first = PUSHES[push](prepared)
    stored = {
        queue: run_operation(prepared.session, ops.Stats(queue))[0].messages
        for queue in run_operation(prepared.session, ops.Queues())[0]
    }

    for _ in range(2):
        with pytest.raises(StateError, match="for a push of other messages") as refused:
            OTHERS[push](prepared)
        assert refused.value.code == "conflict"

    assert {queue: run_operation(prepared.session, ops.Stats(queue))[0].messages for queue in stored} == stored
    assert PUSHES[push](prepared) == first


def test_other_messages_under_one_sequence_in_one_fold_are_refused(system):
    with pytest.raises(StateError, match="for a push of other messages"):
        system.fold([b"a", b"b"], [(ME, 0, 0), (ME, 0, 0)])

    assert len(set(system.fold([b"a", b"a"], [(ME, 0, 0), (ME, 0, 0)]))) == 1


@pytest.mark.parametrize("push", PUSHES)
def test_a_push_that_is_repeated_gets_the_same_answer(prepared, push):
    first = PUSHES[push](prepared)

    assert PUSHES[push](prepared) == first


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("push", PUSHES)
def test_a_push_that_is_repeated_gets_the_same_answer_after(prepared, push, how):
    first = PUSHES[push](prepared)

    prepared.reopen(how)

    assert PUSHES[push](prepared) == first


@pytest.mark.parametrize("how", HOW)
def test_what_came_after_a_checkpoint_is_known_too(system, how):
    system.push([b"a"], (ME, 0, 0))
    system.session.checkpoint()
    system.push([b"b"], (ME, 0, 1))
    system.reopen(how)

    again = enumerate((b"a", b"b", b"x"))
    assert [system.push([payload], (ME, 0, sequence))[0].offset for sequence, payload in again] == [0, 1, 2]
    assert system.lease() == [b"a", b"b", b"x"]


@pytest.mark.parametrize("how", ["power cut", "kill"])
def test_what_is_pushed_while_a_checkpoint_is_taken_is_known_once(system, how, monkeypatch):
    take = Checkpointer._take_producers

    def take_amid_pushes(checkpointer: Checkpointer, parts: dict[str, bytes], keep: set[str]) -> None:
        system.fold([b"b"], [(ME, 0, 1)])
        take(checkpointer, parts, keep)
        system.fold([b"c"], [(ME, 0, 2)])

    system.fold([b"a"], [(ME, 0, 0)])
    monkeypatch.setattr(Checkpointer, "_take_producers", take_amid_pushes)
    system.session.checkpoint()
    monkeypatch.undo()
    system.reopen(how)

    assert len(system.session.shard.core.producers.known[ME].rows) == 3 * ROW.size
    assert system.fold([b"a", b"b", b"c"], [(ME, 0, 0), (ME, 0, 1), (ME, 0, 2)]) == [0, 1, 2]


def test_a_checkpoint_keeps_the_part_of_producers_who_were_silent(system):
    system.fold([b"a"], [(ME, 0, 0)])
    system.session.checkpoint()
    written = [name for name in system.disk.list("checkpoints") if name.startswith("producers")]
    system.fold([b"b"], [None])
    system.session.checkpoint()

    assert [name for name in system.disk.list("checkpoints") if name.startswith("producers")] == written
    system.reopen("kill")
    assert system.fold([b"a"], [(ME, 0, 0)]) == [0]


def test_a_repeated_push_stores_nothing(system):
    for _ in range(3):
        system.push([b"a"], (ME, 0, 0))
        system.fold([b"b"], [(ME, 0, 1)])

    assert system.lease() == [b"a", b"b"]


def test_pushes_of_others_and_other_sequences_are_new(system):
    pushed = [system.push([b"a"], producer)[0].offset for producer in [(1, 0, 0), (2, 0, 0), (1, 0, 1), None, None]]

    assert pushed == [0, 1, 2, 3, 4]


def test_a_refused_push_leaves_a_gap_that_may_be_filled_later(system):
    run_operation(system.session, ops.CreateQueue("mail", {"max_length": 2}, exist_ok=False))
    with pytest.raises(QueueFull):
        system.push([b"a", b"b", b"c"], (ME, 0, 0))
    system.push([b"a"], (ME, 0, 1))

    assert system.push([b"b"], (ME, 0, 0))[0].offset == 1
    assert system.push([b"b"], (ME, 0, 0))[0].offset == 1


def test_a_refused_push_leaves_no_queue(system):
    with pytest.raises(InvalidField):
        system.push([b"a"], (0, 0, 0))
    with pytest.raises(InvalidField):
        system.fold([b"a"], [(ME, 0, 1 << 63)])

    assert run_operation(system.session, ops.Queues())[0] == []


def test_an_older_epoch_is_fenced_and_a_newer_one_starts_over(system):
    system.push([b"a"], (ME, 2, 0))

    with pytest.raises(ProducerFenced):
        system.push([b"b"], (ME, 1, 1))
    with pytest.raises(ProducerFenced):
        system.fold([b"b"], [(ME, 1, 1)])
    assert system.push([b"b"], (ME, 3, 0))[0].offset == 1
    with pytest.raises(ProducerFenced):
        system.push([b"a"], (ME, 2, 0))


@pytest.mark.parametrize("how", HOW)
def test_fences_stand_after(system, how):
    system.push([b"a"], (ME, 2, 0))
    system.reopen(how)

    with pytest.raises(ProducerFenced):
        system.push([b"b"], (ME, 1, 1))


def test_a_queue_that_was_created_again_knows_nothing_of_the_old_one(system):
    system.push([b"a"], (ME, 0, 0))
    run_operation(system.session, ops.DeleteQueue("mail"))

    assert system.push([b"b"], (ME, 0, 0)) == [MessageId("mail", "0", 0)]
    assert system.lease() == [b"b"]


def test_a_sequence_that_has_left_the_window_is_refused(system):
    last = 5 * limits.producer_window
    for sequence in range(last + 1):
        system.session.shard.push_folded("mail", [b"a"], [(ME, 0, sequence)])
    oldest = last - limits.producer_window + 1

    assert system.fold([b"a"], [(ME, 0, oldest)]) == [oldest]
    with pytest.raises(ProducerFenced):
        system.fold([b"a"], [(ME, 0, oldest - 1)])
    assert len(system.session.shard.core.producers.known[ME].rows) < 2 * limits.producer_window * ROW.size


def test_answers_that_take_much_room_leave_the_window_sooner(system, monkeypatch):
    monkeypatch.setattr(limits, "producer_answers_bytes_max", 2_000)
    run_operation(system.session, ops.CreateQueue("spread", {"partitions": 4}, exist_ok=False))
    batch = [Message(payload=b"", key=str(n)) for n in range(900)]
    for sequence in range(5):
        system.push(batch, (ME, 0, sequence), "spread")

    assert len(system.push(batch, (ME, 0, 4), "spread")) == 900
    with pytest.raises(ProducerFenced):
        system.push(batch, (ME, 0, 0), "spread")
    assert system.session.shard.core.producers.known[ME].beside_bytes <= 2_000


def test_a_silent_producer_is_forgotten_after_a_day(system):
    system.push([b"a"], (1, 5, 0))
    system.clock.advance(DAY - 3600)
    system.push([b"b"], (2, 5, 0))
    system.clock.advance(3600)
    system.push([b"c"], (3, 5, 0))

    assert set(system.session.shard.core.producers.known) == {2, 3}
    assert system.push([b"a"], (1, 0, 0))[0].offset == 3


def test_of_too_many_producers_those_that_are_silent_longest_are_forgotten(monkeypatch):
    monkeypatch.setattr(limits, "producers_max", 200)
    table = Producers()
    for number in range(1, 1_001):
        table.apply_push(Push(1, number, [(0, 1, number)], b"", None, (number, 0, 0)), number)

    assert len(table.known) <= 200
    assert 1_000 in table.known
    assert min(table.known) > 800 - 200


# named producers


def test_a_named_producer_takes_over_from_the_one_before_it(system):
    (id, epoch), _ = run_operation(system.session, ops.InitProducer("importer"))
    system.push([b"a"], (id, epoch, 0))
    (same, later), _ = run_operation(system.session, ops.InitProducer("importer"))

    assert (same, later) == (id, epoch + 1)
    assert id >= 1 << 63
    with pytest.raises(ProducerFenced):
        system.push([b"b"], (id, epoch, 1))
    assert system.push([b"b"], (id, later, 0))[0].offset == 1


@pytest.mark.parametrize("how", HOW)
def test_epochs_of_named_producers_go_on_after(system, how):
    (id, epoch), ticket = run_operation(system.session, ops.InitProducer("importer"))
    system.session.shard.confirm(ticket)
    system.reopen(how)

    assert run_operation(system.session, ops.InitProducer("importer"))[0] == (id, epoch + 1)


def test_a_named_producer_that_was_forgotten_gets_a_later_epoch_all_the_same(system):
    (_, epoch), _ = run_operation(system.session, ops.InitProducer("importer"))
    system.clock.advance(DAY + 1)
    system.push([b"a"], (ME, 0, 0))

    assert run_operation(system.session, ops.InitProducer("importer"))[0][1] > epoch


# transactions


def transact(system: System, producer: Producer | None, steps: Sequence[Any]) -> list[list[MessageId]]:
    ids, ticket = system.session.transact(steps, producer)
    system.session.shard.confirm(ticket)
    return ids


@pytest.mark.parametrize("how", [None, *HOW])
def test_a_transaction_that_is_repeated_does_nothing_and_answers_the_same(system, how):
    system.push([b"work"], None)
    reply, _ = system.session.lease("mail", "default", LeaseRequest(1))
    receipt = Receipt("mail", "0", 0, 1, reply.nonce)
    steps = [
        SettleOperation(receipt, Settling(Outcome.ACKED)),
        PushOperation("done", Batch.build([b"1", b"2"])),
        PushOperation("mail", Batch.build([b"more"])),
    ]
    first = transact(system, (ME, 0, 0), steps)
    if how is not None:
        system.reopen(how)

    assert transact(system, (ME, 0, 0), steps) == first
    assert first == [[MessageId("done", "0", 0), MessageId("done", "0", 1)], [MessageId("mail", "0", 1)]]
    assert run_operation(system.session, ops.Stats("done"))[0].ready == 2
    with pytest.raises(LeaseLost):
        transact(system, (ME, 0, 1), steps)


def test_ids_that_would_not_fit_into_the_frame_are_refused_before_anything_happens(system, monkeypatch):
    monkeypatch.setattr(limits, "frame_bytes_max", limits.MIB + 20_000)
    keyed = [Message(payload=b"", dedup_key=str(number % 500)) for number in range(600)]

    with pytest.raises(TooLarge):
        system.push(keyed, (ME, 0, 0))
    with pytest.raises(TooLarge):
        transact(system, (ME, 0, 0), [PushOperation("mail", Batch.build(keyed))])
    assert run_operation(system.session, ops.Queues())[0] == []
    assert len(system.push(keyed, None)) == 600


# repair


def mend(system: System) -> Report:
    return repair(system.disk, diagnose(system.disk, system.clock.now()), system.clock, random.Random(1))


def test_a_lost_part_costs_only_what_it_remembered_and_the_report_says_so(system):
    system.fold([b"a"], [(ME, 0, 0)])
    system.session.checkpoint()
    system.fold([b"b"], [(ME, 0, 1)])
    (part,) = (name for name in system.disk.list("checkpoints") if name.startswith("producers"))
    system.disk = system.disk.kill()
    system.disk.flip(f"checkpoints/{part}", 80)
    report = mend(system)
    system.open()

    assert any("stored twice" in note for note in report.notes)
    assert system.fold([b"b"], [(ME, 0, 1)]) == [1]
    assert system.fold([b"a"], [(ME, 0, 0)]) == [2]


def test_whoever_sends_a_lost_message_again_is_not_notified_that_it_is_known(system):
    system.fold([b"lost message"], [(ME, 0, 0)])
    system.push([b"sound message"], (ME, 0, 1))
    system.session.checkpoint()
    (name,) = (name for name in system.disk.list("journal") if name.endswith(".log"))
    system.disk = system.disk.kill()
    system.disk.flip(f"journal/{name}", 8 * system.disk.read(f"journal/{name}").index(b"lost message"))
    mend(system)
    system.open()

    assert system.push([b"sound message"], (ME, 0, 1))[0].offset == 1
    assert system.fold([b"lost message"], [(ME, 0, 0)]) == [2]


# bytes


def test_entries_of_producers_survive_the_journal():
    entries: list[Any] = [
        Produced(3, 4, 5, 6, Produced.ROW.pack(1 << 63, 8, 9, 0)),
        ProducerSet((1 << 64) - 1, 2, 3),
        Answered(0, 1, 2, 3, 4, [[("mail", "0", 5, 2)], []]),
    ]

    assert list(decode(memoryview(encode(entries)))) == entries
    assert encode(entries[:1]).hex(" ", 8) == (
        "0c00000020000000 960c03040506c418 0000000000000080 0800000000000000 0900000000000000"
    )


def test_a_push_of_one_message_with_a_producer_is_not_replayed_as_nobodys():
    batch = bytes(Batch.build([b"a"]).data)

    assert decode_push_one(memoryview(encode([Push(1, 2, [(0, 1, 0)], batch)]))) is not None
    assert decode_push_one(memoryview(encode([Push(1, 2, [(0, 1, 0)], batch, None, (ME, 0, 0))]))) is None


# any history


class Reference:
    """The rules in the plainest words: a dictionary that forgets nothing but what the window says."""

    def __init__(self) -> None:
        self.epoch = -1
        self.last = -1
        self.offsets: dict[int, int] = {}

    def offset(self, epoch: int, sequence: int, end: int) -> int | None:
        """Where the push lies; None when it is refused."""
        if epoch < self.epoch:
            return None
        if epoch > self.epoch:
            self.epoch, self.last, self.offsets = epoch, -1, {}
        if sequence <= self.last - limits.producer_window:
            return None
        self.last = max(self.last, sequence)
        return self.offsets.setdefault(sequence, end)


steps = st.lists(
    st.one_of(
        st.tuples(st.integers(1, 2), st.sampled_from([0, 0, 0, 1]), st.integers(0, 12)),
        st.tuples(st.integers(1, 2), st.just(0), st.sampled_from([1_030, 2_000, 2_001, 3_100])),
        st.sampled_from(HOW),
    ),
    max_size=30,
)


@settings(max_examples=dose(40, 400))
@given(steps)
def test_any_history_of_pushes_and_restarts_agrees_with_the_plain_rules(steps):
    system, reference, end = System(), {1: Reference(), 2: Reference()}, 0
    for step in steps:
        if isinstance(step, str):
            system.reopen(step)
            continue
        id, epoch, sequence = step
        expected = reference[id].offset(epoch, sequence, end)
        if expected is None:
            with pytest.raises(ProducerFenced):
                system.fold([b"a"], [step])
            continue
        single = system.fold([b"a"], [step]) if sequence % 2 else [system.push([b"a"], step)[0].offset]
        assert single == [expected]
        end = max(end, expected + 1)
