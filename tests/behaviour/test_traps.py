"""What went wrong in the systems that Penstock learnt from: one test for each, named after what must hold.

The numbers are those of the list of traps. Where a restart was the trap, the process ends both ways: cleanly, and
without a farewell, on a disk that then forgets what was not synced.
"""

from __future__ import annotations

import threading

import pytest

from penstock import Batch, Message
from penstock.errors import InvalidField, InvalidName
from tests.behaviour.steps import TICK, drain, kill, lease_one, numbered, take

on_disk = pytest.mark.parametrize("way", ["file", "sealed", "forgetful"], indirect=True)
however_it_ends = pytest.mark.parametrize("end", ["restart", "crash"])


@on_disk
@however_it_ends
def test_01_acked_work_stays_away_after_a_restart_and_tries_and_dead_letters_are_kept(ps, way, clock, end):
    queue = ps.create_queue("mail", max_attempts=3)
    queue.push_many([b"acked", b"tried", b"dead", b"held", b"ready"])
    acked, tried, dead, *_ = queue.lease(4)
    acked.ack()
    tried.nack(delay=0)
    dead.reject("poison")
    lease_one(queue).nack(delay=60)

    queue = getattr(way, end)().queue("mail")

    assert [letter.payload for letter in queue.dlq.list()] == [b"dead"]
    assert {d.payload: d.attempt for d in queue.lease(10)} == {b"held": 2, b"ready": 1}
    clock.advance(61)
    assert [(d.payload, d.attempt) for d in queue.lease(1)] == [(b"tried", 3)]
    assert queue.stats().acked == 1


@on_disk
@however_it_ends
def test_01_every_settled_message_of_a_lease_is_remembered_on_its_own(ps, way, end):
    queue = ps.queue("mail")
    queue.push_many(numbered(10))
    leased = queue.lease(10)
    for index in (0, 3, 4, 9):
        leased[index].ack()

    queue = getattr(way, end)().queue("mail")

    assert sorted(drain(queue)) == [b"1", b"2", b"5", b"6", b"7", b"8"]


def test_02_a_delayed_message_of_high_priority_does_not_block_those_that_are_ready(ps, clock):
    queue = ps.queue("mail")
    queue.push(b"urgent, tomorrow", priority=255, delay=86_400)
    queue.push_many([b"now", Message(payload=b"idle", priority=0)])

    assert drain(queue) == [b"now", b"idle"]
    clock.advance(86_401)
    assert drain(queue) == [b"urgent, tomorrow"]


@on_disk
@however_it_ends
def test_04_delays_are_kept_over_a_restart(ps, way, clock, end):
    queue = ps.queue("mail")
    queue.push(b"later", delay=60)
    queue.push(b"much later", delay=6_000_000)
    lease = queue.lease(1)
    assert not lease

    queue = getattr(way, end)().queue("mail")

    assert [message.payload for message in queue.delayed()] == [b"later", b"much later"]
    clock.advance(59)
    assert take(queue) == []
    clock.advance(1 + TICK)
    assert drain(queue) == [b"later"]
    queue = getattr(way, end)().queue("mail")
    clock.advance(6_000_000)
    assert drain(queue) == [b"much later"]


@on_disk
@however_it_ends
def test_04_a_delay_that_ends_while_nobody_runs_is_over_when_somebody_does(ps, way, clock, end):
    queue = ps.queue("mail")
    queue.push(b"later", delay=60)
    queue.push(b"retried")
    lease_one(queue).nack(delay=60)
    way.session.checkpoint()

    clock.advance(3600)
    queue = getattr(way, end)().queue("mail")

    assert sorted(drain(queue)) == [b"later", b"retried"]


def test_06_a_lease_runs_out_although_its_holder_is_alive(ps, clock):
    queue = ps.create_queue("mail", lease_seconds=10, backoff_base_seconds=0)
    queue.push(b"a")
    lease_one(queue, consumer="stuck")

    clock.advance(5)
    take(queue, consumer="stuck")  # alive, and asking for more
    clock.advance(5)

    assert lease_one(queue, consumer="other").attempt == 2


@on_disk
@however_it_ends
def test_07_an_ack_of_a_later_message_does_not_pass_over_earlier_ones(ps, way, end):
    queue = ps.queue("mail")
    queue.push_many(numbered(5))
    leased = queue.lease(5)
    leased[4].ack()
    assert queue.groups()["default"][0].committed_offset == 0

    queue = getattr(way, end)().queue("mail")

    assert queue.groups()["default"][0].committed_offset == 0
    assert sorted(drain(queue)) == numbered(4)


