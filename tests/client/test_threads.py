"""Threads: many at once on one directory, waiting without polling, endless consumption.

Real threads, real time where it cannot be avoided, and no sleeps: whoever waits, waits for an event.
"""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from typing import Any

import pytest

import penstock
from penstock import Message
from penstock import operations as ops
from penstock.client._sync.delivery import Leased
from penstock.clock import ManualClock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.errors import Closed, LeaseLost, QueueNotFound
from tests.support.embedded_session import session_of
from tests.support.operations import run_operation

SECONDS = 60  # nothing here takes that long; a hang fails instead of hanging


@pytest.fixture(params=["memory", "file", "file with a busy sealer"])
def ps(request, tmp_path):
    """An open system with its background threads."""
    if request.param == "memory":
        opened = penstock.open_in_memory()
    elif request.param == "file":
        opened = penstock.open(tmp_path / "data")
    else:
        opened = penstock.Penstock(
            BlockingSession(Session(tmp_path / "data", durability="os", journal_file_bytes=1 << 14))
        )
    with opened:
        yield opened


@pytest.fixture
def pool():
    """Threads. A test that failed may leave some at work: they are not waited for, and end with the system."""
    pool = ThreadPoolExecutor(16)
    yield pool
    pool.shutdown(wait=False, cancel_futures=True)


@pytest.fixture
def waiting(ps, monkeypatch):
    """Counts leases that have sat down to wait, and every look at the queue."""
    return Waiting(ps, monkeypatch)


class Waiting:
    """`wait_for(n)` returns once n leases wait."""

    def __init__(self, ps, monkeypatch):
        self.session = ps._session.session
        self.looks = 0
        self._sat_down = threading.Semaphore(0)
        watch, lease = self.session.watch, self.session.lease

        def watched(*call):
            waiter = watch(*call)
            self._sat_down.release()
            return waiter

        def counted(*call):
            self.looks += 1
            return lease(*call)

        monkeypatch.setattr(self.session, "watch", watched)
        monkeypatch.setattr(self.session, "lease", counted)

    def wait_for(self, count):
        for _ in range(count):
            assert self._sat_down.acquire(timeout=SECONDS)


def test_many_threads_push_and_lease_at_once_and_everything_arrives_once(ps, pool):
    queue = ps.create_queue("mail", partitions=4)
    count = 1_200
    seen: Counter[bytes] = Counter()
    lock, all_seen = threading.Lock(), threading.Event()

    def produce(number):
        for n in range(0, 200, 10):
            queue.push(f"{number}-{n}".encode())
            queue.push_many([f"{number}-{n + k}".encode() for k in range(1, 10)])

    def consume(number):
        while not all_seen.is_set():
            leased = queue.lease(7, wait=0.05, consumer=f"c{number}")
            payloads = leased.payloads()
            leased.ack()
            with lock:
                seen.update(payloads)
                if seen.total() >= count:
                    all_seen.set()

    for future in [pool.submit(work, n) for work in (produce, consume) for n in range(6)]:
        future.result(SECONDS)

    assert len(seen) == count
    assert set(seen.values()) == {1}
    assert queue.stats().acked == count


def test_messages_of_one_key_keep_their_order_under_many_threads(ps, pool):
    queue = ps.create_queue("orders", ordering="key", partitions=2)
    seen: dict[str, list[int]] = {key: [] for key in "abcd"}
    in_flight: Counter[str] = Counter()
    left = threading.Semaphore(0)
    queue.push_many([Message(payload=str(n).encode(), key=key) for n in range(40) for key in "abcd"])
    done = threading.Event()

    def consume():
        while not done.is_set():
            for delivery in queue.lease(3, wait=0.05):
                in_flight[delivery.key] += 1
                assert in_flight[delivery.key] == 1
                seen[delivery.key].append(int(delivery.payload))
                in_flight[delivery.key] -= 1
                delivery.ack()
                left.release()

    workers = [pool.submit(consume) for _ in range(6)]
    for _ in range(160):
        assert left.acquire(timeout=SECONDS)
    done.set()
    for worker in workers:
        worker.result(SECONDS)

    assert seen == {key: list(range(40)) for key in "abcd"}


