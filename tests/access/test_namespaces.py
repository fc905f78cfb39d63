"""Namespaces: what the queues of one prefix use together stays within its quotas, whichever way it comes."""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import Message
from penstock import operations as ops
from penstock.batch import Batch, encode_one
from penstock.client.handles import Penstock
from penstock.clock import ManualClock
from penstock.delivery.namespaces import Namespace
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.errors import GroupNotFound, PenstockError, QueueFull, RateLimited
from penstock.model_access import Quotas, Usage
from penstock.model_tasks import ScheduleSpec, TaskSubmission
from penstock.requests import LeaseRequest, PushOperation
from penstock.storage.staging import name_for
from penstock.telemetry.meter import Meter
from penstock.telemetry.metrics import Metrics
from tests.support.operations import run_operation
from tests.support.sinks import committed, staged

QUEUE = "team-a.orders"
LOAD = b"x" * 1_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def session(clock: ManualClock, tmp_path: Path):
    session = opened(tmp_path, clock)
    yield session
    session.close()


@pytest.fixture
def ps(session: Session) -> Penstock:
    return Penstock(BlockingSession(session))


def opened(path: Path, clock: ManualClock) -> Session:
    return Session(path, durability="os", clock=clock, rng=random.Random(1), background=False)


def declare(session: Session, name: str = "team-a", **quotas: float) -> None:
    session.access.set_namespace(name, Quotas(**quotas))  # type: ignore[arg-type]


def namespace(session: Session, name: str = "team-a") -> Namespace:
    namespaces = session.shard.core.namespaces
    assert namespaces is not None
    return namespaces.by_name[name]


def used(session: Session, name: str = "team-a") -> int:
    """Bytes, as they are counted; the same as what a count from the beginning finds."""
    kept = namespace(session, name)
    queues = [queue for queue in session.shard.core.queues.values() if queue.name.startswith(f"{name}.")]
    held = sum(len(task.batch) for task in session.shard.core.tasks.held.values())
    assert kept.bytes == held + sum(part.stored_bytes() for queue in queues for part in queue.partitions)
    return kept.bytes


def messages(session: Session) -> int:
    return sum(queue.messages() for queue in session.shard.core.queues.values() if not queue.is_dlq)


# Ways in. Each is prepared while nothing is declared, and pushes one message of `LOAD`, or so.

Way = Callable[[], object]


def _one(session: Session, clock: ManualClock) -> Way:
    return lambda: session.push_one(QUEUE, encode_one(LOAD))


def _many(session: Session, clock: ManualClock) -> Way:
    return lambda: session.push(QUEUE, Batch.build([LOAD]), None, None)


def _folded(session: Session, clock: ManualClock) -> Way:
    return lambda: session.shard.push_folded(QUEUE, [LOAD], [None])


def _transaction(session: Session, clock: ManualClock) -> Way:
    batch = Batch.build([LOAD])
    return lambda: session.transact([PushOperation("elsewhere", batch, None), PushOperation(QUEUE, batch, None)])


def _task(session: Session, clock: ManualClock) -> Way:
    return lambda: run_operation(session, ops.SubmitTasks([task()]))


def _waiting_task(session: Session, clock: ManualClock) -> Way:
    parent = task(queue="elsewhere")
    run_operation(session, ops.SubmitTasks([parent]))
    return lambda: run_operation(session, ops.SubmitTasks([task(depends_on=(parent.task_id,))]))


def _sink(session: Session, clock: ManualClock) -> Way:
    run_operation(session, ops.CreateQueue(QUEUE, {}, exist_ok=True))
    names = staged(session, [LOAD], queue=QUEUE)
    return lambda: committed(session, 0, names, queue=QUEUE)


def _replaced_letter(session: Session, clock: ManualClock) -> Way:
    ps = Penstock(BlockingSession(session))
    ps.queue(QUEUE).push(b"")
    ps.queue(QUEUE).lease()[0].reject("no")
    (letter,) = ps.queue(QUEUE).dlq.list()
    assert letter.id is not None
    replace = ops.ReplaceLetters(QUEUE, [letter.id], bytes(Batch.build([LOAD]).data))
    return lambda: run_operation(session, replace)


