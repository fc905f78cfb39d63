"""What the machines and the simulation have found, each as the shortest story that shows it."""

from __future__ import annotations

import errno
import random
import threading

import pytest

from penstock import limits
from penstock import operations as ops
from penstock.client.handles import Penstock
from penstock.clock import ManualClock
from penstock.delivery import snapshot
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.errors import DiskFull, InvalidField, InvalidName, LeaseLost, StorageError, TooLarge
from penstock.model import Message, Outcome
from penstock.requests import Settling
from penstock.shard.upkeep import Sleeper
from tests.support.accounts import assert_accounts
from tests.support.forgetful import ForgetfulDisk, PowerCut
from tests.support.lock_turns import take_turns
from tests.support.operations import run_operation
from tests.support.state_snapshot import drained

TICK = 0.003


class System:
    """A shard on a forgetful disk."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.disk = ForgetfulDisk(3)
        self.opened = 0
        self.open()

    def open(self) -> None:
        self.opened += 1
        rng = random.Random(self.opened)
        self.session = Session(
            None, clock=self.clock, rng=rng, disk=self.disk, background=False, journal_file_bytes=1 << 16
        )
        self.turns = take_turns(self.session)
        self.ps = Penstock(BlockingSession(self.session))

    def kill(self) -> None:
        self.disk.kill()
        self.open()
        self.wait(TICK)

    def cut_power(self) -> None:
        self.disk = self.disk.crash()
        self.open()
        self.wait(TICK)

    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.ps.queues()
        assert_accounts(self.session.shard)


@pytest.fixture
def system():
    return System()


@pytest.fixture
def ps(system):
    return system.ps


def test_a_retry_that_was_leased_before_a_crash_is_counted_once_after_it(system, ps):
    queue = ps.queue("mail")
    queue.push(b"a")
    queue.lease().nack(delay=1)
    system.wait(2)
    queue.lease().ack()

    system.kill()

    stats = system.ps.queue("mail").stats()
    assert (stats.waiting, stats.ready, stats.acked) == (0, 0, 1)


def test_a_delayed_message_that_was_cancelled_counts_no_other_as_waiting(ps):
    queue = ps.queue("mail")
    queue.push(b"now")
    queue.cancel(queue.push(b"later", delay=60))

    assert (queue.stats().ready, queue.stats().waiting) == (1, 0)


def test_messages_behind_one_that_was_cancelled_are_not_passed_over(ps):
    queue = ps.queue("mail")
    ids = queue.push_many([b"%d" % number for number in range(14)]).ids
    queue.lease(max=9).ack()
    queue.cancel(ids[9])
    queue.cancel(ids[12])

    assert [payload for payload, _ in drained(ps, "mail")] == [b"10", b"11", b"13"]


def test_a_seek_of_one_partition_leaves_the_rest_of_a_lease_alone(system, ps):
    queue = ps.create_queue("mail", partitions=2)
    queue.push(b"a", partition=0)
    queue.push(b"b", partition=1)
    leased = queue.lease(max=2)

    queue.seek("default", "earliest", partition=0)

    with pytest.raises(LeaseLost):
        leased[0].ack()
    leased.ack()
    system.wait(31)
    assert drained(ps, "mail") == [(b"a", 1)]


def test_a_redriven_message_waits_for_the_one_of_its_key_that_is_in_flight(system, ps):
    queue = ps.create_queue("orders", ordering="key")
    queue.push_many([Message(payload=b"first", key="k"), Message(payload=b"second", key="k")])
    queue.lease().reject()
    held = queue.lease()
    queue.dlq.redrive()
    system.wait(TICK)

    assert not queue.lease(max=5)
    held.ack()
    assert queue.lease(max=5).payloads() == [b"first"]


def test_key_order_finds_its_messages_in_segments_that_it_has_to_read_first(system, ps, monkeypatch):
    monkeypatch.setattr(limits, "segment_row_group_rows", 2)
    queue = ps.create_queue("orders", ordering="key")
    queue.push_many([Message(payload=b"%d" % number, key=str(number)) for number in range(6)])
    run_operation(system.session, ops.Seal())

    assert len(drained(ps, "orders")) == 6


def test_a_refused_push_does_not_count_as_a_frame(system, ps):
    with pytest.raises(InvalidField):
        ps.queue("new").push(b"x", partition="nowhere")
    system.session.checkpoint()
    ps.queue("other").push(b"confirmed")

    system.cut_power()

    assert drained(system.ps, "other") == [(b"confirmed", 1)]


def test_a_refused_transaction_leaves_no_queue_behind(system, ps):
    tx = ps.transaction()
    tx.push("new", b"x")
    tx.push("new.dlq", b"y")
    with pytest.raises(InvalidName):
        tx.__exit__(None, None, None)
    assert ps.queues() == []
    ps.queue("new").push(b"confirmed")

    system.kill()

    assert drained(system.ps, "new") == [(b"confirmed", 1)]


def test_a_transaction_that_is_too_large_changes_nothing(ps):
    tx = ps.transaction()
    for _ in range(4):
        tx.push("mail", bytes(9 * limits.MIB))

    with pytest.raises(TooLarge):
        tx.__exit__(None, None, None)
    assert ps.queues() == []


@pytest.mark.parametrize("ending", ["time", "death"])
def test_dead_letters_larger_than_a_batch_die_all_the_same(system, ps, ending):
    queue = ps.create_queue("mail", max_attempts=1)
    for number in range(5):
        queue.push(bytes([number]) * (9 * limits.MIB))
    queue.lease(max=5)

    if ending == "time":
        system.wait(31)
    else:
        system.kill()

    letters = system.ps.queue("mail").dlq.list()
    assert sorted(letter.payload[0] for letter in letters) == [0, 1, 2, 3, 4]


def test_two_queues_that_get_their_first_dead_letters_together_get_a_queue_each(system, ps):
    receipts = []
    for name in ("one", "two"):
        ps.queue(name).push(name.encode())
        receipts += [delivery.proof for delivery in ps.queue(name).lease()]

    system.session.settle(receipts, Settling(Outcome.REJECTED))

    assert ps.queues() == ["one", "one.dlq", "two", "two.dlq"]
    assert [letter.payload for letter in ps.queue("two").dlq.list()] == [b"two"]


def test_a_message_that_died_twice_comes_back_once(system, ps):
    queue = ps.queue("mail")
    queue.push(b"a")
    queue.lease().reject()
    queue.seek("default", "earliest")
    queue.lease().reject()

    assert queue.dlq.redrive() == 2

    system.wait(TICK)
    assert drained(ps, "mail") == [(b"a", 1)]


def test_compaction_moves_no_extent_of_another_partition(system, ps, monkeypatch):
    monkeypatch.setattr(limits, "segment_row_group_rows", 4)
    queue = ps.create_queue("mail", partitions=2, retention_messages=0)
    other = ps.create_queue("other", partitions=2)
    for partition in (0, 1):
        other.push_many([Message(payload=b"%d-%d" % (partition, n), partition=partition) for n in range(4 + partition)])
    run_operation(system.session, ops.Seal())
    queue.push_many([b"x"] * 40)
    other.push_many([Message(payload=b"more", partition=0), Message(payload=b"more", partition=1)])
    run_operation(system.session, ops.Seal())
    while leased := queue.lease(max=40):
        leased.ack()
    run_operation(system.session, ops.Compact())

    assert_accounts(system.session.shard)
    assert len(drained(ps, "other")) == 11


def test_what_retention_took_cannot_be_redriven_or_delivered(system, ps):
    queue = ps.create_queue("mail", retention_messages=1, retention_drops_unread=True)
    queue.push_many([b"%d" % number for number in range(6)])
    for delivery in queue.lease(max=4):
        delivery.reject()
    queue.dlq.redrive(limit=2)
    system.wait(TICK)
    run_operation(system.session, ops.Seal())
    run_operation(system.session, ops.Compact())

    assert drained(ps, "mail") == [(b"5", 1)]
    assert_accounts(system.session.shard)


def test_messages_without_a_partition_have_one_of_their_own_in_a_named_queue(ps):
    queue = ps.create_queue("places", partitions="named")
    queue.push(b"a", partition="north")

    assert queue.push(b"b").partition == "0"


def test_a_group_made_twice_during_a_checkpoint_keeps_its_name(system, ps, monkeypatch):
    monkeypatch.setattr(snapshot, "SLICE", 1)
    queue = ps.create_queue("mail", partitions=3)
    queue.push_many([b"a", b"b"])
    steps = iter([queue.create_group, queue.delete_group, queue.create_group])

    def turn() -> None:
        for step in steps:
            step("g")
            break

    system.turns.on_release = turn
    system.session.checkpoint()
    system.turns.on_release = None
    queue.lease(max=2, group="g").ack()

    system.kill()

    assert drained(system.ps, "mail", "g") == []


def test_a_group_in_use_is_not_forgotten_after_a_crash(system, ps):
    queue = ps.create_queue("mail", group_expiry_seconds=100)
    queue.create_group("g")
    queue.push(b"a")
    system.wait(90)
    queue.lease(group="g").ack()

    system.kill()
    system.wait(60)

    assert "g" in system.ps.queue("mail").groups()


def test_a_message_that_comes_back_after_its_time_to_live_is_gone(system, ps):
    queue = ps.queue("mail")
    queue.push(b"a", ttl=10)
    leased = queue.lease(lease_seconds=60)
    system.wait(20)
    leased.release()

    assert queue.stats().groups["default"].dropped_by == {"expired": 1}


def test_what_has_expired_stays_gone_for_a_group_that_seeks_back(ps, system):
    queue = ps.queue("mail")
    queue.push(b"a", ttl=10)
    system.wait(20)
    queue.seek("default", "earliest")

    assert queue.stats().ready == 0


def test_frames_that_a_failed_sync_left_in_memory_are_written_again(system, ps):
    """After a failed sync the system takes the bytes for stored; opening must not believe it."""
    ps.queue("mail").push(b"confirmed")
    system.disk.fail_at(2, errno.EIO)
    with pytest.raises(StorageError):
        ps.queue("mail").push(b"unknown")
    system.kill()
    system.ps.queue("mail").push(b"later")

    system.cut_power()

    assert [payload for payload, _ in drained(system.ps, "mail")] == [b"confirmed", b"unknown", b"later"]


def test_a_manifest_whose_name_was_not_durable_is_made_so_before_the_journal_goes(system, ps):
    """Killed between the rename and the sync of the directory, at every operation of a seal; then the power goes."""
    operation = 0
    while True:
        operation += 1
        system = System()
        system.ps.queue("mail").push(b"confirmed")
        system.disk.crash_at(operation)
        try:
            run_operation(system.session, ops.Seal())
        except PowerCut:
            system.kill()
        else:
            break
        run_operation(system.session, ops.Seal())
        system.cut_power()
        assert drained(system.ps, "mail") == [(b"confirmed", 1)], f"killed at operation {operation}"
    assert operation > 10


def test_upkeep_goes_on_after_a_disk_that_was_full_has_room_again():
    outcomes = [DiskFull("no room"), StorageError("busy")]
    done = threading.Event()

    def tick() -> float | None:
        if outcomes:
            sleeper.wake()
            raise outcomes.pop()
        done.set()
        return None

    sleeper = Sleeper("test", tick, lambda: False)
    sleeper.start()

    assert done.wait(60)
    sleeper.stop()


def test_a_lease_can_be_extended_while_another_ends_in_a_segment_that_must_be_read(system, ps):
    queue = ps.create_queue("mail", max_attempts=1)
    queue.push_many([b"a", b"b"])
    run_operation(system.session, ops.Seal())
    system.session.shard.look(lambda now: None)
    queue.lease(lease_seconds=1)
    leased = queue.lease(lease_seconds=60)
    system.clock.advance(2)

    leased.extend(60)

    assert [letter.payload for letter in queue.dlq.list()] == [b"a"]