def test_threads_share_their_syncs(tmp_path, pool, monkeypatch):
    many = 16
    appended = threading.Semaphore(0)
    with penstock.open(tmp_path / "data") as ps:
        queue = ps.create_queue("mail")
        journal = session_of(ps).shard.journal
        syncs: list[int] = []
        append, sync_once = journal.append, journal.sync

        def noted(*call):
            sequence = append(*call)
            appended.release()
            return sequence

        def counted():
            syncs.append(journal.sequence)
            if len(syncs) == 1:  # by whoever came first; the others come meanwhile
                assert all(appended.acquire(timeout=SECONDS) for _ in range(many))
            sync_once()

        monkeypatch.setattr(journal, "append", noted)
        monkeypatch.setattr(journal, "sync", counted)
        list(pool.map(queue.push, [b"x"] * many))
        assert len(syncs) <= 2, "one for the first, one for all others"


def test_a_push_wakes_a_waiting_lease(ps, pool, waiting):
    queue = ps.create_queue("mail")
    future = pool.submit(queue.lease, 1, SECONDS)
    waiting.wait_for(1)

    queue.push(b"a")

    assert future.result(SECONDS).payloads() == [b"a"]
    assert waiting.looks <= 4


def test_one_push_of_many_wakes_as_many(ps, pool, waiting):
    queue = ps.create_queue("mail")
    futures = [pool.submit(queue.lease, 1, SECONDS) for _ in range(5)]
    waiting.wait_for(5)

    queue.push_many([b"0", b"1", b"2", b"3", b"4"])

    assert sorted(future.result(SECONDS).payloads()[0] for future in futures) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_push_wakes_every_group(ps, pool, waiting):
    queue = ps.create_queue("mail")
    futures = [
        pool.submit(queue.lease, 1, SECONDS, group=name, start="earliest") for name in ("a", "b", "c", "default")
    ]
    waiting.wait_for(4)

    queue.push(b"x")

    assert [future.result(SECONDS).payloads() for future in futures] == [[b"x"]] * 4


def test_a_waiter_that_wants_another_partition_passes_the_message_on(ps, pool, waiting):
    queue = ps.create_queue("mail", partitions=2)
    picky = pool.submit(queue.lease, 1, SECONDS, partitions=[0])
    waiting.wait_for(1)
    other = pool.submit(queue.lease, 1, SECONDS, partitions=[1])
    waiting.wait_for(1)

    queue.push(b"one", partition=1)
    assert other.result(SECONDS).payloads() == [b"one"]
    queue.push(b"zero", partition=0)

    assert picky.result(SECONDS).payloads() == [b"zero"]


def test_a_message_for_nobody_does_not_keep_waiters_awake(ps, pool, waiting):
    queue = ps.create_queue("mail")
    futures = [pool.submit(queue.lease, 1, SECONDS) for _ in range(4)]
    waiting.wait_for(4)

    queue.push(b"later", delay=3600)
    queue.pause()
    queue.push(b"held back")
    for _ in range(200):
        queue.stats()
    # Each may have looked once when it came, once when it sat down, and once or twice for each of the wake-ups.
    assert waiting.looks <= 4 * 12

    queue.resume()
    queue.push_many([b"b", b"c", b"d"])
    assert sorted(future.result(SECONDS).payloads()[0] for future in futures) == [b"b", b"c", b"d", b"held back"]


@pytest.mark.parametrize("how", ["ack in order", "ack of a key", "release", "room in flight", "resume", "lease expiry"])
def test_whatever_makes_a_message_available_wakes_a_waiting_lease(ps, pool, waiting, how):
    options: dict[str, dict[str, Any]] = {
        "ack in order": {"ordering": "partition"},
        "ack of a key": {"ordering": "key"},
        "room in flight": {"max_in_flight": 1},
        "lease expiry": {"backoff_base_seconds": 0},
    }
    queue = ps.create_queue("mail", **options.get(how, {}))
    queue.push_many([Message(payload=payload, key="k") for payload in (b"first", b"second")])
    held = queue.lease(2, lease_seconds=0.5) if how == "lease expiry" else queue.lease(1)
    if how == "release":
        queue.lease(1, group="default")
    if how == "resume":
        queue.pause()
    future = pool.submit(queue.lease, 1, SECONDS)
    if how != "lease expiry":  # which may come before it has sat down
        waiting.wait_for(1)

    if how == "resume":
        queue.resume()
    elif how == "release":
        held.release()
    elif how != "lease expiry":
        held.ack()

    expected = b"first" if how in ("release", "lease expiry") else b"second"
    assert future.result(SECONDS).payloads() == [expected]