def test_08_one_failure_brings_back_one_message_and_counts_for_it_alone(ps, clock):
    queue = ps.create_queue("mail", max_attempts=2)
    queue.push_many(numbered(5))
    leased = queue.lease(5)
    leased[2].nack(delay=0)
    leased.ack()

    (delivery,) = queue.lease(5)

    assert (delivery.payload, delivery.attempt) == (b"2", 2)
    delivery.nack()
    assert (queue.stats().acked, queue.stats().dead) == (4, 1)


@on_disk
@however_it_ends
def test_09_options_are_used_after_a_restart_as_before(ps, way, clock, end):
    ps.create_queue("mail", ttl_seconds=60, max_length=2, lease_seconds=5, max_attempts=1, ordering="key")

    queue = getattr(way, end)().queue("mail")
    queue.push_many([Message(payload=payload, key="k") for payload in (b"a", b"b")])

    with pytest.raises(Exception, match="max_length"):
        queue.push(b"c")
    assert take(queue) == [b"a"]
    clock.advance(6)
    assert queue.stats().dead == 1
    clock.advance(60)
    assert queue.stats().groups["default"].dropped_by == {"expired": 1}


def test_10_a_lease_right_after_a_push_gets_it(ps):
    queue = ps.create_queue("mail", partitions=3)
    for number in range(20):
        queue.push(str(number).encode())
        assert take(queue, 1, auto_ack=True) == [str(number).encode()]
        queue.push_many([b"x", b"y"])
        assert take(queue, 2, auto_ack=True) == [b"x", b"y"]


def test_11_a_time_that_cannot_be_read_is_refused_and_never_means_everything(ps):
    queue = ps.queue("mail")
    queue.push_many(numbered(3))
    kill(queue)
    drain(queue)

    for time in ("garbage", "", "now", "2030-02-30T00:00:00Z", "12:00"):
        with pytest.raises(InvalidField):
            queue.seek("default", time)
        with pytest.raises(InvalidField):
            queue.read(timestamp=time)
        with pytest.raises(InvalidField):
            queue.dlq.redrive(since=time)

    assert take(queue) == []
    assert len(queue.dlq.list()) == 1


@on_disk
@however_it_ends
def test_13_unread_messages_of_every_priority_are_there_after_a_restart(ps, way, end):
    queue = ps.queue("mail")
    queue.push_many([Message(payload=f"{p}-{n}".encode(), priority=p) for n in range(3) for p in (0, 100, 128, 255)])
    assert take(queue, 2, auto_ack=True) == [b"255-0", b"255-1"]
    lease_one(queue)

    queue = getattr(way, end)().queue("mail")

    rest = [b"255-2", *(f"{p}-{n}".encode() for p in (128, 100, 0) for n in range(3))]
    assert drain(queue, 4) == rest


@pytest.mark.parametrize("way", ["file", "sealed"], indirect=True)
def test_14_compaction_leaves_unread_messages_alone(ps, way, clock):
    queue = ps.create_queue("mail", retention_seconds=1, retention_messages=0, retention_bytes=0)
    queue.push_many(numbered(100))
    way.seal()
    for delivery in queue.lease(50):
        if delivery.offset % 2:
            delivery.ack()
        else:
            delivery.nack(delay=10)
    clock.advance(1000)

    for _ in range(3):
        ps.compact()
    way.restart()
    queue = way.crash().queue("mail")

    assert sorted(int(p) for p in drain(queue)) == [*range(0, 50, 2), *range(50, 100)]


@on_disk
def test_15_dedup_keys_are_known_although_the_process_ended_without_a_farewell(ps, way):
    queue = ps.queue("mail")
    first = queue.push(b"a", dedup_key="k")

    for _ in range(3):
        queue = way.crash().queue("mail")
        assert queue.push(b"b", dedup_key="k") == first

    assert drain(queue) == [b"a"]


def test_16_looking_moves_nothing(ps):
    queue = ps.queue("mail")
    queue.push_many(numbered(3))

    for _ in range(5):
        assert [message.payload for message in queue.peek(2)] == [b"0", b"1"]
        assert [message.payload for message in queue.read(limit=2)] == [b"0", b"1"]

    assert queue.groups()["default"][0].committed_offset == 0
    assert take(queue) == numbered(3)


def test_17_a_compressed_message_is_plain_in_the_dead_letter_queue(ps):
    queue = ps.queue("mail")
    payloads = [b"abc" * 5_000 + bytes([number]) for number in range(10)]
    batch = Batch.build(payloads, compress=True)
    assert batch.compressed
    queue.push_many(batch)

    kill(queue, 10)

    assert [letter.payload for letter in queue.dlq.list()] == payloads
    assert ps.queue("mail.dlq").lease(10).payloads() == payloads
    queue.dlq.redrive()
    assert sorted(drain(queue)) == sorted(payloads)