WAYS = (_one, _many, _folded, _transaction, _task, _waiting_task, _sink, _replaced_letter)
MAKING = (_one, _many, _folded, _transaction, _task)  # of these, those that make a queue which is not there


def task(queue: str = QUEUE, **fields: Any) -> TaskSubmission:
    return TaskSubmission(
        task_id=str(uuid.uuid4()), task_type="t", queue=queue, args=b'["%b"]' % LOAD, is_named=True, **fields
    )


def frames(session: Session) -> int:
    return session.shard.journal.sequence


@pytest.mark.parametrize("way", WAYS)
def test_a_push_over_the_bytes_is_refused_whichever_way_it_comes_and_stores_nothing(way, session, clock):
    push = way(session, clock)
    session.push_one(QUEUE, encode_one(b"first"))
    declare(session)
    before = used(session), messages(session), frames(session)
    declare(session, bytes=before[0] + len(LOAD))  # a message is more than its payload

    with pytest.raises(QueueFull, match=r"'team-a'.*quota 'bytes'") as refusal:
        push()

    assert "penstock namespace create" in (refusal.value.hint or "")
    assert (used(session), messages(session), frames(session)) == before
    declare(session, bytes=before[0] + 3 * len(LOAD))
    push()
    assert used(session) > before[0] + len(LOAD)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("quota", "rate"), [("messages_rate", 1), ("bytes_rate", 3_000)])
def test_a_push_over_a_rate_is_refused_whichever_way_it_comes_until_the_bucket_has_recovered(
    way, quota, rate, session, clock
):
    push = way(session, clock)
    declare(session, **{quota: rate})
    session.push_one(QUEUE, encode_one(b"x" * 2_900))
    before = used(session), messages(session), frames(session)

    with pytest.raises(RateLimited, match=f"'team-a'.*quota '{quota}'") as refusal:
        push()

    assert (used(session), messages(session), frames(session)) == before
    assert 0 < refusal.value.retry_after_seconds <= 1
    clock.advance(refusal.value.retry_after_seconds)
    push()


@pytest.mark.parametrize("way", MAKING)
def test_a_queue_over_the_quota_is_not_made_by_a_push_whichever_way_it_comes(way, session, clock):
    push = way(session, clock)
    session.push_one("team-a.other", encode_one(b""))
    declare(session, queues=1)
    before = set(session.shard.core.by_name), frames(session)

    with pytest.raises(QueueFull, match="has 1 of 1 queues and needs 1 more: quota 'queues'"):
        push()

    assert (set(session.shard.core.by_name), frames(session)) == before
    declare(session, queues=2)
    push()
    assert QUEUE in session.shard.core.by_name


def test_a_queue_over_the_quota_is_not_created(session, ps):
    declare(session, queues=1)
    ps.create_queue("team-a.one")
    ps.create_queue("team-a.one", exist_ok=True)

    with pytest.raises(QueueFull, match="quota 'queues'"):
        ps.create_queue("team-a.two")

    assert ps.queues() == ["team-a.one"]
    ps.delete_queue("team-a.one")
    ps.create_queue("team-a.two")


def test_all_queues_that_a_transaction_makes_are_counted_together(session):
    declare(session, queues=1)
    batch = Batch.build([b""])

    with pytest.raises(QueueFull, match="needs 2 more"):
        session.transact([PushOperation("team-a.one", batch, None), PushOperation("team-a.two", batch, None)])

    assert not session.shard.core.by_name


def test_all_pushes_of_a_transaction_are_counted_together(session):
    session.push_one(QUEUE, encode_one(b""))
    declare(session)
    batch = Batch.build([LOAD])
    one = batch.nbytes
    declare(session, bytes=used(session) + 2 * one - 1)

    with pytest.raises(QueueFull, match=f"needs {2 * one:,} more"):
        session.transact([PushOperation("team-a.one", batch, None), PushOperation("team-a.two", batch, None)])


