"""Retention that removes what somebody has just looked up: the answer is what is kept, never an error."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from penstock.client.handles import Penstock
from penstock.clock import ManualClock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.errors import MessageNotFound
from penstock.replies import LeaseReply
from tests.support.forgetful import ForgetfulDisk


class Rig:
    """A queue whose messages are sealed, one segment each."""

    def __init__(self, **options: Any) -> None:
        self.clock = ManualClock()
        disk = ForgetfulDisk(3)
        self.session = Session(
            None, clock=self.clock, rng=random.Random(1), disk=disk, background=False, journal_file_bytes=1 << 16
        )
        self.ps = Penstock(BlockingSession(self.session))
        self.queue = self.ps.create_queue("mail", **options)

    def push_sealed(self, *payloads: bytes, **options: Any) -> None:
        for payload in payloads:
            self.queue.push(payload, **options)
            self.ps.seal()

    def trim(self) -> None:
        """What is sealed by now goes, and nothing of it is left in memory."""
        self.clock.advance(120)
        assert self.session.keeper is not None
        assert self.session.keeper.compact().messages_removed

    def after_look(self, action: Callable[[], object]) -> None:
        """Have something happen between the next look at the state and the reading of files."""
        shard, look = self.session.shard, self.session.shard.look

        def look_then_act(question: Any) -> Any:
            shard.look = look  # type: ignore[method-assign]
            answer = look(question)
            action()
            return answer

        shard.look = look_then_act  # type: ignore[method-assign]


@pytest.fixture
def rig():
    made = Rig(retention_seconds=60)
    yield made
    made.session.close()


@pytest.fixture
def dropping():
    made = Rig(retention_seconds=60, retention_drops_unread=True)
    yield made
    made.session.close()


def payloads(messages) -> list[bytes]:
    return [message.payload for message in messages]


def test_a_read_that_retention_overtakes_answers_with_what_is_kept(rig):
    rig.push_sealed(b"old", b"older")
    rig.queue.lease(max=10).ack()

    def overtake() -> None:
        rig.trim()
        rig.push_sealed(b"new")

    rig.after_look(overtake)
    assert payloads(rig.queue.read()) == [b"new"]


def test_the_times_of_messages_are_read_with_them(rig, monkeypatch):
    rig.push_sealed(b"old")
    rig.queue.lease(max=10).ack()
    shard, loaded = rig.session.shard, rig.session.shard.loaded

    def load_then_trim(pieces: Any) -> Any:
        answer = loaded(pieces)
        monkeypatch.undo()
        rig.trim()
        return answer

    monkeypatch.setattr(shard, "loaded", load_then_trim)
    assert payloads(rig.queue.read()) == []


def test_a_peek_that_retention_overtakes_answers_with_what_is_kept(dropping):
    dropping.push_sealed(b"old")
    dropping.after_look(dropping.trim)
    assert dropping.queue.peek() == []


def test_a_purge_that_overtakes_a_read_leaves_nothing_to_read(rig):
    rig.push_sealed(b"old")

    def overtake() -> None:
        rig.queue.purge()
        rig.trim()

    rig.after_look(overtake)
    assert rig.queue.read() == []


def test_messages_that_the_state_still_has_and_no_file_holds_are_refused_at_once(rig):
    rig.push_sealed(b"lost")
    store = rig.session.shard.store
    partition = rig.session.shard.core.by_name["mail"].partitions[0]
    store.remove({(partition.queue.id, partition.id): 1})  # behind the back of the state: a defect
    with pytest.raises(MessageNotFound, match="are no longer kept"):
        rig.queue.read()


@pytest.mark.parametrize("others", [0, 2])
def test_a_lease_leaves_out_what_retention_dropped_before_it_was_read(dropping, others):
    dropping.push_sealed(b"old")
    leased = dropping.queue.lease(max=10, lease_seconds=3600)
    dropping.trim()
    assert payloads(leased) == []
    assert len(leased) == 0
    assert dropping.session.shard.leased_count() == 0

    dropping.push_sealed(b"old")
    leased = dropping.queue.lease(max=10, lease_seconds=3600)
    dropping.clock.advance(120)
    dropping.push_sealed(*[b"new"] * others)
    again = dropping.queue.lease(max=10, lease_seconds=3600)
    dropping.session.keeper.compact()
    reply = dropping.session.load_lease(_reply_of(leased))
    assert (reply.count, reply.nonce, list(reply.pieces)) == (0, 0, [])
    assert payloads(again) == [b"new"] * others


def _reply_of(leased: Any) -> LeaseReply:
    return LeaseReply(leased.queue, leased.group, leased.nonce, 0, leased._pieces, leased._count)


def test_delayed_messages_that_were_dropped_are_not_listed_as_others(dropping):
    dropping.push_sealed(b"soon", delay=600)
    dropping.clock.advance(100)
    dropping.push_sealed(b"later", delay=700)
    dropping.after_look(dropping.session.keeper.compact)
    assert payloads(dropping.queue.delayed()) == [b"later"]


def test_dead_letters_that_go_while_they_are_listed_are_left_out(rig):
    rig.ps.create_queue("jobs", max_attempts=1, backoff_base_seconds=0.0)
    jobs = rig.ps.queue("jobs")
    for payload in (b"a", b"b"):
        jobs.push(payload)
        jobs.lease()[0].nack()
    rig.ps.seal()
    assert payloads(jobs.dlq.list()) == [b"a", b"b"]
    shard, look = rig.session.shard, rig.session.shard.look

    def look_then_purge(question: Any) -> Any:
        answer = look(question)
        if isinstance(answer[0], tuple):  # where some letters are
            shard.look = look
            jobs.dlq.purge()
            # As retention does sooner or later; the letters share a file with the jobs.
            shard.store.remove({(shard.core.by_name[name].id, 0): 2 for name in ("jobs", "jobs.dlq")})
        return answer

    shard.look = look_then_purge
    assert jobs.dlq.list() == []
