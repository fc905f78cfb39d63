"""Subscriptions: members in threads and tasks that join, leave, die and come back. Whoever waits, waits for events."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, aclosing, closing, contextmanager
from typing import Any

import pytest

import penstock
from penstock import Message, aio, limits
from penstock import operations as ops
from penstock.client._async import consumer as async_consumer
from penstock.client._sync import consumer
from penstock.client._sync.delivery import Leased
from penstock.client.member import MemberState
from penstock.embedded.session import Session
from penstock.errors import LeaseLost, MemberFenced, QueueNotFound
from penstock.requests import LeaseRequest
from tests.client.test_aio import on_a_loop
from tests.support.broker_restarts import held_port
from tests.support.brokers import BrokerThread
from tests.support.operations import run_operation

SECONDS = 60  # nothing here takes that long, however slow the machine; a hang fails instead of hanging
BEATS = 60  # per session: a machine that stands still for a moment costs nobody a session of a second or more
GROUP = "workers"


@pytest.fixture(params=["memory", "file", "tcp"])
def ps(request, tmp_path):
    with ExitStack() as stack:
        if request.param == "memory":
            opened = penstock.open_in_memory()
        elif request.param == "file":
            opened = penstock.open(tmp_path / "data")
        else:
            broker = stack.enter_context(serving(tmp_path / "data"))
            opened = penstock.connect(broker.url)
        yield stack.enter_context(opened)


@contextmanager
def serving(directory, port=0):
    """A broker on a socket."""
    with closing(Session(directory)) as session:
        broker = BrokerThread(session, port)
        try:
            yield broker
        finally:
            broker.stop()


@pytest.fixture
def queue(ps):
    queue = ps.create_queue("orders", partitions=4, ordering="partition")
    queue.create_group(GROUP)
    return queue


@pytest.fixture
def hire(queue):
    """`hire(n)` is a crew that stops after n messages, or when the test is over, however it went."""
    with ThreadPoolExecutor(8) as pool, ExitStack() as over:

        def crew(count):
            hired = Crew(queue, pool, count)
            over.callback(hired.stop.set)
            return hired

        yield crew


@pytest.fixture
def beats(ps, monkeypatch):
    """`beats(n)` returns when n more heartbeats were answered; there are `BEATS` in a session."""
    monkeypatch.setattr(limits, "heartbeats_per_session", BEATS)
    execute, beaten = ps._session.execute, threading.Semaphore(0)

    def counted(operation):
        answer = execute(operation)
        if isinstance(operation, ops.Heartbeat):
            beaten.release()
        return answer

    def wait(count):
        while beaten.acquire(blocking=False):
            pass
        for _ in range(count):
            assert beaten.acquire(timeout=SECONDS)

    monkeypatch.setattr(ps._session, "execute", counted)
    return wait


def messages(count):
    return [Message(payload=str(n).encode(), partition=n % 4) for n in range(count)]


class Crew:
    """Members that work in threads, and what they saw of each other."""

    def __init__(self, queue, pool, count):
        self.queue, self.pool, self.count = queue, pool, count
        self.lock = threading.Lock()
        self.busy: set[str] = set()
        self.seen: dict[str, list[int]] = {partition: [] for partition in "0123"}
        self.by: Counter[str] = Counter()
        self.owners: dict[str, str] = {}
        self.changed = threading.Condition(self.lock)
        self.stop = threading.Event()
        self.workers: list[Future[None]] = []

    def start(self, name, leave_after=None, **options):
        self.workers.append(self.pool.submit(self._work, name, leave_after, options))
        self.workers[-1].add_done_callback(self._ended)
        return self.workers[-1]

    def _ended(self, worker):
        with self.changed:
            self.changed.notify_all()

    def _work(self, name, leave_after, options):
        deliveries = self.queue.subscribe(
            GROUP,
            name,
            stop=self.stop,
            on_assigned=lambda partitions: self._assigned(name, partitions),
            on_revoked=lambda partitions: self._revoked(name, partitions),
            **options,
        )
        with closing(deliveries):
            for delivery in deliveries:
                self._handle(name, delivery)
                if leave_after is not None and self.by[name] >= leave_after:
                    delivery.ack()
                    break

    def _assigned(self, name, partitions):
        with self.changed:
            assert not self.owners.keys() & set(partitions), "two owners at once"
            self.owners |= dict.fromkeys(partitions, name)
            self.changed.notify_all()

    def _revoked(self, name, partitions):
        with self.changed:
            for partition in partitions:
                assert self.owners.pop(partition) == name
            self.changed.notify_all()

    def _handle(self, name, delivery):
        with self.changed:
            assert self.owners[delivery.partition] == name
            assert delivery.partition not in self.busy, "delivered to two members at once"
            self.busy.add(delivery.partition)
        with self.changed:
            self.busy.remove(delivery.partition)
            self.seen[delivery.partition].append(int(delivery.payload))
            self.by[name] += 1
            if sum(map(len, self.seen.values())) >= self.count:
                self.stop.set()
            self.changed.notify_all()

    def wait_for_owners(self, *names):
        def is_so():
            return len(self.owners) == 4 and set(self.owners.values()) == set(names)

        with self.changed:
            assert self.changed.wait_for(lambda: is_so() or self._failed(), SECONDS)
            for worker in self._failed():
                worker.result()

    def _failed(self):
        return [worker for worker in self.workers if worker.done() and worker.exception()]

    def check(self):
        assert self.seen == {str(p): list(range(p, self.count, 4)) for p in range(4)}


def test_a_single_member_gets_everything_in_order(queue, hire):
    queue.push_many(messages(40))
    crew = hire(40)
    crew.start("one").result(SECONDS)

    crew.check()
    assert queue.stats().groups[GROUP].acked == 40
    assert queue.members(GROUP) == []


def test_members_that_join_share_the_partitions_and_no_message_comes_twice(queue, hire):
    crew = hire(160)
    workers = [crew.start("one", batch=7)]
    crew.wait_for_owners("one")
    queue.push_many(messages(80))
    workers.append(crew.start("two", batch=5))
    crew.wait_for_owners("one", "two")
    workers.append(crew.start("three", batch=1))
    crew.wait_for_owners("one", "two", "three")
    queue.push_many([Message(payload=str(n).encode(), partition=n % 4) for n in range(80, 160)])
    for worker in workers:
        worker.result(SECONDS)

    crew.check()
    assert set(crew.by) == {"one", "two", "three"}


def test_what_a_leaving_member_owned_goes_to_the_others(queue, hire):
    queue.push_many(messages(8))
    crew = hire(40)
    one, two = crew.start("one", leave_after=2, batch=2), crew.start("two", batch=2)
    one.result(SECONDS)
    crew.wait_for_owners("two")
    queue.push_many([Message(payload=str(n).encode(), partition=n % 4) for n in range(8, 40)])
    two.result(SECONDS)

    crew.check()
    assert queue.stats().groups[GROUP].acked == 40


def test_what_a_dead_member_owned_goes_to_the_others_when_its_session_ends(ps, queue, hire):
    run_operation(ps._session, ops.Join("orders", GROUP, "dead", 0.3))
    queue.push_many(messages(8))
    crew = hire(8)
    crew.start("one").result(SECONDS)

    crew.check()


def test_a_slow_loop_body_costs_nobody_the_membership(queue, beats):
    queue.push(b"slow")
    with closing(queue.subscribe(GROUP, "one", session_seconds=4, lease_seconds=4)) as deliveries:
        delivery = next(deliveries)
        beats(BEATS + 10)  # longer than a session, and a lease
        delivery.ack()
        assert [member.member.startswith("one-") for member in queue.members(GROUP)] == [True]


def test_a_zombie_is_fenced_and_joins_again(ps, queue):
    queue.push(b"a", partition=0)
    changes = []
    deliveries = queue.subscribe(GROUP, "one", on_revoked=lambda gone: changes.append(("-", gone)),
                                 on_assigned=lambda come: changes.append(("+", come)))  # fmt: skip
    with closing(deliveries):
        first = next(deliveries)
        (one,) = queue.members(GROUP)
        heir, _ = run_operation(ps._session, ops.Join("orders", GROUP, one.member, 10))
        with pytest.raises(LeaseLost):
            first.ack()
        run_operation(ps._session, ops.Leave("orders", GROUP, one.member, heir.generation))
        again = next(deliveries)
        assert (again.id, again.attempt) == (first.id, 1)
        assert [member.member for member in queue.members(GROUP)] != [one.member]
        again.ack()

    everything = ["0", "1", "2", "3"]
    assert changes == [("+", everything), ("-", everything), ("+", everything), ("-", everything)]
    assert queue.stats().groups[GROUP].acked == 1


def test_two_processes_of_one_name_are_two_members_and_nothing_comes_twice(queue, hire):
    queue.push_many(messages(200))
    crew = hire(200)
    workers = [crew.start("one", batch=3), crew.start("one", batch=5)]
    for worker in workers:
        worker.result(SECONDS)

    assert crew.seen == {partition: list(range(int(partition), 200, 4)) for partition in "0123"}
    stats = queue.stats().groups[GROUP]
    assert (stats.acked, stats.dead) == (200, 0)


def test_the_longest_of_names_is_a_label_too(queue):
    queue.push(b"a")
    label = "m" * 128
    with closing(queue.subscribe(GROUP, label)) as deliveries:
        assert next(deliveries).payload == b"a"
        (member,) = queue.members(GROUP)
        assert member.member.startswith("m" * 100)
        assert len(member.member) == 128


class Looking(threading.Event):
    """A stop that nobody sets; whoever waits for it finds that `back` was called."""

    def __init__(self, back):
        super().__init__()
        self.back = back

    def wait(self, timeout=None):
        self.back()
        return False


@pytest.mark.parametrize("gone", ["queue, back at once", "queue, back later", "group"])
def test_a_subscription_that_shall_survive_goes_on_when_its_queue_is_created_again(ps, queue, gone):
    queue.push(b"old", partition=0)
    changes: list[str] = []

    def create_again():
        if "orders" not in ps.queues():
            ps.create_queue("orders").push(b"new")

    deliveries = queue.subscribe(
        GROUP,
        start="earliest",
        survives=True,
        stop=Looking(create_again),
        on_assigned=lambda partitions: changes.append("+"),
        on_revoked=lambda partitions: changes.append("-"),
    )
    with closing(deliveries):
        assert next(deliveries).payload == b"old"
        if gone == "group":
            queue.delete_group(GROUP)
        else:
            ps.delete_queue("orders")
        if gone == "queue, back at once":
            create_again()
        assert next(deliveries).payload == (b"old" if gone == "group" else b"new")
        assert changes == ["+", "-", "+"]


def test_without_being_asked_to_a_subscription_ends_with_its_queue(ps, queue):
    queue.push(b"old", partition=0)
    with closing(queue.subscribe(GROUP)) as deliveries:
        next(deliveries)
        ps.delete_queue("orders")
        with pytest.raises(QueueNotFound):
            next(deliveries)


def test_what_was_not_begun_is_given_back_when_its_partition_goes(ps, queue, beats):
    session = ps._session
    queue.push_many(messages(8))
    revoked: list[Any] = []
    with closing(queue.subscribe(GROUP, "one", session_seconds=6, on_revoked=revoked.append)) as deliveries:
        assert next(deliveries).partition == "0"
        two, _ = run_operation(session, ops.Join("orders", GROUP, "two", 10))
        beats(2)  # the second began after the join
        two, _ = run_operation(session, ops.Heartbeat("orders", GROUP, "two", two.generation, []))
        assert two.assigned == [], "the consumer is still at work"
        assert next(deliveries).partition == "0"
        assert revoked == [["2", "3"]]
        two, _ = run_operation(session, ops.Heartbeat("orders", GROUP, "two", two.generation, []))
        assert two.assigned == ["2", "3"]
        request = LeaseRequest(100, member="two", generation=two.generation)
        reply = session.lease("orders", GROUP, request, 0.0)
        assert {(delivery.partition, delivery.attempt) for delivery in Leased(session, reply)} == {("2", 1), ("3", 1)}


def test_a_partition_is_announced_before_its_first_delivery_whoever_hears_of_it(ps, queue, beats, monkeypatch):
    """The heart hears of new partitions when the consumer has just looked for news and is about to lease."""
    other, _ = run_operation(ps._session, ops.Join("orders", GROUP, "other", 60))
    queue.push(b"a", partition=0)
    request = MemberState.request

    def after_news(place):
        monkeypatch.setattr(MemberState, "request", request)
        run_operation(ps._session, ops.Leave("orders", GROUP, "other", other.generation))
        beats(3)  # the second began after it, and the third after its answer was known
        return place.request()

    monkeypatch.setattr(MemberState, "request", after_news)
    mine: list[str] = []
    with closing(queue.subscribe(GROUP, "one", session_seconds=6, on_assigned=mine.extend)) as deliveries:
        assert next(deliveries).partition in mine


def test_leaving_the_loop_is_a_failure_of_the_delivery_at_hand_only(queue):
    queue.push_many(messages(8))
    with closing(queue.subscribe(GROUP)) as deliveries:
        next(deliveries)
        next(deliveries)
    stats = queue.stats().groups[GROUP]

    assert (stats.acked, stats.waiting, stats.leased) == (1, 1, 0)
    assert queue.members(GROUP) == []


def test_an_error_of_a_callback_reaches_the_consumer_and_leaves_the_group(queue):
    def refuse(partitions):
        raise ValueError("not these")

    with pytest.raises(ValueError, match="not these"):
        next(queue.subscribe(GROUP, on_assigned=refuse))
    assert queue.members(GROUP) == []


def test_a_queue_must_be_there(ps):
    with pytest.raises(QueueNotFound):
        next(ps.queue("nothing").subscribe(GROUP))


def test_a_waiting_lease_hears_of_a_change_at_once(ps, queue, hire):
    """Nobody waits for the next heartbeat: with a session of an hour there is one every twenty minutes."""
    crew = hire(4)
    workers = [crew.start("one", session_seconds=3600)]
    crew.wait_for_owners("one")
    workers.append(crew.start("two", session_seconds=3600))
    crew.wait_for_owners("one", "two")
    queue.push_many(messages(4))
    for worker in workers:
        worker.result(SECONDS)

    crew.check()


def test_others_cannot_lease_from_a_group_with_members(queue):
    queue.push(b"a")
    with closing(queue.subscribe(GROUP)) as deliveries:
        next(deliveries)
        with pytest.raises(MemberFenced):
            queue.lease(1, group=GROUP)


def test_after_a_restart_of_the_broker_members_join_again_by_themselves(tmp_path):
    with held_port(3) as port:
        with serving(tmp_path / "data", port) as broker:
            ps = penstock.connect(broker.url)
            queue = ps.create_queue("orders", partitions=4)
            queue.create_group(GROUP)
            queue.push_many([Message(payload=b"a", partition=0), Message(payload=b"b", partition=0)])
            deliveries: Any = queue.subscribe(GROUP, "one", batch=1)
            assert next(deliveries).payload == b"a"
            before = queue.members(GROUP)[0].generation
        with serving(tmp_path / "data", port), ps, closing(deliveries):
            assert [next(deliveries).payload, next(deliveries).payload] == [b"a", b"b"], (
                "the first was not acknowledged"
            )
            assert queue.members(GROUP)[0].generation > before


def test_a_lost_connection_is_not_the_end_of_a_membership(tmp_path):
    with serving(tmp_path / "data") as broker, penstock.connect(broker.url) as ps:
        queue = ps.create_queue("orders")
        queue.create_group(GROUP)
        queue.push_many([b"a", b"b"])
        subscribed: Any = queue.subscribe(GROUP, "one", batch=1)
        with closing(subscribed) as deliveries:
            first = next(deliveries)
            joined = queue.members(GROUP)[0].generation
            broker.cut()
            first.ack()
            assert next(deliveries).payload == b"b"
            assert queue.members(GROUP)[0].generation == joined


@pytest.fixture(params=["file", "tcp"])
def opened(request, tmp_path):
    """What `async with` enters."""
    with ExitStack() as stack:
        if request.param == "file":
            yield aio.open(tmp_path / "data")
        else:
            yield aio.connect(stack.enter_context(serving(tmp_path / "data")).url)


@on_a_loop
async def test_tasks_share_the_partitions(opened):
    async with opened as ps:
        queue = await ps.create_queue("orders", partitions=4, ordering="partition")
        await queue.create_group(GROUP)
        owners: dict[str, str] = {}
        seen: dict[str, list[int]] = {partition: [] for partition in "0123"}
        shared, stop = asyncio.Event(), asyncio.Event()

        async def work(name):
            async def assigned(partitions):
                assert not owners.keys() & set(partitions)
                owners.update(dict.fromkeys(partitions, name))
                if len(set(owners.values())) == 2 and len(owners) == 4:
                    shared.set()

            def revoked(partitions):
                for partition in partitions:
                    assert owners.pop(partition) == name

            options = {"stop": stop, "on_assigned": assigned, "on_revoked": revoked, "session_seconds": 3600}
            async with aclosing(queue.subscribe(GROUP, name, batch=3, **options)) as deliveries:
                async for delivery in deliveries:
                    assert owners[delivery.partition] == name
                    seen[delivery.partition].append(int(delivery.payload))
                    if sum(map(len, seen.values())) == 80:
                        stop.set()

        workers = [asyncio.create_task(work("one"))]
        await queue.push_many(messages(40))
        workers.append(asyncio.create_task(work("two")))
        await shared.wait()
        await queue.push_many([Message(payload=str(n).encode(), partition=n % 4) for n in range(40, 80)])
        await asyncio.gather(*workers)

        assert seen == {str(p): list(range(p, 80, 4)) for p in range(4)}
        assert await queue.members(GROUP) == []
        assert (await queue.stats()).groups[GROUP].acked == 80


@on_a_loop
async def test_a_zombie_task_is_fenced_and_joins_again(opened):
    async with opened as ps:
        queue = await ps.create_queue("orders", partitions=2)
        await queue.create_group(GROUP)
        await queue.push(b"a", partition=0)
        async with aclosing(queue.subscribe(GROUP, "one")) as deliveries:
            first = await anext(deliveries)
            (one,) = await queue.members(GROUP)
            heir = await ps._session.execute(ops.Join("orders", GROUP, one.member, 10))
            with pytest.raises(LeaseLost):
                await first.ack()
            await ps._session.execute(ops.Leave("orders", GROUP, one.member, heir.generation))
            again = await anext(deliveries)
            assert (again.id, again.attempt) == (first.id, 1)
            await again.ack()
        assert (await queue.stats()).groups[GROUP].acked == 1


@on_a_loop
async def test_a_task_whose_subscription_shall_survive_goes_on(opened, monkeypatch):
    monkeypatch.setattr(consumer, "RETURN_CHECK_SECONDS", 0.01)
    monkeypatch.setattr(async_consumer, "RETURN_CHECK_SECONDS", 0.01)
    async with opened as ps:
        queue = await ps.create_queue("orders")
        await queue.push(b"old")
        async with aclosing(queue.subscribe(GROUP, start="earliest", survives=True)) as deliveries:
            assert (await anext(deliveries)).payload == b"old"
            await ps.delete_queue("orders")
            following = asyncio.ensure_future(anext(deliveries))
            await asyncio.sleep(0)
            await (await ps.create_queue("orders")).push(b"new")
            assert (await following).payload == b"new"
        assert await queue.members(GROUP) == []


@on_a_loop
async def test_a_cancelled_task_leaves_the_group(opened):
    async with opened as ps:
        queue = await ps.create_queue("orders")
        await queue.create_group(GROUP)
        await queue.push_many([b"a", b"b"])
        begun = asyncio.Event()

        async def work():
            async with aclosing(queue.subscribe(GROUP)) as deliveries:
                async for _ in deliveries:
                    begun.set()
                    await asyncio.Event().wait()

        worker = asyncio.create_task(work())
        await begun.wait()
        worker.cancel()
        with pytest.raises(asyncio.CancelledError):
            await worker
        stats = (await queue.stats()).groups[GROUP]

        assert (stats.ready, stats.waiting, stats.leased) == (1, 1, 0)
        assert await queue.members(GROUP) == []