@pytest.mark.parametrize("way", ["create", "lease", "join"])
def test_a_group_over_the_quota_is_not_made_and_those_that_are_there_go_on(way, session, ps):
    queue = ps.create_queue(QUEUE)
    queue.push(b"1")
    declare(session, groups=1)
    queue.create_group("first")
    ways: dict[str, Way] = {
        "create": lambda: queue.create_group("second"),
        "lease": lambda: session.lease(QUEUE, "second", LeaseRequest(1, start="earliest")),
        "join": lambda: run_operation(session, ops.Join(QUEUE, "second", "m", 10, "earliest")),
    }

    with pytest.raises(QueueFull, match="has 1 of 1 groups and needs 1 more: quota 'groups'"):
        ways[way]()

    assert set(queue.groups()) == {"default", "first"}
    with pytest.raises(GroupNotFound):
        session.lease(QUEUE, "second", LeaseRequest(1))
    assert len(queue.lease(group="first")) == 1
    queue.delete_group("first")
    ways[way]()


def test_a_schedule_over_a_quota_passes_its_tick_over_and_the_next_one_runs(session, clock, caplog):
    spec = ScheduleSpec(name="s", cron="* * * * *", task_type="t", queue=QUEUE, args=b'["%b"]' % LOAD)
    run_operation(session, ops.SetSchedule(spec))
    declare(session, queues=0)
    clock.advance(60)
    session.timekeeper.tick()

    assert QUEUE not in session.shard.core.by_name
    assert "quota 'queues'" in caplog.text
    declare(session, queues=1)
    clock.advance(60)
    session.timekeeper.tick()
    assert messages(session) == 1
    declare(session, bytes=used(session))
    clock.advance(60)
    session.timekeeper.tick()
    assert messages(session) == 1
    assert "quota 'bytes'" in caplog.text


def test_the_last_byte_fits_and_one_more_does_not(session):
    session.push_one(QUEUE, encode_one(b""))
    declare(session)
    one = len(encode_one(LOAD))
    declare(session, bytes=used(session) + one)

    session.push_one(QUEUE, encode_one(LOAD))

    assert used(session) == namespace(session).quotas.bytes
    with pytest.raises(QueueFull):
        session.push_one(QUEUE, encode_one(b""))


def test_a_compressed_batch_counts_as_what_is_in_it(session):
    declare(session, bytes=50_000)

    with pytest.raises(QueueFull):
        session.push(QUEUE, Batch.build([b"x" * 100_000], compress=True), None, None)


def test_headers_and_keys_count_as_stored_bytes_before_and_after_sealing(session, ps):
    declare(session)
    ps.queue(QUEUE).push_many([Message(payload=b"", key="k" * 100, headers={"h": "v" * 900})] * 10)
    before = used(session)
    assert before >= 10_000

    ps.seal()

    assert 10_000 <= used(session) <= before


def test_bytes_are_free_again_when_messages_are_acknowledged_and_retention_removes_them(session, ps, clock):
    queue = ps.create_queue(QUEUE, retention_seconds=10)
    declare(session)
    queue.push(LOAD)
    declare(session, bytes=used(session))
    with pytest.raises(QueueFull):
        queue.push(LOAD)
    (delivery,) = queue.lease()
    delivery.ack()
    ps.seal()
    clock.advance(11)
    session.keeper.tick()

    assert used(session) == 0
    queue.push(LOAD)


def test_bytes_of_messages_that_are_trimmed_one_by_one_are_free(session, ps):
    queue = ps.create_queue(QUEUE, retention_messages=3)
    declare(session)
    queue.push_many([LOAD] * 10)
    for delivery in queue.lease(10):
        delivery.ack()
    ps.seal()
    session.keeper.tick()

    assert queue.stats().messages == 3
    assert used(session) == 3_000


def test_a_queue_that_is_deleted_frees_what_it_held_and_its_dead_letters(session, ps):
    declare(session)
    queue = ps.queue(QUEUE)
    queue.push_many([LOAD] * 3)
    queue.lease()[0].reject("no")
    queue.create_group("g")
    assert used(session) > 4_000

    ps.delete_queue(QUEUE)

    assert used(session) == 0
    assert (namespace(session).queue_count, namespace(session).group_count) == (0, 0)


def test_settling_leasing_and_dead_letters_are_never_refused(session, ps):
    queue = ps.queue(QUEUE)
    queue.push_many([LOAD] * 4)
    declare(session, queues=0, groups=0, bytes=0, messages_rate=0.001, bytes_rate=0.001)

    first, second, third, fourth = queue.lease(4)
    first.ack()
    second.reject("no")  # makes the dead-letter queue
    third.reject("no")
    fourth.nack()

    assert len(queue.dlq.list()) == 2
    assert queue.dlq.redrive() == 2
    assert len(queue.peek(4)) == 3
    with pytest.raises(QueueFull):
        queue.push(b"")