def test_a_due_time_wakes_a_waiting_lease(ps, pool, waiting):
    queue = ps.queue("mail")
    queue.push(b"soon", delay=0.05)
    future = pool.submit(queue.lease, 1, SECONDS)

    assert future.result(SECONDS).payloads() == [b"soon"]


def test_time_moved_by_hand_wakes_a_waiting_lease(pool, monkeypatch):
    clock = ManualClock()
    with penstock.open_in_memory(clock=clock) as ps:
        waiting = Waiting(ps, monkeypatch)
        queue = ps.queue("mail")
        queue.push(b"later", delay=3600)
        future = pool.submit(queue.lease, 1, 60)
        waiting.wait_for(1)

        clock.advance(3601)

        assert future.result(SECONDS).payloads() == [b"later"]


def test_a_wait_ends_empty_when_its_patience_does(ps):
    queue = ps.create_queue("mail")

    assert len(queue.lease(1, wait=0.01)) == 0
    assert not ps._session.session.shard.waiters


def test_closing_wakes_whoever_waits(ps, pool, waiting):
    queue = ps.create_queue("mail")
    futures = [pool.submit(queue.lease, 1, SECONDS) for _ in range(3)]
    waiting.wait_for(3)

    ps.close()

    for future in futures:
        with pytest.raises(Closed):
            future.result(SECONDS)


def test_whoever_waited_on_a_loop_that_is_closed_disturbs_nobody(ps, pool, waiting):
    def wake():
        raise RuntimeError("Event loop is closed")

    queue = ps.create_queue("mail")
    waiting.session.watch("mail", wake)
    futures = [pool.submit(queue.lease, 1, SECONDS) for _ in range(2)]
    waiting.wait_for(3)

    queue.push(b"a")
    done, (left,) = wait(futures, SECONDS, FIRST_COMPLETED)
    assert [future.result().payloads() for future in done] == [[b"a"]]
    waiting.session.watch("mail", wake)
    ps.close()

    with pytest.raises(Closed):
        left.result(SECONDS)


def test_deleting_a_queue_wakes_whoever_waits_for_it(ps, pool, waiting):
    queue = ps.create_queue("mail")
    future = pool.submit(queue.lease, 1, SECONDS)
    waiting.wait_for(1)

    ps.delete_queue("mail")

    with pytest.raises(QueueNotFound):
        future.result(SECONDS)
    assert not ps._session.session.shard.waiters


def test_consuming_acknowledges_what_the_loop_is_done_with(ps):
    queue = ps.queue("mail")
    queue.push_many([str(n).encode() for n in range(7)])

    seen = [delivery.payload for delivery in queue.consume(batch=3, idle_seconds=0.01)]

    assert seen == [str(n).encode() for n in range(7)]
    assert queue.stats().acked == 7


def test_leaving_the_loop_fails_what_is_at_hand_and_gives_back_what_was_not_begun(ps):
    queue = ps.create_queue("mail", backoff_base_seconds=100)
    queue.push_many([b"done", b"at hand", b"not begun", b"not begun"])

    for delivery in queue.consume(batch=4):
        if delivery.payload == b"at hand":
            break

    stats = queue.stats()
    assert (stats.acked, stats.waiting, stats.ready, stats.leased) == (1, 1, 2, 0)


def test_an_error_in_the_loop_fails_what_is_at_hand(ps):
    queue = ps.create_queue("mail", backoff_base_seconds=100)
    queue.push_many([b"bad", b"next"])

    def work():
        for delivery in queue.consume(batch=2):
            raise ValueError(delivery.payload)

    with pytest.raises(ValueError, match="bad"):
        work()

    stats = queue.stats()
    assert (stats.acked, stats.waiting, stats.ready, stats.leased) == (0, 1, 1, 0)


