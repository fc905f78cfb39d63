"""Looking at messages and handing them out, when there are many of them, of their partitions, or of those who wait."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from unittest.mock import patch

import msgspec

from bench.growth.cost import CONSTANT, LINEAR, Setting, Work, cost
from penstock import Message
from penstock import operations as ops
from penstock.delivery import dedup
from penstock.envelopes import tasks_batch
from penstock.errors import GroupNotFound
from penstock.model import to_datetime
from penstock.model_tasks import TaskSubmission
from penstock.requests import LeaseRequest
from tests.support.operations import run_operation


def _half_read(setting: Setting, partitions: int) -> None:
    """Partitions in a segment, each read up to its middle: when the oldest was pushed is in a column of the file."""
    queue = setting.ps.create_queue("mail", partitions="named")
    names = [f"p{number}" for number in range(partitions)]
    queue.push_many([Message(payload=b"x", partition=name) for name in names])
    setting.clock.advance(1)
    queue.push_many([Message(payload=b"x", partition=name) for name in names])
    setting.clock.advance(1)
    queue.push_many([Message(payload=b"x", partition=name) for name in names])
    queue.lease(partitions).ack()
    run_operation(setting.session, ops.Seal())


@cost("stats", "sealed partitions", (250, 1_000, 4_000), (60, 480), hold_exponent_max=1.15)
def stats_of_sealed(setting: Setting, partitions: int) -> Work:
    """The account of a queue."""
    _half_read(setting, partitions)
    return setting.ps.queue("mail").stats


@cost("seek to a time", "sealed partitions", (250, 1_000, 4_000), (60, 480), hold_exponent_max=1.15)
def seek_in_sealed(setting: Setting, partitions: int) -> Work:
    """A group moves to an instant within each segment."""
    began = setting.clock.now()
    _half_read(setting, partitions)
    moment = to_datetime(began + 500_000).isoformat()
    return lambda: run_operation(setting.session, ops.Seek("mail", "default", moment, None))


@cost("leases that run out", "of them, together", (5_000, 20_000, 80_000), (1_500, 6_000))
def end_leases(setting: Setting, leases: int) -> Work:
    """Single leases that run out together."""
    queue = setting.ps.create_queue("mail", lease_seconds=10.0)
    queue.push_many([b"x"] * leases)
    for _ in range(leases):
        queue.lease(1)
    setting.clock.advance(11)
    shard = setting.session.shard

    def work() -> None:
        while shard.core.leases:
            shard.look(lambda now: None)

    return work


@cost("expiry", "messages, together", (4_000, 16_000, 64_000), (1_500, 6_000))
def expire(setting: Setting, messages: int) -> Work:
    """Messages that expire together, each pushed on its own."""
    queue = setting.ps.create_queue("mail", ttl_seconds=10.0)
    for _ in range(messages):
        queue.push(b"x")
    return _until_settled(setting)


@cost("eviction", "messages, together", (4_000, 16_000, 60_000), (1_500, 6_000))
def evict(setting: Setting, messages: int) -> Work:
    """Messages that have waited too long, each pushed on its own."""
    queue = setting.ps.create_queue("mail", max_wait_seconds=10.0, max_wait_action="drop")
    for _ in range(messages):
        queue.push(b"x")
    return _until_settled(setting)


def _until_settled(setting: Setting) -> Work:
    setting.clock.advance(11)
    shard = setting.session.shard

    def work() -> None:
        while shard.core.by_name["mail"].groups[0].backlog:
            shard.look(lambda now: None)

    return work


@cost("messages that come due", "leases that wait", (1_280, 5_120, 20_480), (100, 1_600), exponent_max=CONSTANT)
def wake_for_due(setting: Setting, waiters: int) -> Work:
    """A delay and a retry end while many wait for a message."""
    queue = setting.ps.create_queue("mail")
    queue.push(b"x")
    queue.lease(1).nack(delay=10)
    queue.push(b"x", delay=10)
    setting.clock.advance(11)  # which tells everybody who waits by then
    woken: list[int] = []
    for number in range(waiters):
        setting.session.watch("mail", partial(woken.append, number))
    return lambda: setting.session.shard.look(lambda now: None)


@cost("creating two groups", "groups", (512, 2_048, 8_192), (50, 400), exponent_max=CONSTANT)
def create_groups(setting: Setting, groups: int) -> Work:
    """One more group, and the next call after it."""
    queue = setting.ps.create_queue("mail")
    for number in range(groups):
        queue.create_group(f"g{number}")
    queue.stats()

    def work() -> None:
        queue.create_group("one")
        queue.create_group("another")

    return work


@cost("a push that drops the oldest", "groups", (512, 2_048, 8_192), (50, 400), hold_exponent_max=LINEAR)
def drop_oldest(setting: Setting, groups: int) -> Work:
    """A push to a queue that is full for every one of its groups."""
    queue = setting.ps.create_queue("mail", max_length=10, overflow="drop_oldest")
    for number in range(groups):
        queue.create_group(f"g{number}")
    queue.push_many([b"x"] * 10)
    return lambda: queue.push(b"x")


@cost("redrive", "dead letters", (2_500, 10_000, 40_000), (1_500, 6_000))
def redrive(setting: Setting, letters: int) -> Work:
    """All dead letters go back to where they died."""
    queue = setting.ps.create_queue("mail")
    queue.push_many([b"x"] * letters)
    queue.lease(letters).reject()
    return queue.dlq.redrive


# about 200 are needed to make 10,000 partitions and 1,000 queues in one frame
@cost(
    "transaction that makes queues and partitions",
    "acks and twice as many pushes",
    (1_000, 4_000, 10_000),
    (200, 1_600),
    hold_exponent_max=LINEAR,
    hold_ms_max=400.0,
)
def transact(setting: Setting, operations: int) -> Work:
    """Acks, and pushes that make a partition or a queue each, in one frame."""
    queue = setting.ps.create_queue("mail")
    setting.ps.create_queue("out", partitions="named")
    queue.push_many([b"x"] * operations)
    deliveries = list(queue.lease(operations))

    def work() -> None:
        with setting.ps.transaction() as transaction:
            for number, delivery in enumerate(deliveries):
                transaction.ack(delivery)
                transaction.push("out", b"x", partition=f"p{number}", dedup_key=f"k{number}")
                transaction.push(f"queue{number % (operations // 10)}", b"x")

    return work


@cost(
    "transaction over queues that exist",
    "acks and twice as many pushes",
    (1_000, 4_000, 10_000),
    (200, 1_600),
    hold_exponent_max=LINEAR,
)
def transact_plain(setting: Setting, operations: int) -> Work:
    """Acks, and pushes to queues that exist, in one frame."""
    queue = setting.ps.create_queue("mail")
    setting.ps.create_queue("out")
    setting.ps.create_queue("spread", partitions=8)
    queue.push_many([b"x"] * operations)
    deliveries = list(queue.lease(operations))

    def work() -> None:
        with setting.ps.transaction() as transaction:
            for number, delivery in enumerate(deliveries):
                transaction.ack(delivery)
                transaction.push("out", b"x")
                transaction.push("spread", b"x", key=f"k{number}")

    return work


@cost("lease in partition order", "retries", (5_000, 20_000, 80_000), (500, 4_000), exponent_max=CONSTANT)
def lease_in_order(setting: Setting, retries: int) -> Work:
    """The next of many retries in partition order."""
    queue = setting.ps.create_queue("mail", ordering="partition")
    queue.push_many([b"x"] * retries)
    queue.lease(retries).nack(delay=0)
    return lambda: queue.lease(1)


@cost("a lease of a group that is not there", "groups", (512, 2_048, 8_192), (100, 800), exponent_max=CONSTANT)
def lease_misspelt(setting: Setting, groups: int) -> Work:
    """Leases of a group that is not there, beside many that are."""
    queue = setting.ps.create_queue("mail")
    for number in range(groups):
        queue.create_group(f"group-with-a-long-name-{number}")

    def work() -> None:
        for _ in range(3):
            with suppress(GroupNotFound):
                queue.lease(group="group-with-a-long-nime")

    return work


@cost(
    "lease by task type",
    "tasks of other types before it",
    (10_000, 40_000, 160_000),
    (2_000, 16_000),
    exponent_max=CONSTANT,
)
def lease_by_type(setting: Setting, others: int) -> Work:
    """One task that the worker can run, behind many that it has passed over before."""
    shard = setting.session.shard
    setting.ps.create_queue("mail")
    task = TaskSubmission(task_id="01890a5d-ac96-774b-bcce-b302099a8057", task_type="other", queue="mail")
    for _ in range(0, others, 1_000):
        shard.push("mail", tasks_batch([task] * 1_000))
    request = LeaseRequest(1, task_types=frozenset({"own"}))
    shard.lease("mail", "default", request)
    shard.push("mail", tasks_batch([msgspec.structs.replace(task, task_type="own")]))
    return lambda: shard.lease("mail", "default", request)


@cost("lease over several queues", "queues without work", (1_000, 4_000, 16_000), (200, 1_600), exponent_max=CONSTANT)
def lease_queues(setting: Setting, queues: int) -> Work:
    """Ten queues have a message each; all others are empty."""
    ps = setting.ps
    for number in range(queues):
        ps.create_queue(f"shop.{number}")
    ps.lease("shop.*", 1)
    for number in range(10):
        ps.queue(f"shop.{number}").push(b"x")
    return lambda: ps.lease("shop.*", 100)


BATCH = 1_000


def _push(setting: Setting, first: int, count: int) -> None:
    queue = setting.ps.queue("mail")
    for start in range(first, first + count, BATCH):
        end = min(start + BATCH, first + count)
        queue.push_many([Message(payload=b"", dedup_key=f"order-{number}") for number in range(start, end)])


@cost(
    "dedup: push 1,000 new keys",
    "keys known",
    (70_000, 280_000, 1_120_000),
    (1_000, 8_000),
    exponent_max=CONSTANT,
    repeats=1,
)
def push_beside(setting: Setting, known: int) -> Work:
    """A thousand new keys."""
    _push(setting, 0, known)
    return lambda: _push(setting, known, BATCH)


@cost(
    "dedup: push one new key",
    "keys known, in small runs",
    (1_000, 8_000, 64_000),
    (1_000, 16_000),
    exponent_max=CONSTANT,
)
def push_beside_runs(setting: Setting, known: int) -> Work:
    """One new key, beside as many runs as a checkpoint leaves, whatever the size of a run."""
    for name, number in (("HOT_MAX", 100), ("AT_ONCE_MAX", 200)):
        setting.stack.enter_context(patch.object(dedup, name, number))
    for first in range(0, known, 100):
        _push(setting, first, 100)
    setting.session.checkpoint()
    return lambda: _push(setting, known, 1)