def test_a_task_that_waited_for_another_is_released_however_full_the_namespace_is(session, ps):
    parent, child = task(queue="elsewhere"), task()
    child = task(depends_on=(parent.task_id,))
    declare(session)
    run_operation(session, ops.SubmitTasks([parent, child]))
    held = used(session)
    assert held > len(LOAD)
    declare(session, bytes=0)

    ps.queue("elsewhere").lease()[0].ack()
    session.timekeeper.tick()

    assert session.shard.core.by_name[QUEUE].messages() == 1
    assert used(session) >= held


def test_a_full_namespace_does_not_touch_another_nor_queues_outside(session, ps):
    declare(session, bytes=0, queues=0, messages_rate=0.001)
    declare(session, name="team-b", queues=1)

    for name in ("team-b.orders", "team-a", "team-abc.orders", "other"):
        ps.queue(name).push(LOAD)
    with pytest.raises(QueueFull):
        ps.queue("team-a.orders").push(LOAD)
    with pytest.raises(QueueFull):
        ps.queue("team-b.second").push(LOAD)


def test_a_quota_that_is_lowered_refuses_only_what_is_new_and_one_that_is_raised_counts_at_once(session, ps):
    queue = ps.queue(QUEUE)
    queue.push_many([LOAD] * 5)
    queue.create_group("g")
    declare(session, bytes=1, queues=0, groups=0)

    with pytest.raises(QueueFull):
        queue.push(b"")
    assert len(queue.lease(5)) == 5
    assert len(queue.lease(5, group="g")) == 5
    ps.update_queue(QUEUE, max_attempts=9)
    declare(session, bytes=100_000)
    queue.push(b"")
    session.access.delete_namespace("team-a")
    queue.push_many([LOAD] * 500)
    assert session.shard.core.by_name[QUEUE].plain


def test_quotas_and_what_is_used_survive_a_restart(session, ps, clock, tmp_path):
    declare(session)
    ps.queue(QUEUE).push_many([LOAD] * 5)
    ps.queue(QUEUE).create_group("g")
    run_operation(session, ops.SubmitTasks([parent := task(queue="elsewhere"), task(depends_on=(parent.task_id,))]))
    before = used(session)
    declare(session, bytes=before)
    session.close()

    again = opened(tmp_path, clock)

    assert used(again) <= before  # it may have been sealed
    assert used(again) >= 6_000
    assert (namespace(again).queue_count, namespace(again).group_count) == (1, 1)
    declare(again, bytes=used(again))
    with pytest.raises(QueueFull):
        again.push_one(QUEUE, encode_one(b""))
    again.close()


def test_a_push_larger_than_a_second_of_the_rate_is_taken_by_a_full_bucket_and_paid_for_afterwards(session, clock):
    declare(session, messages_rate=10)

    session.push(QUEUE, Batch.build([b""] * 30), None, None)

    with pytest.raises(RateLimited) as refusal:
        session.push_one(QUEUE, encode_one(b""))
    assert refusal.value.retry_after_seconds == pytest.approx(2.1)
    clock.advance(2.1)
    session.push_one(QUEUE, encode_one(b""))


def test_duplicates_and_refused_pushes_cost_nothing_of_a_rate(session, clock):
    declare(session, messages_rate=2)
    batch = Batch.build([Message(payload=b"", dedup_key="a")])
    for _ in range(5):
        session.push(QUEUE, batch, None, None)
    session.push_one(QUEUE, encode_one(b""))

    for _ in range(5):
        with pytest.raises(RateLimited) as refusal:
            session.push_one(QUEUE, encode_one(b""))
        assert refusal.value.retry_after_seconds == 0.5


def test_a_batch_over_several_partitions_counts_once(session, ps):
    ps.create_queue(QUEUE, partitions=4)
    declare(session)
    batch = Batch.build([Message(payload=LOAD, key=str(n)) for n in range(40)])
    session.push(QUEUE, batch, None, None)

    assert batch.nbytes - 4 <= used(session) <= batch.nbytes
    ps.seal()
    assert used(session) == 40 * len(LOAD) + sum(len(str(n)) for n in range(40))