def test_18_groups_do_not_hide_messages_from_each_other(ps):
    queue = ps.create_queue("mail", ordering="key")
    queue.create_group("other")
    queue.push_many([Message(payload=p, key="k") for p in numbered(3)])
    held = lease_one(queue)

    assert drain(queue, group="other") == numbered(3)
    held.ack()
    assert drain(queue) == [b"1", b"2"]


@on_disk
@however_it_ends
def test_19_an_ack_moves_the_committed_offset_of_its_group(ps, way, end):
    queue = ps.queue("mail")
    queue.push_many(numbered(4))
    queue.create_group("other")
    queue.lease(3, group="other").ack()

    queue = getattr(way, end)().queue("mail")

    committed = {name: rows[0].committed_offset for name, rows in queue.groups().items()}
    assert committed == {"default": 0, "other": 3}


@pytest.mark.parametrize("way", ["file"], indirect=True)  # a power cut may take the count of one delivery with it
@however_it_ends
def test_20_a_failed_message_is_handed_out_again(ps, way, clock, end):
    queue = ps.queue("mail")
    queue.push_many(numbered(2))
    for delivery in queue.lease(2):
        delivery.nack(delay=5)

    clock.advance(5 + TICK)
    assert [d.attempt for d in queue.lease(2)] == [2, 2]
    queue = getattr(way, end)().queue("mail")

    assert [d.attempt for d in queue.lease(2)] == [3, 3]


def test_21_a_slow_retry_holds_up_no_other(ps, clock):
    queue = ps.queue("mail")
    queue.push_many([b"slow", *numbered(5)])
    for delivery in queue.lease(6):
        delivery.nack(delay=86_400 if delivery.payload == b"slow" else 1)

    clock.advance(1 + TICK)

    assert sorted(drain(queue)) == numbered(5)


def test_22_a_lease_reads_every_partition(ps):
    queue = ps.create_queue("rooms", partitions="named")
    names = [f"room-{number}" for number in range(50)]
    queue.push_many([Message(payload=name.encode(), partition=name) for name in names])

    assert sorted(drain(queue, 7)) == sorted(name.encode() for name in names)


def test_23_no_message_is_skipped_while_priorities_come_and_go(ps):
    queue = ps.queue("mail")
    pushed, seen = [], []
    for number in range(30):
        batch = [Message(payload=f"{number}-{p}".encode(), priority=p) for p in ((number * 37) % 256, 128, 5)]
        pushed += [message.payload for message in batch]
        queue.push_many(batch)
        seen += take(queue, 2, auto_ack=True)

    seen += drain(queue, 4)

    assert sorted(seen) == sorted(pushed)


def test_24_a_receipt_can_always_be_taken_apart_again(ps, way):
    for name in ("a:b", "a/b"):
        with pytest.raises(InvalidName):
            ps.queue(name)
    queue = ps.create_queue("a.b-c_d", partitions="named")
    with pytest.raises(InvalidName):
        queue.push(b"x", partition="p:q")
    queue.push(b"x", partition="p.q-r_s")

    way.settle([lease_one(queue).receipt])

    assert queue.stats().acked == 1


@pytest.mark.parametrize("way", ["file", "sealed"], indirect=True)
def test_25_compaction_keeps_every_offset(ps, way, clock):
    queue = ps.create_queue("mail", retention_messages=4, retention_seconds=None)
    for start in range(0, 12, 3):
        queue.push_many(numbered(12)[start : start + 3])
        way.seal()
    drain(queue)

    ps.compact()
    ps.compact()
    queue = way.restart().queue("mail")

    assert {m.id.offset: m.payload for m in queue.read()} == {n: str(n).encode() for n in (8, 9, 10, 11)}
    assert queue.push(b"12").offset == 12
    assert [(d.offset, d.payload) for d in queue.lease(5)] == [(12, b"12")]


def test_26_waiting_for_a_message_is_not_polling(ps, way):
    queue = ps.create_queue("mail")
    session = way.session
    looks, arrived = [], threading.Event()
    lease, watch = session.lease, session.watch

    def counted(*call):
        looks.append(call)
        return lease(*call)

    def watched(*call):
        waiter = watch(*call)
        arrived.set()
        return waiter

    session.lease, session.watch = counted, watched
    got: list[bytes] = []
    thread = threading.Thread(target=lambda: got.extend(take(queue, wait=60)))
    thread.start()
    assert arrived.wait(60)
    for _ in range(50):
        queue.stats()
    queue.push(b"a")
    thread.join(60)

    assert got == [b"a"]
    assert len(looks) <= 4  # at once, after sitting down to wait, and when woken