def test_what_was_settled_by_hand_in_a_loop_is_left_alone(ps):
    queue = ps.queue("mail")
    queue.push_many([b"a", b"b", b"c"])

    for delivery in queue.consume(batch=3, idle_seconds=0.01):
        if delivery.payload == b"b":
            delivery.reject("bad")

    assert (queue.stats().acked, queue.stats().dead) == (2, 1)


def test_several_consumers_share_the_work_until_they_are_stopped(ps, pool):
    queue = ps.create_queue("mail")
    stop, seen = threading.Event(), threading.Semaphore(0)

    def work():
        payloads = []
        for delivery in queue.consume(batch=5, stop=stop):
            payloads.append(delivery.payload)
            seen.release()
        return payloads

    workers = [pool.submit(work) for _ in range(3)]
    queue.push_many([str(n).encode() for n in range(60)])
    for _ in range(60):
        assert seen.acquire(timeout=SECONDS)
    stop.set()

    everything = [payload for worker in workers for payload in worker.result(SECONDS)]
    assert sorted(everything, key=int) == [str(n).encode() for n in range(60)]
    assert queue.stats().acked == 60


def test_a_lease_is_extended_while_the_loop_body_runs(ps, monkeypatch):
    queue = ps.create_queue("mail", backoff_base_seconds=0)
    queue.push(b"slow")
    extended = threading.Semaphore(0)
    extend = Leased.extend

    def counted(leased, seconds):
        extend(leased, seconds)
        extended.release()

    monkeypatch.setattr(Leased, "extend", counted)
    for delivery in queue.consume(lease_seconds=3, idle_seconds=0.01):
        for _ in range(3):  # longer than the lease
            assert extended.acquire(timeout=SECONDS)
        assert delivery.attempt == 1

    assert queue.stats().acked == 1


def test_a_lease_that_is_shortened_runs_out_sooner(ps, pool, waiting):
    queue = ps.create_queue("mail", backoff_base_seconds=0)
    queue.push(b"a")
    leased = queue.lease(1)
    future = pool.submit(queue.lease, 1, SECONDS)
    waiting.wait_for(1)

    leased.extend(0.05)

    assert future.result(SECONDS)[0].attempt == 2


def test_a_lease_runs_out_while_nobody_calls(ps):
    queue = ps.create_queue("mail", max_attempts=1)
    queue.push(b"a")
    leased = queue.lease(1, lease_seconds=0.05)

    # The dead letter comes by itself: nobody touches the queue meanwhile.
    shard = ps._session.session.shard
    arrived = threading.Event()
    with shard.lock:
        apply = shard.core.apply

        def watching(entries, sequence):
            apply(entries, sequence)
            if "mail.dlq" in shard.core.by_name:
                arrived.set()

        shard.core.apply = watching
    assert "mail.dlq" in shard.core.by_name or arrived.wait(SECONDS)

    assert [letter.payload for letter in queue.dlq.list()] == [b"a"]
    with pytest.raises(LeaseLost):
        leased.ack()


@pytest.mark.parametrize("per_push", [False, True])
def test_interval_syncs_by_itself(tmp_path, monkeypatch, per_push):
    with penstock.open(tmp_path / "data", durability="fsync" if per_push else "interval", sync_seconds=0.01) as ps:
        queue = ps.create_queue("mail")
        journal = session_of(ps).shard.journal
        synced = threading.Event()
        sync_once = journal.sync

        def watching():
            sync_once()
            if journal.durable_sequence == journal.sequence:
                synced.set()

        monkeypatch.setattr(journal, "sync", watching)
        queue.push(b"a", durability="interval" if per_push else None)

        assert synced.wait(SECONDS)


def test_many_threads_read_sealed_messages(tmp_path, pool):
    with penstock.open(tmp_path / "data") as ps:
        queue = ps.create_queue("mail", partitions=2)
        for number in range(10):
            queue.push_many([Message(payload=f"{number}-{n}".encode(), priority=n % 4) for n in range(20)])
            run_operation(ps._session, ops.Seal())

        def work(_):
            seen = []
            while leased := queue.lease(9):
                seen += leased.payloads()
                leased.ack()
            return seen

        seen = [payload for payloads in pool.map(work, range(6)) for payload in payloads]

    assert len(seen) == len(set(seen)) == 200