def test_pushes_at_once_never_exceed_the_bytes(session):
    session.push_one(QUEUE, encode_one(b""))
    declare(session)
    room = 20 * len(encode_one(LOAD))
    declare(session, bytes=used(session) + room)
    start = threading.Barrier(64)
    refusals: list[PenstockError] = []

    def push() -> None:
        start.wait()
        try:
            session.push_one(QUEUE, encode_one(LOAD))
        except QueueFull as error:
            refusals.append(error)

    threads = [threading.Thread(target=push) for _ in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(refusals) == 44
    assert used(session) == namespace(session).quotas.bytes


@pytest.mark.parametrize("restarted", [False, True])
def test_staged_bytes_over_the_quota_are_refused_until_some_are_gone(restarted, session, clock, tmp_path):
    run_operation(session, ops.CreateQueue(QUEUE, {}))
    run_operation(session, ops.CreateQueue("team-b.orders", {}))
    declare(session)
    declare(session, name="team-b")
    names = staged(session, [LOAD], [LOAD], queue=QUEUE)
    total = session.usage()["team-a"].staged_bytes
    assert total > 2 * len(LOAD)
    assert session.usage()["team-b"].staged_bytes == 0
    declare(session, staged_bytes=total)
    if restarted:
        session.close()
        session = opened(tmp_path, clock)

    with pytest.raises(QueueFull, match=f"'team-a' has {total:,} of {total:,} staged bytes.*quota 'staged_bytes'"):
        staged(session, [b""], queue=QUEUE)

    assert session.usage()["team-a"].staged_bytes == total
    staged(session, [LOAD], queue="team-b.orders")
    run_operation(session, ops.DiscardStaged(QUEUE, [names[0]]))
    staged(session, [b""], queue=QUEUE)
    committed(session, 0, names[1:], queue=QUEUE)
    assert session.usage()["team-a"].staged_bytes < len(LOAD)
    session.close()


def test_the_same_bytes_staged_again_take_nothing_of_the_quota(session):
    run_operation(session, ops.CreateQueue(QUEUE, {}))
    declare(session, staged_bytes=1_000)
    name = name_for(QUEUE, "s", 0, session.clock.now(), bytes(10))
    for _ in range(3):
        run_operation(session, ops.Stage(QUEUE, name, 0, b"x" * 1_000))

    with pytest.raises(QueueFull):
        run_operation(session, ops.Stage(QUEUE, name, 1_000, b"x"))


def test_usage_is_shown_beside_the_quotas(session, ps):
    declare(session, bytes=1 << 20, messages_rate=10)
    declare(session, name="team-b")
    ps.queue(QUEUE).push_many([LOAD] * 4)
    ps.queue(QUEUE).create_group("g")

    first, second = ps.access.namespaces()

    assert (first.name, first.quotas.bytes, first.usage.bytes) == ("team-a", 1 << 20, used(session))
    assert (first.usage.queues, first.usage.groups, first.usage.messages_rate) == (1, 1, 4)
    assert first.usage.bytes_rate is None
    assert second.usage == Usage()


def test_metrics_show_usage_and_limits(session, ps):
    declare(session, queues=7, messages_rate=10)
    ps.queue(QUEUE).push(LOAD)
    text = "".join(Metrics(session, Meter()).families())

    assert 'penstock_namespace_usage{namespace="team-a",quota="queues"} 1' in text
    assert f'penstock_namespace_usage{{namespace="team-a",quota="bytes"}} {used(session)}' in text
    assert 'penstock_namespace_usage{namespace="team-a",quota="messages_rate"} 1' in text
    assert 'penstock_namespace_limit{namespace="team-a",quota="queues"} 7' in text
    assert 'penstock_namespace_limit{namespace="team-a",quota="bytes"}' not in text


def test_where_no_namespace_is_declared_queues_take_the_short_path_and_nothing_is_counted(session):
    session.push_one(QUEUE, encode_one(LOAD))

    queue = session.shard.core.by_name[QUEUE]
    assert session.shard.core.namespaces is None
    assert queue.plain
    assert queue.stored_bytes == 0
